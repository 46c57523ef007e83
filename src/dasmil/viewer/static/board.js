// All runs below a folder: a sortable list that follows training, and the curves and settings of those that are ticked.

const get = (id) => document.getElementById(id);
const EVERY_MS = 4000;
const COLOURS = ["var(--accent)", "var(--orange)", "#8c8c8a", "#7b6fb0", "#3f8f8b", "#b0893a"];
const PANELS = [["train_loss", "Training loss"], ["val_loss", "Validation loss"], ["val_auroc", "Validation AUROC"], ["val_c_index", "Validation C-index"], ["val_r2", "Validation R²"]];
const state = { runs: [], ticked: new Set(), sort: { column: "written", up: false }, details: new Map(), search: "" };

const COLUMNS = [
  ["", null], ["Run", "name"], ["Model", "model"], ["Data", "data"], ["Task", "task"], ["Folds, seeds", "seeds"],
  ["Score", "score"], ["95 % interval", "low"], ["Bags", "bags"], ["Status", "status"], ["Written", "written"], ["Open", null],
];

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const number = (v, digits = 3) => (typeof v === "number" && Number.isFinite(v) ? v.toFixed(digits) : "–");
const address = (name) => name.split("/").map(encodeURIComponent).join("/");
const when = (seconds) => (seconds ? new Date(1000 * seconds).toLocaleString("sv-SE").slice(0, 16) : "–");

async function fetchJson(path, options) {
  const response = await fetch(path, options);
  const content = await response.json();
  if (!response.ok) throw new Error(content.error ?? `The viewer answered ${response.status}.`);
  return content;
}

function shown() {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (run) => `${run.name} ${run.model} ${run.data} ${run.task} ${run.status}`.toLowerCase();
  const { column, up } = state.sort;
  const order = (a, b) => {
    const [x, y] = [a[column], b[column]];
    if (x === null || y === null) return (x === null) - (y === null); // runs without a score come last
    const found = typeof x === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
    return (up ? found : -found) || a.name.localeCompare(b.name);
  };
  return state.runs.filter((run) => words.every((word) => text(run).includes(word))).sort(order);
}

function drawHead() {
  get("runs").tHead.rows[0].replaceChildren(...COLUMNS.map(([title, column]) => {
    if (!column) return element("th", { scope: "col" }, title);
    const sorted = state.sort.column === column ? (state.sort.up ? "ascending" : "descending") : "none";
    const press = () => { state.sort = { column, up: state.sort.column === column ? !state.sort.up : column === "name" }; drawHead(); drawRows(); save(); };
    return element("th", { scope: "col", "aria-sort": sorted }, element("button", { type: "button", onclick: press }, title));
  }));
}

function statusCell(run) {
  const cell = element("td", {}, element("span", { class: run.problem ? "problem" : run.status }, run.problem ? "unreadable" : run.status));
  if (run.status !== "finished" && run.epochs) cell.append(" ", element("progress", { max: run.epochs, value: run.epoch ?? 0 }), ` ${run.epoch ?? 0} of ${run.epochs} epochs`);
  if (run.hint || run.problem) cell.append(element("div", { class: "quiet" }, run.problem || run.hint));
  return cell;
}

