// The workbench: one selection for all of its views, kept in the address. A changed chip is scored at once; a cause
// that is pointed at lights its bar, the plans that have it, the chips and the changes.
import { soon } from "./canvas.js";
import { makeCloud } from "./cloud.js";
import { column, filter, load, state } from "./explorer_data.js";
import { attachGantts, lightGantts } from "./gantt.js";
import { fetchPage, swap } from "./live.js";

const PARTS = ["bench-form", "where", "chosen", "time"];
const bench = () => document.getElementById("workbench");
let [cloud, lastRequest, pinned] = [null, 0, null];

/** What the controls state: only what differs from the plan that they start from. */
function stated() {
  const fields = [...document.getElementById("bench-form").elements].filter(({ name, value, dataset }) => name && value !== dataset.default);
  return new URLSearchParams(fields.map(({ name, value }) => [name, value]));
}

/** Shows what the address's parameters choose; with `isStep` the browser's back button returns to what was shown before. */
async function ask(params, isStep) {
  const started = performance.now();
  const number = ++lastRequest;
  params.delete("cause");
  const page = await fetchPage(`${bench().dataset.workbench}?${params}`);
  if (!page || number !== lastRequest || !bench()) return;
  const shown = document.getElementById("time");
  swap(page, PARTS);
  if (shown !== document.getElementById("time")) attachGantts(document.getElementById("time"));
  if (pinned) params.set("cause", pinned);
  if (isStep !== null) history[isStep ? "pushState" : "replaceState"](null, "", `?${params}`);
  light(pinned);
  cloud?.draw();
  bench().dataset.took = (performance.now() - started).toFixed(1);
}

function light(cause) {
  const started = performance.now();
  const row = cause && document.getElementById(`loss-${cause}`);
  const driver = row?.dataset.driver;
  for (const bar of bench().querySelectorAll("[data-cause]")) {
    bar.classList.toggle("lit", bar === row);
    bar.ariaSelected = String(bar.dataset.cause === pinned);
  }
  if (row) for (const about of bench().querySelectorAll("[data-about]")) about.classList.toggle("told", about.dataset.about === cause);
  for (const field of document.querySelectorAll("[data-field]")) field.classList.toggle("lit", Boolean(driver) && field.dataset.field === driver);
  cloud?.light(driver, `--${cause}`);
  lightGantts(row ? cause : null);
  bench().dataset.lit = (performance.now() - started).toFixed(1);
}

function pin(cause) {
  pinned = cause;
  const address = new URL(location.href);
  if (cause) address.searchParams.set("cause", cause);
  else address.searchParams.delete("cause");
  history.replaceState(history.state, "", address);
  light(cause);
}

async function showCloud(section) {
  const [canvas, shown, clear] = ["canvas", "[data-shown]", "[data-clear]"].map((one) => section.querySelector(one));
  const apply = () => {
    const started = performance.now();
    filter();
    clear.hidden = !state.ranges.size;
    shown.textContent = `${clear.hidden ? "" : `${state.passing.toLocaleString("en")} of `}${state.count.toLocaleString("en")}`;
    cloud.draw();
    section.dataset.took = (performance.now() - started).toFixed(1);
  };
  const marks = () => {
    const { marks, plan } = document.getElementById("chosen").dataset;
    const plans = marks.split(";").filter(Boolean).map((mark) => mark.split(" "));
    return { plans: plans.map(([key, gib, s]) => [key, Number(gib), Number(s)]), chosen: plan };
  };
  try {
    await load(section.dataset.cloud);
  } catch {
    return void (shown.textContent = "could not be loaded");
  }
  const choose = (row) => ask(new URLSearchParams({ plan: `p${row}`, vs: stated().get("vs") ?? "" }), true);
  cloud = makeCloud({ canvas, tip: section.querySelector("[data-tip]"), limit: Number(section.dataset.limit), marks, apply: () => soon(apply), choose });
  clear.onclick = () => {
    state.ranges.clear();
    apply();
  };
  apply();
  light(pinned);
  section.dataset.drawn = state.count;
}

export function attachWorkbench() {
  const root = bench();
  if (!root || root.classList.contains("scripted")) return;
  root.classList.add("scripted");
  cloud = null;
  state.ranges.clear();
  state.picks.clear();
  pinned = new URLSearchParams(location.search).get("cause");
  root.onchange = ({ target }) => target.form?.id === "bench-form" && ask(stated(), false);
  root.onclick = (event) => {
    const cause = event.target.closest("[data-cause]")?.dataset.cause;
    if (cause) pin(cause === pinned ? null : cause);
    const link = event.target.closest(".strip a, [data-reset]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (!link.hash) ask(new URL(link.href).searchParams, true);
  };
  const point = ({ target }) => light(target.closest("[data-cause]")?.dataset.cause ?? pinned);
  root.onpointerover = ({ target, relatedTarget }) => {
    if (target.closest("[data-cause]") !== relatedTarget?.closest?.("[data-cause]")) point({ target });
  };
  root.onkeydown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, Escape: 0 }[event.key];
    if (step === undefined || event.target.role !== "listbox") return;
    event.preventDefault();
    const rows = [...event.target.children];
    const at = rows.findIndex(({ dataset }) => dataset.cause === pinned);
    pin(step ? rows.at((at + step + (at < 0 && step < 0)) % rows.length).dataset.cause : null);
  };
  attachGantts(document.getElementById("time"));
  light(pinned);
  showCloud(root.querySelector("[data-cloud]"));
}

const isShown = () => bench()?.dataset.workbench === `${location.pathname}/workbench`;
addEventListener("popstate", () => isShown() && ask(new URLSearchParams(location.search), null));
addEventListener("resize", () => soon(redraw));
document.addEventListener("themechange", () => redraw());
const redraw = () => bench() && cloud?.draw();
