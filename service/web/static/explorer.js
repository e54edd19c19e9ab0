// The plan explorer: filters, sorts and shows every timed plan without asking the server again.
import { soon } from "./canvas.js";
import { makeCloud } from "./cloud.js";
import { axes, column, filter, load, state } from "./explorer_data.js";
import { drawCoordinates, wireCoordinates } from "./explorer_plots.js";
import { fetchPage, swap } from "./live.js";

const ROW = 26;
const FASTEST = { name: "step_time_s", up: true };
const SAME = 1e-4; // of a plan's time and memory, told with as many digits
let [root, grid, cloud, sorted, thick] = [null, null, null, FASTEST, []];

/** Which plans pass all filters, then the table and both drawings. */
function apply() {
  const started = performance.now();
  filter();
  pick();
  draw();
  keepAddress();
  root.dataset.took = (performance.now() - started).toFixed(1);
}

function pick() {
  state.visible = state.order.filter((row) => state.passes[row]);
  say(state.visible.length === state.count ? `${state.count.toLocaleString("en")} plans` : `${state.visible.length.toLocaleString("en")} of ${state.count.toLocaleString("en")} plans`);
  grid.scrollTop = 0;
  showRows();
}

function draw() {
  if (!cloud || !root.isConnected) return;
  drawCoordinates(thick);
  cloud.draw();
}

/** Filters, order and the selected plan, as a link restores them. */
function keepAddress() {
  const stated = new URLSearchParams();
  for (const [name, value] of state.picks) stated.set(name, value);
  for (const [name, ends] of state.ranges) stated.set(name, ends.map((end) => Number(end.toPrecision(6))).join("~"));
  if (sorted !== FASTEST) stated.set("sort", (sorted.up ? "" : "-") + sorted.name);
  if (state.selected >= 0) stated.set("row", state.selected);
  history.replaceState(history.state, "", `?${stated}`);
}

function readAddress() {
  for (const [name, text] of new URLSearchParams(location.search)) {
    const ends = text.split("~").map(Number);
    if (name === "sort" && column(text.replace("-", ""))) sorted = { name: text.replace("-", ""), up: !text.startsWith("-") };
    else if (column(name) && ends.every(Number.isFinite)) (ends.length > 1 ? state.ranges.set(name, ends) : state.picks.set(name, ends[0]));
  }
}

function sortBy(name) {
  const started = performance.now();
  sorted = { name, up: sorted.name === name ? !sorted.up : true };
  order();
  makeHead();
  pick();
  keepAddress();
  root.dataset.took = (performance.now() - started).toFixed(1);
}

function order() {
  const { values } = column(sorted.name);
  const sign = sorted.up ? 1 : -1;
  // plans are stored fastest first, so the row breaks ties by time
  state.order.sort((a, b) => sign * (values[a] - values[b]) || a - b);
}

function begin() {
  const marks = root.dataset.marks.split(";").filter(Boolean).map((mark) => mark.trim().split(" "));
  const plans = marks.map(([key, gib, s]) => [key, Number(gib), Number(s)]);
  const [time, memory] = [column("step_time_s").values, column("memory_bytes").values];
  thick = plans.flatMap(([key, gib, s]) => {
    const row = time.findIndex((own, at) => Math.abs(own / s - 1) < SAME && Math.abs(memory[at] / gib - 1) < SAME);
    return row < 0 ? [] : [[key === "today" ? "T" : key, row]];
  });
  cloud = makeCloud({
    canvas: root.querySelector("[data-scatter]"), tip: root.querySelector("[data-tip]"), limit: Number(root.dataset.limit),
    marks: () => ({ plans: [...plans, ...selectedMark()], chosen: `p${state.selected}` }), apply: () => soon(apply), choose: select,
  });
  wireCoordinates(root.querySelector("[data-coordinates]"), () => soon(apply));
  readAddress();
  const row = new URLSearchParams(location.search).get("row");
  if (sorted !== FASTEST) order();
  makeFilters();
  makeHead();
  apply();
  if (row && Number(row) < state.count) select(Number(row));
}

const selectedMark = () => (state.selected < 0 ? [] : [[`p${state.selected}`, column("memory_bytes").values[state.selected], column("step_time_s").values[state.selected]]]);

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
  const last = Math.min(state.visible.length, first + Math.ceil(grid.clientHeight / ROW) + 12);
  const lines = [];
  const shown = axes();
  for (let place = first; place < last; place++) {
    const row = state.visible[place];
    const line = document.createElement("tr");
    line.dataset.row = row;
    line.setAttribute("aria-selected", String(row === state.selected));
    for (const { values, text } of shown) line.insertCell().textContent = text(values[row]);
    lines.push(line);
  }
  body.replaceChildren(spacer(first * ROW), ...lines, spacer((state.visible.length - last) * ROW));
}

function spacer(height) {
  const line = document.createElement("tr");
  const cell = line.insertCell();
  cell.colSpan = state.columns.length;
  cell.className = "space";
  cell.style.height = `${height}px`;
  line.hidden = height <= 0;
  return line;
}

async function select(row) {
  state.selected = row;
  showRows();
  cloud.draw();
  keepAddress();
  const address = `${root.dataset.plan}${row}`;
  const page = await fetchPage(address);
  if (page && row === state.selected) swap(page, ["plan"]);
}

function makeFilters() {
  const form = root.querySelector("[data-filters]");
  for (const { name, title, distinct, text } of state.columns.filter((candidate) => candidate.distinct.length > 1)) {
    const label = document.createElement("label");
    const list = document.createElement("select");
    list.name = name;
    list.append(new Option("any", ""), ...distinct.map((value) => new Option(text(value), value, false, state.picks.get(name) === value)));
    list.onchange = () => {
      if (list.value === "") state.picks.delete(name);
      else state.picks.set(name, Number(list.value));
      apply();
    };
    label.append(title, list);
    form.append(label);
  }
}

function clear() {
  state.ranges.clear();
  state.picks.clear();
  for (const list of root.querySelectorAll("[data-filters] select")) list.value = "";
  apply();
}

function chooseByKey(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.target !== grid) return;
  event.preventDefault();
  const place = Math.min(state.visible.length - 1, Math.max(0, state.visible.indexOf(state.selected) + step));
  grid.scrollTop = Math.min(grid.scrollTop, place * ROW);
  if ((place + 3) * ROW > grid.scrollTop + grid.clientHeight) grid.scrollTop = (place + 3) * ROW - grid.clientHeight;
  select(state.visible[place]);
}

export function attach() {
  root = document.querySelector("[data-explorer]");
  grid = root.querySelector("[data-grid]");
  [cloud, sorted, state.selected] = [null, FASTEST, -1];
  state.ranges.clear();
  state.picks.clear();
  grid.onscroll = () => soon(showRows);
  grid.onclick = (event) => {
    const row = event.target.closest("tr[data-row]")?.dataset.row;
    if (row !== undefined) select(Number(row));
  };
  grid.onkeydown = chooseByKey;
  root.querySelector("[data-clear]").onclick = clear;
  load(root.dataset.explorer).then(begin, () => say("The plans could not be loaded."));
}

addEventListener("resize", () => soon(draw));
document.addEventListener("themechange", draw);
attach();