function drawRows() {
  const rows = shown();
  const training = state.runs.filter((run) => run.status === "training").length;
  get("count").textContent = `${rows.length === state.runs.length ? state.runs.length : `${rows.length} of ${state.runs.length}`} runs${training ? `, ${training} training` : ""}`;
  const focused = document.activeElement?.dataset?.run;
  get("runs").tBodies[0].replaceChildren(...rows.map((run) => {
    const ticked = state.ticked.has(run.name);
    const toggle = (event) => { if (event.target.checked) state.ticked.add(run.name); else state.ticked.delete(run.name); drawRows(); compare(); save(); };
    const open = [run.report ? element("a", { href: `report/${address(run.name)}`, target: "_blank", rel: "noopener" }, "report") : null,
                  run.status === "finished" && !run.problem ? element("a", { href: `view/${address(run.name)}/-/`, target: "_blank", rel: "noopener" }, "viewer") : null].filter(Boolean);
    return element("tr", { class: ticked ? "ticked" : null },
      element("td", {}, element("input", { type: "checkbox", checked: ticked, "data-run": run.name, "aria-label": `Compare ${run.name}`, onchange: toggle })),
      element("td", { class: "name" }, run.name), element("td", {}, run.model), element("td", {}, run.data), element("td", {}, run.task),
      element("td", {}, run.folds ? `${run.folds} × ${run.seeds}` : String(run.seeds)),
      element("td", { class: "number", title: run.split ? `on ${run.split}` : null }, run.score === null ? "–" : `${run.metric} ${number(run.score)}`),
      element("td", { class: "number" }, run.low === null ? "–" : `${number(run.low)} – ${number(run.high)}`),
      element("td", { class: "number" }, run.bags === null ? "–" : run.bags.toLocaleString("en-US")), statusCell(run), element("td", {}, when(run.written)),
      element("td", {}, ...open.flatMap((link, k) => (k ? [", ", link] : [link]))));
  }));
  if (!rows.length) get("runs").tBodies[0].append(element("tr", {}, element("td", { colspan: COLUMNS.length }, state.runs.length ? "No run matches." : "There are no runs below this folder.")));
  if (focused) [...document.querySelectorAll("input[data-run]")].find((box) => box.dataset.run === focused)?.focus();
}

/** The study files that may be started; nothing where the page only reads. */
function drawStudies(studies) {
  if (!studies) return;
  const act = (what, name) => async () => {
    try { await fetchJson(`api/${what}/${address(name)}`, { method: "POST" }); } catch (error) { say(error.message); return; }
    await refreshOnce();
  };
  const button = (text, what, name) => element("button", { type: "button", "aria-label": `${text} ${name}`, onclick: act(what, name) }, text);
  const status = (one) => (one.running ? "running" : one.exit_code === null ? "" : one.exit_code === 0 ? "done" : one.exit_code === 130 ? "stopped" : `ended with exit code ${one.exit_code}`);
  const rows = studies.map((one) => element("tr", {}, element("td", { class: "name" }, one.name), element("td", {}, one.command),
    element("td", {}, element("span", { class: one.running ? "training" : one.exit_code ? "problem" : null }, status(one)), one.output.length ? element("pre", { class: "quiet" }, one.output.join("\n")) : ""),
    element("td", { class: "buttons" }, ...(one.running ? [button("Stop", "stop", one.name)] : [button("Start", "start", one.name), ...(one.can_resume ? [button("Resume", "resume", one.name)] : [])]))));
  if (!rows.length) rows.push(element("tr", {}, element("td", { colspan: 4 }, "There is no study file (.toml) below this folder. Every command writes one with --write-config FILE.")));
  const focused = document.activeElement?.getAttribute("aria-label");
  get("studies").replaceChildren(element("h2", {}, "Study files"), element("table", { "aria-label": "Study files" },
    element("thead", {}, element("tr", {}, ...["File", "Command", "Status", ""].map((title) => element("th", { scope: "col" }, title)))), element("tbody", {}, ...rows)));
  if (focused) [...get("studies").querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === focused)?.focus();
}

