// Colours that carry meaning: blue-white-orange around zero for signed scores, cividis for the others.

const CIVIDIS = [[0, 34, 78], [0, 46, 106], [26, 56, 111], [50, 67, 109], [67, 78, 108], [83, 90, 109], [97, 101, 111], [111, 112, 115], [125, 124, 120], [140, 136, 120], [155, 148, 118], [171, 160, 114], [188, 174, 108], [205, 187, 99], [222, 201, 88], [240, 216, 70], [254, 232, 56]];
const DIVERGING = [[31, 78, 121], [42, 109, 176], [127, 179, 230], [247, 247, 247], [247, 185, 120], [217, 116, 28], [150, 70, 5]];

function ramp(stops, t) {
  const x = Math.min(1, Math.max(0, t)) * (stops.length - 1);
  const k = Math.min(stops.length - 2, Math.floor(x));
  const f = x - k;
  return stops[k].map((v, c) => Math.round(v + f * (stops[k + 1][c] - v)));
}

/** A scale for one score: limits clipped at the 99th percentile, symmetric where the score is signed. */
export function makeScale(values, signed) {
  const finite = Array.from(values).filter(Number.isFinite);
  const sorted = Float64Array.from(signed ? finite.map(Math.abs) : finite).sort();
  const at = (q) => (sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : 0);
  const high = at(0.99) || (sorted.length ? sorted[sorted.length - 1] : 0) || 1;
  const low = signed ? -high : Math.min(at(0), high);
  const stops = signed ? DIVERGING : CIVIDIS;
  const span = high - low || 1;
  return { low, high, signed, rgb: (v) => ramp(stops, (v - low) / span) };
}

/** Strength of every value as its rank in [0, 1): what the threshold slider hides. */
export function ranks(values, signed) {
  const strength = signed ? values.map(Math.abs) : values;
  const order = Array.from(strength.keys()).sort((a, b) => strength[a] - strength[b]);
  const result = new Float32Array(values.length);
  order.forEach((index, rank) => { result[index] = rank / values.length; });
  return result;
}

export function drawBar(canvas, scale) {
  const context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    const [r, g, b] = scale.rgb(scale.low + (x / (canvas.width - 1)) * (scale.high - scale.low));
    context.fillStyle = `rgb(${r},${g},${b})`;
    context.fillRect(x, 0, 1, canvas.height);
  }
}
