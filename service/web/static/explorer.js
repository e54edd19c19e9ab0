// Every plan of a search as typed arrays: filtered, sorted and drawn without asking the server again. Lines
// between two axes are counted per pair of values, so that 100,000 plans cost a few hundred strokes.
import { fetchPage, swap } from "./live.js";

const root = document.querySelector("[data-explorer]");
const GIB = 2 ** 30;
const ROW = 26;
const BINS = 80;
const TITLES = { step_time_s: "step time, s", memory_bytes: "memory, GiB", micro_batch_size: "micro-batch", sequence_parallel: "seq. parallel" };
const grid = root.querySelector("[data-grid]");
const [coordinates, scatter] = [root.querySelector("[data-coordinates]"), root.querySelector("[data-scatter]")];
const ranges = new Map(); // column name: [low, high] of its brush
const picks = new Map(); // column name: the one value that its list allows
let columns = [];
let count = 0;
let order = new Uint32Array(0); // all rows, sorted
let visible = new Uint32Array(0); // those that pass, in the same order
let passes = new Uint8Array(0);
let sorted = { name: "step_time_s", up: true };
let selected = -1;
let front = [];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const column = (name) => columns.find((candidate) => candidate.name === name);

async function load() {
  const answer = await fetch(root.dataset.explorer);
  if (!answer.ok) return say("The plans could not be loaded.");
  const body = await answer.arrayBuffer();
  const length = new DataView(body).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(body, 4, length)));
  let start = 4 + length;
  count = header.count;
  columns = header.columns.map(({ name, type, choices }) => {
    const values = type === "float32" ? new Float32Array(body, start, count) : new Int32Array(body, start, count);
    start += 4 * count;
    return described(name, name === "memory_bytes" ? values.map((bytes) => bytes / GIB) : values, choices, type === "float32");
  });
  order = Uint32Array.from({ length: count }, (_, row) => row);
  passes = new Uint8Array(count).fill(1);
  front = frontRows();
  makeFilters();
  makeHead();
  apply();
}

/** A column with its distinct values, or bins of them, and where they lie on an axis from 0 to 1. */
function described(name, values, choices, continuous) {
  const distinct = continuous ? [] : [...new Set(values)].sort((a, b) => a - b);
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const slots = continuous ? BINS : distinct.length;
  // times differ by factors, and the slowest plans would squeeze the others together
  const [bend, straighten] = name === "step_time_s" ? [Math.log, Math.exp] : [Number, Number];
  const share = (value) => (bend(value) - bend(low)) / (bend(high) - bend(low) || 1);
  const unshare = (place) => straighten(bend(low) + place * (bend(high) - bend(low)));
  const slot = new Uint8Array(values.length);
  const places = new Map(distinct.map((value, place) => [value, place]));
  for (let i = 0; i < values.length; i++)
    slot[i] = continuous ? Math.min(BINS - 1, share(values[i]) * BINS) : places.get(values[i]);
  const text = (value) => {
    if (choices) return value < 0 ? "" : { true: "yes", false: "no" }[choices[value]] ?? String(choices[value]);
    return continuous ? value.toPrecision(4) : String(value);
  };
  return { name, values, continuous, distinct, low, high, slots, slot, text, share, unshare, title: TITLES[name] ?? name };
}

const axes = () => columns.filter((candidate) => candidate.slots > 1);

/** Which plans pass all filters, then the table and both drawings. */
function apply() {
  const started = performance.now();
  passes.fill(1);
  for (const [name, [low, high]] of ranges) {
    const { values } = column(name);
    for (let i = 0; i < count; i++) if (values[i] < low || values[i] > high) passes[i] = 0;
  }
  for (const [name, value] of picks) {
    const { values } = column(name);
    for (let i = 0; i < count; i++) if (values[i] !== value) passes[i] = 0;
  }
  pick();
  draw();
  root.dataset.took = (performance.now() - started).toFixed(1);
}

function pick() {
  visible = order.filter((row) => passes[row]);
  say(visible.length === count ? `${count.toLocaleString("en")} plans` : `${visible.length.toLocaleString("en")} of ${count.toLocaleString("en")} plans`);
  grid.scrollTop = 0;
  showRows();
}

