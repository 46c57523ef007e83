// The viewer: one bag at a time on a deep-zoom picture, with its instances drawn over it. State lives in the URL fragment.

import { readState, saveState as writeState } from "./address.js";
import { about, fetchFloats, fetchJson } from "./api.js";
import { drawBar, groupPalette, levels, makeScale, scaleNote, strongest } from "./colour.js";
import { SecondView } from "./compare.js";
import { count, decimals, element, length, niceLength, number, plus, short, verdictText } from "./format.js";
import { smoothMap } from "./heatmap.js";
import { Overlay } from "./overlay.js";
import { BagList, showBag, showTile } from "./panel.js";
import * as regions from "./regions.js";
import { exportView } from "./save.js";
import { get, readTheme, say, state, theme } from "./state.js";
import { drawAdded, measure, readAnnotations, toggleRuler } from "./tools.js";
import * as whatIf from "./whatif.js";

const UNKNOWN = [150, 150, 150];
const OVER_NOTHING = 100; // opacity in percent, unless one is chosen: colours are those of the legend where nothing is to show through
/** What the controls, which may need two lines, and the strip leave of the stage. */
const margins = () => ({ top: get("controls").offsetHeight + 4, bottom: 100, left: 8, right: 8 });

const viewer = OpenSeadragon({ element: get("picture"), drawer: "canvas", showNavigationControl: false, showNavigator: false, animationTime: 0.5, maxZoomPixelRatio: 8,
  visibilityRatio: 0.3, viewportMargins: margins(), gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true }, imageSmoothingEnabled: true, keyboardNavEnabled: true });

addEventListener("resize", () => viewer.viewport?.setMargins(margins()));

function project() {
  const item = viewer.world.getItemAt(0);
  if (!item) return { x0: 0, y0: 0, scale: 1 };
  const origin = item.imageToViewerElementCoordinates(new OpenSeadragon.Point(0, 0));
  const corner = item.imageToViewerElementCoordinates(new OpenSeadragon.Point(item.source.dimensions.x, 0));
  return { x0: origin.x, y0: origin.y, scale: (corner.x - origin.x) / item.source.dimensions.x };
}

const overlay = new Overlay(get("overlay"), project);
const second = new SecondView(viewer, margins, () => redraw(), (i) => selectInstance(i, false));
const saveState = () => writeState(viewer);

function redraw() {
  const opacity = get("opacity").value / 100, wanted = get("lines").checked;
  overlay.draw({ opacity, selected: state.selected, lines: wanted ? joined() : [], theme, above: drawAdded(project, overlay.bag) });
  if (second.open) {
    const lines = wanted && state.selected < 0 ? decided(second.account.pairs) : [];
    second.overlay.draw({ opacity, selected: state.selected, lines, theme, above: drawAdded(() => second.project(), overlay.bag, false) });
  }
  drawScaleBar();
}

/** Lines to draw: from the selected instance to its partners, or the pairs that decided. */
function joined() {
  const { bag, instance, selected } = state;
  if (!bag) return [];
  const text = (d) => length(d, bag.unit);
  if (instance && instance.index === selected) {
    const others = instance.partners.filter((p) => p.index !== selected);
    const deciding = others.some((p) => p.contribution);
    const strength = (p) => (deciding ? Math.abs(p.contribution) : p.weight);
    return others.slice(0, 8).filter((p) => strength(p) >= 0.1 * strength(others[0])).map((p) => ({ i: selected, j: p.index, weight: strength(p), text: text(p.distance) }));
  }
  return selected < 0 ? decided(bag.pairs ?? []) : [];
}

const decided = (pairs) => pairs.slice(0, 3).map((p) => ({ i: p.i, j: p.j, weight: Math.abs(p.contribution), text: length(p.distance, state.bag.unit) }));

