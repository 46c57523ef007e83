// Colours that carry meaning: blue-white-orange around zero for signed scores, cividis for the others.

const CIVIDIS = [[0, 34, 78], [0, 46, 106], [26, 56, 111], [50, 67, 109], [67, 78, 108], [83, 90, 109], [97, 101, 111], [111, 112, 115], [125, 124, 120], [140, 136, 120], [155, 148, 118], [171, 160, 114], [188, 174, 108], [205, 187, 99], [222, 201, 88], [240, 216, 70], [254, 232, 56]];
const DIVERGING = [[31, 78, 121], [42, 109, 176], [127, 179, 230], [247, 247, 247], [247, 185, 120], [217, 116, 28], [150, 70, 5]];

function ramp(stops, t) {
  const x = Math.min(1, Math.max(0, t)) * (stops.length - 1);
  const k = Math.min(stops.length - 2, Math.floor(x));
  const f = x - k;
  return stops[k].map((v, c) => Math.round(v + f * (stops[k + 1][c] - v)));
}

const STEPS = 256;

/** A scale for one score: limits clipped at the 99th percentile, symmetric where the score is signed; a palette of 256 colours. */
export function makeScale(values, signed) {
  const sorted = ordered(values, signed);
  const at = (q) => (sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : 0);
  const high = at(0.99) || at(1) || 1;
  const low = signed ? -high : Math.min(at(0), high);
  const span = high - low || 1;
  const palette = Array.from({ length: STEPS }, (_, k) => ramp(signed ? DIVERGING : CIVIDIS, k / (STEPS - 1)));
  const level = (v) => Math.round(Math.min(1, Math.max(0, (v - low) / span)) * (STEPS - 1));
  return { low, high, signed, sorted, palette, level, rgb: (v) => palette[level(v)], strength: (v) => (signed ? Math.abs(v) : v) };
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
