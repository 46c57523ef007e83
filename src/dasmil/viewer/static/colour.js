// Colours that carry meaning. Scales and palettes come from the server, which draws the pages with the same; groups have their own.

// Told apart by people who do not see red and green alike (Okabe and Ito); further groups begin again, lighter.
const GROUPS = [[0, 114, 178], [230, 159, 0], [86, 180, 233], [213, 94, 0], [204, 121, 167], [0, 158, 115], [120, 120, 120], [200, 185, 20]];
const LAST = 255; // of the 256 places of a palette

/**
 * A scale for one score. info: {low, high, signed} as the server decided; colours: {palette, tints} of that kind.
 * Over a picture strength is opacity, so that the picture keeps its colours where nothing was decided.
 */
export function makeScale(values, info, colours, overPicture) {
  const { low, high, signed } = info;
  const span = high - low || 1;
  const sorted = ordered(values, signed);
  const opacity = (k) => Math.round(255 * (signed ? Math.abs(2 * k / LAST - 1) : k / LAST));
  const laid = overPicture ? colours.tints.map((rgb, k) => [...rgb, opacity(k)]) : colours.palette;
  const level = (v) => Math.round(Math.min(1, Math.max(0, (v - low) / span)) * LAST);
  return { low, high, signed, sorted, palette: laid, level, rgb: (v) => colours.palette[level(v)], strength: (v) => (signed ? Math.abs(v) : v) };
}

/** The finite values (or, where signed, their sizes), from weakest to strongest. */
function ordered(values, signed) {
  const kept = values.filter(Number.isFinite);
  return (signed ? kept.map(Math.abs) : kept).sort(); // a Float32Array: sorted as numbers
}

/** For every value its place in the palette; -1 where it is missing or among the weakest share `cut`. */
export function levels(values, scale, cut) {
  const weakest = cut > 0 && scale.sorted.length ? scale.sorted[Math.min(scale.sorted.length - 1, Math.floor(cut * scale.sorted.length))] : -Infinity;
  return Int16Array.from(values, (v) => (Number.isFinite(v) && scale.strength(v) >= weakest ? scale.level(v) : -1));
}

/** Numbers of the `count` strongest values, strongest first, where signed of either sign; the whole list is never sorted by number. */
export function strongest(values, scale, count) {
  const least = scale.sorted.at(-Math.min(count, scale.sorted.length)) ?? 0;
  const found = [];
  values.forEach((v, i) => { if (scale.strength(v) >= least) found.push(i); });
  return found.sort((a, b) => scale.strength(values[b]) - scale.strength(values[a])).slice(0, count);
}

export function drawBar(canvas, scale) {
  const context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    const [r, g, b] = scale.rgb(scale.low + (x / (canvas.width - 1)) * (scale.high - scale.low));
    context.fillStyle = `rgb(${r},${g},${b})`;
    context.fillRect(x, 0, 1, canvas.height);
  }
}

/** The colours of `count` groups. */
export function groupPalette(count) {
  return Array.from({ length: count }, (_, k) => {
    const lighter = Math.min(0.75, 0.4 * Math.floor(k / GROUPS.length));
    return GROUPS[k % GROUPS.length].map((v) => Math.round(v + lighter * (255 - v)));
  });
}
