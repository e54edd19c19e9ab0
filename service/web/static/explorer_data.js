// Every plan of a search as typed arrays, and what is chosen of them: shared by the table and the drawings.

export const GIB = 2 ** 30;
export const BINS = 80;
const TITLES = { step_time_s: "step time, s", memory_bytes: "memory, GiB", micro_batch_size: "micro-batch", sequence_parallel: "seq. parallel" };

export const state = {
  columns: [],
  count: 0,
  order: new Uint32Array(0), // all rows, sorted
  visible: new Uint32Array(0), // those that pass, in the same order
  passes: new Uint8Array(0),
  passing: 0,
  ranges: new Map(), // column name: [low, high] of its brush
  picks: new Map(), // column name: the one value that its list allows
  selected: -1,
  front: [],
};

export const column = (name) => state.columns.find((candidate) => candidate.name === name);
export const axes = () => state.columns.filter((candidate) => candidate.slots > 1);

/** Which plans pass all filters. */
export function filter() {
  const { passes, count } = state;
  passes.fill(1);
  for (const [name, [low, high]] of state.ranges) {
    const { values } = column(name);
    for (let i = 0; i < count; i++) if (values[i] < low || values[i] > high) passes[i] = 0;
  }
  for (const [name, value] of state.picks) {
    const { values } = column(name);
    for (let i = 0; i < count; i++) if (values[i] !== value) passes[i] = 0;
  }
  state.passing = passes.reduce((sum, one) => sum + one, 0);
}

/** Reads the format of tools/search/ranked.py. */
export async function load(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(String(answer.status));
  const body = await answer.arrayBuffer();
  const length = new DataView(body).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(body, 4, length)));
  let start = 4 + length;
  state.count = header.count;
  state.columns = header.columns.map(({ name, type, choices }) => {
    const values = type === "float32" ? new Float32Array(body, start, header.count) : new Int32Array(body, start, header.count);
    start += 4 * header.count;
    return described(name, name === "memory_bytes" ? values.map((bytes) => bytes / GIB) : values, choices, type === "float32");
  });
  state.order = Uint32Array.from({ length: header.count }, (_, row) => row);
  state.passes = new Uint8Array(header.count).fill(1);
  state.front = frontRows();
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

/** Rows on the front: less memory than every faster plan; rows are stored fastest first. */
function frontRows() {
  const memory = column("memory_bytes").values;
  const rows = [];
  for (let row = 0, least = Infinity; row < state.count; row++)
    if (memory[row] < least) {
      least = memory[row];
      rows.push(row);
    }
  return rows;
}
