// The right-hand panel: list of bags, the selected bag, the selected instance with its partners and the phi curve.

import { count, decimals, element, length, number, percent, plus, signed } from "./format.js";
import { beforeFacts, original } from "./whatif.js";

const get = (id) => document.getElementById(id);

/** What a bag was to the model: train, validation, test. */
const badge = (split) => element("span", { class: `badge ${split === "train" ? "seen" : ""}`, title: split === "train" ? "the model was trained on this bag" : `from the ${split} set` }, { validation: "val" }[split] ?? split);

export class BagList {
  constructor(bags, classes, onPick) {
    this.bags = bags;
    this.onPick = onPick;
    this.current = -1;
    this.several = classes.length > 2; // then a bag's probability is that of its predicted class
    if (this.several) {
      get("sort").querySelector("[value=high]").textContent = "surest prediction first";
      get("sort").querySelector("[value=low]").textContent = "least sure first";
    }
    get("search").addEventListener("input", () => this.render());
    get("sort").addEventListener("change", () => this.render());
    get("list").addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) { event.preventDefault(); this.step(step); }
    });
    this.render();
  }

  shown() {
    const words = get("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (b) => `${b.id} ${b.split ?? ""} ${b.label_name ?? ""} ${b.prediction_name ?? ""} ${b.patient ?? ""}`.toLowerCase();
    const rows = this.bags.filter((b) => words.every((w) => text(b).includes(w)));
    const p = (b) => b.probability ?? 0.5;
    // Of several classes: wrong ones first, the surest on top.
    const error = (b) => (this.several ? (b.label === b.prediction ? 1 - p(b) : 1 + p(b)) : Math.abs((b.label > 0 ? 1 : 0) - p(b)));
    const miss = (b) => (b.label === null || b.probability === null ? -1 : error(b));
    const orders = { name: (a, b) => a.id.localeCompare(b.id), high: (a, b) => p(b) - p(a), low: (a, b) => p(a) - p(b),
                     wrong: (a, b) => miss(b) - miss(a) };
    const order = orders[get("sort").value];
    return order ? [...rows].sort(order) : rows;
  }

  render() {
    const rows = this.shown();
    get("count").textContent = rows.length === this.bags.length ? count(rows.length, "bag") : `${count(rows.length)} of ${count(this.bags.length, "bag")}`;
    get("list").replaceChildren(...rows.slice(0, 2000).map((bag) => {
      const wrong = bag.label !== null && bag.prediction !== null && bag.label !== bag.prediction;
      return element("li", { role: "option", id: `bag-${bag.index}`, "aria-selected": String(bag.index === this.current), onclick: () => this.onPick(bag.index), title: bag.id },
        element("span", {}, bag.id), bag.split ? badge(bag.split) : element("span"), element("span", { class: bag.label === null ? "none" : bag.label > 0 ? "p1" : "p0" }, bag.label_name ?? "no label"),
        element("span", { class: wrong ? "miss" : "" }, bag.probability === null ? "–" : number(bag.probability, 2)));
    }));
    if (rows.length === 0) get("list").append(element("li", {}, "No bag matches."));
  }

  select(index) {
    this.current = index;
    for (const item of get("list").children) item.setAttribute("aria-selected", String(item.id === `bag-${index}`));
    get("list").setAttribute("aria-activedescendant", `bag-${index}`);
    get(`bag-${index}`)?.scrollIntoView({ block: "nearest" });
  }

  step(by) {
    const rows = this.shown();
    const at = rows.findIndex((b) => b.index === this.current);
    const next = rows[Math.min(rows.length - 1, Math.max(0, at + by))];
    if (next) this.onPick(next.index);
  }
}

export function showBag(entry, bag) {
  const facts = [[entry.label === null && entry.label_name ? "Known" : "Label", entry.label_name ?? "unknown"], ["Instances", count(bag.n)]];
  if (bag.method) {
    facts.splice(1, 0, ...(bag.said ?? [[`Probability of ${bag.target_name}`, percent(bag.probability)], ["Logit", signed(bag.logit)]]));
    if (bag.distance_share) facts.push(["Share that came from distance", percent(bag.distance_share)]);
    if (bag.method !== "exact") facts.push(["Account", bag.method]);
  }
  if (bag.unedited) facts.push(...beforeFacts(bag));
  if (bag.origin) facts.push(["Model", bag.origin]);
  if (bag.annotations) facts.push(["Annotations", bag.annotations]);
  if (entry.patient && entry.patient !== entry.id) facts.unshift(["Patient", entry.patient]);
  get("bag").replaceChildren(element("h2", {}, `${entry.id} `, entry.split ? badge(entry.split) : null),
    list(facts), ...(bag.told.length ? [element("p", { class: "small told" }, bag.told.join(" "))] : []),
    ...bag.warnings.map((w) => element("p", { class: "warn" }, w)));
}

