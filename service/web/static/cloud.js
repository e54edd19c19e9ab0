// All timed plans, step time against memory, on a logarithmic axis: dots are pixels of one image, so that 100,000
// plans are drawn again within a frame. Hovering tells a plan, a drag selects, a click chooses.
import { colour, prepared } from "./canvas.js";
import { marksOf, written } from "./charts.js";
import { column, state } from "./explorer_data.js";

const MARGIN = { left: 48, right: 12, top: 10, bottom: 34 };
const REACH = 18; // pixels
const SHOWN = 0.98; // of the plans; the slowest would squeeze the others together
const FAR = 1.25; // times what a plan may fill
const LINEAR = { is_log: false, unit: "", rows: [] };
const LOG = { ...LINEAR, is_log: true };
const PLAIN = new Set(["dp", "step_time_s", "memory_bytes", "schedule", "etp"]);

/** What a plan is, in a few words; degrees of one are left out. */
export function told(row) {
  const fields = state.columns.filter(({ name }) => !PLAIN.has(name));
  const words = fields.map(({ title, text, values }) => [title, text(values[row])]).filter(([, text]) => !["", "1", "no", "none"].includes(text));
  return `${column("step_time_s").values[row].toPrecision(4)} s, ${column("memory_bytes").values[row].toFixed(1)} GiB\n${words.map((pair) => pair.join(" ")).join(", ")}`;
}

/** An opaque pixel of a canvas in this colour. */
function pixel(pen, name) {
  pen.fillStyle = colour(name);
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(String(pen.fillStyle).slice(at, at + 2), 16));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/**
 * `marks()` gives the plans to draw thick and which is chosen; `apply()` is called after the brush has moved,
 * `choose(row)` after a click.
 */
