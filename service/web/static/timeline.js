// The events of ranks on a canvas that zooms: every pixel column of a row is found by binary search, and what is
// narrower than a pixel is drawn as the share of it that was busy. So a frame costs pixels, not events.
import { CLASSES, COMMUNICATION, NAME_BITS, NAME_MASK, WAITING, alignClocks, counters, duration, firstAt, markWaits } from "./timeline_data.js";

const COLOURS = ["--compute", "--tp_comm_exposed", "--memory_bound_ops", "--pipeline_bubble", "--mark"];
const LIGHT_TEXT = [true, true, false, false, false, false];
const ROW_PX = 15;
const MEMORY_PX = 36;
const HEAD_PX = 20;
const GUTTER_PX = 92;
const AXIS_PX = 22;
const MIN_TEXT_PX = 36;
const HATCH_PX = 6;
const MAX_LINKED = 80;
const MAX_STAGES_PX = 120;
const MIN_STAGE_PX = 5;

const isHost = ({ lane }) => lane.startsWith("thread") || lane.startsWith("launches");

export class Timeline {
  constructor(box, { tell, selected, moved }) {
    Object.assign(this, { box, tell, selected, moved, ranks: [], layout: [], view: [0, 1], begin: 0, end: 1, chosen: null, isSelecting: false, isWhole: true });
    this.overviews = new Map(); // by side
    this.pins = new Set();
    this.linked = null;
    this.canvas = box.querySelector("canvas");
    this.spacer = box.querySelector("[data-spacer]");
    this.tip = box.parentElement.querySelector("[data-tip]");
    this.listen();
    new ResizeObserver(() => this.redraw()).observe(box);
    document.addEventListener("themechange", () => this.redraw());
  }

  /** Shows these ranks, in this order; a side's overview gives the clocks, the waiting and the counters. */
  fill(ranks, overviews = this.overviews) {
    Object.assign(this, { ranks, overviews });
    const sides = Map.groupBy(ranks.filter(({ isSimulated }) => !isSimulated), ({ side }) => side);
    for (const side of new Set([...sides.keys(), ...overviews.keys()])) {
      const [own, overview] = [sides.get(side) ?? [], overviews.get(side)];
      alignClocks(own, overview);
      if (!overview) continue;
      overview.counters ??= counters(overview);
      for (const rank of own) markWaits(rank, overview);
    }
    const first = [...overviews.values()].flatMap((overview) => overview.ranks.flatMap((rank) => (rank.step_us ? rank.shift + (rank.step_us - rank.start_us) * 1000 : [])));
    for (const rank of ranks) if (rank.isSimulated) rank.shift = first.length ? Math.min(...first) : 0; // where the first step begins
    const glances = [...overviews.values()].flatMap((overview) => overview.ranks.map(({ shift, span_us }) => [shift, shift + span_us * 1000]));
    const spans = [...ranks.map((rank) => [rank.shift, rank.shift + rank.span * rank.unit_ns]), ...glances];
    this.begin = spans.reduce((least, [from]) => Math.min(least, from), 0);
    this.end = spans.reduce((most, [, to]) => Math.max(most, to), this.begin + 1);
    if (this.isWhole) this.view = [this.begin, this.end];
    this.arrange();
  }

  /** Which row stands where: counters, then pinned rows, which stay when the others are scrolled, then ranks. */
  arrange() {
    this.layout = [];
    let y = AXIS_PX;
    const put = (entry, height) => (this.layout.push({ ...entry, y, height }), (y += height));
    for (const [side, { counters }] of this.overviews) if (counters) put({ counters, side, isPinned: true }, MEMORY_PX);
    const rowsOf = (rank) => rank.rows.map((row) => ({ rank, row, id: `${rank.key}:${row.lane}` }));
    for (const rank of this.ranks)
      for (const entry of rowsOf(rank)) if (this.pins.has(entry.id)) put({ ...entry, isPinned: true }, ROW_PX);
    this.pinnedTo = y;
    for (const rank of this.ranks) {
      put({ rank, head: true }, HEAD_PX);
      const height = rank.isSimulated ? Math.max(MIN_STAGE_PX, Math.min(ROW_PX, Math.floor(MAX_STAGES_PX / rank.rows.length))) : ROW_PX;
      for (const entry of rowsOf(rank))
        if (!this.pins.has(entry.id) && (rank.isOpen || !isHost(entry.row))) put(entry, height);
      if (rank.memory) put({ rank, memory: rank.memory }, MEMORY_PX);
    }
    this.box.style.height = `${y + 10}px`;
    this.spacer.style.height = `${y + 8}px`;
    this.redraw();
  }

