// Ranks of a trace as they come from the server, simulated steps beside them, and what is computed from their events.

export const CLASSES = ["compute", "communication", "memory", "host", "mark", "waiting"];
export const COMMUNICATION = 1;
export const WAITING = 5;
export const NAME_BITS = 28;
export const NAME_MASK = 2 ** NAME_BITS - 1;
const KINDS = { forward: 0, backward: 0, weights: 0, send: COMMUNICATION, reduce: COMMUNICATION, optimizer: 2, other: 3 };
const MATCH_NS = 2000; // starts travel as microseconds in a double
const BINS = 1024;

/** The header, and a reader of the columns behind it. */
function opened(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let offset = 4 + length;
  const take = (Column, count) => new Column(buffer, (offset += Column.BYTES_PER_ELEMENT * count) - Column.BYTES_PER_ELEMENT * count, count);
  return { header, take };
}

/** One rank as it came from the server (tools/trace/timeline.py says how it is packed). */
export function unpack(buffer, about) {
  const { header, take } = opened(buffer);
  const rows = header.rows.map(({ lane, depth, count }) => {
    const [start, duration, name] = [0, 1, 2].map(() => take(Uint32Array, count));
    return withSums({ lane, depth, count, start, duration, name, matches: null });
  });
  return { ...header, ...about, rows, isOpen: !rows.some(({ lane }) => lane.startsWith("stream")), shift: 0 };
}

/** All ranks at a glance (tools/trace/overview.py). */
export function unpackOverview(buffer) {
  const { header, take } = opened(buffer);
  const ranks = header.ranks.map((rank) => {
    const [compute, transfer, waiting, memory] = [0, 1, 2, 3].map(() => take(Uint8Array, header.stretches));
    return { ...rank, compute, transfer, waitingShares: waiting, memory, shift: 0 };
  });
  const groups = header.groups.map((group) => {
    const [start, duration, waiting] = [0, 1, 2].map(() => take(Uint32Array, group.rows.length * group.count));
    return { ...group, start, duration, waiting };
  });
  return { ...header, ranks, groups };
}

/** A simulated step as a rank of its own: a row per stage, its bubble as waiting. */
export function simulated(step, about) {
  const names = [];
  const numbers = new Map();
  const number = (name) => numbers.get(name) ?? (numbers.set(name, names.push(name) - 1), names.length - 1);
  const rows = Array.from({ length: step.stages }, () => []);
  step.stage.forEach((stage, i) => {
    const kind = step.kinds[step.kind[i]];
    const batch = step.micro_batch[i] < 0 ? "" : ` ${step.micro_batch[i]}`;
    rows[stage].push([step.start_s[i] * 1e6, step.end_s[i] * 1e6, number(`${kind}${batch}`) + KINDS[kind] * 2 ** NAME_BITS]);
  });
  const bubble = number("bubble") + WAITING * 2 ** NAME_BITS;
  const packed = rows.map((events, stage) => {
    events.sort((a, b) => a[0] - b[0]);
    let reached = 0;
    const all = [];
    for (const event of [...events, [step.makespan_s * 1e6]]) {
      if (event[0] - reached > 1) all.push([reached, event[0], bubble]);
      if (event.length > 1) all.push([Math.max(event[0], reached), event[1], event[2]]);
      reached = Math.max(reached, event[1] ?? 0);
    }
    const column = (value) => Uint32Array.from(all, value);
    return withSums({ lane: `stage ${stage}`, depth: 0, count: all.length, start: column(([from]) => from), duration: column(([from, to]) => to - from), name: column(([, , name]) => name), matches: null });
  });
  return { ...about, names, rows: packed, unit_ns: 1000, span: step.makespan_s * 1e6, events: step.stage.length, isOpen: true, isSimulated: true, shift: 0 };
}

/** Busy time before each event, and the parts of it that were communication and waiting. */
function withSums(row) {
  const { count, duration, name, wait } = row;
  const [busy, talk, idle] = [0, 1, 2].map(() => new Float64Array(count + 1));
  for (let i = 0; i < count; i++) {
    const kind = name[i] >>> NAME_BITS;
    busy[i + 1] = busy[i] + duration[i];
    talk[i + 1] = talk[i] + (kind === COMMUNICATION ? duration[i] : 0);
    idle[i + 1] = idle[i] + (kind === WAITING ? duration[i] : wait ? wait[i] : 0);
  }
  return Object.assign(row, { busy, talk, idle });
}