function drawScaleBar() {
  if (!state.bag || !viewer.world.getItemCount()) return;
  const perUnit = project().scale * state.bag.frame.px_per_unit;
  const nice = niceLength(140 / perUnit);
  get("scalebar").firstElementChild.style.width = `${nice * perUnit}px`;
  get("scalebar").lastElementChild.textContent = length(nice, state.bag.unit).replace(".0", "");
}

function tileSource(bag) {
  const { frame } = bag;
  if (!bag.picture) {
    const ground = document.createElement("canvas");
    ground.width = Math.max(1, Math.round(frame.width * frame.px_per_unit));
    ground.height = Math.max(1, Math.round(frame.height * frame.px_per_unit));
    const context = ground.getContext("2d");
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, ground.width, ground.height);
    return { type: "image", url: ground.toDataURL("image/png") };
  }
  const { width, height, tile_size: tileSize, min_level: minLevel, max_level: maxLevel } = bag.picture;
  return { width, height, tileSize, tileOverlap: 0, minLevel, maxLevel, getTileUrl: (level, x, y) => `api/bag/${bag.index}/picture/${level}/${x}/${y}` };
}

async function openBag(index, keep = {}) {
  const request = ++state.request;
  const entry = state.run.bags[index];
  if (!entry) { say("There is no such bag.", true); return; }
  state.entry = entry;
  state.bag = state.score = state.ranked = state.instance = state.names = state.ruler = state.origin = state.contributions = null;
  state.selected = -1;
  state.shapes = keep.shapes ?? [];
  state.edits = keep.edits ?? [];
  state.marked = keep.marked ?? new Set();
  state.moving = false;
  regions.toggleDrawing(false);
  get("annotations").value = get("ruler-value").textContent = "";
  fillVoices();
  state.list.select(index);
  if (!keep.samePicture) {
    overlay.setBag(null);
    viewer.close();
  }
  if (second.open) second.close();
  for (const id of ["first-caption", "second-caption"]) get(id).hidden = true;
  get("strip").replaceChildren();
  get("legend").hidden = get("scalebar").hidden = true;
  showTile(null, null);
  get("bag").replaceChildren(element("h2", {}, entry.id));
  delete document.body.dataset.ready;
  whatIf.showWhatIf();
  regions.showRegions(null);
  say("Opening …");
  let clock = 0;
  try {
    const [bag, coords, numbers] = await Promise.all([fetchJson(about(index, "", state.voice)), fetchFloats(about(index, "coords")),
      state.edits.length ? fetchFloats(about(index, "numbers")) : null]);
    if (request !== state.request) return;
    state.origin = numbers && Int32Array.from(numbers);
    await place(index, bag, coords, keep.samePicture);
    if (request !== state.request) return;
    regions.showRegions();
    if (keep.view) viewer.viewport.fitBounds(new OpenSeadragon.Rect(...keep.view), true);
    showBag(entry, bag);
    get("scalebar").hidden = false;
    redraw();
    document.body.dataset.placed = String(index);
    clock = waitAloud(`Computing what ${count(bag.n)} instances contributed`, request);
    const warnings = bag.warnings;
    Object.assign(bag, await fetchJson(about(index, "account", state.voice)));
    bag.warnings = [...warnings, ...bag.warnings];
    if (request !== state.request) return;
    showBag(entry, bag);
    offer(bag, keep.score);
    whatIf.showWhatIf();
    if (state.shapes.length) addContributions();
    await showBeside();
    await showScore();
    if (request !== state.request) return;
    if (bag.has_ids) fetchJson(about(index, "names")).then((reply) => { if (state.bag === bag) state.names = reply.names; }, () => {});
    say(null);
    const chosen = keep.tile >= 0 && keep.tile < bag.n ? keep.tile : state.selected; // a tile may be clicked while waiting
    await selectInstance(chosen, false);
    document.body.dataset.ready = String(index);
  } catch (error) {
    if (request === state.request) say(error.message, true);
  } finally {
    clearInterval(clock);
  }
}

