// Draws simulated schedules, and measured ranks beside them, on canvases that share one time axis: zoomed, moved, and
// explained under the pointer.
import { colour, prepared, soon } from "./canvas.js";
import { glance } from "./minimap.js";
import { alignClocks, unpackOverview } from "./timeline_data.js";

const LEFT = 56;
const HELD_HEIGHT = 96;
const TITLES = {
  forward: "forward", backward: "backward", weights: "weight gradients", send: "transfer", reduce: "gradients reduced",
  optimizer: "optimizer", other: "host and other",
};
const FILLS = {
  forward: "--g-forward", backward: "--g-backward", weights: "--g-weights", send: "--pp_comm_exposed",
  reduce: "--dp_comm_exposed", optimizer: "--optimizer", other: "--host_and_other",
};
const PRODUCTS = ["forward", "backward", "weights"];
/** What of a simulated step a loss is in; the others are in the products. */
const SLICES = { recompute: ["backward"], pipeline_bubble: ["idle"], pp_comm_exposed: ["send"], dp_comm_exposed: ["reduce"], optimizer: ["optimizer"], host_and_other: ["other"] };
const DIM = 0.25;
const MEASURED_PX = 96;
const steps = new Map(); // by address, so that a plan that was shown before is drawn at once
const span = { start: 0, end: 1, whole: 1 };
let [root, charts, measured, lit] = [null, [], null, null];

function rowHeight(stages) {
  return Math.max(5, Math.min(24, Math.floor(300 / stages)));
}

async function load(figure) {
  const { gantt } = figure.dataset;
  if (!steps.has(gantt)) {
    const answer = await fetch(gantt, { headers: { Accept: "application/json" } }).catch(() => null);
    if (!answer) return void (figure.querySelector("figcaption").textContent += ": connection lost");
    const step = await answer.json();
    if (!answer.ok) return void (figure.querySelector("figcaption").textContent += ` ${step.detail}`);
    steps.set(gantt, step);
  }
  if (!figure.isConnected) return;
  const [chart, held] = figure.querySelectorAll("canvas");
  charts.push({ figure, step: steps.get(gantt), chart, held });
  wire(chart);
  widen();
}

/** The ranks of the session's traces, from where their first step begins. */
async function loadMeasured(figure) {
  const answer = await fetch(figure.dataset.measured).catch(() => null);
  if (!answer?.ok || !figure.isConnected) return;
  const overview = unpackOverview(await answer.arrayBuffer());
  alignClocks([], overview);
  const begins = overview.ranks.flatMap((rank) => (rank.step_us ? rank.shift + (rank.step_us - rank.start_us) * 1000 : []));
  measured = { figure, ranks: overview.ranks, begin: begins.length ? Math.min(...begins) : 0, canvas: figure.querySelector("canvas") };
  wire(measured.canvas);
  widen();
}

/** The axis holds the longest step; what was zoomed stays so. */
function widen() {
  const isWhole = span.start === 0 && span.end === span.whole;
  const longest = charts.map(({ step }) => step.makespan_s);
  if (measured) longest.push(Number(measured.figure.dataset.step) || 0);
  span.whole = Math.max(...longest) * 1.005;
  if (isWhole || span.end > span.whole) [span.start, span.end] = [0, span.whole];
  redraw();
}

function placer(width) {
  const scale = (width - LEFT) / (span.end - span.start);
  return (at) => LEFT + (at - span.start) * scale;
}

function drawSchedule({ step, chart }) {
  const row = rowHeight(step.stages);
  const height = step.stages * row + 22;
  chart.style.height = `${height}px`;
  const { pen, width } = prepared(chart, height);
  const x = placer(width);
  const shown = lit && (SLICES[lit] ?? PRODUCTS);
  const alpha = (kind) => (shown && !shown.includes(kind) ? DIM : 1);
  pen.fillStyle = colour(shown?.includes("idle") ? "--edge" : "--g-idle");
  for (let stage = 0; stage < step.stages; stage++)
    pen.fillRect(LEFT, stage * row, Math.max(0, Math.min(width, x(step.makespan_s)) - LEFT), row - 1);
  const fills = step.kinds.map((kind) => colour(FILLS[kind]));
  const page = colour("--page");
  const drawnTo = new Float64Array(step.stages).fill(-1);
  const labels = [];
  for (let i = 0; i < step.stage.length; i++) {
    const from = Math.max(x(step.start_s[i]), LEFT);
    const to = Math.min(x(step.end_s[i]), width);
    const stage = step.stage[i];
    if (to <= LEFT || from >= width || to - drawnTo[stage] < 0.3) continue; // nothing of it would be seen
    drawnTo[stage] = to;
    const opaque = alpha(step.kinds[step.kind[i]]);
    [pen.globalAlpha, pen.fillStyle] = [1, page];
    if (opaque < 1) pen.fillRect(from, stage * row, to - from, row - 1);
    pen.globalAlpha = opaque;
    pen.fillStyle = fills[step.kind[i]];
    pen.fillRect(from, stage * row, Math.max(to - from - (to - from > 3 ? 0.6 : 0), 0.3), row - 1);
    if (to - from > 22 && row >= 13 && step.micro_batch[i] >= 0 && step.kind[i] < 3) labels.push([i, (from + to) / 2, stage]);
  }
  pen.globalAlpha = 1;
  pen.textAlign = "center";
  for (const [i, middle, stage] of labels) {
    pen.fillStyle = step.kind[i] === 0 ? colour("--on-accent") : colour("--ink");
    pen.fillText(String(step.micro_batch[i]), middle, stage * row + row / 2 + 4);
  }
  pen.fillStyle = colour("--soft");
  pen.textAlign = "right";
  const every = Math.ceil(12 / row);
  for (let stage = 0; stage < step.stages; stage += every)
    pen.fillText(stage ? String(stage) : "stage 0", LEFT - 6, stage * row + Math.min(row - 2, 11));
  drawAxis(pen, x, width, step.stages * row);
}