/** The collectives of a rank, found among its events: how much of each was waiting, and which it was. */
export function markWaits(rank, overview) {
  const place = overview.ranks.findIndex((own) => own.rank === rank.number);
  if (place < 0 || rank.meetings) return;
  const own = overview.ranks[place];
  const meetings = [];
  overview.groups.forEach((group, g) => {
    const at = group.rows.indexOf(place) * group.count;
    for (let column = 0; at >= 0 && column < group.count; column++)
      meetings.push({ group: g, column, start: group.start[at + column] * overview.unit_ns, wait: group.waiting[at + column] * overview.unit_ns });
  });
  meetings.sort((a, b) => a.start - b.start);
  const starts = Float64Array.from(meetings, ({ start }) => start);
  const apart = (rank.start_us - own.start_us) * 1000;
  rank.meetings = new Map();
  for (const row of rank.rows) {
    for (let i = 0; i < row.count; i++) {
      if (row.name[i] >>> NAME_BITS !== COMMUNICATION) continue;
      const from = row.start[i] * rank.unit_ns + apart;
      const m = firstAt(starts, from - MATCH_NS);
      if (m >= starts.length || starts[m] > from + MATCH_NS) continue;
      row.wait ??= new Float64Array(row.count);
      row.meet ??= new Map();
      row.wait[i] = Math.min(meetings[m].wait / rank.unit_ns, row.duration[i]);
      row.meet.set(i, meetings[m]);
      rank.meetings.set(`${meetings[m].group}/${meetings[m].column}`, { row, i });
    }
    if (row.wait) withSums(row);
  }
}

/** Shares of the running ranks that computed and waited, over time, and how many of all ran. */
export function counters(overview) {
  const begin = Math.min(...overview.ranks.map(({ shift }) => shift));
  const end = Math.max(...overview.ranks.map(({ shift, span_us }) => shift + span_us * 1000));
  const wide = (end - begin) / BINS;
  const [at, waiting, computing, running] = [0, 1, 2, 3].map(() => new Float64Array(BINS));
  for (let bin = 0; bin < BINS; bin++) at[bin] = begin + bin * wide;
  for (const { shift, span_us, waitingShares, compute } of overview.ranks) {
    const perStretch = (span_us * 1000) / waitingShares.length;
    for (let bin = Math.max(0, Math.ceil((shift - begin) / wide)); bin < BINS; bin++) {
      const stretch = Math.floor((at[bin] - shift) / perStretch);
      if (stretch >= waitingShares.length) break;
      waiting[bin] += waitingShares[stretch] / 255 / overview.ranks.length;
      computing[bin] += compute[stretch] / 255 / overview.ranks.length;
      running[bin] += 1 / overview.ranks.length;
    }
  }
  return { at, waiting, computing, running };
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

/** Ranks of one run share an axis if their times overlap, by the clocks that their collectives give; else each begins at zero. */
export function alignClocks(ranks, overview) {
  const known = overview?.ranks ?? ranks.map((rank) => ({ rank: rank.number, start_us: rank.start_us, ahead_us: 0, span_us: (rank.span * rank.unit_ns) / 1000 }));
  const first = known.reduce((least, { start_us, ahead_us }) => Math.min(least, start_us - ahead_us), Infinity);
  const shares = known.every(({ start_us, ahead_us, span_us }) => start_us - ahead_us - first < span_us);
  for (const own of known) own.shift = shares ? (own.start_us - own.ahead_us - first) * 1000 : 0;
  const byNumber = new Map(known.map((own) => [own.rank, own]));
  for (const rank of ranks) {
    const own = byNumber.get(rank.number);
    rank.shift = own ? own.shift + (rank.start_us - own.start_us) * 1000 : 0;
  }
}

/** Nanoseconds in the unit that suits them, with the digits that `step` needs. */
export function duration(ns, step = ns / 200) {
  const size = Math.max(Math.abs(ns), Math.abs(step), 1);
  const [per, unit] = size < 1e3 ? [1, "ns"] : size < 1e6 ? [1e3, "µs"] : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(Math.max(Math.abs(step), 1e-9) / per)), 0), 7);
  return `${(ns / per).toFixed(digits)} ${unit}`;
}

/** Time of a stretch by rank and by name, of device work where there is any; what waited counts as waiting. */
export function statistics(ranks, [from, to]) {
  const names = new Map();
  const perRank = ranks.map((rank) => {
    const works = rank.rows.filter(({ lane }) => lane.startsWith("stream") || lane.startsWith("stage"));
    const rows = works.length ? works : rank.rows.filter(({ lane, depth }) => lane.startsWith("thread") && !depth);
    const [first, last] = [from, to].map((time) => (time - rank.shift) / rank.unit_ns);
    const times = CLASSES.map(() => 0);
    for (const row of rows)
      for (let i = Math.max(firstAt(row.start, first) - 1, 0); i < row.count && row.start[i] < last; i++) {
        const reach = Math.max(row.start[i], first);
        const inside = Math.min(row.start[i] + row.duration[i], last) - reach;
        if (inside <= 0) continue;
        const waits = row.wait ? Math.min(Math.max(row.start[i] + row.wait[i] - reach, 0), inside) : 0;
        times[row.name[i] >>> NAME_BITS] += (inside - waits) * rank.unit_ns;
        times[WAITING] += waits * rank.unit_ns;
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
