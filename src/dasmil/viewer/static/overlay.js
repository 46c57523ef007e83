// Draws the instances over the picture. Zoomed out, a bitmap made once is scaled; zoomed in, only visible instances are drawn.

const BITMAP_SIDE = 2048;
const LINE = "#000000", CASING = "rgba(255, 255, 255, .85)";
const DRAWN_SINGLY = 3000; // instances; up to here no bitmap is needed

/**
 * Lower and upper edge of every mark along one axis. Edges less than a hundredth of a mark apart become one: where tiles touch,
 * both would otherwise be rounded to pixels by themselves, and leave a seam where they fall to different sides.
 */
function edges(centre, side) {
  const n = centre.length;
  const all = new Float64Array(2 * n);
  for (let i = 0; i < n; i++) { all[i] = centre[i] - side / 2; all[n + i] = centre[i] + side / 2; }
  const kept = [];
  let last = -Infinity;
  for (const v of all.slice().sort()) if (v - last > side / 100) { kept.push(v); last = v; }
  for (let k = 0; k < all.length; k++) {
    let low = 0, high = kept.length; // kept[low] <= all[k] < kept[high]
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (kept[middle] <= all[k]) low = middle; else high = middle;
    }
    all[k] = kept[low];
  }
  return { lower: all.subarray(0, n), upper: all.subarray(n) };
}

export class Overlay {
  constructor(canvas, project) {
    this.canvas = canvas;
    this.project = project; // () => {x0, y0, scale}: screen = x0 + scale * picture pixel
    this.bag = null;
  }

  /** bag: {x, y (picture pixels), side, round, width, height}. */
  setBag(bag) {
    this.bag = bag;
    this.bitmap = null;
    this.level = null;
    this.next = null;
    if (!bag) return;
    this.across = edges(bag.x, bag.side);
    this.down = edges(bag.y, bag.side);
    // A grid of buckets, as one list of instances ordered by bucket: start[k] .. start[k + 1] are those of bucket k.
    const cell = Math.max(bag.side, Math.max(bag.width, bag.height) / 256);
    this.cell = cell;
    this.columns = Math.max(1, Math.ceil(bag.width / cell));
    this.rows = Math.max(1, Math.ceil(bag.height / cell));
    const within = (v, count) => Math.min(count - 1, Math.max(0, Math.floor(v / cell)));
    const key = Int32Array.from(bag.x, (x, i) => within(bag.y[i], this.rows) * this.columns + within(x, this.columns));
    this.start = new Int32Array(this.columns * this.rows + 1);
    for (const k of key) this.start[k + 1]++;
    for (let k = 0; k < this.start.length - 1; k++) this.start[k + 1] += this.start[k];
    this.members = new Int32Array(key.length);
    const free = this.start.slice();
    key.forEach((k, i) => { this.members[free[k]++] = i; });
  }

  /**
   * level: for every instance its place in the palette (-1: hidden); palette: [r, g, b] or [r, g, b, opacity] of each place;
   * smooth: a picture of the whole map to draw instead of the instances.
   */
  setColours(level, palette, smooth) {
    this.level = level;
    this.smooth = smooth ?? null;
    this.styles = palette.map(([r, g, b, a = 255]) => `rgba(${r},${g},${b},${a / 255})`);
    this.bitmap = this.bag.x.length > DRAWN_SINGLY ? this.paintBitmap(palette) : null;
  }

  /** All instances as one picture, pixels written directly: a hundred thousand marks take milliseconds. */
  paintBitmap(palette) {
    const { bag, level, across, down } = this;
    const factor = BITMAP_SIDE / Math.max(bag.width, bag.height);
    const width = Math.max(1, Math.round(bag.width * factor));
    const height = Math.max(1, Math.round(bag.height * factor));
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const packed = palette.map(([r, g, b, a = 255]) => ((a << 24) | (b << 16) | (g << 8) | r) >>> 0);
    const half = (bag.side * factor) / 2;
    const disc = bag.round && half > 1.25;
    for (let i = 0; i < level.length; i++) {
      if (level[i] < 0) continue;
      const x = bag.x[i] * factor, y = bag.y[i] * factor;
      const top = Math.round(down.lower[i] * factor); // both edges are rounded: tiles that touch on the slide touch here
      const bottom = Math.max(top + 1, Math.round(down.upper[i] * factor));
      let left = Math.round(across.lower[i] * factor);
      let right = Math.max(left + 1, Math.round(across.upper[i] * factor));
      for (let row = Math.max(0, top); row < Math.min(height, bottom); row++) {
        if (disc) {
          const reach = Math.sqrt(Math.max(0, half * half - (row + 0.5 - y) ** 2));
          left = Math.round(x - reach);
          right = Math.round(x + reach);
        }
        pixels.fill(packed[level[i]], row * width + Math.max(0, left), row * width + Math.min(width, Math.max(0, right)));
      }
    }
    const bitmap = document.createElement("canvas");
    bitmap.width = width;
    bitmap.height = height;
    bitmap.getContext("2d").putImageData(image, 0, 0);
    this.factor = factor;
    return bitmap;
  }