  /** Rows that can be pinned: the id and what it is called. */
  tracks() {
    return this.ranks.flatMap((rank) => [...new Map(rank.rows.map(({ lane }) => [`${rank.key}:${lane}`, `${rank.label}, ${lane}`]))]);
  }

  pin(id) {
    if (!this.pins.delete(id)) this.pins.add(id);
    this.arrange();
    this.moved();
  }

  redraw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      const began = performance.now();
      const drawn = this.draw();
      this.canvas.dataset.frameMs = (performance.now() - began).toFixed(1);
      this.tell(drawn, performance.now() - began);
    });
  }

  draw() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    const ratio = devicePixelRatio;
    if (this.canvas.width !== width * ratio || this.canvas.height !== height * ratio)
      Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.spacer.style.marginTop = `${-height}px`;
    const style = getComputedStyle(document.documentElement);
    const paint = (this.paint = this.canvas.getContext("2d"));
    this.colours = COLOURS.map((name) => style.getPropertyValue(name).trim());
    this.ink = style.getPropertyValue("--ink");
    this.soft = style.getPropertyValue("--soft");
    this.rule = style.getPropertyValue("--rule");
    this.page = style.getPropertyValue("--page");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    paint.font = "12px Inter, system-ui, sans-serif";
    paint.textBaseline = "middle";
    this.hatch = this.hatched(ratio);
    this.scale = (width - GUTTER_PX) / (this.view[1] - this.view[0]);
    this.drawGrid(width, height);
    let drawn = 0;
    for (const isPinned of [false, true]) {
      if (isPinned) {
        this.drawLinks(width, height);
        paint.fillStyle = this.page;
        paint.fillRect(0, AXIS_PX, width, this.pinnedTo - AXIS_PX);
      }
      for (const entry of this.layout) {
        const y = this.placeOf(entry);
        if (Boolean(entry.isPinned) !== isPinned || y + entry.height < AXIS_PX || y > height) continue;
        if (entry.head) this.drawHead(entry, y, width);
        else if (entry.memory) this.drawMemory(entry, y, width);
        else if (entry.counters) this.drawCounters(entry, y, width);
        else drawn += this.drawRow(entry, y, width);
      }
    }
    this.drawAxis(width, height);
    return drawn;
  }

  placeOf({ y, isPinned }) {
    return isPinned ? y : y - this.box.scrollTop;
  }

  /** Waiting: the stripes of communication, so that it is told from transferring without colours too. */
  hatched(ratio) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = HATCH_PX * ratio;
    const pen = tile.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = this.page;
    pen.fillRect(0, 0, HATCH_PX, HATCH_PX);
    pen.strokeStyle = this.colours[COMMUNICATION];
    pen.lineWidth = 1.6;
    pen.beginPath();
    for (const x of [-HATCH_PX, 0, HATCH_PX]) {
      pen.moveTo(x - 1, HATCH_PX + 1);
      pen.lineTo(x + HATCH_PX + 1, -1);
    }
    pen.stroke();
    const pattern = this.paint.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / ratio));
    return pattern;
  }

  drawHead({ rank }, y, width) {
    const { paint } = this;
    paint.fillStyle = this.rule;
    paint.fillRect(0, y, width, 1);
    paint.fillStyle = this.ink;
    const folded = rank.rows.some(isHost) ? (rank.isOpen ? "▾ " : "▸ ") : "";
    paint.fillText(`${folded}${rank.label}`, 4, y + HEAD_PX / 2 + 1);
  }

  drawRow({ rank, row, id, isPinned, height }, y, width) {
    const { paint, scale } = this;
    const unit = rank.unit_ns;
    const [from, to] = this.view.map((time) => (time - rank.shift) / unit);
    const { start, duration, name, busy, talk, idle, wait, matches } = row;
    if (row.depth === 0 && height >= 9) {
      paint.globalAlpha = 1;
      paint.fillStyle = isPinned ? this.ink : this.soft;
      paint.fillText(isPinned ? `◆ ${rank.short} ${row.lane}` : row.lane, 10, y + height / 2, GUTTER_PX - 14);
    }
    let drawn = 0;
    let i = Math.max(firstAt(start, from) - 1, 0);
    const perPixel = 1 / (scale * unit);
    while (i < row.count && start[i] < to) {
      const x = GUTTER_PX + (start[i] - from) * unit * scale;
      const wide = duration[i] * unit * scale;
      if (wide >= 1.5) {
        const left = Math.max(x, GUTTER_PX);
        const right = Math.min(x + wide, width);
        if (right > left) {
          const kind = name[i] >>> NAME_BITS;
          paint.globalAlpha = !matches || matches[i + 1] > matches[i] ? 1 : 0.15;
          paint.fillStyle = kind === WAITING ? this.hatch : this.colours[kind];
          paint.fillRect(left, y + 1, Math.max(right - left - (wide > 4 ? 0.5 : 0), 1), height - 2);
          const waited = wait ? Math.min(x + wait[i] * unit * scale, right) : left;
          if (waited - left >= 1) {
            paint.fillStyle = this.hatch;
            paint.fillRect(left, y + 1, waited - left, height - 2);
          }
          const text = Math.max(waited, left);
          if (kind !== WAITING && height >= 12 && right - text > MIN_TEXT_PX) this.write(rank.names[name[i] & NAME_MASK], kind, text, right - text, y);
          drawn++;
        }
        i++;
      } else {
        const column = Math.max(Math.floor(x), GUTTER_PX);
        let next = firstAt(start, from + (column + 1 - GUTTER_PX) * perPixel, i + 1);
        // events of a row do not overlap, so only the last that begins in this pixel can reach beyond it: it is drawn as itself
        if (next - 1 > i && duration[next - 1] * unit * scale >= 1.5) next--;
        const time = busy[next] - busy[i];
        const isTalk = talk[next] - talk[i] > time / 2;
        const share = Math.min(1, time / perPixel);
        const isMatch = !matches || matches[next] > matches[i];
        paint.globalAlpha = isMatch ? 0.25 + 0.75 * share : 0.08;
        const kind = isTalk ? COMMUNICATION : name[(i + next - 1) >>> 1] >>> NAME_BITS;
        paint.fillStyle = idle[next] - idle[i] > time / 2 ? this.hatch : (this.colours[kind] ?? this.hatch);
        if (column >= GUTTER_PX) paint.fillRect(column, y + 1, 1, height - 2);
        drawn++;
        i = next;
      }
    }
    paint.globalAlpha = 1;
    return drawn;
  }

  write(text, kind, x, room, y) {
    const { paint } = this;
    const letters = Math.floor((room - 6) / 6.7);
    paint.fillStyle = LIGHT_TEXT[kind] ? "#fff" : "#1c2026";
    paint.fillText(text.length > letters ? `${text.slice(0, Math.max(letters - 1, 1))}…` : text, x + 3, y + ROW_PX / 2 + 0.5);
  }

  drawMemory({ rank, memory }, y, width) {
    const peak = Math.max(...memory.gib, 1e-9);
    const times = memory.at.map((at) => at * rank.unit_ns + rank.shift);
    this.drawArea(times, memory.gib, peak, y, width, this.colours[2], 0.55);
    this.nameCounter("memory", peak < 1 ? `${(peak * 1024).toPrecision(3)} MiB` : `${peak.toPrecision(3)} GiB`, y);
  }

  /** Of all ranks, those that wait and those that compute. */
  drawCounters({ counters, side }, y, width) {
    const { at, waiting, computing, running } = counters;
    this.drawArea(at, waiting, 1, y, width, this.hatch, 1);
    this.drawArea(at, computing, 1, y, width, this.colours[0], 0.55);
    const [from, to] = this.view.map((time) => Math.min(firstAt(at, time), at.length));
    const sum = (shares) => shares.slice(from, to).reduce((all, share) => all + share, 0);
    const share = sum(waiting) / (sum(running) || 1);
    this.nameCounter(side ? `${side} waiting` : "waiting", `${(100 * share).toFixed(0)}% in view`, y);
  }

  drawArea(times, values, peak, y, width, fill, alpha) {
    const { paint } = this;
    const place = (time) => GUTTER_PX + (time - this.view[0]) * this.scale;
    const level = (value) => y + MEMORY_PX - 3 - (value / peak) * (MEMORY_PX - 6);
    paint.save();
    paint.beginPath();
    paint.rect(GUTTER_PX, y, width - GUTTER_PX, MEMORY_PX);
    paint.clip();
    paint.beginPath();
    paint.moveTo(place(times[0]), y + MEMORY_PX - 3);
    times.forEach((time, i) => {
      if (i) paint.lineTo(place(time), level(values[i - 1]));
      paint.lineTo(place(time), level(values[i]));
    });
    paint.lineTo(place(times.at(-1)), y + MEMORY_PX - 3);
    paint.globalAlpha = alpha;
    paint.fillStyle = fill;
    paint.fill();
    paint.restore();
  }

  nameCounter(name, value, y) {
    this.paint.fillStyle = this.soft;
    this.paint.fillText(name, 10, y + 12);
    this.paint.fillText(value, 10, y + 26, GUTTER_PX - 14);
  }

  /** From rank to rank, when each came to a collective: those in view if they are few, and the one pointed at. */
  drawLinks(width, height) {
    const { paint } = this;
    const rowOf = new Map(this.layout.filter(({ row }) => row).map((entry) => [entry.row, entry]));
    for (const [side, overview] of this.overviews) {
      const ranks = this.ranks.filter((rank) => rank.side === side && rank.meetings);
      const inView = new Set();
      for (const rank of ranks)
        for (const [key, { row, i }] of rank.meetings) {
          const from = row.start[i] * rank.unit_ns + rank.shift;
          if (rowOf.has(row) && from < this.view[1] && from + row.duration[i] * rank.unit_ns > this.view[0]) inView.add(key);
          if (inView.size > MAX_LINKED) break;
        }
      const keys = inView.size > MAX_LINKED ? [] : [...inView];
      if (this.linked?.side === side && !inView.has(this.linked.key)) keys.push(this.linked.key);
      for (const key of keys) {
        const isLinked = this.linked?.side === side && this.linked.key === key;
        const points = ranks.flatMap((rank) => {
          const { row, i } = rank.meetings.get(key) ?? {};
          const entry = row && rowOf.get(row);
          if (!entry) return [];
          const at = (units) => GUTTER_PX + (units * rank.unit_ns + rank.shift - this.view[0]) * this.scale;
          return [{ x: at(row.start[i]), end: at(row.start[i] + row.duration[i]), y: this.placeOf(entry), height: entry.height }];
        });
        this.drawLink(points, isLinked, width, height);
      }
    }
    paint.globalAlpha = 1;
  }

  drawLink(points, isLinked, width, height) {
    if (points.length < 2) return;
    const { paint } = this;
    paint.save();
    paint.beginPath();
    paint.rect(GUTTER_PX, AXIS_PX, width - GUTTER_PX, height);
    paint.clip();
    paint.strokeStyle = this.ink;
    paint.globalAlpha = isLinked ? 1 : 0.45;
    paint.lineWidth = isLinked ? 1.6 : 0.8;
    paint.beginPath();
    for (const { x, y, height } of points) {
      paint.lineTo(x, y + 1);
      paint.lineTo(x, y + height - 1);
    }
    paint.stroke();
    if (isLinked) {
      paint.beginPath();
      for (const { end, y, height } of points) paint.lineTo(end, y + height / 2);
      paint.setLineDash([3, 3]);
      paint.stroke();
    }
    paint.restore();
  }

  ticks(width, put) {
    const [from, to] = this.view;
    const step = niceStep((to - from) / Math.max((width - GUTTER_PX) / 110, 1));
    for (let time = Math.ceil(from / step) * step; time <= to; time += step)
      put(GUTTER_PX + (time - from) * this.scale, time, step);
  }

  drawGrid(width, height) {
    this.paint.fillStyle = this.rule;
    this.ticks(width, (x) => this.paint.fillRect(x, AXIS_PX - 5, 1, height));
  }

  drawAxis(width, height) {
    const { paint } = this;
    paint.fillStyle = this.page;
    paint.fillRect(0, 0, width, AXIS_PX);
    paint.fillStyle = this.soft;
    this.ticks(width, (x, time, step) => paint.fillText(duration(time, step), x + 3, AXIS_PX / 2));
    if (!this.chosen) return;
    const [left, right] = this.chosen.map((time) => GUTTER_PX + (time - this.view[0]) * this.scale);
    paint.globalAlpha = 0.15;
    paint.fillStyle = this.ink;
    paint.fillRect(Math.max(left, GUTTER_PX), AXIS_PX, Math.min(right, width) - Math.max(left, GUTTER_PX), height);
    paint.globalAlpha = 1;
  }

  timeAt(x) {
    return this.view[0] + (x - GUTTER_PX) / this.scale;
  }

  /** The event under the pointer, and its rank. */
  hit(x, y) {
    const isPinned = y < this.pinnedTo;
    const entry = this.layout.find((line) => Boolean(line.isPinned) === isPinned && y >= this.placeOf(line) && y < this.placeOf(line) + line.height);
    if (!entry?.row || x < GUTTER_PX) return { entry };
    const { rank, row } = entry;
    const time = (this.timeAt(x) - rank.shift) / rank.unit_ns;
    const slack = 1.5 / (this.scale * rank.unit_ns);
    const i = firstAt(row.start, time + slack) - 1;
    return i >= 0 && row.start[i] + row.duration[i] + slack >= time ? { entry, rank, row, i } : { entry };
  }

  show(from, to) {
    const least = 20;
    const whole = this.end - this.begin;
    const wide = Math.min(Math.max(to - from, least), whole);
    const left = Math.min(Math.max(from, this.begin), this.end - wide);
    this.view = [left, left + wide];
    this.isWhole = wide >= whole;
    this.tip.hidden = true;
    this.redraw();
    this.moved();
  }

  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    this.show(at - (at - this.view[0]) * factor, at + (this.view[1] - at) * factor);
  }

  pan(share) {
    const by = (this.view[1] - this.view[0]) * share;
    this.show(this.view[0] + by, this.view[1] + by);
  }

  /** Marks the events whose names contain the words; how many there are. */
  search(words) {
    const wanted = words.trim().toLowerCase();
    let found = 0;
    for (const rank of this.ranks) {
      const isWanted = wanted ? rank.names.map((name) => name.toLowerCase().includes(wanted)) : null;
      for (const row of rank.rows) {
        row.matches = isWanted ? new Uint32Array(row.count + 1) : null;
        if (!isWanted) continue;
        for (let i = 0; i < row.count; i++) row.matches[i + 1] = row.matches[i] + isWanted[row.name[i] & NAME_MASK];
        found += row.matches[row.count];
      }
    }
    this.redraw();
    return found;
  }

  /** Brings the next matching event after the middle of the view into it. */
  next() {
    const middle = (this.view[0] + this.view[1]) / 2;
    let best = null;
    for (const rank of this.ranks)
      for (const row of rank.rows) {
        if (!row.matches) continue;
        const after = firstAt(row.start, (middle - rank.shift) / rank.unit_ns + 1);
        const i = firstAt(row.matches, row.matches[after] + 1) - 1;
        if (i < row.count && i >= 0) {
          const at = row.start[i] * rank.unit_ns + rank.shift;
          if (!best || at < best.at) best = { at, wide: row.duration[i] * rank.unit_ns, rank, row };
        }
      }
    if (!best) return this.show(this.begin, this.begin + this.view[1] - this.view[0]);
    const half = Math.max(Math.min(this.view[1] - this.view[0], best.wide * 6) / 2, best.wide);
    const at = best.at + 1;
    this.show(at - half, at + half);
  }

  /** The moment `us` of the rank's own clock. */
  showMoment(key, us, aroundUs) {
    const rank = this.ranks.find((rank) => rank.key === key) ?? this.ranks[0];
    const at = (us - rank.start_us) * 1000 + rank.shift;
    const half = Math.max(aroundUs * 1500, 20_000);
    this.show(at - half, at + half);
    const entry = this.layout.find((line) => line.rank === rank && line.head);
    this.box.scrollTop = Math.max(entry.y - this.pinnedTo - 20, 0);
    this.chosen = [at - aroundUs * 1000, at];
    this.selected(this.chosen);
  }

  listen() {
    const { canvas, box } = this;
    let held = null;
    const spot = (event) => {
      const rect = canvas.getBoundingClientRect();
      return [event.clientX - rect.left, event.clientY - rect.top];
    };
    box.addEventListener("scroll", () => this.redraw());
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) this.zoom(1.0015 ** event.deltaY, this.timeAt(spot(event)[0]));
      else this.pan(event.deltaX / box.clientWidth);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      const [x, y] = spot(event);
      held = { x, y, view: this.view, top: box.scrollTop, selects: event.shiftKey || this.isSelecting };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = spot(event);
      if (!held) return this.point(x, y);
      if (held.selects) {
        this.chosen = [this.timeAt(Math.min(held.x, x)), this.timeAt(Math.max(held.x, x))];
        this.redraw();
      } else if (Math.abs(x - held.x) > 2) {
        const by = (held.x - x) / this.scale;
        this.show(held.view[0] + by, held.view[1] + by);
      }
    });
    canvas.addEventListener("pointerup", (event) => {
      const [x, y] = spot(event);
      const isClick = held && Math.hypot(x - held.x, y - held.y) < 3;
      if (isClick) this.click(x, y);
      else if (held?.selects) this.selected(this.chosen);
      held = null;
    });
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("dblclick", (event) => {
      const { rank, row, i } = this.hit(...spot(event));
      if (!row) return;
      const at = row.start[i] * rank.unit_ns + rank.shift;
      const wide = Math.max(row.duration[i] * rank.unit_ns, 50);
      this.show(at - wide / 2, at + wide * 1.5);
    });
    canvas.addEventListener("keydown", (event) => {
      const keys = { w: () => this.zoom(0.6), "+": () => this.zoom(0.6), s: () => this.zoom(1.6), "-": () => this.zoom(1.6), a: () => this.pan(-0.2), d: () => this.pan(0.2), ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), f: () => this.show(this.begin, this.end), n: () => this.next() };
      if (event.ctrlKey || event.metaKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  click(x, y) {
    const { entry } = this.hit(x, y);
    if (entry?.head) {
      entry.rank.isOpen = !entry.rank.isOpen;
      this.arrange();
    } else if (entry?.row && x < GUTTER_PX) {
      this.pin(entry.id);
    } else if (this.chosen) {
      this.chosen = null;
      this.selected(null);
      this.redraw();
    }
  }

  point(x, y) {
    const { entry, rank, row, i } = this.hit(x, y);
    this.tip.hidden = !row;
    this.canvas.classList.toggle("acts", Boolean(entry?.head || (entry?.row && x < GUTTER_PX)));
    const meeting = row?.meet?.get(i);
    const linked = meeting ? { side: rank.side, key: `${meeting.group}/${meeting.column}` } : null;
    if (linked?.key !== this.linked?.key) this.redraw();
    this.linked = linked;
    if (!row) return;
    const [at, wide] = [row.start[i] * rank.unit_ns + rank.shift, row.duration[i] * rank.unit_ns];
    const kind = CLASSES[row.name[i] >>> NAME_BITS];
    const waits = meeting && meeting.wait > 0 ? `, of it ${duration(meeting.wait)} waiting` : "";
    this.tip.textContent = `${rank.names[row.name[i] & NAME_MASK]}\n${duration(wide)}, ${kind}${waits}, at ${duration(at, wide)}, ${rank.label}, ${row.lane}`;
    const left = Math.min(x + 14, this.box.clientWidth - 320);
    this.tip.style.transform = `translate(${Math.max(left, 0)}px, ${y + 16}px)`;
  }
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}
