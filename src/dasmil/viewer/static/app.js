// The viewer: one bag at a time on a deep-zoom picture, with its instances drawn over it. State lives in the URL fragment.

import { drawBar, levels, makeScale, strongest } from "./colour.js";
import { count, decimals, element, length, niceLength, number, plus, short } from "./format.js";
import { Overlay } from "./overlay.js";
import { BagList, showBag, showTile } from "./panel.js";

const get = (id) => document.getElementById(id);
const UNKNOWN = [150, 150, 150];
const OVER_PICTURE = 65, OVER_NOTHING = 100; // opacity in percent, unless one is chosen: colours are those of the legend where nothing is to show through
const state = { run: null, bag: null, entry: null, score: null, selected: -1, instance: null, list: null, request: 0, preferred: null, opacity: null };

async function fetchJson(path) {
  const response = await fetch(path);
  const body = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Error(body.error ?? `The server answered ${response.status}.`);
  return body;
}

async function fetchFloats(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error((await response.json()).error);
  return new Float32Array(await response.arrayBuffer());
}

function say(text, isError = false) {
  get("message").hidden = !text;
  get("message").textContent = text ?? "";
  get("message").classList.toggle("error", isError);
  get("message").classList.remove("busy");
}

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

const theme = {};
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ground", "ink", "accent", "canvas", "quiet"]) theme[name] = style.getPropertyValue(`--${name}`).trim();
}

function redraw() {
  overlay.draw({ opacity: get("opacity").value / 100, selected: state.selected, lines: get("lines").checked ? joined() : [], theme });
  drawScaleBar();
}