  /** Draws the visible instances one by one, colour by colour: changing the colour is what costs. */
  drawMarks(context, x0, y0, scale, width, height, ratio) {
    const { bag, level, styles, across, down } = this;
    const side = Math.max(2, bag.side * scale);
    const snap = (v) => Math.round(v * ratio) / ratio;
    const first = new Int32Array(styles.length).fill(-1);
    this.next ??= new Int32Array(bag.x.length);
    this.inBox(-x0 / scale, -y0 / scale, (width - x0) / scale, (height - y0) / scale, (i) => {
      if (level[i] < 0) return;
      this.next[i] = first[level[i]];
      first[level[i]] = i;
    });
    for (let k = 0; k < styles.length; k++) {
      context.fillStyle = styles[k];
      for (let i = first[k]; i >= 0; i = this.next[i]) {
        if (bag.round && side > 2.5) {
          context.beginPath();
          context.arc(x0 + bag.x[i] * scale, y0 + bag.y[i] * scale, side / 2, 0, 7);
          context.fill();
        } else {
          // Both edges on whole pixels: no seams between tiles that touch.
          const left = snap(x0 + across.lower[i] * scale), top = snap(y0 + down.lower[i] * scale);
          context.fillRect(left, top, Math.max(2, snap(x0 + across.upper[i] * scale) - left), Math.max(2, snap(y0 + down.upper[i] * scale) - top));
        }
      }
    }
  }

  /** Calls `visit` for every instance that may touch the box, in picture pixels. */
  inBox(left, top, right, bottom, visit) {
    const { cell, columns, rows, start, members } = this;
    const margin = this.bag.side;
    const at = (v, count) => Math.min(count - 1, Math.max(0, Math.floor(v / cell)));
    const lastRow = at(bottom + margin, rows), firstColumn = at(left - margin, columns), lastColumn = at(right + margin, columns);
    for (let row = at(top - margin, rows); row <= lastRow; row++) {
      // The buckets of one row of the grid lie side by side.
      const end = start[row * columns + lastColumn + 1];
      for (let k = start[row * columns + firstColumn]; k < end; k++) visit(members[k]);
    }
  }

  /** Nearest instance whose mark contains the picture point, or -1. */
  hit(px, py) {
    if (!this.bag) return -1;
    const { scale } = this.project();
    const reach = Math.max(this.bag.side / 2, 6 / scale);
    let best = -1;
    let bestDistance = Infinity;
    this.inBox(px - reach, py - reach, px + reach, py + reach, (i) => {
      const dx = Math.abs(this.bag.x[i] - px);
      const dy = Math.abs(this.bag.y[i] - py);
      if (dx <= reach && dy <= reach && dx + dy < bestDistance) { best = i; bestDistance = dx + dy; }
    });
    return best;
  }

  /** lines: [{i, j, weight, text}], strongest first; above: draws what lies on top, (context, width, height). */
  draw({ opacity, selected, lines, theme, above = null }) {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    if (!this.bag || !this.level) return;
    const { x0, y0, scale } = this.project();
    const { bag } = this;
    context.globalAlpha = opacity;
    if (this.smooth) {
      context.imageSmoothingEnabled = true;
      context.imageSmoothingQuality = "high";
      context.drawImage(this.smooth, x0, y0, bag.width * scale, bag.height * scale);
    } else if (this.bitmap && scale < this.factor) {
      context.imageSmoothingEnabled = !bag.round && scale < this.factor / 2;
      context.drawImage(this.bitmap, x0, y0, bag.width * scale, bag.height * scale);
    } else {
      this.drawMarks(context, x0, y0, scale, width, height, ratio);
    }
    context.globalAlpha = 1;
    const at = (i) => [x0 + bag.x[i] * scale, y0 + bag.y[i] * scale];
    this.drawLines(context, lines, at);
    const side = Math.max(8, bag.side * scale);
    const ends = new Set(lines.flatMap((line) => [line.i, line.j]));
    ends.delete(selected);
    for (const index of [...ends, ...(selected >= 0 ? [selected] : [])]) {
      const [x, y] = at(index);
      const wide = index === selected ? 3 : 1.5;
      for (const [colour, extra] of [[CASING, 2], [LINE, 0]]) {
        context.strokeStyle = colour;
        context.lineWidth = wide + extra;
        context.strokeRect(x - side / 2, y - side / 2, side, side);
      }
    }
    this.drawLengths(context, lines, at, theme);
    above?.(context, width, height);
  }

  /** Black in a light casing, on any ground. */
  drawLines(context, lines, at) {
    const strongest = Math.max(1e-12, ...lines.map((line) => line.weight));
    for (const [colour, extra] of [[CASING, 2], [LINE, 0]]) {
      context.strokeStyle = colour;
      for (const { i, j, weight } of lines) {
        context.lineWidth = 0.8 + 2.4 * (weight / strongest) + extra;
        context.beginPath();
        context.moveTo(...at(i));
        context.lineTo(...at(j));
        context.stroke();
      }
    }
  }

  /** Lengths are written where they do not cover one another, and not on lines that are too short for them. */
  drawLengths(context, lines, at, theme) {
    context.font = "12px system-ui, sans-serif";
    const taken = [];
    for (const { i, j, text } of lines) {
      const [sx, sy] = at(i);
      const [x, y] = at(j);
      if (Math.hypot(x - sx, y - sy) < 60) continue;
      const w = context.measureText(text).width + 6;
      const spots = [0.5, 0.62, 0.38, 0.74].map((f) => [sx + f * (x - sx) - w / 2, sy + f * (y - sy) - 9]);
      const spot = spots.find(([l, t]) => taken.every(([a, b, c]) => l + w < a || a + c < l || Math.abs(t - b) > 18));
      if (!spot) continue;
      taken.push([...spot, w]);
      context.globalAlpha = 0.9;
      context.fillStyle = theme.ground;
      context.fillRect(spot[0], spot[1], w, 17);
      context.globalAlpha = 1;
      context.fillStyle = theme.ink;
      context.fillText(text, spot[0] + 3, spot[1] + 13);
    }
  }
}
