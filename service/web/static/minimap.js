// All ranks at once: a row of pixels per rank, waiting hatched. A click zooms there, dragging chooses time and ranks.
import { colour, prepared, soon } from "./canvas.js";

const GUTTER_PX = 92;
const ALL_PX = 96;
const ROW_PX = 12;
const LABEL_PX = 12;
const CLICK_SHARE = 0.1;
const KINDS = [
  ["compute", "--compute"], ["transfer", "--tp_comm_exposed"], ["waitingShares", "--tp_comm_exposed"], ["memory", "--memory_bound_ops"],
];
const WAITS = 2;

export class Minimap {
  /** `timeline` has the view; `choose(place)` brings the ranks from that place on. */
  constructor(box, timeline, choose) {
    Object.assign(this, { box, timeline, choose, rows: [], late: new Set(), shown: [0, 0] });
    this.canvas = box.querySelector("canvas");
    this.redraw = () => soon(this.drawn);
    this.drawn = () => this.draw();
    this.listen();
    new ResizeObserver(() => this.fill(this.rows)).observe(box);
    document.addEventListener("themechange", () => this.fill(this.rows));
  }

  /** `rows`: the ranks from top to bottom, as the overview has them. */
  fill(rows) {
    this.rows = rows;
    this.image = null;
    this.box.hidden = !rows.length;
    this.redraw();
  }

  get rowPx() {
    return Math.max(1, Math.min(ROW_PX, Math.floor(ALL_PX / this.rows.length)));
  }

