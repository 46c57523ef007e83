// Regions that are drawn on a bag, or read from a file: named, marked for a what-if, and saved as GeoJSON that QuPath opens.

import { count, element, plus } from "./format.js";
import { get, say, state } from "./state.js";
import { markAll } from "./whatif.js";

const COLOURS = [[200, 0, 0], [31, 78, 121], [217, 116, 28], [63, 143, 139], [123, 111, 176], [176, 137, 58]];
const IN_ADDRESS = 8000; // characters; more regions than that are only kept in files
const NEAR = 10; // px on the screen from the first point, where a press closes the outline
const STEP = 10; // px that an arrow key moves the cross

let redraw = () => {}, changed = () => {}, places = () => null;

/** paint: draws the stage anew; kept: writes the address; where: the overlay's places and the projection of the stage. */
export function connect(paint, kept, where) { redraw = paint; changed = kept; places = where; }

/** Picture pixels in one unit of outlines: level-0 pixels, or the unit of a bag that does not know them. */
export function outlineScale(bag) {
  return { k: bag.frame.px_per_unit / (bag.level0_per_unit ?? 1), left: bag.frame.x0 * bag.frame.px_per_unit, top: bag.frame.y0 * bag.frame.px_per_unit };
}

function toOutline(sx, sy) {
  const { x0, y0, scale } = places().project(), { k, left, top } = outlineScale(state.bag);
  return [((sx - x0) / scale + left) / k, ((sy - y0) / scale + top) / k].map(Math.round);
}

function toScreen([x, y]) {
  const { x0, y0, scale } = places().project(), { k, left, top } = outlineScale(state.bag);
  return [x0 + (x * k - left) * scale, y0 + (y * k - top) * scale];
}

export function toggleDrawing(on = state.drawing === null) {
  if (on && !state.bag) return;
  state.drawing = on ? { points: [], cross: null } : null;
  get("draw").setAttribute("aria-pressed", String(on));
  get("draw-value").textContent = on ? "drag around a region, or press its corners; Enter closes it" : "";
  redraw();
}

/** One more corner, at a point of the stage; near the first one the outline is closed. */
export function corner(sx, sy) {
  const { points } = state.drawing;
  if (points.length > 2 && Math.hypot(...toScreen(points[0]).map((v, k) => v - [sx, sy][k])) < NEAR) { close(); return; }
  points.push(toOutline(sx, sy));
  redraw();
}

/** A drag goes on: corners at least three pixels of the screen apart. */
export function trace(sx, sy) {
  const last = state.drawing.points.at(-1);
  if (last && Math.hypot(...toScreen(last).map((v, k) => v - [sx, sy][k])) < 3) return;
  corner(...[sx, sy]);
}

export function close() {
  const ring = state.drawing.points;
  toggleDrawing(false);
  if (ring.length < 3) { say("A region needs three corners or more."); return; }
  const taken = new Set(state.shapes.map((shape) => shape.name));
  let number = 1;
  while (taken.has(`Region ${number}`)) number++;
  state.shapes = [...state.shapes, outlined(`Region ${number}`, COLOURS[state.shapes.length % COLOURS.length], [[...ring, ring[0]]])];
  showRegions();
  changed();
  const name = get("regions").querySelector("li:last-child input");
  name.focus();
  name.select();
}

const outlined = (name, rgb, rings) => ({ name, rgb, colour: `rgb(${rgb})`, lines: rings, points: [], closed: true });

/** Keys while a region is drawn; returns whether the key was one of them. */
export function drawingKey(event) {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const { drawing } = state;
  const stage = get("stage");
  if (moves[event.key]) {
    drawing.cross ??= [stage.clientWidth / 2, stage.clientHeight / 2];
    const step = event.shiftKey ? 1 : STEP;
    drawing.cross = drawing.cross.map((v, k) => v + step * moves[event.key][k]);
    redraw();
  } else if (event.key === " " && drawing.cross) corner(...drawing.cross);
  else if (event.key === "Enter") close();
  else if (event.key === "Backspace") { drawing.points.pop(); redraw(); }
  else if (event.key === "Escape") toggleDrawing(false);
  else return false;
  return true;
}

/** The instances whose centres lie inside an odd number of the rings. */
export function inside(shape) {
  const { bag } = places(), { k, left, top } = outlineScale(state.bag);
  const rings = shape.lines.map((line) => line.map(([x, y]) => [x * k - left, y * k - top]));
  const flat = rings.flat(), reach = [0, 1].map((a) => flat.reduce(([low, high], p) => [Math.min(low, p[a]), Math.max(high, p[a])], [Infinity, -Infinity]));
  const found = [];
  for (let i = 0; i < bag.x.length; i++) {
    const x = bag.x[i], y = bag.y[i];
    if (x < reach[0][0] || x > reach[0][1] || y < reach[1][0] || y > reach[1][1]) continue;
    let odd = false;
    for (const ring of rings) for (let a = 0, b = ring.length - 1; a < ring.length; b = a++) {
      const [ax, ay] = ring[a], [bx, by] = ring[b];
      if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) odd = !odd;
    }
    if (odd) found.push(i);
  }
  return found;
}

