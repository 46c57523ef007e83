// Colours that carry meaning. Scales and palettes come from the server, which draws the pages with the same; groups have their own.

import { count, short } from "./format.js";

// Told apart by people who do not see red and green alike (Okabe and Ito); further groups begin again, lighter.
const GROUPS = [[0, 114, 178], [230, 159, 0], [86, 180, 233], [213, 94, 0], [204, 121, 167], [0, 158, 115], [120, 120, 120], [200, 185, 20]];
const LAST = 255; // of the 256 places of a palette

/**
 * A scale for one score. info: {low, high, signed, linear} as the server decided: proportional up to `linear`, logarithmic above (0: proportional throughout).
 * colours: {palette, tints} of that kind; range: the share of the scale that is used, what lies beyond is clipped.
 * Over a picture strength is opacity, so that the picture keeps its colours where nothing was decided.
 */
export function makeScale(values, info, colours, overPicture, range = 1) {
  const { signed, linear } = info;
  const bent = (size) => (linear ? Math.asinh(size / linear) : size);
  const reach = range * bent(info.high);
  const high = linear ? linear * Math.sinh(reach) : reach;
  const sorted = ordered(values, signed);
  const opacity = (k) => Math.round(255 * (signed ? Math.abs(2 * k / LAST - 1) : k / LAST));
  const laid = overPicture ? colours.tints.map((rgb, k) => [...rgb, opacity(k)]) : colours.palette;
  const share = (v) => Math.min(1, bent(Math.min(high, Math.max(0, signed ? Math.abs(v) : v))) / reach);
  const place = (v) => (signed ? 0.5 + 0.5 * Math.sign(v) * share(v) : share(v));
  const level = (v) => Math.round(place(v) * LAST);
  return { high, signed, linear, sorted, place, palette: laid, colours: colours.palette, level, rgb: (v) => colours.palette[level(v)], strength: (v) => (signed ? Math.abs(v) : v) };
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

/** The colours from end to end, above them how many instances have each (the height is logarithmic). */
export function drawBar(canvas, scale, values, ink) {
  const context = canvas.getContext("2d"), { width, height } = canvas, bar = 10;
  context.clearRect(0, 0, width, height);
  const counts = new Float64Array(width / 2);
  for (const v of values) if (Number.isFinite(v)) counts[Math.min(counts.length - 1, Math.floor(scale.place(v) * counts.length))]++;
  const most = Math.log1p(Math.max(1, ...counts));
  context.fillStyle = ink;
  counts.forEach((n, k) => { const tall = n ? Math.max(1, (height - bar - 2) * Math.log1p(n) / most) : 0; context.fillRect(2 * k, height - bar - 1 - tall, 2, tall); });
  for (let x = 0; x < width; x++) {
    const [r, g, b] = scale.colours[Math.round((x / (width - 1)) * LAST)];
    context.fillStyle = `rgb(${r},${g},${b})`;
    context.fillRect(x, height - bar, 1, bar);
  }
}

/** How the scale departs from proportional and what it clips, in half a sentence; shrunk: the colours are of means, by this factor smaller. */
export function scaleNote({ linear, high, signed, sorted }, shrunk = 1) {
  const side = signed ? "±" : "";
  let first = sorted.length;
  while (first > 0 && sorted[first - 1] > high * (1 + 1e-6)) first--;
  const beyond = sorted.length - first;
  return [linear ? `logarithmic beyond ${side}${short(linear * shrunk)}` : "", beyond ? `${count(beyond)} of ${count(sorted.length, "value")} beyond the range, in its last colour` : ""].filter(Boolean).join("; ");
}

/** The colours of `count` groups. */
export function groupPalette(count) {
  return Array.from({ length: count }, (_, k) => {
    const lighter = Math.min(0.75, 0.4 * Math.floor(k / GROUPS.length));
    return GROUPS[k % GROUPS.length].map((v) => Math.round(v + lighter * (255 - v)));
  });
}
