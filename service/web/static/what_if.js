// Turns choices into sliders and asks again whenever one moves.
import { fetchPage, swap } from "./live.js";

const form = document.querySelector("[data-what-if]");
const PAUSE_MS = 120;
const REST_MS = 400;
let timer = null;
let lastRequest = 0;

function makeSlider(select) {
  const range = Object.assign(document.createElement("input"), {
    type: "range", min: 0, max: select.options.length - 1, step: 1, value: select.selectedIndex,
  });
  const output = document.createElement("output");
  range.setAttribute("aria-label", select.parentElement.querySelector("span").textContent);
  select.hidden = true;
  select.after(output, range);
  select.parentElement.removeAttribute("for");
  const tell = () => {
    output.textContent = select.selectedOptions[0].textContent;
    range.setAttribute("aria-valuetext", output.textContent);
    mark(select);
  };
  range.oninput = () => {
    select.selectedIndex = Number(range.value);
    tell();
    ask();
  };
  tell();
}

function mark(select) {
  select.closest(".control").classList.toggle("moved", select.value !== select.dataset.default);
}

function ask() {
  clearTimeout(timer);
  timer = setTimeout(predict, PAUSE_MS);
}

async function predict() {
  const number = ++lastRequest;
  const address = question();
  const page = await fetchPage(address);
  if (!page || number !== lastRequest) return;
  history.replaceState(null, "", address);
  swap(page, ["answer"]);
  findWinner(number);
  const field = document.getElementById("answer").dataset.field ?? "";
  for (const control of form.querySelectorAll(".control")) {
    const name = control.querySelector("select").name;
    control.classList.toggle("wrong", field.split(".").pop() === name);
  }
}

/** The fastest plan for these facts is searched once the sliders rest. */
async function findWinner(number) {
  const place = document.getElementById("winner");
  if (!place || place.querySelector(".winner b")) return;
  place.setAttribute("aria-busy", "true");
  place.querySelector("a").textContent = "Searching for the fastest plan";
  await new Promise((resolve) => setTimeout(resolve, REST_MS));
  if (number !== lastRequest) return;
  try {
    const answer = await fetch(place.dataset.winner, { headers: { Accept: "text/html" } });
    if (number !== lastRequest) return;
    if (!answer.ok) throw new Error(String(answer.status));
    swap(new DOMParser().parseFromString(await answer.text(), "text/html"), ["winner"]);
  } catch {
    place.querySelector("a").textContent = "The search took too long; try again";
    place.removeAttribute("aria-busy");
  }
}

/** The address of this question: only what was moved. */
function question() {
  const address = new URL(form.action);
  for (const field of form.elements)
    if (field.name && field.value && field.value !== field.dataset.default)
      address.searchParams.set(field.name, field.value);
  return address.href;
}

for (const select of form.querySelectorAll("select[data-slider]")) makeSlider(select);
for (const select of form.querySelectorAll("select:not([data-slider])"))
  select.onchange = () => ("start" in select.dataset ? location.assign(question()) : (mark(select), ask()));
form.querySelector("button").hidden = true;
findWinner(lastRequest);
