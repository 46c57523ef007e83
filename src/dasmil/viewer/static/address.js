// The whole view lives in the fragment of the address, so that it can be kept or sent.

import { readRegions, writeRegions } from "./regions.js";
import { get, state } from "./state.js";
import { readEdits, writeEdits } from "./whatif.js";

export function saveState(viewer) {
  if (!state.bag) return;
  const b = viewer.viewport.getBounds();
  const view = [b.x, b.y, b.width, b.height].map((v) => v.toFixed(5)).join(",");
  const fields = { bag: state.entry.id, score: state.preferred ?? "", threshold: get("threshold").value, view };
  if (state.opacity !== null) fields.opacity = state.opacity;
  if (get("range").value !== "100") fields.range = get("range").value;
  if (get("smooth").checked) fields.smooth = 1;
  if (state.voice !== null) fields.model = state.voice;
  if (state.beside !== null) fields.beside = state.beside;
  if (state.selected >= 0) fields.tile = state.selected;
  if (state.edits.length) fields.edits = writeEdits(state.edits);
  if (state.shapes.length && writeRegions()) fields.regions = writeRegions();
  history.replaceState(null, "", `#${new URLSearchParams(fields)}`);
}

export function readState() {
  const fields = new URLSearchParams(location.hash.slice(1));
  if (fields.has("threshold")) get("threshold").value = fields.get("threshold");
  if (fields.has("range")) get("range").value = fields.get("range");
  state.opacity = fields.get("opacity");
  get("smooth").checked = fields.has("smooth");
  const known = (name) => (state.run.voices[fields.get(name)] === undefined ? null : Number(fields.get(name)));
  state.voice = fields.has("model") ? known("model") : null;
  state.beside = fields.has("beside") ? known("beside") : null;
  const view = (fields.get("view") ?? "").split(",").map(Number);
  const index = state.run.bags.findIndex((b) => b.id === fields.get("bag"));
  const missing = index < 0 && fields.has("bag") ? fields.get("bag") : null;
  return { index: Math.max(0, index), missing, score: fields.get("score"), tile: fields.has("tile") ? Number(fields.get("tile")) : -1,
           edits: readEdits(fields.get("edits")), shapes: readRegions(fields.get("regions")),
           view: index >= 0 && view.length === 4 && view.every(Number.isFinite) && view[2] > 0 ? view : null };
}
