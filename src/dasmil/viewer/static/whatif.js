// What if: marked instances are deleted, kept alone or moved, and the model predicts again. The edits are a text in the address.

import { count, element, length, percent, signed } from "./format.js";
import { get, say, state } from "./state.js";

const LONGEST = 30000; // characters that the server takes
const WORDS = { drop: "Deleted", keep: "Kept only", move: "Moved" };
let changed = () => {}; // opens the bag with its edits
let redraw = () => {};

export function connect(onChange, onMark) { changed = onChange; redraw = onMark; }

/** The number that an instance has in the unedited bag. */
export const original = (i) => state.origin?.[i] ?? i;

/** "0-4.9" for 0, 1, 2, 3, 4 and 9. */
function ranges(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b), found = [];
  for (let k = 0; k < sorted.length;) {
    let end = k;
    while (sorted[end + 1] === sorted[end] + 1) end++;
    found.push(end > k ? `${sorted[k]}-${sorted[end]}` : `${sorted[k]}`);
    k = end + 1;
  }
  return found.join(".");
}

const size = (text) => text.split(".").reduce((total, one) => { const [first, last = first] = one.split("-").map(Number); return total + last - first + 1; }, 0);

export const writeEdits = (edits) => edits.map(({ kind, which, by }) => `${kind}:${which}${by ? `@${by.join(",")}` : ""}`).join(";");

/** Edits from the text of an address; what is wrong with them the server says. */
export function readEdits(text) {
  return (text ?? "").split(";").filter(Boolean).map((part) => {
    const [, kind, which, by] = /^(\w*):?([^@]*)@?(.*)$/.exec(part);
    return { kind, which, by: by ? by.split(",").map(Number) : null };
  });
}

export function mark(i, on = !state.marked.has(original(i))) {
  if (on) state.marked.add(original(i)); else state.marked.delete(original(i));
  showWhatIf();
  redraw();
}

export function markAll(instances) {
  state.marked = new Set(instances.map(original));
  showWhatIf();
  redraw();
}

/** The marked instances that are still there, by their present numbers. */
export function markedNow() {
  const { bag, marked } = state;
  if (!bag || !marked.size) return [];
  if (!state.origin) return [...marked].filter((i) => i < bag.n);
  return [...state.origin.keys()].filter((i) => marked.has(state.origin[i]));
}

export function edit(kind, by = null) {
  const chosen = state.marked.size ? state.marked : state.selected >= 0 ? [original(state.selected)] : [];
  const which = ranges(chosen);
  if (!which) { say("Mark instances first: Shift+click on them, the key x, or Mark beside a region."); return; }
  const next = [...state.edits, { kind, which, by }];
  if (writeEdits(next).length > LONGEST) { say("These instances lie too scattered for the address of the page. Mark fewer, or a region in one piece.", true); return; }
  if (kind !== "move") state.marked = new Set();
  changed(next);
}

export function undo() { if (state.edits.length) changed(state.edits.slice(0, -1)); }

/** Moves what is marked so that its middle comes to a place in the bag's unit. */
export function moveTo(x, y, centres) {
  state.moving = false;
  const now = markedNow();
  const middle = [0, 1].map((k) => now.reduce((sum, i) => sum + centres[k][i], 0) / now.length);
  edit("move", [x - middle[0], y - middle[1]].map((v) => Number(v.toFixed(2))));
}

const shift = (by) => by.map((v) => `${v < 0 ? "−" : "+"}${length(Math.abs(v), state.bag.unit)}`).join(", ");
const inWords = ({ kind, which, by }) => `${WORDS[kind] ?? kind} ${count(size(which), "instance")}${by ? ` by ${shift(by)}` : ""}`;
const button = (text, press, attributes = {}) => element("button", { type: "button", onclick: press, ...attributes }, text);

export function showWhatIf() {
  const { bag, edits } = state;
  if (!bag?.method) { get("whatif").replaceChildren(); return; }
  const marked = markedNow().length;
  const unit = bag.unit === "um" ? "µm" : "px";
  const field = (name) => element("input", { type: "number", step: "any", value: get(`by-${name}`)?.value ?? 0, id: `by-${name}`, "aria-label": `Move in ${name}, ${unit}` });
  const by = () => ["x", "y"].map((name) => Number(get(`by-${name}`).value));
  const chosen = marked ? `${count(marked, "instance")} marked` : state.selected >= 0 ? "The selected instance" : "Nothing marked";
  const open = Boolean(marked || edits.length || get("whatif").querySelector("details")?.open);
  const place = () => { state.moving = !state.moving; showWhatIf(); };
  get("whatif").replaceChildren(element("details", { open }, element("summary", {}, "What if: delete, keep or move instances"),
    element("p", { class: "small" }, `${chosen}. Shift+click or the key x marks an instance, Mark beside a region all inside it. `, marked ? button("Unmark", () => markAll([])) : null),
    element("p", { class: "buttons" }, button("Delete", () => edit("drop")), button("Keep only", () => edit("keep"))),
    element("p", { class: "buttons" }, "Move by x ", field("x"), " y ", field("y"), ` ${unit} `, button("Move", () => edit("move", by())),
      marked ? button(state.moving ? "Press the place …" : "Move to …", place, { "aria-pressed": String(state.moving) }) : null),
    edits.length ? element("ol", { class: "small", "aria-label": "Edits" }, ...edits.map((one) => element("li", {}, inWords(one)))) : null,
    edits.length ? element("p", { class: "buttons" }, button("Undo", undo), button("All back", () => changed([]))) : null));
}

/** The prediction before the edits, and what they changed, for the list of facts. */
export function beforeFacts({ logit, unedited }) {
  const before = unedited.said ? unedited.said.map(([, value]) => value) : [percent(unedited.probability), signed(unedited.logit)];
  return [["Before the edits", before.join(", ")], ["Change by the edits", signed(logit - unedited.logit)]];
}