function draw() {
  drawCoordinates();
  drawScatter();
}

function sortBy(name) {
  const started = performance.now();
  sorted = { name, up: sorted.name === name ? !sorted.up : true };
  const { values } = column(name);
  const sign = sorted.up ? 1 : -1;
  // plans are stored fastest first, so the row breaks ties by time
  order.sort((a, b) => sign * (values[a] - values[b]) || a - b);
  makeHead();
  pick();
  root.dataset.took = (performance.now() - started).toFixed(1);
}

function say(text) {
  root.querySelector("[data-shown]").textContent = text;
}

function makeHead() {
  const heads = axes().map(({ name, title }) => {
    const head = document.createElement("th");
    const button = Object.assign(document.createElement("button"), { type: "button", onclick: () => sortBy(name) });
    const isSorted = sorted.name === name;
    button.textContent = title + (isSorted ? (sorted.up ? " ↑" : " ↓") : "");
    head.setAttribute("aria-sort", isSorted ? (sorted.up ? "ascending" : "descending") : "none");
    head.scope = "col";
    head.append(button);
    return head;
  });
  const focused = document.activeElement?.closest?.("[data-names] th")?.cellIndex;
  root.querySelector("[data-names]").replaceChildren(...heads);
  if (focused >= 0) heads[focused].querySelector("button").focus();
}

/** Only the rows in view exist; a row above and one below keep the place of the others. */
function showRows() {
  const body = root.querySelector("[data-rows]");
  const first = Math.max(0, Math.floor(grid.scrollTop / ROW) - 5);
  const last = Math.min(visible.length, first + Math.ceil(grid.clientHeight / ROW) + 12);
  const lines = [];
  const shown = axes();
  for (let place = first; place < last; place++) {
    const row = visible[place];
    const line = document.createElement("tr");
    line.dataset.row = row;
    line.setAttribute("aria-selected", String(row === selected));
    for (const { values, text } of shown) line.insertCell().textContent = text(values[row]);
    lines.push(line);
  }
  body.replaceChildren(spacer(first * ROW), ...lines, spacer((visible.length - last) * ROW));
}

function spacer(height) {
  const line = document.createElement("tr");
  const cell = line.insertCell();
  cell.colSpan = columns.length;
  cell.className = "space";
  cell.style.height = `${height}px`;
  line.hidden = height <= 0;
  return line;
}

async function select(row) {
  selected = row;
  showRows();
  drawScatter();
  const address = `${root.dataset.plan}${row}`;
  const page = await fetchPage(address);
  if (page && row === selected) swap(page, ["plan"]);
}

function makeFilters() {
  const form = root.querySelector("[data-filters]");
  for (const { name, title, distinct, text } of columns.filter((candidate) => candidate.distinct.length > 1)) {
    const label = document.createElement("label");
    const list = document.createElement("select");
    list.name = name;
    list.append(new Option("any", ""), ...distinct.map((value) => new Option(text(value), value)));
    list.onchange = () => {
      if (list.value === "") picks.delete(name);
      else picks.set(name, Number(list.value));
      apply();
    };
    label.append(title, list);
    form.append(label);
  }
}

function clear() {
  ranges.clear();
  picks.clear();
  for (const list of root.querySelectorAll("[data-filters] select")) list.value = "";
  apply();
}

/** A context scaled to the screen's own pixels. */
function prepared(canvas) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  return { pen, width, height };
}

const TOP = 22;
const BOTTOM = 10;
const xOf = (place, many, width) => 34 + (place * (width - 68)) / Math.max(1, many - 1);
const yOf = ({ slots }, slot, height) => height - BOTTOM - ((slot + 0.5) / slots) * (height - TOP - BOTTOM);

const LEVELS = 6; // of darkness: lines of one level are one stroke

/** How many plans have each pair of values on two neighbouring axes; of all plans, or of those that pass. */
function countPairs(left, right, isFiltered) {
  const counts = new Uint32Array(left.slots * right.slots);
  const [from, to, slots] = [left.slot, right.slot, right.slots];
  if (isFiltered) for (let i = 0; i < count; i++) counts[from[i] * slots + to[i]] += passes[i];
  else for (let i = 0; i < count; i++) counts[from[i] * slots + to[i]]++;
  return counts;
}

