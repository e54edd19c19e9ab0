// A session's page: follows its events, swaps what changed, shows exports.
import { attachExports } from "./exports.js";
import { follow } from "./follow.js";
import { fetchPage, swap } from "./live.js";

function begin() {
  const root = document.getElementById("session");
  attachExports(root);
  showFit(root.querySelector("[data-fit]"));
}

/** What would make a plan fit is searched after the page is shown. */
async function showFit(place) {
  const page = place && (await fetchPage(place.dataset.fit));
  if (page) swap(page, ["fit"]);
}

async function look(whole) {
  const page = await fetchPage(location.href);
  if (!page) return true;
  if (whole || !document.getElementById("progress")) {
    swap(page, ["session"]);
    begin();
  } else {
    swap(page, ["progress"]);
  }
  return page.querySelector("#session[data-events]")?.dataset.events ?? null;
}

begin();
follow(document.getElementById("session").dataset.events, look);
