// The trace page: loads the ranks that are looked at, keeps what is looked at in the address, and ties the tables
// and the tools to the timeline.
import { fetchPage, swap } from "./live.js";
import { Minimap } from "./minimap.js";
import { Timeline } from "./timeline.js";
import { CLASSES, duration, simulated, statistics, unpack, unpackOverview } from "./timeline_data.js";

const PERFETTO = "https://ui.perfetto.dev";
const MAX_NAMES = 12;
const ANALYSED_MS = 1000;
const WRITTEN_MS = 250;
const MAX_SHOWN = 16;
const NS_PER_MS = 1e6;
const began = performance.now();
const find = (selector) => document.querySelector(selector);
const box = find("[data-timeline]");
const status = find("[data-status]");
const asked = new URLSearchParams(location.search);
const sources = [...document.querySelectorAll("[data-events]")].map(({ dataset }) => {
  const { side, place, events } = dataset;
  const short = `${side}${place}`;
  return { key: short, short, side, number: Number(place), address: events, label: side ? `${side} rank ${place}` : `rank ${place}` };
});
const sides = [...new Set(sources.map(({ side }) => side))];
const perSide = Math.max(1, Math.floor(MAX_SHOWN / sides.length));
const loaded = new Map(); // ranks by key, or what is awaited
const problems = new Map();
const simulations = [];
let first = Number(asked.get("ranks")?.split("-")[0] ?? 0) || 0; // of each side, in the minimap's order
let isSettled = false;

const timeline = new Timeline(box, {
  tell: (drawn, ms) => {
    if (!timeline.ranks.length) return;
    const shown = timeline.ranks.filter(({ isSimulated }) => !isSimulated);
    const events = shown.reduce((sum, rank) => sum + rank.events, 0);
    const waits = wanted().filter(({ key }) => !(loaded.get(key)?.rows || problems.has(key))).length;
    const loading = waits ? `, ${waits} ranks loading` : "";
    const all = sources.length > shown.length ? `${shown.length} of ${sources.length} ranks, ` : "";
    status.textContent = [`${all}${events.toLocaleString("en")} events, ${duration(timeline.view[1] - timeline.view[0])} in view, drawn in ${ms.toFixed(0)} ms${loading}`, ...problems.values()].join(". ");
    map.redraw();
  },
  selected: showSelection,
  moved: keepAddress,
});
timeline.pins = new Set(asked.getAll("pin"));
const map = new Minimap(find("[data-minimap]"), timeline, choose);

/** The ranks of a side from top to bottom: by number, or those first that wait least. */
function ordered(side) {
  const own = sources.filter((source) => source.side === side);
  const glance = new Map((timeline.overviews.get(side)?.ranks ?? []).map((rank) => [rank.rank, rank]));
  if (find("[data-order]").value === "late") own.sort((a, b) => (glance.get(a.number)?.waiting ?? 2) - (glance.get(b.number)?.waiting ?? 2));
  return own;
}

/** What the timeline shows: a window of every side's ranks, and those of pinned rows. */
function wanted() {
  const pinned = new Set([...timeline.pins].map((id) => id.split(":")[0]));
  return sides.flatMap((side) => ordered(side).filter((source, place) => (place >= first && place < first + perSide) || pinned.has(source.key)));
}

/** Brings the ranks around this row of the minimap; a click puts it in their middle. */
function choose(row, isClick = false) {
  const most = Math.max(...sides.map((side) => sources.filter((source) => source.side === side).length));
  const own = row % most; // a second side stands below the first
  first = Math.max(0, Math.min(isClick ? own - (perSide >> 1) : own, most - perSide));
  fill();
  keepAddress();
}

function fill() {
  const shown = wanted();
  const glances = sides.flatMap((side) => {
    const ranks = new Map((timeline.overviews.get(side)?.ranks ?? []).map((rank) => [rank.rank, rank]));
    return ordered(side).flatMap(({ number, key, label }) => (ranks.has(number) ? Object.assign(ranks.get(number), { key, label }) : []));
  });
  timeline.fill([...simulations, ...shown.flatMap(({ key }) => (loaded.get(key)?.rows ? loaded.get(key) : []))]);
  const rows = glances.map((rank, row) => (shown.some(({ key }) => key === rank.key) ? row : -1)).filter((row) => row >= 0);
  map.shown = rows.length ? [rows[0], rows.at(-1) + 1] : [0, 0];
  map.late = new Set([...document.querySelectorAll("[data-late-rank]")].map((button) => button.dataset.lateRank));
  map.fill(glances);
  fillTracks();
  return load(shown);
}

function fillTracks() {
  const list = find("[data-tracks]");
  const focused = document.activeElement?.value;
  list.replaceChildren(...timeline.tracks().map(([id, name]) => {
    const [label, input] = [document.createElement("label"), Object.assign(document.createElement("input"), { type: "checkbox", value: id, checked: timeline.pins.has(id) })];
    input.onchange = () => timeline.pin(id);
    label.append(input, name);
    return label;
  }));
  if (focused) [...list.querySelectorAll("input")].find(({ value }) => value === focused)?.focus();
}

