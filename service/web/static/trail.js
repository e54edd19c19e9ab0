// The trail: follows the session's events, and opens what a step was given and what came back.
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

async function look() {
  const page = await fetchPage(location.href);
  if (!page) return true;
  swap(page, ["trail"]);
  begin();
  return document.getElementById("trail").dataset.events ?? null;
}

begin();
follow(document.getElementById("trail").dataset.events, look);
