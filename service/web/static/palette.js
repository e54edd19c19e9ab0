// Ctrl-K goes to what this page offers, or to a session, by a few letters; ? tells the keys; menus close by themselves.
import { fetchPage } from "./live.js";

const OFFERED = "header nav a, header button:not([data-palette]), .session-tabs a, .tools a, .tools button:not(.danger), .tools summary, main .head a, #chosen .next button";
const KEYS = {
  body: [["Ctrl K", "go to a page, an action or a session"], ["?", "these keys"], ["Esc", "close what is open"]],
  ".losses": [["↑ ↓", "choose a loss: its plans, chips and stretches are lit"]],
  "#cloud": [["drag", "select plans"], ["click", "choose a plan"]],
  "[data-gantts]": [["+ − 0", "zoom the schedule, see all of it"], ["← →", "move in time"]],
  "[data-timeline]": [["W S", "zoom"], ["A D", "move"], ["F", "see all"], ["N", "next match"], ["Shift drag", "select a stretch"]],
  "[data-grid]": [["↑ ↓", "choose a plan of the table"]],
};
const dialog = Object.assign(document.createElement("dialog"), { className: "palette", ariaLabel: "Go to" });
const made = (tag, fields, ...children) => {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
};
const list = made("ul", { id: "palette-list", role: "listbox", ariaLabel: "Places and actions" });
const input = made("input", { type: "search", role: "combobox", ariaLabel: "Go to", ariaExpanded: "true", placeholder: "Page, action or session", autocomplete: "off" });
input.setAttribute("aria-controls", list.id);
let [offered, chosen] = [[], 0];

function show() {
  const words = input.value.trim().toLowerCase();
  const fitting = offered.filter(({ name }) => words.split(" ").every((word) => name.toLowerCase().includes(word)));
  chosen = Math.max(0, Math.min(chosen, fitting.length - 1));
  list.replaceChildren(...fitting.map(({ name, act }, at) => made("li", { role: "option", id: `go-${at}`, textContent: name, ariaSelected: String(at === chosen), onclick: () => (dialog.close(), act()) })));
  input.setAttribute("aria-activedescendant", `go-${chosen}`);
  list.children[chosen]?.scrollIntoView({ block: "nearest" });
}

async function findSessions() {
  const words = input.value.trim();
  chosen = 0;
  show();
  if (words.length < 2) return;
  const page = await fetchPage(`/?q=${encodeURIComponent(words)}`);
  if (!page || words !== input.value.trim()) return;
  const found = [...page.querySelectorAll("#lines tbody th a")].slice(0, 6);
  offered = offered.filter(({ isFound }) => !isFound);
  offered.push(...found.map((link) => ({ name: `${link.textContent.trim()} (session matching ${words})`, isFound: true, act: () => location.assign(link.getAttribute("href")) })));
  show();
}

function open(...parts) {
  dialog.replaceChildren(...parts);
  if (!dialog.isConnected) document.body.append(dialog);
  if (!dialog.open) dialog.showModal();
}

function openPalette() {
  const named = new Map([...document.querySelectorAll(OFFERED)].map((element) => [element.textContent.trim().replace(/\s+/g, " "), element]));
  offered = [...named].map(([name, element]) => ({ name, act: () => reach(element) }));
  [input.value, chosen] = ["", 0];
  open(input, list);
  show();
  input.focus();
}

function reach(element) {
  if (element.localName === "summary") for (let fold = element.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  else element.click();
}

function openKeys() {
  const keys = Object.entries(KEYS).flatMap(([part, lines]) => (document.querySelector(part) ? lines : []));
  open(made("dl", {}, ...keys.flatMap(([key, what]) => [made("dt", {}, made("kbd", { textContent: key })), made("dd", { textContent: what })])));
}

input.oninput = findSessions;
input.onkeydown = (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) chosen += step;
  else if (event.key === "Enter") list.children[chosen]?.click();
  else return;
  event.preventDefault();
  show();
};
dialog.onclick = ({ target }) => target === dialog && dialog.close();
addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select");
  if ((event.ctrlKey || event.metaKey) && event.key === "k") (event.preventDefault(), openPalette());
  else if (event.key === "?" && !isTyping) openKeys();
  else if (event.key === "Escape") closeMenus();
});
const closeMenus = (except) => {
  for (const menu of document.querySelectorAll(".ask[open]")) if (!menu.contains(except)) menu.open = false;
};
addEventListener("click", ({ target }) => dialog.contains(target) || closeMenus(target)); // what the palette opened stays
const button = document.querySelector("[data-palette]");
if (button) Object.assign(button, { hidden: false, onclick: openPalette });
