// The trace page: loads its ranks, and ties the tables and the tools to the timeline.
import { fetchPage, swap } from "./live.js";
import { Timeline } from "./timeline.js";
import { CLASSES, duration, statistics, unpack } from "./timeline_data.js";

const PERFETTO = "https://ui.perfetto.dev";
const MAX_NAMES = 12;
const ANALYSED_MS = 1000;
const began = performance.now();
const find = (selector) => document.querySelector(selector);
const box = find("[data-timeline]");
const status = find("[data-status]");
const sources = [...document.querySelectorAll("[data-events]")];
let problems = [];

const timeline = new Timeline(box, {
  tell: (drawn, ms) => {
    if (!timeline.ranks.length) return;
    const events = timeline.ranks.reduce((sum, rank) => sum + rank.events, 0);
    const waits = sources.length - timeline.ranks.length - problems.length;
    const loading = waits ? `, ${waits} of ${sources.length} ranks loading` : "";
    status.textContent = [`${events.toLocaleString("en")} events, ${duration(timeline.view[1] - timeline.view[0])} in view, drawn in ${ms.toFixed(0)} ms${loading}`, ...problems].join(". ");
  },
  selected: showSelection,
});

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
  const whole = [Math.min(...ranks.map((rank) => rank.shift)), timeline.end];
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

async function load(source) {
  const { events, label, side, place } = source.dataset;
  for (;;) {
    const answer = await fetch(events);
    if (answer.ok) {
      const rank = unpack(await answer.arrayBuffer(), label);
      return timeline.add({ ...rank, side, place: (side === "B" ? 1e9 : 0) + Number(place) });
    }
    const wait = Number(answer.headers.get("Retry-After") ?? 0);
    if (!wait) throw new Error((await answer.json().catch(() => ({}))).detail ?? `the server answered ${answer.status}`);
    await new Promise((resolve) => setTimeout(resolve, wait * 1000));
  }
}

/** Two at a time: the server reads each rank's file. */
async function loadAll() {
  const waiting = [...sources];
  const work = async () => {
    for (let source = waiting.shift(); source; source = waiting.shift())
      await load(source).catch((error) => problems.push(`${source.dataset.label}: ${error.message}`));
  };
  await Promise.all([work(), work()]);
  status.textContent = problems.join(". ");
  showDifferences();
  box.dataset.loadedMs = (performance.now() - began).toFixed(0);
  timeline.redraw();
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
}

const acts = {
  next: () => timeline.next(),
  in: () => timeline.zoom(0.5),
  out: () => timeline.zoom(2),
  fit: () => timeline.show(0, timeline.end),
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
    button.onclick = () => {
      timeline.showMoment(button.dataset.rank, Number(button.dataset.moment), Number(button.dataset.late));
      box.scrollIntoView({ block: "center" });
    };
  if (document.querySelector("[data-pending]")) setTimeout(lookAgain, ANALYSED_MS);
}

/** The timeline is shown before the analysis is done; its tables come when it is. */
async function lookAgain() {
  const page = await fetchPage(location.href);
  if (page) swap(page, ["analysis"]);
  wireTables();
}

for (const button of document.querySelectorAll("[data-act]")) button.onclick = () => acts[button.dataset.act](button);
find("[data-find]").oninput = ({ target }) => search(target.value);
wireTables();
loadAll();