function strokePairs(pen, counts, left, right, [from, to], height, strength) {
  let most = 1;
  for (const many of counts) if (many > most) most = many;
  const paths = Array.from({ length: LEVELS + 1 }, () => new Path2D());
  const ends = Array.from({ length: right.slots }, (_, slot) => yOf(right, slot, height));
  for (let start = 0, pair = 0; start < left.slots; start++) {
    const y = yOf(left, start, height);
    for (let end = 0; end < right.slots; end++, pair++) {
      if (!counts[pair]) continue;
      const path = paths[Math.round((LEVELS * Math.log1p(counts[pair])) / Math.log1p(most))];
      path.moveTo(from, y);
      path.lineTo(to, ends[end]);
    }
  }
  paths.forEach((path, level) => {
    pen.globalAlpha = strength * (0.08 + (0.92 * level) / LEVELS);
    pen.lineWidth = 0.6 + (1.4 * level) / LEVELS;
    pen.stroke(path);
  });
  pen.globalAlpha = 1;
}

function drawCoordinates() {
  const { pen, width, height } = prepared(coordinates);
  const shown = axes();
  const [faint, strong] = [colour("--rule"), colour("--accent")];
  const isFiltered = visible.length < count;
  for (let place = 0; place + 1 < shown.length; place++) {
    const [left, right] = [shown[place], shown[place + 1]];
    const ends = [xOf(place, shown.length, width), xOf(place + 1, shown.length, width)];
    const strength = left.continuous || right.continuous ? 0.35 : 0.85;
    left.pairs ??= countPairs(left, right, false);
    pen.strokeStyle = isFiltered ? faint : strong;
    strokePairs(pen, left.pairs, left, right, ends, height, strength);
    if (!isFiltered) continue;
    pen.strokeStyle = strong;
    strokePairs(pen, countPairs(left, right, true), left, right, ends, height, strength);
  }
  for (const [place, axis] of shown.entries()) drawAxis(pen, axis, xOf(place, shown.length, width), height, place);
}

function drawAxis(pen, axis, x, height, place) {
  pen.fillStyle = colour("--ink");
  pen.fillRect(x - 0.5, TOP, 1, height - TOP - BOTTOM);
  pen.textAlign = "center";
  pen.fillText(axis.title.replace(", s", "").replace(", GiB", ""), x, place % 2 ? 20 : 9);
  pen.textAlign = "left";
  pen.fillStyle = colour("--soft");
  const every = Math.ceil(axis.slots / 12);
  for (let slot = 0; slot < axis.slots; slot += axis.continuous ? BINS - 1 : every) {
    const value = axis.continuous ? (slot ? axis.high : axis.low) : axis.distinct[slot];
    pen.fillText(axis.text(value), x + 4, yOf(axis, slot, height) + 4);
  }
  const range = ranges.get(axis.name);
  if (!range) return;
  const [low, high] = slotsOf(axis, range);
  pen.fillStyle = colour("--accent");
  pen.globalAlpha = 0.35;
  const [top, bottom] = [yOf(axis, high + 0.5, height), yOf(axis, low - 0.5, height)];
  pen.fillRect(x - 7, top, 14, bottom - top);
  pen.globalAlpha = 1;
}

function slotsOf(axis, [low, high]) {
  if (axis.continuous) {
    const slot = (value) => axis.share(value) * axis.slots - 0.5;
    return [slot(low) + 0.5, slot(high) - 0.5];
  }
  const inside = [...axis.distinct.keys()].filter((i) => axis.distinct[i] >= low && axis.distinct[i] <= high);
  return [Math.min(...inside), Math.max(...inside)];
}