/** What the bag can be coloured by: scores, kinds, clusters; and what can be saved. */
function offer(bag, preferred) {
  const option = (value, title) => element("option", { value }, title);
  get("score").replaceChildren(element("optgroup", { label: "Scores" }, ...bag.scores.map((s) => option(s.name, s.title))),
    element("optgroup", { label: "Groups" }, ...bag.groups.map((g) => option(`group:${g.name}`, g.title))));
  get("score").value = [...get("score").options].some((o) => o.value === preferred) ? preferred : bag.scores[0].name;
  get("csv").href = about(bag.index, "instances.csv", state.voice);
  get("geojson").href = about(bag.index, "instances.geojson", state.voice);
  get("geojson").hidden = bag.level0_per_unit === null;
}

/** A figure of the score that is shown; of the first score while groups are. */
function offerFigure(bag, score) {
  for (const kind of ["svg", "pdf", "png"]) {
    const path = about(bag.index, `figure.${kind}`, state.voice);
    get(`figure-${kind}`).href = `${path}${path.includes("?") ? "&" : "?"}score=${encodeURIComponent(score)}`;
  }
}

/** The models that can speak for this bag, with what it was to each. */
function fillVoices() {
  const { voices } = state.run;
  for (const label of document.querySelectorAll(".models")) label.hidden = voices.length < 2;
  const used = (k) => state.entry.sets[k] ?? (k === state.entry.voice ? state.entry.split : null);
  const titles = voices.map((title, k) => title + (used(k) ? ` (${used(k)})` : ""));
  const options = titles.map((title, k) => element("option", { value: k }, title));
  get("voice").replaceChildren(...options);
  get("voice").value = String(state.voice ?? state.entry.voice);
  get("beside").replaceChildren(element("option", { value: "" }, "nothing"), ...titles.map((title, k) => element("option", { value: k }, title)));
  get("beside").value = state.beside === null ? "" : String(state.beside);
}

/** The second picture, by the model that was chosen to stand beside. */
async function showBeside() {
  const { bag, beside } = state;
  if (beside === null) {
    if (second.open) second.close();
  } else {
    await second.show(bag, beside, tileSource(bag), overlay.bag);
  }
  for (const id of ["first-caption", "second-caption"]) {
    get(id).hidden = beside === null;
    get(id).style.top = `${get("controls").offsetHeight + 4}px`;
  }
  if (beside === null) return;
  get("first-caption").textContent = `${bag.origin || state.run.voices[state.voice ?? state.entry.voice]}: ${verdictText(bag)}`;
  get("second-caption").textContent = second.caption(state.run.voices[beside]);
}

/** The picture and the places of the instances, grey until their scores are known. */
async function place(index, bag, coords, samePicture) {
  bag.index = index;
  bag.scores = [];
  const x = new Float32Array(bag.n), y = new Float32Array(bag.n);
  for (let i = 0; i < bag.n; i++) {
    x[i] = (coords[2 * i] - bag.frame.x0) * bag.frame.px_per_unit;
    y[i] = (coords[2 * i + 1] - bag.frame.y0) * bag.frame.px_per_unit;
  }
  if (!samePicture) await new Promise((resolve) => {
    const done = () => { viewer.removeHandler("open", done); viewer.removeHandler("open-failed", done); resolve(); };
    viewer.addHandler("open", done);
    viewer.addHandler("open-failed", done);
    viewer.open(tileSource(bag));
  });
  state.bag = bag;
  get("opacity").value = state.opacity ?? (bag.picture ? 100 * state.run.colours.over_picture : OVER_NOTHING);
  overlay.setBag({ x, y, side: bag.instance_size * bag.frame.px_per_unit, round: bag.round, width: bag.frame.width * bag.frame.px_per_unit, height: bag.frame.height * bag.frame.px_per_unit });
  overlay.setColours(new Int16Array(bag.n), [UNKNOWN]);
}

