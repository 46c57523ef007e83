// The ruler, annotations and marks: what is read, measured and drawn on top.

import { drawRuler, drawShapes, readShapes } from "./annotations.js";
import { count, length } from "./format.js";
import { showBag } from "./panel.js";
import { drawOutline, outlineScale, showRegions } from "./regions.js";
import { get, say, state, theme } from "./state.js";
import { markedNow } from "./whatif.js";

/** Draws marks, regions and the ruler, over either of the two pictures; places: of the instances. */
export function drawAdded(where, places, first = true) {
  return (context, width, height) => {
    const { bag, shapes, ruler } = state;
    if (!bag) return;
    const { x0, y0, scale } = where();
    drawMarked(context, places, x0, y0, scale);
    if (first) drawOutline(context, theme);
    if (shapes.length) {
      const { k, left, top } = outlineScale(bag);
      drawShapes(context, shapes, (x, y) => [x0 + (x * k - left) * scale, y0 + (y * k - top) * scale], width, height);
    }
    if (ruler) drawRuler(context, ruler.map(([x, y]) => [x0 + x * scale, y0 + y * scale]), get("ruler-value").textContent);
  };
}

/** A frame around every marked instance. */
function drawMarked(context, places, x0, y0, scale) {
  const side = Math.max(5, places.side * scale);
  context.beginPath();
  for (const i of markedNow()) context.rect(x0 + places.x[i] * scale - side / 2, y0 + places.y[i] * scale - side / 2, side, side);
  for (const [colour, wide] of [["rgba(255, 255, 255, .85)", 3], ["#000000", 1.2]]) {
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.stroke();
  }
}

export function toggleRuler(redraw, on = state.ruler === null) {
  state.ruler = on ? [] : null;
  get("ruler").setAttribute("aria-pressed", String(on));
  get("ruler-value").textContent = on ? "press two points" : "";
  redraw();
}

/** One more point of the ruler, in picture pixels; the third begins anew. */
export function measure(redraw, x, y) {
  state.ruler = state.ruler.length === 1 ? [state.ruler[0], [x, y]] : [[x, y]];
  const [a, b] = state.ruler;
  get("ruler-value").textContent = b ? length(Math.hypot(b[0] - a[0], b[1] - a[1]) / state.bag.frame.px_per_unit, state.bag.unit) : "press the second point";
  redraw();
}

export async function readAnnotations(redraw) {
  const [file] = get("annotations").files;
  if (!file || !state.bag) return;
  try {
    if (state.bag.level0_per_unit === null) throw new Error("Annotations are in pixels of the slide, and this bag does not say how many micrometres a pixel has.");
    state.shapes = readShapes(await file.text());
    say(null);
    showRegions();
    showBag(state.entry, { ...state.bag, annotations: `${count(state.shapes.length, "shape")} of ${file.name}` });
  } catch (error) {
    get("annotations").value = "";
    say(error.message, true);
  }
  redraw();
}