/** A drag along an axis filters by it; a click without a drag drops its filter. */
function brush(event) {
  const shown = axes();
  const [width, height] = [coordinates.clientWidth, coordinates.clientHeight];
  const places = shown.map((_, place) => Math.abs(xOf(place, shown.length, width) - event.offsetX));
  const axis = shown[places.indexOf(Math.min(...places))];
  const start = event.offsetY;
  coordinates.setPointerCapture(event.pointerId);
  coordinates.onpointermove = (moved) => {
    if (Math.abs(moved.offsetY - start) < 3) return;
    const slot = (y) => ((height - BOTTOM - y) / (height - TOP - BOTTOM)) * axis.slots;
    const [from, to] = [slot(Math.max(start, moved.offsetY)), slot(Math.min(start, moved.offsetY))];
    ranges.set(axis.name, valuesOf(axis, from, to));
    soon(apply);
  };
  coordinates.onpointerup = (up) => {
    coordinates.onpointermove = coordinates.onpointerup = null;
    if (Math.abs(up.offsetY - start) < 3 && ranges.delete(axis.name)) apply();
  };
}

function valuesOf(axis, from, to) {
  if (axis.continuous) {
    const value = (slot) => axis.unshare(Math.min(Math.max(slot, 0), axis.slots) / axis.slots);
    return [value(from), value(to)];
  }
  const inside = axis.distinct.filter((_, slot) => slot + 0.5 >= from && slot + 0.5 <= to);
  if (inside.length) return [inside[0], inside.at(-1)];
  const nearest = axis.distinct[Math.min(axis.slots - 1, Math.max(0, Math.floor((from + to) / 2)))];
  return [nearest, nearest];
}

let pending = false;
function soon(act) {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    act();
  });
}

/** Rows on the front: less memory than every faster plan; rows are stored fastest first. */
function frontRows() {
  const memory = column("memory_bytes").values;
  const rows = [];
  for (let row = 0, least = Infinity; row < count; row++)
    if (memory[row] < least) {
      least = memory[row];
      rows.push(row);
    }
  return rows;
}

const MARGIN = { left: 46, bottom: 22, top: 6, right: 8 };

function scales(width, height) {
  const [time, memory] = [column("step_time_s"), column("memory_bytes")];
  const limit = Number(root.dataset.limit);
  const right = Math.max(memory.high, limit < 1.5 * memory.high ? limit : 0) * 1.03;
  const left = memory.low * 0.95;
  const most = time.values[Math.floor(0.98 * (count - 1))] * 1.02; // the slowest two in a hundred stretch it
  const least = time.low * 0.97;
  const across = (width - MARGIN.left - MARGIN.right) / (right - left);
  const up = (height - MARGIN.bottom - MARGIN.top) / (most - least);
  return {
    x: (gib) => MARGIN.left + (gib - left) * across,
    y: (s) => height - MARGIN.bottom - (s - least) * up,
    gib: (x) => left + (x - MARGIN.left) / across,
    s: (y) => least + (height - MARGIN.bottom - y) / up,
    left, right, least, most,
  };
}

function drawScatter() {
  if (!count) return;
  const { pen, width, height } = prepared(scatter);
  const scale = scales(width, height);
  const [time, memory] = [column("step_time_s").values, column("memory_bytes").values];
  for (const kept of visible.length < count ? [0, 1] : [1]) {
    pen.fillStyle = colour(kept ? "--accent" : "--rule");
    pen.globalAlpha = kept ? 0.7 : 1;
    const across = Math.ceil(width);
    const seen = new Uint8Array(across * Math.ceil(height));
    for (let i = 0; i < count; i++) {
      if (passes[i] !== kept || time[i] > scale.most) continue;
      const [x, y] = [scale.x(memory[i]) | 0, scale.y(time[i]) | 0];
      if (seen[y * across + x]) continue; // it would lie under another
      seen[y * across + x] = 1;
      pen.fillRect(x - 1, y - 1, 2.5, 2.5);
    }
  }
  pen.globalAlpha = 1;
  drawFront(pen, scale, time, memory);
  drawScales(pen, scale, width, height);
  for (const mark of root.dataset.marks.split(";").filter(Boolean)) drawMark(pen, scale, mark.trim().split(" "));
  if (selected >= 0) {
    pen.strokeStyle = colour("--alarm");
    pen.lineWidth = 2;
    pen.strokeRect(scale.x(memory[selected]) - 5, scale.y(time[selected]) - 5, 10, 10);
  }
}