/** The same bag again: with other edits, or by another model. */
function reopen(changes = {}) {
  const { score, edits, shapes, marked } = { score: state.preferred, edits: state.edits, shapes: state.shapes, marked: state.marked, ...changes };
  return openBag(state.entry.index, { score, edits, shapes, marked, view: boundsNow(), samePicture: Boolean(viewer.world.getItemCount()) });
}

/** What every region contributed stands in its list. */
async function addContributions() {
  const { bag } = state;
  const values = await fetchFloats(about(bag.index, "score/contribution", state.voice));
  if (bag === state.bag) regions.showRegions(values);
}

/** Says what is being computed and, when that takes long, since when; returns the clock to stop. */
function waitAloud(text, request) {
  const begun = performance.now();
  say(`${text} …`);
  get("message").classList.add("busy");
  return setInterval(() => {
    const seconds = Math.round((performance.now() - begun) / 1000);
    if (request === state.request && seconds > 1) { get("message").textContent = `${text} … ${seconds} s`; }
  }, 1000);
}

async function showScore() {
  const { bag } = state;
  const chosen = get("score").value;
  const group = bag.groups.find((g) => `group:${g.name}` === chosen);
  if (group) await showGroup(bag, group);
  else await showNumbers(bag, bag.scores.find((s) => s.name === chosen));
  if (bag !== state.bag) return;
  get("legend").hidden = false;
  offerFigure(bag, group ? bag.scores[0].name : chosen);
  state.preferred = chosen;
  document.body.dataset.shown = chosen;
}

async function showNumbers(bag, own) {
  const values = await fetchFloats(about(bag.index, `score/${encodeURIComponent(own.name)}`, state.voice));
  const colours = state.run.colours[own.signed ? "signed" : "plain"];
  const info = (second.open && await second.colour(bag, own, colours, get("threshold").value / 100, Boolean(bag.picture), get("range").value / 100)) || own;
  if (bag !== state.bag) return;
  const scale = makeScale(values, info, colours, Boolean(bag.picture), get("range").value / 100);
  state.score = { info, values, scale };
  state.ranked = { info, values, scale, top: strongest(values, scale, 24) };
  get("bar").hidden = get("bar-labels").hidden = false;
  get("groups").replaceChildren();
  drawBar(get("bar"), scale, values, theme.quiet);
  paint();
  fillStrip();
}

/** The ends of the colour bar, and what it shows. */
function labelBar(info, scale, smooth) {
  const high = smooth ? smooth.high : scale.high;
  const ends = info.signed ? [plus(-high), "0", plus(high)] : ["0", "", short(high)];
  ends.forEach((text, k) => { get("bar-labels").children[k].textContent = text; });
  const notes = [`${info.title}: ${info.hint}`, smooth ? "mean of neighbours" : "", scaleNote(scale, smooth ? smooth.high / scale.high : 1), second.open && !smooth ? "one scale for both" : ""];
  get("bar-title").textContent = notes.filter(Boolean).join("; ");
}

/** Colours by kind, section or cluster: a colour each, and a legend with their names. */
async function showGroup(bag, group) {
  const values = await fetchFloats(about(bag.index, `group/${encodeURIComponent(group.name)}`));
  if (bag !== state.bag) return;
  const palette = groupPalette(group.names.length);
  const counts = new Int32Array(group.names.length);
  for (const v of values) counts[v]++;
  state.score = { info: { ...group, signed: false, group: true }, values, scale: { palette, level: (v) => v, rgb: (v) => palette[v] } };
  get("bar").hidden = get("bar-labels").hidden = true;
  get("groups").replaceChildren(...group.names.map((name, k) => {
    const swatch = element("i");
    swatch.style.background = `rgb(${palette[k]})`;
    return element("li", {}, swatch, `${name} `, element("span", {}, count(counts[k])));
  }));
  get("bar-title").textContent = group.title;
  if (second.open) second.overlay.setColours(Int16Array.from(values), palette);
  paint();
  await rankByContribution(bag);
}

