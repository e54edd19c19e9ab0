// Draws the charts of service/render/charts.py: uPlot has axes, zoom and linked cursors; the marks, the card under
// the pointer and the legend are drawn here. Texts are set as text, never read as markup.
/* global uPlot */

const FONT = "12px Inter, system-ui, sans-serif";
const REACH = 24; // pixels from the pointer to a point that answers
const DASHES = { solid: [], dash: [6, 4], dot: [2, 3] };
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];
const GLYPHS = { line: "—", boxes: "■", circle: "●", square: "■", diamond: "◆", up: "▲", down: "▼", ring: "○", cross: "✕" };
const FULL = 2 * Math.PI;

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function made(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}

/** Marks between two values: round ones, or on a long logarithmic axis 1, 2, 5 or the powers of ten. */
export function marksOf({ is_log, unit, rows }, low, high) {
  if (rows.length) return rows.map((_, row) => row).filter((row) => row >= low && row <= high && row % Math.ceil(rows.length / 34) === 0);
  if (unit === "bytes" && is_log) {
    const every = Math.max(1, Math.ceil(Math.log2(high / low) / 7));
    const first = Math.ceil(Math.log2(low) / every) * every;
    return Array.from({ length: 40 }, (_, i) => 2 ** (first + i * every)).filter((value) => value <= high);
  }
  if (is_log && high / low > 6) {
    const steps = high / low > 2000 ? [1] : [1, 2, 5];
    const marks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      marks.push(...steps.map((step) => step * 10 ** power));
    return marks.filter((value) => value >= low && value <= high);
  }
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const round = [1, 2, 5, 10].map((by) => by * power).find((by) => by * 6.5 >= high - low);
  const step = unit === "count" ? Math.max(1, round) : round;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, i) => (first + i) * step);
}

export function written({ unit, rows }, value) {
  if (rows.length) return rows[value] ?? "";
  if (unit === "percent") return `${Number((100 * value).toPrecision(4))}%`;
  if (unit === "day") return new Date(1000 * value).toISOString().slice(0, 10);
  if (unit === "bytes") {
    const step = Math.min(BYTES.length - 1, Math.max(0, Math.floor(Math.log2(value) / 10)));
    return `${Number((value / 2 ** (10 * step)).toPrecision(3))} ${BYTES[step]}`;
  }
  return Number(value.toPrecision(6)).toLocaleString("en", { maximumSignificantDigits: 6 });
}

function pathOf(shape, x, y, half) {
  const path = new Path2D();
  const through = (...corners) => {
    corners.forEach(([dx, dy], i) => path[i ? "lineTo" : "moveTo"](x + dx * half, y + dy * half));
    path.closePath();
  };
  if (shape === "square") path.rect(x - half, y - half, 2 * half, 2 * half);
  else if (shape === "diamond") through([0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]);
  else if (shape === "up") through([0, -1.1], [1, 0.8], [-1, 0.8]);
  else if (shape === "down") through([0, 1.1], [1, -0.8], [-1, -0.8]);
  else if (shape === "cross") ["1,1", "1,-1"].forEach((to) => {
    const [dx, dy] = to.split(",").map(Number);
    path.moveTo(x - dx * half, y - dy * half);
    path.lineTo(x + dx * half, y + dy * half);
  });
  else path.arc(x, y, half, 0, FULL);
  return path;
}

/** Dark or light, whichever is read on this colour. */
function inkOn(pen, name) {
  pen.fillStyle = style(name);
  const parts = [1, 3, 5].map((at) => parseInt(String(pen.fillStyle).slice(at, at + 2), 16));
  return style(0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2] > 140 ? "--on-light" : "--on-dark") || "#000";
}

function drawPoints(pen, layer, place, ratio) {
  pen.globalAlpha = layer.opacity ?? 1;
  const colour = style(layer.colour);
  const hollow = layer.shape === "cross" || layer.shape === "ring";
  layer.x.forEach((_, i) => {
    const [x, y] = place(layer, i);
    const half = (ratio * (layer.sizes?.[i] ?? layer.size)) / 2;
    const path = pathOf(layer.shape, x, y, half);
    pen.lineWidth = ratio * (hollow ? 2 : 1);
    pen.strokeStyle = hollow ? colour : style("--page");
    if (!hollow) {
      pen.fillStyle = colour;
      pen.fill(path);
    }
    if (hollow || half > 3 * ratio) pen.stroke(path);
    if (layer.labels) {
      pen.fillStyle = style("--on-accent") || "#fff";
      pen.fillText(layer.labels[i], x, y + 0.5 * ratio);
    }
  });
}