function drawFront(pen, scale, time, memory) {
  pen.strokeStyle = colour("--ink");
  pen.lineWidth = 1;
  pen.beginPath();
  front.forEach((row, place) => {
    if (place) pen.lineTo(scale.x(memory[front[place - 1]]), scale.y(time[row]));
    pen.lineTo(scale.x(memory[row]), scale.y(time[row]));
  });
  pen.stroke();
}

function drawScales(pen, scale, width, height) {
  pen.fillStyle = colour("--soft");
  pen.textAlign = "center";
  for (const share of [0.02, 0.5, 0.95]) {
    const gib = scale.left + share * (scale.right - scale.left);
    pen.fillText(`${gib.toFixed(0)} GiB`, scale.x(gib), height - 6);
  }
  pen.textAlign = "right";
  for (const share of [0.03, 0.5, 0.97]) {
    const s = scale.least + share * (scale.most - scale.least);
    pen.fillText(`${s.toPrecision(3)} s`, MARGIN.left - 4, scale.y(s) + 4);
  }
  const limit = Number(root.dataset.limit);
  if (limit > scale.right) return;
  pen.setLineDash([4, 3]);
  pen.strokeStyle = colour("--ink");
  pen.strokeRect(scale.x(limit), MARGIN.top, 0, height - MARGIN.bottom - MARGIN.top);
  pen.setLineDash([]);
}

function drawMark(pen, scale, [key, gib, s]) {
  const [x, y] = [scale.x(Number(gib)), Math.max(12, scale.y(Number(s)))];
  pen.fillStyle = colour(key === "today" ? "--wait" : "--accent");
  pen.beginPath();
  pen.arc(x, y, 8, 0, 7);
  pen.fill();
  pen.fillStyle = colour("--on-accent");
  pen.textAlign = "center";
  pen.fillText(key === "today" ? "T" : key, x, y + 4);
}

/** A rectangle filters by time and memory; a click selects the nearest plan. */
function brushScatter(event) {
  const scale = scales(scatter.clientWidth, scatter.clientHeight);
  const [x, y] = [event.offsetX, event.offsetY];
  scatter.setPointerCapture(event.pointerId);
  scatter.onpointermove = (moved) => {
    if (Math.abs(moved.offsetX - x) + Math.abs(moved.offsetY - y) < 6) return;
    ranges.set("memory_bytes", [scale.gib(Math.min(x, moved.offsetX)), scale.gib(Math.max(x, moved.offsetX))]);
    ranges.set("step_time_s", [scale.s(Math.max(y, moved.offsetY)), scale.s(Math.min(y, moved.offsetY))]);
    soon(apply);
  };
  scatter.onpointerup = (up) => {
    scatter.onpointermove = scatter.onpointerup = null;
    if (Math.abs(up.offsetX - x) + Math.abs(up.offsetY - y) < 6) select(nearest(scale, x, y));
  };
}

function nearest(scale, x, y) {
  const [time, memory] = [column("step_time_s").values, column("memory_bytes").values];
  let [best, distance] = [0, Infinity];
  for (const row of visible) {
    const away = (scale.x(memory[row]) - x) ** 2 + (scale.y(time[row]) - y) ** 2;
    if (away < distance) [best, distance] = [row, away];
  }
  return best;
}

grid.onscroll = () => soon(showRows);
grid.onclick = (event) => {
  const row = event.target.closest("tr[data-row]")?.dataset.row;
  if (row !== undefined) select(Number(row));
};
grid.onkeydown = (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.target !== grid) return;
  event.preventDefault();
  const place = Math.min(visible.length - 1, Math.max(0, visible.indexOf(selected) + step));
  grid.scrollTop = Math.min(grid.scrollTop, place * ROW);
  if ((place + 3) * ROW > grid.scrollTop + grid.clientHeight) grid.scrollTop = (place + 3) * ROW - grid.clientHeight;
  select(visible[place]);
};
coordinates.onpointerdown = brush;
scatter.onpointerdown = brushScatter;
root.querySelector("[data-clear]").onclick = clear;
addEventListener("resize", () => soon(draw));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
load();
