// A session's page: follows its events, swaps what changed, shows exports, asks the agents.
import { attachExports } from "./exports.js";
import { follow } from "./follow.js";
import { fetchPage, swap } from "./live.js";
import { attachWorkbench } from "./workbench.js";

function begin() {
  const root = document.getElementById("session");
  attachExports(root);
  attachWorkbench();
  showFit(root.querySelector("[data-fit]"));
  showNearOnce(root.querySelector("[data-near]"));
  attachQuestions(root.querySelector("[data-ask]"));
}

/** Answers are put above the earlier ones; without a script the page comes again with the last. */
function attachQuestions(form) {
  if (!form) return;
  const answers = document.getElementById("answers");
  const suggested = document.querySelector("[data-suggested]");
  suggested.hidden = false;
  for (const button of suggested.children)
    button.onclick = () => {
      form.elements.question.value = button.textContent;
      form.requestSubmit();
    };
  form.onsubmit = async (event) => {
    event.preventDefault();
    const [button, body] = [form.querySelector("button"), new URLSearchParams(new FormData(form))];
    button.disabled = true;
    button.textContent = "Asking";
    const page = await fetchPage(form.action, { method: "POST", body });
    [button.disabled, button.textContent] = [false, "Ask"];
    const answer = page?.querySelector("#answers > li");
    const why = page?.querySelector("main p")?.textContent ?? "The server did not answer.";
    answers.prepend(answer ?? Object.assign(document.createElement("li"), { textContent: why }));
    if (answer) form.reset();
  };
}

/** What would make a plan fit is searched after the page is shown. */
async function showFit(place) {
  const page = place && (await fetchPage(place.dataset.fit));
  if (page) swap(page, ["fit"]);
}

/** Measured runs are compared when their fold is first opened. */
function showNearOnce(fold) {
  fold?.addEventListener(
    "toggle",
    async () => {
      const page = await fetchPage(fold.dataset.near);
      if (page) swap(page, ["near"]);
    },
    { once: true },
  );
}

async function look(whole) {
  if (!document.getElementById("session")) return true; // another tab is shown
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

let isFollowing = false;

export function attach() {
  begin();
  if (!isFollowing) follow(document.getElementById("session").dataset.events, look);
  isFollowing = true;
}

attach();