/** The list of regions: name, instances inside and what they contributed; contributions: null while they are computed. */
export function showRegions(contributions = state.contributions) {
  state.contributions = contributions;
  const { bag, shapes } = state;
  if (!bag || !shapes.length) { get("regions").replaceChildren(); return; }
  const rows = shapes.map((shape, index) => {
    const within = shape.closed ? inside(shape) : [];
    const sum = contributions ? `, ${plus(within.reduce((total, i) => total + contributions[i], 0))}` : "";
    const rename = (event) => { shape.name = event.target.value; changed(); redraw(); };
    const remove = () => { state.shapes = shapes.filter((_, k) => k !== index); showRegions(); changed(); redraw(); };
    const swatch = element("i");
    swatch.style.background = shape.colour;
    return element("li", {}, swatch, element("input", { value: shape.name, "aria-label": `Name of region ${index + 1}`, oninput: rename }),
      element("span", {}, shape.closed ? `${count(within.length)}${sum}` : "no area"),
      shape.closed ? element("button", { type: "button", "aria-label": `Mark the instances in ${shape.name}`, onclick: () => markAll(within) }, "Mark") : null,
      element("button", { type: "button", "aria-label": `Remove ${shape.name}`, onclick: remove }, "Remove"));
  });
  const why = notSaved(bag);
  const typing = [...get("regions").querySelectorAll("input")].indexOf(document.activeElement);
  const [from, to] = typing < 0 ? [] : [document.activeElement.selectionStart, document.activeElement.selectionEnd];
  get("regions").replaceChildren(element("h3", {}, "Regions: instances inside, their contribution"), element("ul", {}, ...rows),
    element("p", { class: "buttons" }, element("button", { type: "button", id: "save-regions", disabled: Boolean(why), title: why ?? "GeoJSON in level-0 pixels, which QuPath opens", onclick: saveRegions }, "Save regions"),
      tooLong() ? element("span", { class: "small" }, "Too many for the address of this page: save them.") : null));
  const again = get("regions").querySelectorAll("input")[typing];
  again?.focus();
  again?.setSelectionRange(from, to);
}

function notSaved(bag) {
  if (bag.rearranged) return "Sections are drawn side by side here, so that outlines have no place on a slide";
  return bag.level0_per_unit === null ? "The bag does not say how many micrometres a level-0 pixel has" : null;
}

/** What QuPath reads: each region an annotation with name, class and colour; what a file said besides is kept. */
export function regionsGeojson() {
  const features = state.shapes.map((shape) => {
    const known = shape.feature?.properties ?? {};
    const kind = { name: shape.name, color: shape.rgb };
    const properties = { ...known, objectType: known.objectType ?? "annotation", ...(shape.feature && shape.name === shape.read ? {} : { name: shape.name, classification: kind }) };
    return { type: "Feature", id: shape.feature?.id ?? crypto.randomUUID(), geometry: shape.feature?.geometry ?? { type: "Polygon", coordinates: shape.lines }, properties };
  });
  return JSON.stringify({ type: "FeatureCollection", features }, null, 1);
}

function saveRegions() {
  const address = URL.createObjectURL(new Blob([regionsGeojson()], { type: "application/geo+json" }));
  element("a", { href: address, download: `${state.entry.id.replace(/[^\w.-]+/g, "_")}.geojson` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

const hex = (rgb) => rgb.map((v) => v.toString(16).padStart(2, "0")).join("");
const tooLong = () => writeRegions() === null;

/** The areas as a text for the address; null where that would be too long. */
export function writeRegions() {
  const text = state.shapes.filter((shape) => shape.closed).map((shape) =>
    [encodeURIComponent(shape.name), hex(shape.rgb), shape.lines.map((line) => line.flat().map(Math.round).join(",")).join("/")].join(":")).join(";");
  return text.length > IN_ADDRESS ? null : text;
}

/** The areas of an address; one that was cut off or changed is left out. */
export function readRegions(text) {
  const plain = (name) => { try { return decodeURIComponent(name); } catch { return name; } };
  return (text ?? "").split(";").filter(Boolean).map((part) => {
    const [name, colour, rings = ""] = part.split(":");
    const lines = rings.split("/").map((line) => { const v = line.split(",").map(Number); return v.flatMap((x, k) => (k % 2 ? [] : [[x, v[k + 1]]])); });
    return outlined(plain(name), [0, 2, 4].map((k) => parseInt(colour?.slice(k, k + 2), 16) || 0), lines);
  }).filter((shape) => shape.lines.every((line) => line.length > 3 && line.flat().every(Number.isFinite)));
}

/** What is being drawn, for the drawing on top. */
export function drawOutline(context, theme) {
  const { drawing } = state;
  if (!drawing) return;
  const points = drawing.points.map(toScreen);
  for (const [colour, wide] of [["rgba(255, 255, 255, .85)", 5], [theme.accent, 2]]) {
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.beginPath();
    points.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
    if (drawing.cross) {
      const [x, y] = drawing.cross;
      context.beginPath();
      context.moveTo(x - 9, y); context.lineTo(x + 9, y); context.moveTo(x, y - 9); context.lineTo(x, y + 9);
      context.stroke();
    }
  }
}
