// Numbers and lengths as people read them.

export const number = (v, digits = 3) => (v === null || v === undefined || !Number.isFinite(v) ? "–" : minus(v.toFixed(digits)));
export const signed = (v, digits = 3) => (Number.isFinite(v) ? minus((v > 0 ? "+" : "") + v.toFixed(digits)) : "–");
/** Three figures that count, whatever the size. */
export const short = (v) => {
  if (v === null || v === undefined || !Number.isFinite(v)) return "–";
  if (v === 0) return "0";
  const size = Math.abs(v);
  if (size < 1e-4) return v.toExponential(1).replaceAll("-", "−");
  return minus(v.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : Math.min(6, Math.max(2, 2 - Math.floor(Math.log10(size))))));
};
const minus = (text) => text.replace("-", "−");
/** Decimals that show three figures of the largest value of a column. */
export const decimals = (largest) => (largest > 0 ? Math.min(8, Math.max(0, 2 - Math.floor(Math.log10(largest)))) : 2);
export const plus = (v) => (v > 0 ? "+" : "") + short(v);
export const percent = (v) => (v === null || v === undefined ? "–" : `${(100 * v).toFixed(1)} %`);
export const count = (v, what = "") => v.toLocaleString("en-US") + (what ? ` ${what}${v === 1 ? "" : "s"}` : "");

export function length(v, unit) {
  if (v === null || v === undefined || !Number.isFinite(v)) return "none";
  if (unit === "um") return v >= 10000 ? `${(v / 1000).toFixed(1)} mm` : `${v < 100 ? v.toFixed(1) : Math.round(v)} µm`;
  return `${v.toFixed(v < 100 ? 1 : 0)} px`;
}

/** The largest of 1, 2, 5 x 10^k that is at most `limit`. */
export function niceLength(limit) {
  const power = 10 ** Math.floor(Math.log10(limit));
  return [5, 2, 1].map((f) => f * power).find((v) => v <= limit) ?? power;
}

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** What a model says of a bag, in half a sentence. */
export const verdictText = ({ said, probability, logit, target_name: target }) =>
  said ? said.map(([name, value]) => `${name.toLowerCase()} ${value}`).join(", ") : `probability of ${target} ${number(probability, 2)}, logit ${signed(logit, 2)}`;