/** One diagram of a column over epochs, a colour for each run and a line for each seed; null where no run has it. */
function diagram(names, column, title) {
  const lines = names.flatMap((name, k) => Object.values(state.details.get(name)?.curves ?? {}).map((curve) => ({ k, x: curve.epoch ?? [], y: curve[column] ?? [] })))
    .map(({ k, x, y }) => ({ k, points: y.map((v, i) => [x[i], v]).filter(([, v]) => v !== null) })).filter(({ points }) => points.length);
  if (!lines.length) return null;
  const W = 320, H = 190, left = 42, bottom = 24, top = 8, right = 8;
  const all = lines.flatMap(({ points }) => points);
  const far = Math.max(1, ...all.map(([x]) => x)), values = all.map(([, v]) => v);
  const low = Math.min(...values, column.endsWith("loss") ? 0 : Infinity), high = Math.max(...values, low + 1e-9);
  const px = (x) => left + (W - left - right) * (x / far), py = (v) => top + (H - top - bottom) * (1 - (v - low) / (high - low));
  const svg = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const root = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title} by epoch` });
  root.append(svg("line", { x1: left, x2: W - right, y1: H - bottom, y2: H - bottom, stroke: "var(--line)" }));
  for (const v of [low, high]) root.append(svg("text", { x: left - 4, y: py(v) + 4, "text-anchor": "end" }, number(v, 2)));
  root.append(svg("text", { x: W - right, y: H - 8, "text-anchor": "end" }, `${far} epochs`));
  for (const { k, points } of lines) {
    if (points.length === 1) root.append(svg("circle", { cx: px(points[0][0]), cy: py(points[0][1]), r: 2, fill: COLOURS[k % COLOURS.length] }));
    else root.append(svg("polyline", { points: points.map(([x, v]) => `${px(x).toFixed(1)},${py(v).toFixed(1)}`).join(" "), fill: "none", "stroke-width": 1.3, stroke: COLOURS[k % COLOURS.length] }));
  }
  return element("figure", {}, element("figcaption", {}, title), root);
}

function differences(names) {
  const settings = names.map((name) => state.details.get(name)?.settings ?? {});
  const keys = [...new Set(settings.flatMap(Object.keys))].sort();
  const differ = keys.filter((key) => new Set(settings.map((one) => JSON.stringify(one[key] ?? null))).size > 1);
  if (names.length < 2) return null;
  if (!differ.length) return element("p", { class: "quiet" }, "Their settings are the same.");
  const rows = differ.map((key) => element("tr", {}, element("td", {}, key), ...settings.map((one) => element("td", {}, one[key] === undefined || one[key] === null ? "–" : JSON.stringify(one[key])))));
  return element("table", { "aria-label": "Settings that differ" }, element("thead", {}, element("tr", {}, element("th", {}, "Setting"), ...names.map((name) => element("th", {}, name)))), element("tbody", {}, ...rows));
}

async function compare() {
  const names = [...state.ticked];
  try {
    for (const name of names) {
      const row = state.runs.find((run) => run.name === name);
      const known = state.details.get(name);
      if (row && known?.written !== row.written) state.details.set(name, { ...(await fetchJson(`api/run/${address(name)}`)), written: row.written });
    }
  } catch (error) { say(error.message); return; }
  if (names.join() !== [...state.ticked].join()) return;
  if (!names.length) { get("compare").replaceChildren(element("p", { class: "quiet" }, "Tick runs to see their curves, and two or more to see which settings differ.")); return; }
  const legend = element("p", {}, ...names.flatMap((name, k) => { const mark = element("b", {}, "— "); mark.style.color = COLOURS[k % COLOURS.length]; return [mark, `${name}   `]; }));
  const diagrams = PANELS.map(([column, title]) => diagram(names, column, title)).filter(Boolean);
  get("compare").replaceChildren(...[element("h2", {}, "Curves"), legend, diagrams.length ? element("div", { class: "curves" }, ...diagrams) : element("p", { class: "quiet" }, "There is no epoch yet."),
    names.length > 1 ? element("h2", {}, "Settings that differ") : null, differences(names)].filter(Boolean));
}

function say(text) { get("message").hidden = !text; get("message").textContent = text ?? ""; }

const save = () => history.replaceState(null, "", `#${new URLSearchParams({ sort: state.sort.column, up: Number(state.sort.up), search: state.search, runs: JSON.stringify([...state.ticked]) })}`);

function restore() {
  const fields = new URLSearchParams(location.hash.slice(1));
  if (COLUMNS.some(([, column]) => column && column === fields.get("sort"))) state.sort = { column: fields.get("sort"), up: fields.get("up") === "1" };
  state.search = get("search").value = fields.get("search") ?? "";
  try { state.ticked = new Set(JSON.parse(fields.get("runs") ?? "[]")); } catch { state.ticked = new Set(); }
}

async function refreshOnce() {
  try {
    const found = await fetchJson("api/runs");
    state.runs = found.runs;
    for (const name of state.ticked) if (!found.runs.some((run) => run.name === name)) state.ticked.delete(name);
    get("title").textContent = `Runs below ${found.title}`;
    say(null);
    drawRows();
    drawStudies(found.studies);
    await compare();
    document.body.dataset.ready = String(found.runs.length);
  } catch (error) { say(`The list could not be read: ${error.message}`); }
}

async function refresh() {
  await refreshOnce();
  setTimeout(refresh, EVERY_MS);
}

restore();
drawHead();
get("search").addEventListener("input", () => { state.search = get("search").value; drawRows(); save(); });
refresh();