/** Groups have no order: the strip and its keys go on by what each instance contributed. */
async function rankByContribution(bag) {
  const info = bag.scores[0];
  const values = await fetchFloats(about(bag.index, `score/${encodeURIComponent(info.name)}`, state.voice));
  if (bag !== state.bag || !state.score?.info.group) return;
  const scale = makeScale(values, info, state.run.colours[info.signed ? "signed" : "plain"], Boolean(bag.picture));
  state.ranked = { info, values, scale, top: strongest(values, scale, 24) };
  fillStrip();
}

function paint() {
  const cut = get("threshold").value / 100;
  get("threshold-value").textContent = `${get("threshold").value} %`;
  if (!state.score) return;
  const { values, scale, info } = state.score;
  const level = info.group ? Int16Array.from(values) : levels(values, scale, cut);
  const smooth = get("smooth").checked && !info.group ? smoothMap(overlay.bag, values, level, scale) : null;
  overlay.setColours(level, scale.palette, smooth?.canvas);
  if (!info.group) labelBar(info, scale, smooth);
  if (second.open && !info.group && second.values) {
    const theirs = levels(second.values, { ...scale, sorted: scale.sorted }, cut);
    second.overlay.setColours(theirs, scale.palette, get("smooth").checked ? smoothMap(overlay.bag, second.values, theirs, scale).canvas : null);
  }
  redraw();
}

/** What an instance is called: its own id where it has one, else its number. */
const nameOf = (i) => state.names?.[i] ?? `#${i}`;

function fillStrip() {
  const { bag, ranked: score } = state;
  const digits = decimals(Math.max(...score.top.map((i) => Math.abs(score.values[i]))));
  get("strip").replaceChildren(...score.top.map((i) => {
    const colour = `rgb(${score.scale.rgb(score.values[i])})`;
    const face = bag.picture ? element("img", { src: `api/bag/${bag.index}/instance/${whatIf.original(i)}`, alt: "", loading: "lazy" }) : element("i");
    face.style[bag.picture ? "borderBottomColor" : "background"] = colour;
    const text = number(score.values[i], digits);
    return element("li", {}, element("button", { type: "button", "data-instance": i, "aria-current": String(i === state.selected), title: `Instance ${nameOf(i)}`,
      "aria-label": `Instance ${nameOf(i)}, ${score.info.title.toLowerCase()} ${text}`, onclick: () => selectInstance(i, true) }, face, element("span", {}, text)));
  }));
}

async function selectInstance(i, go) {
  const { bag } = state;
  const onGo = { instance: (j) => selectInstance(j, true), places: goToPlaces };
  if (i < 0) {
    state.selected = -1;
    state.instance = null;
    showTile(bag, null, onGo);
  } else {
    state.selected = i;
    if (go) panTo(i);
    try {
      const instance = await fetchJson(about(bag.index, `partners/${i}`, state.voice));
      if (bag !== state.bag || state.selected !== i) return;
      state.instance = instance;
      showTile(bag, instance, onGo);
    } catch (error) {
      state.instance = null;
      showTile(null, null);
      say(error.message, true);
    }
  }
  whatIf.showWhatIf();
  for (const button of get("strip").querySelectorAll("button")) button.setAttribute("aria-current", String(Number(button.dataset.instance) === i));
  redraw();
  saveState();
}

/** Moves the marked instances to a point of the picture, in pixels. */
function moveMarked(x, y) {
  const k = state.bag.frame.px_per_unit;
  whatIf.moveTo(x / k, y / k, [overlay.bag.x, overlay.bag.y].map((values) => values.map((v) => v / k)));
}

