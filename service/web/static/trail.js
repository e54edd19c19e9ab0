// The trail: follows the session's events, opens what a node of the graph or a link names, and fetches what a step
// was given and what came back.
import { follow } from "./follow.js";
import { fetchPage, swap } from "./live.js";

async function open(details) {
  if (!details.open || details.dataset.loaded) return;
  const page = await fetchPage(details.dataset.source);
  const content = page?.getElementById("event");
  if (!content) return;
  content.removeAttribute("id");
  details.dataset.loaded = "true";
  details.querySelector("div").replaceChildren(...content.childNodes);
}

function begin() {
  for (const details of document.querySelectorAll("details[data-source]")) {
    details.ontoggle = () => open(details);
    open(details);
  }
}

/** Browsers reveal what a link names inside closed details, but not all do. */
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  for (let part = target; part; part = part.parentElement) if (part.localName === "details") part.open = true;
  target?.scrollIntoView({ block: "nearest" });
}

async function look() {
  const page = await fetchPage(location.href);
  if (!page) return true;
  swap(page, ["trail"]);
  begin();
  return document.getElementById("trail").dataset.events ?? null;
}

addEventListener("hashchange", reveal);
begin();
reveal();
follow(document.getElementById("trail").dataset.events, look);