function drawLine(pen, layer, place, ratio) {
  pen.strokeStyle = style(layer.colour);
  pen.lineWidth = 1.5 * ratio;
  pen.setLineDash(DASHES[layer.dash].map((part) => part * ratio));
  pen.beginPath();
  let [before, isOpen] = [0, false];
  layer.x.forEach((value, i) => {
    if (value === null || layer.y[i] === null) return void (isOpen = false);
    const [x, y] = place(layer, i);
    if (isOpen && layer.is_stepped) pen.lineTo(x, before);
    pen[isOpen ? "lineTo" : "moveTo"](x, y);
    [before, isOpen] = [y, true];
  });
  pen.stroke();
  pen.setLineDash([]);
  if (layer.texts && layer.x.length < 200)
    layer.x.forEach((value, i) => {
      if (value === null || layer.y[i] === null) return;
      pen.fillStyle = style(layer.colour);
      pen.fill(pathOf("circle", ...place(layer, i), 2.5 * ratio));
    });
}

function drawBoxes(pen, layer, corners, ratio) {
  layer.x.forEach((_, i) => {
    const [left, top, width, height] = corners(layer, i);
    const name = layer.colours?.[i] ?? layer.colour;
    pen.globalAlpha = layer.strength?.[i] ?? 1;
    pen.fillStyle = style(name);
    pen.fillRect(left, top, width, height);
    pen.globalAlpha = 1;
    if (!layer.labels || pen.measureText(layer.labels[i]).width > width - 4 * ratio) return;
    pen.fillStyle = inkOn(pen, name);
    pen.fillText(layer.labels[i], left + width / 2, top + height / 2);
  });
}

function legendOf(layers) {
  const named = layers.filter(({ name }) => name);
  const list = made("ul", { className: "chart-legend" });
  if (named.length < 2) return list;
  for (const { name, kind, shape, colour } of named) {
    const glyph = GLYPHS[kind] ?? GLYPHS[shape ?? "circle"];
    const [line, swatch] = [made("li", {}), made("span", { textContent: glyph, ariaHidden: "true" })];
    swatch.style.color = `var(${colour})`;
    line.append(swatch, name);
    list.append(line);
  }
  return list;
}