function drawAxis(pen, x, width, top) {
  const rough = (span.end - span.start) / Math.max(2, Math.floor((width - LEFT) / 110));
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  pen.fillStyle = colour("--soft");
  pen.textAlign = "left";
  for (let at = Math.ceil(span.start / step) * step; at < span.end; at += step) {
    pen.fillRect(x(at), top, 1, 4);
    if (x(at) < width - 50) pen.fillText(seconds(at, step), x(at) + 3, top + 14);
  }
}

function seconds(at, step) {
  if (step >= 0.1) return `${at.toFixed(step >= 1 ? 0 : 1)} s`;
  return `${(at * 1000).toFixed(step >= 0.001 ? 0 : 3)} ms`;
}

/** Memory that each stage holds: first and last in colours of their own, the others between them in grey. */
function drawMemory({ step, held }) {
  if (!held) return;
  held.style.height = `${HELD_HEIGHT}px`;
  const { pen, width } = prepared(held, HELD_HEIGHT);
  const x = placer(width);
  const peakOf = ({ memory }) => Math.max(...memory.map(([, gib]) => Math.max(...gib)));
  const peak = peakOf(step);
  const highest = Math.max(...charts.map((entry) => peakOf(entry.step))); // one scale for all
  const top = Math.max(highest, highest > 0.5 * step.limit_gib ? step.limit_gib : 0) * 1.12;
  const y = (gib) => HELD_HEIGHT - 4 - (gib / top) * (HELD_HEIGHT - 16);
  const last = step.stages - 1;
  const order = [...step.memory.keys()].sort((a, b) => (a === 0 || a === last) - (b === 0 || b === last));
  for (const stage of order) {
    pen.strokeStyle = colour(stage === 0 ? "--g-first" : stage === last ? "--g-last" : "--edge");
    pen.lineWidth = stage === 0 || stage === last ? 1.5 : 0.6;
    const [times, gib] = step.memory[stage];
    pen.beginPath();
    for (let i = 0; i < times.length; i++) {
      const next = i + 1 < times.length ? times[i + 1] : step.makespan_s;
      if (next < span.start || times[i] > span.end) continue;
      pen.lineTo(Math.max(x(times[i]), LEFT), y(gib[i]));
      pen.lineTo(Math.min(x(next), width), y(gib[i]));
    }
    pen.stroke();
  }
  pen.fillStyle = colour("--soft");
  pen.textAlign = "right";
  pen.fillText(`${peak.toFixed(0)} GiB`, LEFT - 6, y(peak) + 4);
  if (step.limit_gib < top) {
    pen.setLineDash([4, 3]);
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 1;
    pen.strokeRect(LEFT, y(step.limit_gib), width - LEFT, 0);
    pen.setLineDash([]);
    pen.textAlign = "left";
    pen.fillText("usable", LEFT + 4, y(step.limit_gib) - 3);
  }
  pen.textAlign = "left";
  pen.fillStyle = colour("--g-first");
  pen.fillText("memory of stage 0", LEFT + 4, HELD_HEIGHT - 8);
  if (last) {
    pen.fillStyle = colour("--g-last");
    pen.fillText(`of stage ${last}`, LEFT + 116, HELD_HEIGHT - 8);
  }
}