/** Lines to draw: from the selected instance to its partners, or the pairs that decided. */
function joined() {
  const { bag, instance, selected } = state;
  if (!bag) return [];
  const text = (d) => length(d, bag.unit);
  if (instance && instance.index === selected) {
    const others = instance.partners.filter((p) => p.index !== selected);
    return others.slice(0, 8).filter((p) => p.weight >= 0.1 * others[0].weight).map((p) => ({ i: selected, j: p.index, weight: p.weight, text: text(p.distance) }));
  }
  return selected < 0 ? (bag.pairs ?? []).slice(0, 3).map((p) => ({ i: p.i, j: p.j, weight: Math.abs(p.contribution), text: text(p.distance) })) : [];
}

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
  state.bag = state.score = state.instance = null;
  state.selected = -1;
  state.list.select(index);
  overlay.setBag(null);
  viewer.close();
  get("strip").replaceChildren();
  get("legend").hidden = get("scalebar").hidden = true;
  showTile(null, null);
  get("bag").replaceChildren(element("h2", {}, entry.id));
  say("Opening …");
  let clock = 0;
  try {
    const [bag, coords] = await Promise.all([fetchJson(`api/bag/${index}`), fetchFloats(`api/bag/${index}/coords`)]);
    if (request !== state.request) return;
    await place(index, bag, coords);
    if (request !== state.request) return;
    if (keep.view) viewer.viewport.fitBounds(new OpenSeadragon.Rect(...keep.view), true);
    showBag(entry, bag);
    get("scalebar").hidden = false;
    redraw();
    document.body.dataset.placed = String(index);
    clock = waitAloud(`Computing what ${count(bag.n)} instances contributed`, request);
    Object.assign(bag, await fetchJson(`api/bag/${index}/account`));
    if (request !== state.request) return;
    showBag(entry, bag);
    get("score").replaceChildren(...bag.scores.map((s) => element("option", { value: s.name }, s.title)));
    get("score").value = bag.scores.some((s) => s.name === keep.score) ? keep.score : bag.scores[0].name;
    await showScore();
    if (request !== state.request) return;
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

/** The picture and the places of the instances, grey until their scores are known. */
async function place(index, bag, coords) {
  bag.index = index;
  bag.scores = [];
  const x = new Float32Array(bag.n), y = new Float32Array(bag.n);
  for (let i = 0; i < bag.n; i++) {
    x[i] = (coords[2 * i] - bag.frame.x0) * bag.frame.px_per_unit;
    y[i] = (coords[2 * i + 1] - bag.frame.y0) * bag.frame.px_per_unit;
  }
  await new Promise((resolve) => {
    const done = () => { viewer.removeHandler("open", done); viewer.removeHandler("open-failed", done); resolve(); };
    viewer.addHandler("open", done);
    viewer.addHandler("open-failed", done);
    viewer.open(tileSource(bag));
  });
  state.bag = bag;
  get("opacity").value = state.opacity ?? (bag.picture ? OVER_PICTURE : OVER_NOTHING);
  overlay.setBag({ x, y, side: bag.instance_size * bag.frame.px_per_unit, round: bag.round, width: bag.frame.width * bag.frame.px_per_unit, height: bag.frame.height * bag.frame.px_per_unit });
  overlay.setColours(new Int16Array(bag.n), [UNKNOWN]);
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
  const info = bag.scores.find((s) => s.name === get("score").value);
  const values = await fetchFloats(`api/bag/${bag.index}/score/${encodeURIComponent(info.name)}`);
  if (bag !== state.bag) return;
  const scale = makeScale(values, info.signed);
  state.score = { info, values, scale, top: strongest(values, scale, 24) };
  get("legend").hidden = false;
  drawBar(get("bar"), scale);
  const labels = get("bar-labels").children;
  labels[0].textContent = info.signed ? plus(scale.low) : short(scale.low);
  labels[1].textContent = info.signed ? "0" : "";
  labels[2].textContent = info.signed ? plus(scale.high) : short(scale.high);
  get("bar-title").textContent = `${info.title}: ${info.hint || "score of the model"}${values.length > 100 ? "; clipped at the 99th percentile" : ""}`;
  paint();
  fillStrip();
  state.preferred = info.name;
  document.body.dataset.shown = info.name;
}

function paint() {
  const cut = get("threshold").value / 100;
  get("threshold-value").textContent = `${get("threshold").value} %`;
  if (!state.score) return;
  const { values, scale } = state.score;
  overlay.setColours(levels(values, scale, cut), scale.palette);
  redraw();
}

function fillStrip() {
  const { bag, score } = state;
  const digits = decimals(Math.max(...score.top.map((i) => Math.abs(score.values[i]))));
  get("strip").replaceChildren(...score.top.map((i) => {
    const colour = `rgb(${score.scale.rgb(score.values[i])})`;
    const face = bag.picture ? element("img", { src: `api/bag/${bag.index}/instance/${i}`, alt: "", loading: "lazy" }) : element("i");
    face.style[bag.picture ? "borderBottomColor" : "background"] = colour;
    return element("li", {}, element("button", { type: "button", "data-instance": i, "aria-current": String(i === state.selected), title: `Instance #${i}`,
      onclick: () => selectInstance(i, true) }, face, element("span", {}, number(score.values[i], digits))));
  }));
}

async function selectInstance(i, go) {
  const { bag } = state;
  const onGo = (j) => selectInstance(j, true);
  if (i < 0) {
    state.selected = -1;
    state.instance = null;
    showTile(bag, null, onGo);
  } else {
    state.selected = i;
    if (go) panTo(i);
    try {
      const instance = await fetchJson(`api/bag/${bag.index}/partners/${i}`);
      if (bag !== state.bag || state.selected !== i) return;
      state.instance = instance;
      showTile(bag, instance, onGo);
    } catch (error) {
      state.instance = null;
      showTile(null, null);
      say(error.message, true);
    }
  }
  for (const button of get("strip").querySelectorAll("button")) button.setAttribute("aria-current", String(Number(button.dataset.instance) === i));
  redraw();
  saveState();
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

function saveState() {
  if (!state.bag) return;
  const b = viewer.viewport.getBounds();
  const view = [b.x, b.y, b.width, b.height].map((v) => v.toFixed(5)).join(",");
  const fields = { bag: state.entry.id, score: state.preferred ?? "", threshold: get("threshold").value, view };
  if (state.opacity !== null) fields.opacity = state.opacity;
  if (state.selected >= 0) fields.tile = state.selected;
  history.replaceState(null, "", `#${new URLSearchParams(fields)}`);
}

function readState() {
  const fields = new URLSearchParams(location.hash.slice(1));
  if (fields.has("threshold")) get("threshold").value = fields.get("threshold");
  state.opacity = fields.get("opacity");
  const view = (fields.get("view") ?? "").split(",").map(Number);
  const index = state.run.bags.findIndex((b) => b.id === fields.get("bag"));
  const missing = index < 0 && fields.has("bag") ? fields.get("bag") : null;
  return { index: Math.max(0, index), missing, score: fields.get("score"), tile: fields.has("tile") ? Number(fields.get("tile")) : -1,
           view: index >= 0 && view.length === 4 && view.every(Number.isFinite) && view[2] > 0 ? view : null };
}

/** Scale bar, colour bar and what is shown, along the lower edge of a saved picture. */
function drawCaption(context, ratio, out) {
  const width = out.width / ratio, base = out.height / ratio - 44;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = theme.ground;
  context.fillRect(0, base, width, 44);
  context.fillStyle = theme.ink;
  context.font = "13px system-ui, sans-serif";
  context.fillRect(16, base + 12, get("scalebar").firstElementChild.clientWidth, 4);
  context.fillText(get("scalebar").lastElementChild.textContent, 16, base + 34);
  context.fillText(`${state.entry.id}   ${state.score.info.title}`, 200, base + 26, Math.max(80, width - 390));
  context.drawImage(get("bar"), width - 176, base + 8, 160, 10);
  const labels = [...get("bar-labels").children].map((label) => label.textContent);
  ["left", "center", "right"].forEach((align, k) => { context.textAlign = align; context.fillText(labels[k], width - 176 + 80 * k, base + 34); });
}

function exportView() {
  if (!state.score) return;
  const picture = viewer.drawer.canvas;
  const out = document.createElement("canvas");
  out.width = get("overlay").width;
  out.height = get("overlay").height;
  const context = out.getContext("2d");
  context.fillStyle = theme.canvas;
  context.fillRect(0, 0, out.width, out.height);
  context.drawImage(picture, 0, 0, out.width, out.height);
  context.drawImage(get("overlay"), 0, 0);
  drawCaption(context, out.width / get("overlay").clientWidth, out);
  const link = element("a", { href: out.toDataURL("image/png"), download: `${state.entry.id.replace(/[^\w.-]+/g, "_")}.png` });
  link.click();
}

function tooltip(event) {
  const box = get("stage").getBoundingClientRect();
  const sx = event.clientX - box.left, sy = event.clientY - box.top;
  const { x0, y0, scale } = project();
  const i = state.bag && state.score ? overlay.hit((sx - x0) / scale, (sy - y0) / scale) : -1;
  get("tooltip").hidden = i < 0;
  if (i < 0) return;
  get("tooltip").textContent = `Instance #${i}\n${state.score.info.title} ${plus(state.score.values[i])}`;
  get("tooltip").style.left = `${Math.min(sx + 14, box.width - 220)}px`;
  get("tooltip").style.top = `${sy + 14}px`;
}

function listen() {
  viewer.addHandler("update-viewport", redraw);
  viewer.addHandler("animation-finish", saveState);
  viewer.addHandler("tile-load-failed", (event) => say(`The picture could not be read here: ${event.message ?? "unknown reason"}.`, true));
  viewer.addHandler("canvas-click", (event) => {
    if (!event.quick || !state.bag) return;
    const { x0, y0, scale } = project();
    selectInstance(overlay.hit((event.position.x - x0) / scale, (event.position.y - y0) / scale), false);
  });
  get("stage").addEventListener("mousemove", tooltip);
  get("stage").addEventListener("mouseleave", () => { get("tooltip").hidden = true; });
  get("score").addEventListener("change", async () => { await showScore(); saveState(); });
  get("opacity").addEventListener("input", () => { state.opacity = get("opacity").value; redraw(); saveState(); });
  get("threshold").addEventListener("input", () => { paint(); saveState(); });
  get("lines").addEventListener("change", redraw);
  get("fit").addEventListener("click", () => viewer.viewport.goHome());
  get("export").addEventListener("click", exportView);
  get("controls").addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readTheme(); redraw(); });
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const jump = (by) => {
      if (!state.score) return;
      const { top } = state.score;
      const at = top.indexOf(state.selected);
      selectInstance(top[(at + by + top.length) % top.length], true);
    };
    const actions = { j: () => state.list.step(1), k: () => state.list.step(-1), n: () => jump(1), p: () => jump(state.selected < 0 ? 0 : -1),
                      f: () => viewer.viewport.goHome(), "/": () => get("search").focus(), Escape: () => state.bag && selectInstance(-1, false) };
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
