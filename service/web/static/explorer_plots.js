// Parallel coordinates of the plan explorer. Lines between two axes are counted per pair of values, so that 100,000
// plans cost a few hundred strokes.
import { colour, prepared } from "./canvas.js";
import { axes, BINS, column, state } from "./explorer_data.js";

let coordinates = null;

const TOP = 36;
const BOTTOM = 10;
const [BEFORE, AFTER] = [38, 66];
const xOf = (place, many, width) => BEFORE + (place * (width - BEFORE - AFTER)) / Math.max(1, many - 1);
const yOf = ({ slots }, slot, height) => height - BOTTOM - ((slot + 0.5) / slots) * (height - TOP - BOTTOM);

const LEVELS = 4; // of darkness: lines of one level and one colour are one stroke
const COLOURS = ["--accent", "--attention", "--cp_comm_exposed", "--dp_comm_exposed"]; // from the fastest on

/** How many plans have each pair of values on two neighbouring axes, and the best time among them; of all plans, or of those that pass. */
function countPairs(left, right, isFiltered) {
  const counts = new Uint32Array(left.slots * right.slots);
  const fastest = new Uint8Array(counts.length).fill(BINS);
  const [from, to, slots, time, { passes }] = [left.slot, right.slot, right.slots, column("step_time_s").slot, state];
  for (let i = 0; i < state.count; i++) {
    if (isFiltered && !passes[i]) continue;
    const pair = from[i] * slots + to[i];
    counts[pair]++;
    if (time[i] < fastest[pair]) fastest[pair] = time[i];
  }
  return { counts, fastest };
}

/** Coloured by the fastest plan that has the pair; in one colour where one is given. */
function strokePairs(pen, { counts, fastest }, left, right, [from, to], height, strength, plain) {
  let most = 1;
  for (const many of counts) if (many > most) most = many;
  const paths = Array.from({ length: (LEVELS + 1) * COLOURS.length }, () => new Path2D());
  const ends = Array.from({ length: right.slots }, (_, slot) => yOf(right, slot, height));
  for (let start = 0, pair = 0; start < left.slots; start++) {
    const y = yOf(left, start, height);
    for (let end = 0; end < right.slots; end++, pair++) {
      if (!counts[pair]) continue;
      const level = Math.round((LEVELS * Math.log1p(counts[pair])) / Math.log1p(most));
      const path = paths[level * COLOURS.length + COLOURS.length - 1 - Math.floor((COLOURS.length * fastest[pair]) / BINS)];
      path.moveTo(from, y);
      path.lineTo(to, ends[end]);
    }
  }
  const colours = COLOURS.map((name) => plain ?? colour(name));
  paths.forEach((path, place) => {
    const level = Math.floor(place / COLOURS.length);
    pen.strokeStyle = colours[COLOURS.length - 1 - (place % COLOURS.length)]; // the fastest lie on top
    pen.globalAlpha = strength * (0.08 + (0.92 * level) / LEVELS);
    pen.lineWidth = 0.6 + (1.4 * level) / LEVELS;
    pen.stroke(path);
  });
  pen.globalAlpha = 1;
}

/** A plan as one thick line, with its name at the end. */
function strokePlan(pen, shown, width, height, [name, row]) {
  pen.strokeStyle = pen.fillStyle = colour("--ink");
  pen.lineWidth = 2.5;
  pen.beginPath();
  shown.forEach((axis, place) => pen.lineTo(xOf(place, shown.length, width), yOf(axis, axis.slot[row], height)));
  pen.stroke();
  pen.textAlign = "right";
  pen.fillText(name, xOf(0, shown.length, width) - 6, yOf(shown[0], shown[0].slot[row], height) + 4);
}

/** `thick`: names and rows of the plans that stand out. */
export function drawCoordinates(thick) {
  const { pen, width, height } = prepared(coordinates);
  const shown = axes();
  const faint = colour("--rule");
  const isFiltered = state.visible.length < state.count;
  for (let place = 0; place + 1 < shown.length; place++) {
    const [left, right] = [shown[place], shown[place + 1]];
    const ends = [xOf(place, shown.length, width), xOf(place + 1, shown.length, width)];
    const strength = left.continuous || right.continuous ? 0.35 : 0.85;
    left.pairs ??= countPairs(left, right, false);
    strokePairs(pen, left.pairs, left, right, ends, height, strength, isFiltered ? faint : null);
    if (isFiltered) strokePairs(pen, countPairs(left, right, true), left, right, ends, height, strength);
  }
  for (const plan of thick) strokePlan(pen, shown, width, height, plan);
  for (const [place, axis] of shown.entries()) drawAxis(pen, axis, xOf(place, shown.length, width), height, place);
}

function drawAxis(pen, axis, x, height, place) {
  pen.fillStyle = colour("--ink");
  pen.fillRect(x - 0.5, TOP, 1, height - TOP - BOTTOM);
  pen.textAlign = "center";
  pen.fillText(axis.title, x, place % 2 ? 22 : 9);
  pen.textAlign = "left";
  pen.fillStyle = colour("--soft");
  const every = Math.ceil(axis.slots / 12);
  for (let slot = 0; slot < axis.slots; slot += axis.continuous ? BINS - 1 : every) {
    const value = axis.continuous ? (slot ? axis.high : axis.low) : axis.distinct[slot];
    pen.fillText(axis.text(value), x + 4, yOf(axis, slot, height) + 4);
  }
  const range = state.ranges.get(axis.name);
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
function brush(event, apply) {
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
    state.ranges.set(axis.name, valuesOf(axis, from, to));
    apply();
  };
  coordinates.onpointerup = (up) => {
    coordinates.onpointermove = coordinates.onpointerup = null;
    if (Math.abs(up.offsetY - start) < 3 && state.ranges.delete(axis.name)) apply();
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

/** `apply` filters again, at most once per frame. */
export function wireCoordinates(canvas, apply) {
  coordinates = canvas;
  coordinates.onpointerdown = (event) => brush(event, apply);
}
