// Pages that look again every few seconds while they are visible: the list of sessions, trials that still run.
import { fetchPage, swap } from "./live.js";

const { poll, everyMs } = document.querySelector("[data-poll]").dataset;

async function look() {
  if (document.visibilityState === "visible") {
    const page = await fetchPage(location.href);
    if (page) swap(page, poll.split(" "));
  }
  if (document.querySelector("[data-poll]")) setTimeout(look, Number(everyMs));
}

setTimeout(look, Number(everyMs));
