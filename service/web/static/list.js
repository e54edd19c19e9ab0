// The list of sessions, refreshed every few seconds while it is visible.
import { fetchPage, swap } from "./live.js";

const EVERY_MS = 4000;

async function look() {
  if (document.visibilityState === "visible") {
    const page = await fetchPage(location.href);
    if (page) swap(page, ["live", "lines"]);
  }
  setTimeout(look, EVERY_MS);
}

setTimeout(look, EVERY_MS);
