// The trials of a session that still runs: looks again every two seconds while the page is visible.
import { fetchPage, swap } from "./live.js";

const EVERY_MS = 2000;

async function look() {
  if (document.visibilityState === "visible") {
    const page = await fetchPage(location.href);
    if (page) swap(page, ["trials"]);
  }
  if (document.querySelector("#trials[data-live]")) setTimeout(look, EVERY_MS);
}

setTimeout(look, EVERY_MS);