  draw() {
    if (!this.rows.length || !this.box.clientWidth) return;
    const began = performance.now();
    const { canvas, rowPx, rows, timeline } = this;
    const height = rows.length * rowPx;
    canvas.style.height = `${height}px`;
    const { pen, width } = prepared(canvas, height);
    const wide = Math.max(width - GUTTER_PX, 1);
    this.image ??= glance(rows, rowPx, timeline.begin, timeline.end, wide);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.image, GUTTER_PX, 0);
    this.drawLabels(pen);
    const place = (time) => GUTTER_PX + ((time - timeline.begin) / (timeline.end - timeline.begin)) * wide;
    const [left, right] = timeline.view.map(place);
    const [top, bottom] = this.shown.map((row) => row * rowPx);
    pen.strokeStyle = pen.fillStyle = colour("--ink");
    pen.globalAlpha = 0.12;
    pen.fillRect(GUTTER_PX, 0, Math.max(left - GUTTER_PX, 0), height);
    pen.fillRect(right, 0, Math.max(width - right, 0), height);
    pen.globalAlpha = 1;
    pen.lineWidth = 1.5;
    pen.strokeRect(Math.max(left, GUTTER_PX) + 0.75, top + 0.75, Math.max(Math.min(right, width) - Math.max(left, GUTTER_PX) - 1.5, 2), bottom - top - 1.5);
    if (this.held?.to) pen.strokeRect(...rectangle(this.held.from, this.held.to));
    canvas.dataset.frameMs = (performance.now() - began).toFixed(1);
    canvas.dataset.rows = rows.length;
  }

  /** Of the ranks there is room for; those that others wait for always. */
  drawLabels(pen) {
    const { rows, rowPx, late } = this;
    pen.textBaseline = "middle";
    pen.font = `${LABEL_PX}px Inter, system-ui, sans-serif`;
    let free = -LABEL_PX;
    const put = (row) => {
      const { label, key } = rows[row];
      pen.fillStyle = colour(late.has(key) ? "--alarm" : "--soft");
      pen.fillText(late.has(key) ? `${label}, late` : label, 10, (row + 0.5) * rowPx, GUTTER_PX - 14);
    };
    const lates = rows.map((_, row) => row).filter((row) => late.has(rows[row].key));
    for (const row of lates) put(row);
    rows.forEach((_, row) => {
      const y = row * rowPx;
      const isFree = y - free >= Math.max(LABEL_PX, rowPx > 4 ? 0 : 28) && lates.every((other) => Math.abs(other - row) * rowPx >= LABEL_PX);
      if (isFree) put(row), (free = y);
    });
  }

  listen() {
    const { canvas, timeline } = this;
    const spot = (event) => [event.offsetX, event.offsetY];
    const rowAt = (y) => Math.min(Math.max(Math.floor(y / this.rowPx), 0), this.rows.length - 1);
    const timeAt = (x) => timeline.begin + ((x - GUTTER_PX) / (canvas.clientWidth - GUTTER_PX)) * (timeline.end - timeline.begin);
    canvas.addEventListener("pointerdown", (event) => {
      this.held = { from: spot(event) };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.held) return;
      this.held.to = spot(event);
      this.redraw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const [from, to] = [this.held?.from ?? spot(event), spot(event)];
      this.held = null;
      const isClick = Math.hypot(from[0] - to[0], from[1] - to[1]) < 4;
      const times = [from, to].map(([x]) => timeAt(Math.max(x, GUTTER_PX))).sort((a, b) => a - b);
      const half = Math.min(timeline.view[1] - timeline.view[0], CLICK_SHARE * (timeline.end - timeline.begin)) / 2;
      if (isClick) this.choose(rowAt(to[1]), true);
      else this.choose(rowAt(Math.min(from[1], to[1])), false);
      if (to[0] < GUTTER_PX && isClick) return this.redraw();
      if (isClick) timeline.show(times[0] - half, times[0] + half);
      else timeline.show(...times);
    });
    canvas.addEventListener("keydown", (event) => {
      const step = this.shown[1] - this.shown[0];
      const keys = { ArrowUp: () => this.choose(this.shown[0] - step), ArrowDown: () => this.choose(this.shown[0] + step), ArrowLeft: () => timeline.pan(-0.2), ArrowRight: () => timeline.pan(0.2), "+": () => timeline.zoom(0.6), "-": () => timeline.zoom(1.6) };
      if (event.ctrlKey || event.metaKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }
}

const rectangle = ([x, y], [right, bottom]) => [Math.min(x, right), Math.min(y, bottom), Math.abs(right - x), Math.abs(bottom - y)];

/** Ranks between two times as an image, a row of pixels per rank: every pixel has the colour of what filled most of its time. */
export function glance(rows, rowPx, begin, end, width) {
  const image = new ImageData(width, rows.length * rowPx);
  const pixels = new Uint32Array(image.data.buffer);
  const [colours, blank] = [KINDS.map(([, name]) => bytes(colour(name))), bytes(colour("--page"))];
  const perPixel = (end - begin) / width;
  rows.forEach((rank, row) => {
    const shares = KINDS.map(([kind]) => rank[kind]);
    const stretches = shares[0].length;
    const perStretch = (rank.span_us * 1000) / stretches;
    for (let x = 0; x < width; x++) {
      const stretch = Math.floor((begin + (x + 0.5) * perPixel - rank.shift) / perStretch);
      if (stretch < 0 || stretch >= stretches) continue;
      let [best, most, left] = [-1, 0, 255];
      for (let kind = 0; kind < shares.length; kind++) {
        const share = shares[kind][stretch];
        left -= share;
        if (share > most) [best, most] = [kind, share];
      }
      if (left >= most) continue; // idle
      for (let y = row * rowPx; y < (row + 1) * rowPx - (rowPx > 4 ? 1 : 0); y++)
        pixels[y * width + x] = best === WAITS && ((x + y) & 3) > 1 ? blank : colours[best];
    }
  });
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height: image.height });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** A colour of the stylesheet as a pixel. */
function bytes(text) {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  pen.fillStyle = text;
  pen.fillRect(0, 0, 1, 1);
  return new Uint32Array(pen.getImageData(0, 0, 1, 1).data.buffer)[0];
}