function drawMeasured(entry) {
  const { figure, canvas, ranks, begin } = entry;
  const row = Math.max(1, Math.min(12, Math.floor(MEASURED_PX / ranks.length)));
  const height = ranks.length * row;
  canvas.style.height = `${height}px`;
  const { pen, width } = prepared(canvas, height);
  const seen = [span.start, span.end, width, document.documentElement.dataset.theme].join();
  if (entry.seen !== seen) entry.image = glance(ranks, row, begin + span.start * 1e9, begin + span.end * 1e9, Math.max(1, Math.floor(width - LEFT)));
  entry.seen = seen;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(entry.image, LEFT, 0);
  pen.fillStyle = colour("--soft");
  pen.textAlign = "right";
  const every = Math.ceil(12 / row);
  for (let at = 0; at < ranks.length; at += every) pen.fillText(at ? String(ranks[at].rank) : `rank ${ranks[at].rank}`, LEFT - 6, at * row + 10);
  figure.dataset.drawn = "true";
}

function drawAll() {
  if (!root.isConnected || !charts.length) return;
  if (measured) drawMeasured(measured);
  for (const entry of charts) {
    drawSchedule(entry);
    drawMemory(entry);
    entry.figure.dataset.drawn = "true";
  }
  root.querySelector("[data-range]").textContent = `${span.start.toPrecision(3)} to ${span.end.toPrecision(4)} s`;
}

const redraw = () => soon(drawAll);

function show(start, end) {
  const length = Math.min(Math.max(end - start, span.whole / 5000), span.whole);
  span.start = Math.min(Math.max(start, 0), span.whole - length);
  span.end = span.start + length;
  redraw();
}

function zoom(factor, at = (span.start + span.end) / 2) {
  show(at - (at - span.start) * factor, at + (span.end - at) * factor);
}

const KEYS = {
  "+": () => zoom(0.6), "=": () => zoom(0.6), w: () => zoom(0.6), "-": () => zoom(1 / 0.6), s: () => zoom(1 / 0.6),
  ArrowLeft: () => move(-0.2), a: () => move(-0.2), ArrowRight: () => move(0.2), d: () => move(0.2), 0: () => show(0, span.whole),
};

function move(share) {
  const by = share * (span.end - span.start);
  show(span.start + by, span.end + by);
}

function wire(canvas) {
  const timeAt = (event) =>
    span.start + ((event.offsetX - LEFT) / (canvas.clientWidth - LEFT)) * (span.end - span.start);
  let held = null;
  canvas.onwheel = (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
  };
  canvas.onpointerdown = (event) => {
    held = { at: timeAt(event) };
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointerup = () => (held = null);
  canvas.onpointermove = (event) => {
    if (held) {
      const by = held.at - timeAt(event);
      show(span.start + by, span.end + by);
    }
    explain(canvas, event, timeAt(event));
  };
  canvas.onpointerleave = () => (root.querySelector("[data-tip]").hidden = true);
  canvas.ondblclick = () => show(0, span.whole);
  canvas.onkeydown = (event) => {
    const act = !event.ctrlKey && !event.metaKey && KEYS[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  };
}

function explain(canvas, event, at) {
  const tip = root.querySelector("[data-tip]");
  const { step } = charts.find((entry) => entry.chart === canvas) ?? {};
  if (!step) return;
  const stage = Math.floor(event.offsetY / rowHeight(step.stages));
  const found = step.stage.findIndex((own, i) => own === stage && step.start_s[i] <= at && at < step.end_s[i]);
  tip.hidden = stage >= step.stages || at < 0 || at > step.makespan_s;
  if (tip.hidden) return;
  const kind = step.kinds[step.kind[found]];
  const batch = step.micro_batch[found] >= 0 ? `, micro-batch ${step.micro_batch[found]}, chunk ${step.chunk[found]}` : "";
  tip.textContent =
    found < 0
      ? `stage ${stage}: waits`
      : `stage ${stage}: ${TITLES[kind]}${batch}, ${((step.end_s[found] - step.start_s[found]) * 1000).toPrecision(3)} ms from ${step.start_s[found].toPrecision(4)} s`;
  const box = root.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4)}px`;
  tip.style.top = `${event.clientY - box.top + 14}px`;
}

/** Lights the stretches of a loss; null lights all. */
export function lightGantts(cause) {
  if (lit === cause) return;
  lit = cause;
  if (root) redraw();
}

export function attachGantts(place) {
  [root, charts, measured] = [place, [], null];
  for (const button of root.querySelectorAll("[data-zoom]"))
    button.onclick = () => ({ in: () => zoom(0.5), out: () => zoom(2), all: () => show(0, span.whole) })[button.dataset.zoom]();
  for (const figure of root.querySelectorAll("[data-gantt]")) load(figure);
  for (const figure of root.querySelectorAll("[data-measured]")) loadMeasured(figure);
}

addEventListener("resize", () => root && redraw());
document.addEventListener("themechange", () => root && redraw());