const list = (facts) => element("dl", {}, ...facts.flatMap(([k, v]) => [element("dt", {}, k), element("dd", {}, v)]));

function table(label, header, rows) {
  const head = header.map((t) => element("th", { scope: "col" }, t));
  return element("table", { "aria-label": label }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

/** A row that goes to an instance, by click or Enter. */
function row(go, ...cells) {
  return element("tr", { class: "go", tabindex: 0, onclick: go, onkeydown: (event) => { if (event.key === "Enter") go(); } },
    ...cells.map((cell) => element("td", {}, cell)));
}

/** The selected instance: what it attends to; without one, the pairs that decided. */
export function showTile(bag, instance, onGo) {
  if (!bag?.method) { get("tile").replaceChildren(); return; }
  get("tile").replaceChildren(...(instance ? instanceFacts(bag, instance, onGo) : pairFacts(bag, onGo)).filter(Boolean));
}

/** Sums over many pairs: by kind, neighbourhood (a press goes there) or distance. */
function sumTables(bag, onGo) {
  return bag.sums.map(({ title, rows }) => {
    const digits = decimals(Math.max(...rows.map((r) => Math.abs(r.contribution))));
    const words = (between) => (between.length < 2 ? between[0] : between[0] === between[1] ? `${between[0]}, among themselves` : between.join(" with "));
    const lines = rows.map((r) => (r.places.length ? row(() => onGo.places(r.places), words(r.between), signed(r.contribution, digits))
      : element("tr", {}, element("td", {}, words(r.between)), element("td", {}, signed(r.contribution, digits)))));
    return table(title, [title, "Contribution"], lines);
  });
}

function pairFacts(bag, onGo) {
  if (!bag.pairs.length && !bag.verdict) return [];
  if (bag.verdict) return [element("h3", {}, "Pairs that decided"), element("p", { class: "small" }, bag.verdict), ...sumTables(bag, onGo)];
  const digits = decimals(Math.abs(bag.pairs[0].contribution));
  const rows = bag.pairs.map((p) => row(() => onGo.instance(p.i), `${p.i_name} – ${p.j_name}`, signed(p.contribution, digits), length(p.distance, bag.unit), number(p.phi, 2)));
  return [element("h3", {}, "Pairs that decided"), table("Pairs that decided", ["Pair", "Contribution", "Distance", "φ"], rows),
    phiCurve(bag, bag.pairs.map((p) => p.distance), "these pairs"),
    bag.sums.length ? element("details", {}, element("summary", {}, "All pairs, added up"), ...sumTables(bag, onGo)) : null];
}

/** What one instance looks at, or which deciding rows look at it. */
function partnerTable(bag, instance, partners, title, header, onGo, withGiven) {
  const heads = bag.curves.length > 1 && new Set(partners.map((p) => p.head)).size > 1;
  const digits = decimals(Math.max(...partners.map((p) => Math.abs(p.contribution ?? 0))));
  const rows = partners.slice(0, 10).map((p) => row(() => onGo.instance(p.index),
    `${p.name}${p.index === instance.index ? " (itself)" : ""}${heads ? `, head ${p.head}` : ""}`, percent(p.weight), length(p.distance, bag.unit), number(p.phi, 2),
    ...(withGiven ? [signed(p.contribution, digits)] : [])));
  return table(title, [header, "Weight", "Distance", "φ", ...(withGiven ? ["Gave"] : [])], rows);
}

function instanceFacts(bag, instance, onGo) {
  const face = bag.picture ? element("img", { src: `api/bag/${bag.index}/instance/${original(instance.index)}`, alt: "", width: 62, height: 62 }) : null;
  const { partners, watchers, sides } = instance;
  const decided = partners.some((p) => p.contribution); // only rows that decided have contributions
  const others = partners.filter((p) => p.index !== instance.index);
  const looks = partners.length ? partnerTable(bag, instance, partners, "Strongest partners", "Looks at", onGo, decided) : element("p", {}, "This model has no attention between instances.");
  const seen = (watchers ?? []).filter((p) => Math.abs(p.contribution) >= 0.01 * Math.abs(watchers[0].contribution));
  const looked = seen.length ? partnerTable(bag, instance, seen, "Looked at by", "Looked at by", onGo, true) : null;
  const both = sides ? `Took ${plus(sides.looks)} as a row that ${decided ? "decided" : "did not decide"}; ${count(sides.rows, "deciding row")} took ${plus(sides.looked_at)} from it. Half of the two together is its contribution.` : null;
  const where = [instance.kind, instance.section, `at ${length(instance.x, bag.unit)}, ${length(instance.y, bag.unit)}`].filter(Boolean).join(", ");
  return [element("div", { class: "who" }, face, element("div", {}, element("h2", {}, `Instance ${instance.name}`), element("p", {}, where))),
    both ? element("p", { class: "small" }, both) : null,
    ...(sides && Math.abs(sides.looked_at) > Math.abs(sides.looks) ? [looked, looks] : [looks, looked]),
    bag.curves.length && partners.length ? phiCurve(bag, others.map((p) => p.distance), "the partners") : null,
    element("details", {}, element("summary", {}, "All scores"), list(Object.entries(instance.scores).map(([name, value]) => [name, plus(value)])))];
}

/** phi over distance, one line a head, with distances marked below. */
function phiCurve(bag, distances, what) {
  if (!bag.curves.length) return null;
  const W = 330, H = 130, left = 30, right = 12, top = 8, bottom = 30;
  const furthest = bag.curves[0].distance.at(-1);
  const x = (d) => left + (W - left - right) * (d / furthest);
  const values = bag.curves.flatMap((c) => c.phi);
  const low = Math.min(0, ...values), high = Math.max(1, ...values);
  const y = (v) => top + (H - top - bottom) * (1 - (v - low) / (high - low));
  const svg = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const root = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `phi over distance with the distances of ${what} marked` });
  root.append(svg("line", { x1: left, x2: W - right, y1: y(low), y2: y(low), stroke: "var(--line)" }));
  for (const v of [low, high]) root.append(svg("text", { x: left - 5, y: y(v) + 4, "text-anchor": "end" }, number(v, Number.isInteger(v) ? 0 : 1)));
  for (const f of [0, 0.5, 1]) root.append(svg("text", { x: x(f * furthest), y: H - 3, "text-anchor": f === 1 ? "end" : f ? "middle" : "start" }, f ? length(f * furthest, bag.unit) : "0"));
  const last = Math.max(...bag.curves.map((c) => c.layer)); // the layer whose partners are shown
  for (const curve of bag.curves.filter((c) => c.layer === last)) {
    const points = curve.distance.map((d, k) => `${x(d).toFixed(1)},${y(curve.phi[k]).toFixed(1)}`).join(" ");
    root.append(svg("polyline", { points, fill: "none", stroke: "var(--accent)", "stroke-width": 1.5 }));
    if (curve.midpoint > 0 && curve.midpoint < furthest) {
      root.append(svg("line", { x1: x(curve.midpoint), x2: x(curve.midpoint), y1: top, y2: y(low), stroke: "var(--quiet)", "stroke-dasharray": "2 3" }));
      const rising = curve.phi.at(-1) >= curve.phi[0]; // the label goes where the curve is not
      root.append(svg("text", { x: x(curve.midpoint) + (rising ? 4 : -4), y: y(low) - 6 - 13 * curve.head, "text-anchor": rising ? "start" : "end" }, `θ ${length(curve.midpoint, bag.unit)}`));
    }
  }
  for (const d of distances) {
    if (d !== null && d <= furthest) {
      root.append(svg("line", { x1: x(d), x2: x(d), y1: y(low), y2: y(low) + 9, stroke: "var(--orange)", "stroke-width": 1.5, class: "partner" }));
    }
  }
  const beyond = distances.filter((d) => d > furthest).length;
  return element("figure", {}, root, element("figcaption", {}, `φ over distance; orange: ${what}${beyond ? `, ${beyond} further away` : ""}`));
}