/** Time, ranks, pins and the search as parameters; a page that is opened with them shows the same. */
function keepAddress() {
  if (!isSettled) return;
  clearTimeout(keepAddress.timer);
  keepAddress.timer = setTimeout(() => {
    const address = new URL(location.href);
    const put = (name, ...values) => (address.searchParams.delete(name), values.filter(Boolean).forEach((value) => address.searchParams.append(name, value)));
    put("t", timeline.isWhole ? "" : timeline.view.map((ns) => (ns / NS_PER_MS).toFixed(6)).join(".."));
    put("ranks", first ? `${first}-${first + perSide - 1}` : "");
    put("pin", ...timeline.pins);
    put("find", find("[data-find]").value);
    put("order", find("[data-order]").value === "late" ? "late" : "");
    put("plan", find("[data-plan]")?.value);
    history.replaceState(null, "", address);
    box.dataset.address = address.search;
  }, WRITTEN_MS);
}

function table(heads, rows) {
  const row = (cells, tag) => {
    const line = document.createElement("tr");
    line.append(...cells.map((text, i) => Object.assign(document.createElement(i ? tag : "th"), { textContent: text, className: i ? "number" : "" })));
    return line;
  };
  const whole = document.createElement("table");
  whole.append(document.createElement("thead"), document.createElement("tbody"));
  whole.tHead.append(row(heads, "th"));
  whole.tBodies[0].append(...rows.map((cells) => row(cells, "td")));
  return whole;
}

function showSelection(stretch) {
  const section = find("[data-selection]");
  section.hidden = !stretch;
  timeline.redraw();
  if (!stretch) return;
  const { perRank, names } = statistics(timeline.ranks, stretch);
  const wide = stretch[1] - stretch[0];
  const used = CLASSES.map((_, kind) => kind).filter((kind) => perRank.some(({ times }) => times[kind]));
  const percent = (ns) => `${((100 * ns) / wide).toFixed(1)}%`;
  section.querySelector("h2").textContent = `Selected stretch: ${duration(wide)}`;
  find("[data-selection-body]").replaceChildren(
    table(["rank", ...used.map((kind) => CLASSES[kind])], perRank.map(({ label, times }) => [label, ...used.map((kind) => percent(times[kind]))])),
    table(["name", "calls", "time", "mean"], names.slice(0, MAX_NAMES).map(({ name, count, ns }) => [name.slice(0, 120), count.toLocaleString("en"), duration(ns), duration(ns / count)])),
  );
}

/** Mean over the ranks of a side of the time of each name. */
function totals(side) {
  const ranks = timeline.ranks.filter((rank) => rank.side === side);
  const whole = [timeline.begin, timeline.end];
  return new Map(statistics(ranks, whole).names.map(({ name, ns }) => [name, ns / ranks.length]));
}

function showDifferences() {
  const place = find("[data-differences]");
  if (!place) return;
  const [before, after] = [totals("A"), totals("B")];
  const names = [...new Set([...before.keys(), ...after.keys()])];
  const rows = names.map((name) => ({ name, a: before.get(name) ?? 0, b: after.get(name) ?? 0 }));
  rows.sort((one, other) => Math.abs(other.b - other.a) - Math.abs(one.b - one.a));
  const sign = (ns) => `${ns < 0 ? "−" : "+"}${duration(Math.abs(ns))}`;
  place.replaceChildren(table(["name", "A", "B", "B − A"], rows.slice(0, 15).map(({ name, a, b }) => [name.slice(0, 120), a ? duration(a) : "none", b ? duration(b) : "none", sign(b - a)])));
}

/** The answer, asked for again while the server says when to. */
async function get(address) {
  for (;;) {
    const answer = await fetch(address);
    if (answer.ok) return answer;
    const wait = Number(answer.headers.get("Retry-After") ?? 0);
    if (!wait) throw new Error((await answer.json().catch(() => ({}))).detail ?? `the server answered ${answer.status}`);
    await new Promise((resolve) => setTimeout(resolve, wait * 1000));
  }
}

/** Those that are not here yet, two at a time: the server reads each rank's file. Others are let go. */
async function load(shown) {
  const waiting = shown.filter(({ key }) => !loaded.has(key));
  for (const key of loaded.keys()) if (loaded.get(key).rows && !shown.some((source) => source.key === key)) loaded.delete(key);
  for (const { key } of waiting) loaded.set(key, {});
  const work = async () => {
    for (let source = waiting.shift(); source; source = waiting.shift()) {
      try {
        loaded.set(source.key, unpack(await (await get(source.address)).arrayBuffer(), source));
      } catch (error) {
        problems.set(source.key, `${source.label}: ${error.message}`);
      }
      fill();
      search(find("[data-find]").value);
    }
  };
  await Promise.all([work(), work()]);
}