/** Shows the neighbourhoods around these places (in the bag's unit). */
function goToPlaces(places) {
  const { frame } = state.bag;
  const item = viewer.world.getItemAt(0);
  const points = places.map(([x, y]) => item.imageToViewportCoordinates((x - frame.x0) * frame.px_per_unit, (y - frame.y0) * frame.px_per_unit));
  const margin = 0.12, xs = points.map((p) => p.x), ys = points.map((p) => p.y);
  viewer.viewport.fitBounds(new OpenSeadragon.Rect(Math.min(...xs) - margin, Math.min(...ys) - margin, Math.max(...xs) - Math.min(...xs) + 2 * margin, Math.max(...ys) - Math.min(...ys) + 2 * margin));
}

/** Goes to an instance, unless it can be seen well where it is. */
function panTo(i) {
  const item = viewer.world.getItemAt(0);
  const { x0, y0, scale } = project();
  const x = x0 + overlay.bag.x[i] * scale, y = y0 + overlay.bag.y[i] * scale;
  const box = get("stage");
  const legend = get("legend");
  const underLegend = x > legend.offsetLeft - 20 && y > legend.offsetTop - 20;
  const seen = x > 30 && x < box.clientWidth - 30 && y > margins().top + 26 && y < box.clientHeight - 130 && !underLegend;
  if (seen && overlay.bag.side * scale >= 24) return;
  const point = item.imageToViewportCoordinates(overlay.bag.x[i], overlay.bag.y[i]);
  const wanted = overlay.bag.side * 12 * (1 / item.source.dimensions.x);
  if (viewer.viewport.getBounds().width > 3 * wanted) viewer.viewport.zoomTo(1 / wanted);
  viewer.viewport.panTo(point);
}

/** The instance under a point of the stage, in either picture; -1: none. */
function under(sx, sy) {
  const half = get("stage").clientWidth / 2;
  const right = second.open && sx > half;
  const { x0, y0, scale } = right ? second.project() : project();
  return (right ? second.overlay : overlay).hit((sx - (right ? half : 0) - x0) / scale, (sy - y0) / scale);
}

function tooltip(event) {
  const box = get("stage").getBoundingClientRect();
  const sx = event.clientX - box.left, sy = event.clientY - box.top;
  const i = state.bag && state.score ? under(sx, sy) : -1;
  get("tooltip").hidden = i < 0;
  if (i < 0) return;
  const { info } = state.score;
  const values = second.open && sx > box.width / 2 && !info.group ? second.values : state.score.values;
  get("tooltip").textContent = `Instance ${nameOf(i)}\n${info.group ? info.names[values[i]] : `${info.title} ${plus(values[i])}`}`;
  get("tooltip").style.left = `${Math.min(sx + 14, box.width - 220)}px`;
  get("tooltip").style.top = `${sy + 14}px`;
}

const boundsNow = () => { const b = viewer.viewport.getBounds(); return [b.x, b.y, b.width, b.height]; };

