// Draws the instances over the picture. Zoomed out, a bitmap made once is scaled; zoomed in, only visible instances are drawn.

const BITMAP_SIDE = 2048;

export class Overlay {
  constructor(canvas, project) {
    this.canvas = canvas;
    this.project = project; // () => {x0, y0, scale}: screen = x0 + scale * picture pixel
    this.bag = null;
  }

  /** bag: {x, y (picture pixels), side, round}; colours: function index -> [r, g, b] or null when hidden. */
  setBag(bag) {
    this.bag = bag;
    this.bitmap = null;
    if (!bag) return;
    const cell = Math.max(bag.side, Math.max(bag.width, bag.height) / 256);
    this.cell = cell;
    this.columns = Math.max(1, Math.ceil(bag.width / cell));
    this.grid = new Map();
    for (let i = 0; i < bag.x.length; i++) {
      const key = Math.floor(bag.y[i] / cell) * this.columns + Math.floor(bag.x[i] / cell);
      const bucket = this.grid.get(key);
      if (bucket) bucket.push(i); else this.grid.set(key, [i]);
    }
  }

  setColours(colour) {
    this.colour = colour;
    const { bag } = this;
    const factor = BITMAP_SIDE / Math.max(bag.width, bag.height);
    const bitmap = document.createElement("canvas");
    bitmap.width = Math.max(1, Math.round(bag.width * factor));
    bitmap.height = Math.max(1, Math.round(bag.height * factor));
    const context = bitmap.getContext("2d");
    for (let i = 0; i < bag.x.length; i++) {
      const rgb = colour(i);
      if (rgb) this.mark(context, rgb, bag.x[i] * factor, bag.y[i] * factor, Math.max(1, bag.side * factor));
    }
    this.bitmap = bitmap;
    this.factor = factor;
  }

  mark(context, rgb, x, y, side) {
    context.fillStyle = `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;
    if (this.bag.round && side > 2.5) {
      context.beginPath();
      context.arc(x, y, side / 2, 0, 7);
      context.fill();
    } else {
      context.fillRect(x - side / 2, y - side / 2, side, side);
    }
  }

  *inBox(left, top, right, bottom) {
    const { cell, columns, grid } = this;
    const margin = this.bag.side;
    const firstColumn = Math.max(0, Math.floor((left - margin) / cell));
    const lastColumn = Math.min(columns - 1, Math.floor((right + margin) / cell));
    for (let row = Math.floor((top - margin) / cell); row <= Math.floor((bottom + margin) / cell); row++) {
      for (let column = firstColumn; column <= lastColumn; column++) {
        const bucket = grid.get(row * columns + column);
        if (bucket) yield* bucket;
      }
    }
  }

  /** Nearest instance whose mark contains the picture point, or -1. */
  hit(px, py) {
    if (!this.bag) return -1;
    const { scale } = this.project();
    const reach = Math.max(this.bag.side / 2, 6 / scale);
    let best = -1;
    let bestDistance = Infinity;
    for (const i of this.inBox(px - reach, py - reach, px + reach, py + reach)) {
      const dx = Math.abs(this.bag.x[i] - px);
      const dy = Math.abs(this.bag.y[i] - py);
      if (dx <= reach && dy <= reach && dx + dy < bestDistance) { best = i; bestDistance = dx + dy; }
    }
    return best;
  }

  draw({ opacity, selected, partners, lines, accent, ink }) {
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
    if (!this.bag || !this.bitmap) return;
    const { x0, y0, scale } = this.project();
    const { bag } = this;
    context.globalAlpha = opacity;
    if (scale < this.factor || bag.x.length < 1) {
      context.imageSmoothingEnabled = !bag.round && scale < this.factor / 2;
      context.drawImage(this.bitmap, x0, y0, bag.width * scale, bag.height * scale);
    } else {
      const side = Math.max(2, bag.side * scale);
      for (const i of this.inBox(-x0 / scale, -y0 / scale, (width - x0) / scale, (height - y0) / scale)) {
        const rgb = this.colour(i);
        if (rgb) this.mark(context, rgb, x0 + bag.x[i] * scale, y0 + bag.y[i] * scale, side);
      }
    }
    context.globalAlpha = 1;
    if (selected >= 0) this.drawSelection(context, { x0, y0, scale, selected, partners, lines, accent, ink });
  }

  drawSelection(context, { x0, y0, scale, selected, partners, lines, accent, ink }) {
    const { bag } = this;
    const at = (i) => [x0 + bag.x[i] * scale, y0 + bag.y[i] * scale];
    const [sx, sy] = at(selected);
    const strongest = Math.max(1e-12, ...partners.map((p) => Math.abs(p.weight)));
    context.font = "12px system-ui, sans-serif";
    if (lines) {
      partners.forEach((partner, order) => {
        if (partner.index === selected) return;
        const [x, y] = at(partner.index);
        context.strokeStyle = accent;
        context.lineWidth = 1 + 3 * (Math.abs(partner.weight) / strongest);
        context.beginPath();
        context.moveTo(sx, sy);
        context.lineTo(x, y);
        context.stroke();
        if (order < 5 && Math.hypot(x - sx, y - sy) > 40) {
          const text = partner.text;
          const half = context.measureText(text).width / 2;
          context.fillStyle = ink.ground;
          context.globalAlpha = 0.85;
          context.fillRect((sx + x) / 2 - half - 3, (sy + y) / 2 - 9, 2 * half + 6, 17);
          context.globalAlpha = 1;
          context.fillStyle = ink.text;
          context.fillText(text, (sx + x) / 2 - half, (sy + y) / 2 + 4);
        }
      });
    }
    const side = Math.max(8, bag.side * scale);
    for (const [index, wide] of [...partners.map((p) => [p.index, 1.5]), [selected, 3]]) {
      const [x, y] = at(index);
      context.strokeStyle = accent;
      context.lineWidth = wide;
      context.strokeRect(x - side / 2, y - side / 2, side, side);
    }
  }
}