export function makeCloud({ canvas, tip, limit, marks, apply, choose }) {
  let lit = null; // the field whose plans are shown in its loss's colour
  let places = null;
  let scale = null;
  let hovered = -1;

  function measured(width, height) {
    const [time, memory] = [column("step_time_s"), column("memory_bytes")];
    const thick = marks().plans.filter(([, gib]) => Number.isFinite(gib));
    const slowest = time.values[Math.floor(SHOWN * (state.count - 1))] ?? time.high;
    const near = thick.map(([, gib]) => Math.min(gib, FAR * Math.max(limit, memory.high))); // what needs far more stands at the edge
    const [least, most] = [Math.min(memory.low, ...near), Math.max(memory.high, ...near)];
    const [fast, slow] = [Math.min(time.low, ...thick.map(([, , s]) => s)) / 1.05, Math.max(slowest, ...thick.map(([, , s]) => s)) * 1.05];
    const room = Math.max(0.04 * (most - least), 0.01 * most);
    const [left, right] = [Math.max(0, least - room), (limit <= 1.3 * most ? Math.max(most, limit) : most) + room];
    const [across, down] = [width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
    const span = Math.log(slow / fast);
    return {
      left, right, fast, slow, width, height,
      x: (gib) => MARGIN.left + ((Math.min(gib, right) - left) / (right - left)) * across,
      y: (s) => MARGIN.top + (1 - Math.log(s / fast) / span) * down,
      gib: (x) => left + ((x - MARGIN.left) / across) * (right - left),
      s: (y) => fast * Math.exp((1 - (y - MARGIN.top) / down) * span),
    };
  }

  function placed(ratio, wide, high) {
    const [time, memory] = [column("step_time_s").values, column("memory_bytes").values];
    const found = new Int32Array(state.count);
    for (let i = 0; i < state.count; i++) {
      const [x, y] = [Math.round(scale.x(memory[i]) * ratio), Math.round(scale.y(time[i]) * ratio)];
      found[i] = y < 1 || y > high - 3 || x > wide - 3 || y < MARGIN.top * ratio ? -1 : y * wide + x;
    }
    return found;
  }

  /** Faint dots first, then those that pass the filters, then those of the lit cause. */
  function paint(pen, wide, high, ratio) {
    const image = pen.createImageData(wide, high);
    const dots = new Uint32Array(image.data.buffer);
    const size = Math.max(2, Math.round(1.7 * ratio));
    const put = (at, value) => {
      for (let down = 0; down < size; down++) for (let over = 0; over < size; over++) dots[at + down * wide + over] = value;
    };
    const field = lit && column(lit.field);
    const off = field && (field.name === "zero_stage" ? 0 : field.distinct.find((value) => ["1", "none", "no", "0"].includes(field.text(value))));
    const [faint, plain, strong] = [pixel(pen, "--rule"), pixel(pen, lit ? "--rule" : "--soft"), pixel(pen, lit?.colour ?? "--accent")];
    for (let i = 0; i < state.count; i++) if (!state.passes[i] && places[i] >= 0) put(places[i], faint);
    for (let i = 0; i < state.count; i++) if (state.passes[i] && places[i] >= 0) put(places[i], plain);
    if (field) for (let i = 0; i < state.count; i++) if (state.passes[i] && places[i] >= 0 && field.values[i] !== off) put(places[i], strong);
    pen.putImageData(image, 0, 0);
  }

  function draw() {
    const { pen, width, height } = prepared(canvas);
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    const [before, count] = [scale, places?.length];
    scale = measured(width, height);
    if (!places || count !== state.count || ["left", "right", "fast", "slow", "width", "height"].some((name) => before[name] !== scale[name]))
      places = placed(ratio, canvas.width, canvas.height);
    paint(pen, canvas.width, canvas.height, ratio);
    drawAxes(pen, width, height);
    drawFront(pen);
    drawBrush(pen);
    const { plans, chosen } = marks();
    for (const [key, gib, s] of plans.filter(([key]) => key !== chosen)) drawMark(pen, key, gib, s, false);
    for (const [key, gib, s] of plans.filter(([key]) => key === chosen)) drawMark(pen, key, gib, s, true);
  }

  function drawAxes(pen, width, height) {
    pen.fillStyle = colour("--soft");
    pen.strokeStyle = colour("--rule");
    pen.textAlign = "center";
    for (const gib of marksOf(LINEAR, scale.left, scale.right)) pen.fillText(written(LINEAR, gib), scale.x(gib), height - 20);
    pen.fillText("memory per device, GiB", width / 2, height - 5);
    pen.textAlign = "right";
    for (const s of marksOf(LOG, scale.fast, scale.slow)) {
      pen.fillText(`${written(LOG, s)} s`, MARGIN.left - 6, scale.y(s) + 4);
      pen.strokeRect(MARGIN.left, scale.y(s), width - MARGIN.left - MARGIN.right, 0);
    }
    if (limit > scale.right) return;
    pen.setLineDash([4, 3]);
    pen.strokeStyle = colour("--ink");
    pen.beginPath();
    pen.moveTo(scale.x(limit), MARGIN.top);
    pen.lineTo(scale.x(limit), height - MARGIN.bottom);
    pen.stroke();
    pen.setLineDash([]);
  }

  function drawFront(pen) {
    const [time, memory] = [column("step_time_s").values, column("memory_bytes").values];
    pen.strokeStyle = colour("--ink");
    pen.beginPath();
    state.front.forEach((row, place) => {
      const y = Math.max(MARGIN.top, scale.y(time[row]));
      if (place) pen.lineTo(scale.x(memory[state.front[place - 1]]), y);
      pen.lineTo(scale.x(memory[row]), y);
    });
    pen.stroke();
  }

  function drawBrush(pen) {
    const [gib, s] = [state.ranges.get("memory_bytes"), state.ranges.get("step_time_s")];
    if (!gib || !s) return;
    pen.strokeStyle = colour("--accent");
    pen.strokeRect(scale.x(gib[0]), scale.y(s[1]), scale.x(gib[1]) - scale.x(gib[0]), scale.y(s[0]) - scale.y(s[1]));
  }

  function drawMark(pen, key, gib, s, isChosen) {
    const [x, y] = [scale.x(gib), scale.y(s)];
    pen.fillStyle = colour(key === "today" ? "--ink" : "--accent");
    pen.strokeStyle = colour(isChosen ? "--ink" : "--page");
    pen.lineWidth = isChosen ? 3 : 1.5;
    pen.beginPath();
    pen.arc(x, y, isChosen ? 10 : 8, 0, 7);
    pen.stroke();
    pen.fill();
    pen.lineWidth = 1;
    pen.fillStyle = colour(key === "today" ? "--page" : "--on-accent");
    pen.textAlign = "center";
    pen.fillText({ today: "T", yours: "Y" }[key] ?? (key.startsWith("p") ? "" : key), x, y + 4);
  }

  function nearest(x, y) {
    const wide = canvas.width;
    const ratio = devicePixelRatio || 1;
    const [px, py] = [x * ratio, y * ratio];
    let [best, distance] = [-1, (REACH * ratio) ** 2];
    for (let i = 0; i < state.count; i++) {
      if (places[i] < 0 || !state.passes[i]) continue;
      const [dx, dy] = [(places[i] % wide) - px, places[i] / wide - py];
      const away = dx * dx + dy * dy;
      if (away < distance) [best, distance] = [i, away];
    }
    return best;
  }

  function tell(event) {
    hovered = places ? nearest(event.offsetX, event.offsetY) : -1;
    tip.hidden = hovered < 0;
    if (tip.hidden) return;
    tip.textContent = told(hovered);
    const isRight = event.offsetX > canvas.clientWidth / 2;
    tip.style.left = isRight ? "" : `${event.offsetX + 16}px`;
    tip.style.right = isRight ? `${canvas.clientWidth - event.offsetX + 16}px` : "";
    tip.style.top = `${canvas.offsetTop + event.offsetY + 10}px`;
  }

  canvas.onpointermove = tell;
  canvas.onpointerleave = () => (tip.hidden = true);
  canvas.onpointerdown = (event) => {
    if (!places) return;
    const [x, y] = [event.offsetX, event.offsetY];
    const isDrag = (moved) => Math.abs(moved.offsetX - x) + Math.abs(moved.offsetY - y) >= 6;
    canvas.setPointerCapture(event.pointerId);
    tip.hidden = true;
    canvas.onpointermove = (moved) => {
      if (!isDrag(moved)) return;
      state.ranges.set("memory_bytes", [scale.gib(Math.min(x, moved.offsetX)), scale.gib(Math.max(x, moved.offsetX))]);
      state.ranges.set("step_time_s", [scale.s(Math.max(y, moved.offsetY)), scale.s(Math.min(y, moved.offsetY))]);
      apply();
    };
    canvas.onpointerup = (up) => {
      [canvas.onpointermove, canvas.onpointerup] = [tell, null];
      const row = isDrag(up) ? -1 : nearest(x, y);
      if (row >= 0) choose(row);
    };
  };
  return {
    draw,
    light: (field, name) => {
      lit = field && column(field) ? { field, colour: name } : null;
      draw();
    },
  };
}