function listen() {
  viewer.addHandler("update-viewport", redraw);
  viewer.addHandler("animation-finish", saveState);
  viewer.addHandler("tile-load-failed", (event) => say(`The picture could not be read here: ${event.message ?? "unknown reason"}.`, true));
  viewer.addHandler("canvas-click", (event) => {
    if (!event.quick || !state.bag) return;
    const { x0, y0, scale } = project();
    const x = (event.position.x - x0) / scale, y = (event.position.y - y0) / scale;
    const hit = overlay.hit(x, y);
    if (state.drawing) regions.corner(event.position.x, event.position.y);
    else if (state.ruler) measure(redraw, x, y);
    else if (state.moving) moveMarked(x, y);
    else if (event.shift && hit >= 0) whatIf.mark(hit);
    else selectInstance(hit, false);
  });
  // Letters are keys of this page; the picture would turn with r, be mirrored with f and move with d.
  viewer.addHandler("canvas-key", (event) => { if (/^[a-z]$/i.test(event.originalEvent.key)) event.preventDefaultAction = true; });
  viewer.addHandler("canvas-drag", (event) => {
    if (!state.drawing) return;
    event.preventDefaultAction = true;
    if (!state.drawing.dragged) { // where the drag began
      state.drawing.dragged = true;
      regions.trace(event.position.x - event.delta.x, event.position.y - event.delta.y);
    }
    regions.trace(event.position.x, event.position.y);
  });
  viewer.addHandler("canvas-drag-end", (event) => {
    if (!state.drawing?.dragged) return;
    event.preventDefaultAction = true;
    regions.close();
  });
  viewer.addHandler("canvas-double-click", (event) => { if (state.drawing) event.preventDefaultAction = true; });
  regions.connect(redraw, () => { saveState(); if (state.bag?.method && !state.contributions) addContributions(); }, () => ({ bag: overlay.bag, project }));
  whatIf.connect((edits) => reopen({ edits }), redraw);
  get("draw").addEventListener("click", () => regions.toggleDrawing());
  get("ruler").addEventListener("click", () => toggleRuler(redraw));
  get("annotations").addEventListener("change", () => readAnnotations(redraw));
  get("smooth").addEventListener("change", () => { paint(); saveState(); });
  get("voice").addEventListener("change", () => { state.voice = Number(get("voice").value); reopen(); });
  get("beside").addEventListener("change", async () => {
    state.beside = get("beside").value === "" ? null : Number(get("beside").value);
    try {
      if (state.beside !== null) say("Computing what the other model says …");
      await showBeside();
      say(null);
      await showScore();
    } catch (error) { state.beside = null; fillVoices(); second.close(); say(error.message, true); }
    saveState();
  });
  get("stage").addEventListener("mousemove", tooltip);
  get("stage").addEventListener("mouseleave", () => { get("tooltip").hidden = true; });
  get("score").addEventListener("change", async () => { await showScore(); saveState(); });
  get("opacity").addEventListener("input", () => { state.opacity = get("opacity").value; redraw(); saveState(); });
  get("range").addEventListener("input", async () => { await showScore(); saveState(); });
  get("threshold").addEventListener("input", () => { paint(); saveState(); });
  get("lines").addEventListener("change", redraw);
  get("fit").addEventListener("click", () => viewer.viewport.goHome());
  get("export").addEventListener("click", () => exportView(viewer, second));
  get("controls").addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readTheme(); redraw(); });
  document.addEventListener("keydown", (event) => { // before the picture takes the arrows
    if (!state.drawing || event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (!regions.drawingKey(event)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const jump = (by) => {
      const top = state.ranked?.top ?? [];
      if (!top.length) return;
      const at = top.indexOf(state.selected);
      selectInstance(top[(at + by + top.length) % top.length], true);
    };
    const actions = { j: () => state.list.step(1), k: () => state.list.step(-1), n: () => jump(1), p: () => jump(state.selected < 0 ? 0 : -1),
                      f: () => viewer.viewport.goHome(), s: () => get("smooth").click(), r: () => toggleRuler(redraw), d: () => regions.toggleDrawing(), x: () => state.selected >= 0 && whatIf.mark(state.selected), u: whatIf.undo, "/": () => get("search").focus(), Escape: () => (state.ruler ? toggleRuler(redraw, false) : state.bag && selectInstance(-1, false)) };
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  });
}

async function start() {
  readTheme();
  try {
    state.run = await fetchJson("api/bags");
  } catch (error) {
    say(error.message, true);
    return;
  }
  document.title = `${state.run.title} - dasmil`;
  get("title").textContent = state.run.title;
  get("subtitle").textContent = state.run.subtitle;
  state.list = new BagList(state.run.bags, state.run.classes, (index) => openBag(index, { score: state.preferred }));
  listen();
  if (!state.run.bags.length) { say("There are no bags to show.", true); return; }
  const { index, missing, ...keep } = readState();
  await openBag(index, missing === null ? keep : {});
  if (missing !== null) say(`There is no bag ${missing} here. This is ${state.entry.id}.`);
}

start();
