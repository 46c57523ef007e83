// Draws the instances over the picture. Zoomed out, a bitmap made once is scaled; zoomed in, only visible instances are drawn.

const BITMAP_SIDE = 2048;
const DRAWN_SINGLY = 3000; // instances; up to here no bitmap is needed

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

  /** level: for every instance its place in the palette (-1: hidden); palette: [r, g, b] of each place. */
  setColours(level, palette) {
    this.level = level;
    this.styles = palette.map(([r, g, b]) => `rgb(${r},${g},${b})`);
    this.bitmap = this.bag.x.length > DRAWN_SINGLY ? this.paintBitmap(palette) : null;
  }

  /** All instances as one picture, pixels written directly: a hundred thousand marks take milliseconds. */
  paintBitmap(palette) {
    const { bag, level } = this;
    const factor = BITMAP_SIDE / Math.max(bag.width, bag.height);
    const width = Math.max(1, Math.round(bag.width * factor));
    const height = Math.max(1, Math.round(bag.height * factor));
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const packed = palette.map(([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
    const half = (bag.side * factor) / 2;
    const disc = bag.round && half > 1.25;
    for (let i = 0; i < level.length; i++) {
      if (level[i] < 0) continue;
      const x = bag.x[i] * factor, y = bag.y[i] * factor;
      const top = Math.round(y - half); // both edges are rounded: tiles that touch on the slide touch here
      const bottom = Math.max(top + 1, Math.round(y + half));
      for (let row = Math.max(0, top); row < Math.min(height, bottom); row++) {
        const reach = disc ? Math.sqrt(Math.max(0, half * half - (row + 0.5 - y) ** 2)) : half;
        const left = Math.round(x - reach);
        const right = Math.max(left + (disc ? 0 : 1), Math.round(x + reach));
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
  drawMarks(context, x0, y0, scale, width, height) {
    const { bag, level, styles } = this;
    const side = Math.max(2, bag.side * scale);
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
        const x = x0 + bag.x[i] * scale, y = y0 + bag.y[i] * scale;
        if (bag.round && side > 2.5) {
          context.beginPath();
          context.arc(x, y, side / 2, 0, 7);
          context.fill();
        } else {
          context.fillRect(x - side / 2, y - side / 2, side, side);
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

  draw({ opacity, selected, partners, lines, theme }) {
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
    if (this.bitmap && scale < this.factor) {
      context.imageSmoothingEnabled = !bag.round && scale < this.factor / 2;
      context.drawImage(this.bitmap, x0, y0, bag.width * scale, bag.height * scale);
    } else {
      this.drawMarks(context, x0, y0, scale, width, height);
    }
    context.globalAlpha = 1;
    if (selected >= 0) this.drawSelection(context, { x0, y0, scale, selected, partners, lines, theme });
  }

  drawSelection(context, { x0, y0, scale, selected, partners, lines, theme }) {
    const { bag } = this;
    const at = (i) => [x0 + bag.x[i] * scale, y0 + bag.y[i] * scale];
    const [sx, sy] = at(selected);
    const strongest = Math.max(1e-12, ...partners.map((p) => Math.abs(p.weight)));
    context.font = "12px system-ui, sans-serif";
    if (lines) {
      partners.forEach((partner, order) => {
        if (partner.index === selected) return;
        const [x, y] = at(partner.index);
        context.strokeStyle = theme.accent;
        context.lineWidth = 1 + 3 * (Math.abs(partner.weight) / strongest);
        context.beginPath();
        context.moveTo(sx, sy);
        context.lineTo(x, y);
        context.stroke();
        if (order < 5 && Math.hypot(x - sx, y - sy) > 40) {
          const text = partner.text;
          const half = context.measureText(text).width / 2;
          context.fillStyle = theme.ground;
          context.globalAlpha = 0.85;
          context.fillRect((sx + x) / 2 - half - 3, (sy + y) / 2 - 9, 2 * half + 6, 17);
          context.globalAlpha = 1;
          context.fillStyle = theme.ink;
          context.fillText(text, (sx + x) / 2 - half, (sy + y) / 2 + 4);
        }
      });
    }
    const side = Math.max(8, bag.side * scale);
    for (const [index, wide] of [...partners.map((p) => [p.index, 1.5]), [selected, 3]]) {
      const [x, y] = at(index);
      context.strokeStyle = theme.accent;
      context.lineWidth = wide;
      context.strokeRect(x - side / 2, y - side / 2, side, side);
    }
  }
}