/** The minimap and the waiting come when the traces are analysed. */
async function loadOverviews() {
  for (const { dataset } of document.querySelectorAll("[data-overview]"))
    try {
      const overview = unpackOverview(await (await get(dataset.overview)).arrayBuffer());
      timeline.overviews.set(dataset.side, overview);
      await fill();
    } catch {
      find("[data-minimap-note]").hidden = false; // analysed by an earlier release
    }
}

/** The simulated steps of today's plan and of the chosen one, above the measured ranks. */
async function loadSimulations() {
  const chosen = find("[data-plan]")?.value;
  const plans = [...document.querySelectorAll("[data-simulated]")].map(({ dataset }) => dataset).filter(({ ofPlan }) => ofPlan === "today" || ofPlan === chosen);
  const steps = await Promise.all(plans.map(async ({ simulated: address, label, ofPlan }) => {
    const step = await (await get(address)).json();
    return simulated(step, { key: `s${ofPlan}`, short: ofPlan, label, side: "simulated", number: -1 });
  }));
  simulations.splice(0, simulations.length, ...steps);
  fill();
}

async function begin() {
  find("[data-find]").value = asked.get("find") ?? "";
  find("[data-order]").value = asked.get("order") === "late" ? "late" : "rank";
  const plan = find("[data-plan]");
  if (plan && [...plan.options].some(({ value }) => value === asked.get("plan"))) plan.value = asked.get("plan");
  const simulating = loadSimulations().catch((error) => problems.set("simulated", `simulated: ${error.message}`));
  await fill();
  showDifferences();
  const view = asked.get("t")?.split("..").map((ms) => Number(ms) * NS_PER_MS);
  await simulating;
  if (view?.length === 2 && view.every(Number.isFinite)) timeline.show(...view);
  isSettled = true;
  box.dataset.loadedMs = (performance.now() - began).toFixed(0);
  timeline.redraw();
  await loadOverviews();
  if (view?.length === 2 && view.every(Number.isFinite) && !box.dataset.address) timeline.show(...view); // by the collectives' clocks
  box.dataset.overviews = timeline.overviews.size;
}

/** Hands the file to Perfetto's page as soon as that answers. */
async function openPerfetto({ perfetto, name }) {
  const opened = window.open(PERFETTO);
  const buffer = await (await fetch(perfetto)).arrayBuffer();
  const knock = setInterval(() => opened.postMessage("PING", PERFETTO), 100);
  addEventListener("message", function answer({ data, origin }) {
    if (origin !== PERFETTO || data !== "PONG") return;
    clearInterval(knock);
    removeEventListener("message", answer);
    opened.postMessage({ perfetto: { buffer, title: name } }, PERFETTO);
  });
  setTimeout(() => clearInterval(knock), 60_000);
}

function search(words) {
  find("[data-find]").value = words;
  const found = timeline.search(words);
  find("[data-found]").textContent = words ? `${found.toLocaleString("en")} events` : "";
  keepAddress();
}

const acts = {
  next: () => timeline.next(),
  in: () => timeline.zoom(0.5),
  out: () => timeline.zoom(2),
  fit: () => timeline.show(timeline.begin, timeline.end),
  select: (button) => {
    timeline.isSelecting = !timeline.isSelecting;
    button.setAttribute("aria-pressed", String(timeline.isSelecting));
  },
};
function wireTables() {
  for (const button of document.querySelectorAll("[data-perfetto]")) button.onclick = () => openPerfetto(button.dataset);
  for (const button of document.querySelectorAll("[data-kernel]"))
    button.onclick = () => (search(button.dataset.kernel), box.scrollIntoView({ block: "center" }));
  for (const button of document.querySelectorAll("[data-moment]"))
    button.onclick = async () => {
      await bring(button.dataset.rank);
      timeline.showMoment(button.dataset.rank, Number(button.dataset.moment), Number(button.dataset.late));
      box.scrollIntoView({ block: "center" });
    };
  for (const button of document.querySelectorAll("[data-late-rank]")) button.onclick = () => bring(button.dataset.lateRank);
  if (document.querySelector("[data-pending]")) setTimeout(lookAgain, ANALYSED_MS);
}

/** Loads a rank and its neighbours if it is not shown. */
async function bring(key) {
  const side = sources.find((source) => source.key === key)?.side;
  if (!wanted().some((source) => source.key === key)) first = Math.max(0, ordered(side).findIndex((source) => source.key === key) - (perSide >> 1));
  await fill();
  keepAddress();
}

/** The timeline is shown before the analysis is done; its tables come when it is. */
async function lookAgain() {
  const page = await fetchPage(location.href);
  if (page) swap(page, ["waiting", "analysis"]);
  wireTables();
  fill();
}

for (const button of document.querySelectorAll("[data-act]")) button.onclick = () => acts[button.dataset.act](button);
find("[data-find]").oninput = ({ target }) => search(target.value);
find("[data-order]").onchange = () => (fill(), keepAddress());
if (find("[data-plan]")) find("[data-plan]").onchange = () => (loadSimulations(), keepAddress());
wireTables();
begin();
