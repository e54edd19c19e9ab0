// Ranks of a trace as they come from the server, and what is computed from their events.

export const CLASSES = ["compute", "communication", "memory", "host", "mark"];
export const NAME_BITS = 28;
export const NAME_MASK = 2 ** NAME_BITS - 1;

/** One rank as it came from the server (tools/trace/timeline.py says how it is packed). */
export function unpack(buffer, label) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let offset = 4 + length;
  const rows = header.rows.map(({ lane, depth, count }) => {
    const column = () => new Uint32Array(buffer, (offset += 4 * count) - 4 * count, count);
    const row = { lane, depth, count, start: column(), duration: column(), name: column() };
    return { ...row, ...sums(row), matches: null };
  });
  return { ...header, rows, label, isOpen: !rows.some(({ lane }) => lane.startsWith("stream")), shift: 0 };
}

/** Busy time before each event, and the part of it that was communication. */
function sums({ count, duration, name }) {
  const [busy, talk] = [new Float64Array(count + 1), new Float64Array(count + 1)];
  for (let i = 0; i < count; i++) {
    busy[i + 1] = busy[i] + duration[i];
    talk[i + 1] = talk[i] + (name[i] >>> NAME_BITS === 1 ? duration[i] : 0);
  }
  return { busy, talk };
}

/** The first event from `from` on that starts at `time` or later. */
export function firstAt(start, time, from = 0) {
  let [low, high] = [from, start.length];
  for (let step = 1; low + step < high && start[low + step] < time; step *= 2) low += step; // near ones first
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (start[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Ranks of one run share a clock if their times overlap; else each begins at zero. */
export function alignClocks(ranks) {
  const first = Math.min(...ranks.map(({ start_us }) => start_us));
  const shares = ranks.every(({ start_us, span, unit_ns }) => (start_us - first) * 1000 < span * unit_ns);
  for (const rank of ranks) rank.shift = shares ? (rank.start_us - first) * 1000 : 0;
}

/** Nanoseconds in the unit that suits them, with the digits that `step` needs. */
export function duration(ns, step = ns / 200) {
  const size = Math.max(Math.abs(ns), Math.abs(step), 1);
  const [per, unit] = size < 1e3 ? [1, "ns"] : size < 1e6 ? [1e3, "µs"] : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(Math.max(Math.abs(step), 1e-9) / per)), 0), 7);
  return `${(ns / per).toFixed(digits)} ${unit}`;
}

/** Time of a stretch by rank and by name, of device work where there is any. */
export function statistics(ranks, [from, to]) {
  const names = new Map();
  const perRank = ranks.map((rank) => {
    const works = rank.rows.filter(({ lane }) => lane.startsWith("stream"));
    const rows = works.length ? works : rank.rows.filter(({ lane, depth }) => lane.startsWith("thread") && !depth);
    const [first, last] = [from, to].map((time) => (time - rank.shift) / rank.unit_ns);
    const times = [0, 0, 0, 0, 0];
    for (const row of rows)
      for (let i = Math.max(firstAt(row.start, first) - 1, 0); i < row.count && row.start[i] < last; i++) {
        const inside = Math.min(row.start[i] + row.duration[i], last) - Math.max(row.start[i], first);
        if (inside <= 0) continue;
        times[row.name[i] >>> NAME_BITS] += inside * rank.unit_ns;
        const name = rank.names[row.name[i] & NAME_MASK];
        const total = names.get(name) ?? { name, kind: CLASSES[row.name[i] >>> NAME_BITS], count: 0, ns: 0 };
        total.count++;
        total.ns += inside * rank.unit_ns;
        names.set(name, total);
      }
    return { label: rank.label, times };
  });
  return { perRank, names: [...names.values()].sort((a, b) => b.ns - a.ns) };
}
