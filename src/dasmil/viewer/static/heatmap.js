// A smooth map of a score: the weighted mean of the instances around every point, with the colours of the scale.

const SIDE = 640; // px, longer side of the raster

/** A Gaussian blur of one axis; step: distance of neighbours in the array. */
function blur(from, to, kernel, reach, lines, lineStep, length, step) {
  for (let line = 0; line < lines; line++) {
    const base = line * lineStep;
    for (let k = 0; k < length; k++) {
      let sum = 0;
      for (let d = Math.max(-reach, -k); d <= Math.min(reach, length - 1 - k); d++) sum += kernel[d + reach] * from[base + (k + d) * step];
      to[base + k * step] = sum;
    }
  }
}

/**
 * The map as a canvas over the whole picture, and the value that has its strongest colour. bag: {x, y, side, width, height} in picture pixels; level: place in the palette of
 * every instance (-1: hidden, it then counts nowhere); scale: with `palette`.
 */
export function smoothMap(bag, values, level, scale) {
  const factor = SIDE / Math.max(bag.width, bag.height);
  const width = Math.max(1, Math.round(bag.width * factor)), height = Math.max(1, Math.round(bag.height * factor));
  const total = new Float32Array(width * height), weight = new Float32Array(width * height), other = new Float32Array(width * height);
  const half = (bag.side * factor) / 2;
  for (let i = 0; i < level.length; i++) {
    if (level[i] < 0) continue;
    const left = Math.max(0, Math.round(bag.x[i] * factor - half)), right = Math.min(width, Math.max(left + 1, Math.round(bag.x[i] * factor + half)));
    const top = Math.max(0, Math.round(bag.y[i] * factor - half)), bottom = Math.min(height, Math.max(top + 1, Math.round(bag.y[i] * factor + half)));
    for (let y = top; y < bottom; y++) for (let x = left; x < right; x++) { total[y * width + x] += values[i]; weight[y * width + x] += 1; }
  }
  const sigma = Math.max(1.5, 0.9 * bag.side * factor), reach = Math.ceil(2.5 * sigma);
  const kernel = Float32Array.from({ length: 2 * reach + 1 }, (_, k) => Math.exp(-((k - reach) ** 2) / (2 * sigma * sigma)));
  const sum = kernel.reduce((a, b) => a + b);
  kernel.forEach((v, k) => { kernel[k] = v / sum; });
  for (const array of [total, weight]) {
    blur(array, other, kernel, reach, height, width, width, 1);
    blur(other, array, kernel, reach, width, 1, height, width);
  }
  let high = 0; // a mean of neighbours is less than the strongest of them: the map has a scale of its own
  for (let p = 0; p < weight.length; p++) if (weight[p] >= 0.2) high = Math.max(high, scale.strength(total[p] / weight[p]));
  const stretch = high > 0 ? scale.high / high : 1;
  const image = new ImageData(width, height);
  for (let p = 0; p < weight.length; p++) {
    if (weight[p] < 0.02) continue;
    const [r, g, b, a = 255] = scale.palette[scale.level(stretch * total[p] / weight[p])];
    image.data.set([r, g, b, a * Math.min(1, weight[p] / 0.4)], 4 * p);
  }
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return { canvas, high: high || scale.high };
}
