// The curves of a session's trials; while jobs run the page looks again, and only what changed is drawn.
import { attach as attachFigures, refresh } from "./figures.js";
import { fetchPage, swap } from "./live.js";

const parts = (page) => [...page.querySelectorAll("#trials [data-part]")].map(({ id }) => id);
let timer = null;

async function look() {
  const root = document.getElementById("trials");
  if (!root) return;
  const page = document.visibilityState === "visible" && (await fetchPage(location.href));
  if (page && String(parts(page)) === String(parts(document))) {
    swap(page, parts(page));
    refresh(root);
  } else if (page) {
    swap(page, ["trials"]);
    attachFigures();
  }
  again();
}

function again() {
  const every = document.querySelector("#trials[data-every-ms]")?.dataset.everyMs;
  clearTimeout(timer);
  if (every) timer = setTimeout(look, Number(every));
}

export function attach() {
  attachFigures();
  again();
}

attach();
