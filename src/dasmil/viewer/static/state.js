// What is shown now, and the few things that every part of the page needs.

export const get = (id) => document.getElementById(id);

export const state = { run: null, bag: null, entry: null, score: null, ranked: null, selected: -1, instance: null, list: null, request: 0, preferred: null, opacity: null,
                voice: null, beside: null, shapes: [], ruler: null, names: null,
                drawing: null, contributions: null, edits: [], origin: null, marked: new Set(), moving: false };

export function say(text, isError = false) {
  get("message").hidden = !text;
  get("message").textContent = text ?? "";
  get("message").classList.toggle("error", isError);
  get("message").classList.remove("busy");
}

export const theme = {};
export function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ground", "ink", "accent", "canvas", "quiet"]) theme[name] = style.getPropertyValue(`--${name}`).trim();
}
