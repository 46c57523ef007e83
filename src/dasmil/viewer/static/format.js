// Numbers and lengths as people read them.

export const number = (v, digits = 3) => (v === null || v === undefined || !Number.isFinite(v) ? "–" : v.toFixed(digits));
export const signed = (v, digits = 3) => (Number.isFinite(v) ? (v > 0 ? "+" : "") + v.toFixed(digits) : "–");
export const percent = (v) => (v === null || v === undefined ? "–" : `${(100 * v).toFixed(1)} %`);
export const count = (v) => v.toLocaleString("en-US");

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