/** Draws the chart into the element, in place of what is there; charts with the same x axis share their cursor. */
export function drawChart(into, chart) {
  const { layers } = chart;
  const host = made("div", { className: "chart-host" });
  const tip = made("p", { className: "tip", hidden: true });
  const whole = made("button", { type: "button", className: "whole", textContent: "Whole chart", hidden: true });
  into.chart?.destroy();
  into.replaceChildren(legendOf(layers), host);
  const isRows = chart.y.rows.length > 0;
  let ratio = 1;

  const place = (u) => (layer, i) => [u.valToPos(layer.x[i], "x", true), u.valToPos(layer.y[i], "y", true)];
  const corners = (u) => (layer, i) => {
    const [left, right] = [u.valToPos(layer.x[i], "x", true), u.valToPos(layer.x1[i], "x", true)];
    const [top, bottom] = [u.valToPos(layer.y[i] - 0.5, "y", true), u.valToPos(layer.y[i] + 0.5, "y", true)];
    const gap = Math.min(4 * ratio, 0.2 * (bottom - top));
    return [left, top + gap / 2, Math.max(ratio, right - left - (right - left > 12 * ratio ? ratio : 0)), bottom - top - gap];
  };

  function draw(u) {
    ratio = uPlot.pxRatio;
    const pen = u.ctx;
    const { left, top, width, height } = u.bbox;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    pen.font = `${12 * ratio}px Inter, system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (const layer of layers) {
      if (layer.kind === "boxes") drawBoxes(pen, layer, corners(u), ratio);
      else if (layer.kind === "line") drawLine(pen, layer, place(u), ratio);
      else drawPoints(pen, layer, place(u), ratio);
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = style("--ink");
    pen.setLineDash(DASHES.dash.map((part) => part * ratio));
    for (const at of chart.uprights) {
      const x = Math.round(u.valToPos(at, "x", true));
      pen.beginPath();
      pen.moveTo(x, top);
      pen.lineTo(x, top + height);
      pen.stroke();
    }
    pen.restore();
  }

  /** What the pointer means: a box that holds it, the nearest point, or else the lines at its x. */
  function find(u) {
    const { left, top } = u.cursor;
    const [x, y] = [left * ratio + u.bbox.left, top * ratio + u.bbox.top];
    let [near, text] = [REACH * ratio, ""];
    for (const layer of layers) {
      if (!layer.texts || layer.kind === "line") continue;
      layer.x.forEach((_, i) => {
        if (layer.kind === "boxes") {
          const [from, above, width, height] = corners(u)(layer, i);
          if (x >= from && x < from + width && y >= above && y < above + height) [near, text] = [0, layer.texts[i]];
          return;
        }
        const [px, py] = place(u)(layer, i);
        const far = Math.hypot(px - x, py - y) - (ratio * (layer.sizes?.[i] ?? layer.size)) / 2;
        if (far <= near) [near, text] = [far, layer.texts[i]];
      });
    }
    return text || linesAt(u, x);
  }

  function linesAt(u, x) {
    const said = [];
    for (const layer of layers) {
      if (!layer.texts || layer.kind !== "line") continue;
      let [best, at] = [Infinity, -1];
      layer.x.forEach((value, i) => {
        if (value === null || layer.y[i] === null) return;
        const far = Math.abs(u.valToPos(value, "x", true) - x);
        if (far < best) [best, at] = [far, i];
      });
      if (at >= 0) said.push(layer.texts[at]);
    }
    return said.join("\n");
  }

  function point(u) {
    const text = u.cursor.left >= 0 ? find(u) : "";
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const [left, top] = [u.cursor.left + u.over.offsetLeft, u.cursor.top + u.over.offsetTop];
    const isRight = left > host.clientWidth / 2;
    tip.style.left = isRight ? "" : `${left + 14}px`;
    tip.style.right = isRight ? `${host.clientWidth - left + 14}px` : "";
    tip.style.top = `${Math.max(0, Math.min(top - 10, host.clientHeight - tip.offsetHeight))}px`;
  }

  function zoomed(u) {
    const { min, max } = u.scales.x;
    const isWhole = Math.abs(max - chart.x.high) + Math.abs(min - chart.x.low) <= 1e-9 * Math.abs(chart.x.high);
    whole.hidden = isWhole && (isRows || Math.abs(u.scales.y.max - chart.y.high) <= 1e-9 * Math.abs(chart.y.high));
  }

  const scale = ({ low, high, is_log, rows }) => ({
    time: false, auto: false, min: low, max: high, distr: is_log ? 3 : 1, dir: rows.length ? -1 : 1, range: (_, from, to) => [from ?? low, to ?? high],
  });
  const describe = (axis, side) => ({
    side, scale: side === 2 ? "x" : "y", label: axis.title, font: FONT, labelFont: FONT, labelSize: 20, labelGap: 2,
    size: side === 2 ? 30 : (u, values) => (values ? 14 + Math.min(170, Math.max(...values.map((text) => 6.6 * text.length), 10)) : 50),
    stroke: () => style("--soft"), grid: { stroke: () => style("--rule"), width: 1, show: !axis.rows.length }, ticks: { show: false },
    splits: (u, _, low, high) => thinned(marksOf(axis, low, high), u, side),
    values: (u, marks) => marks.map((value) => written(axis, value)), filter: (u, marks) => marks,
  });
  const thinned = (marks, u, side) => {
    const most = Math.max(2, Math.floor((side === 2 ? host.clientWidth - 60 : chart.height) / (side === 2 ? 64 : 20)));
    return marks.length <= most ? marks : marks.filter((_, i) => i % Math.ceil(marks.length / most) === 0);
  };
  const u = new uPlot(
    {
      width: Math.max(200, into.clientWidth), height: chart.height, legend: { show: false }, padding: [12, 14, 0, 4],
      scales: { x: scale(chart.x), y: scale(chart.y) },
      axes: [describe(chart.x, 2), describe(chart.y, 3)],
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      cursor: {
        points: { show: false }, y: !isRows, drag: { x: true, y: !isRows, uni: 24, setScale: true }, bind: { dblclick: () => () => back() },
        sync: chart.x.title ? { key: chart.x.title, scales: ["x", null] } : undefined,
      },
      hooks: { draw: [draw], setCursor: [point], setScale: [(u) => u.scales.y.max != null && zoomed(u)] },
    },
    [[chart.x.low, chart.x.high], [null, null]],
    host,
  );
  const back = () => u.batch(() => {
    u.setScale("x", { min: chart.x.low, max: chart.x.high });
    u.setScale("y", { min: chart.y.low, max: chart.y.high });
  });
  whole.onclick = back;
  const canvas = host.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${chart.y.title || "rows"} over ${chart.x.title}: ${layers.map(({ name }) => name).filter(Boolean).join(", ")}`);
  host.append(tip, whole);
  const sized = new ResizeObserver(() => u.setSize({ width: Math.max(200, into.clientWidth), height: chart.height }));
  sized.observe(into);
  return (into.chart = {
    redraw: () => u.redraw(),
    destroy: () => {
      sized.disconnect();
      u.destroy();
    },
  });
}
