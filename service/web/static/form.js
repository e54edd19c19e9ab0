// The form of a new session: asks the server while typing, shows what it assumes, uploads traces.
import { acceptDrops } from "./drops.js";
import { uploadTraces } from "./uploads.js";

const form = document.querySelector("[data-new-session]");
const verdict = form.querySelector("[data-verdict]");
const model = form.querySelector("[data-model]");
const traces = form.querySelector("[data-traces]");
const touched = new Set();
const assumed = new Map(); // field: the value that the server would take
const PAUSE_MS = 300;
const KEPT = "asap-new-session";
const HIDDEN = ["csrf", "key"];
const CONFIG_ENDINGS = [".json", ".toml", ".yaml", ".yml", ".sh", ".py", ".txt"];
let timer = null;
let latest = "";
let lastRequest = 0;

/** What the server says of the form as it is; null if a newer question is under way. */
async function check() {
  clearTimeout(timer);
  const number = ++lastRequest;
  const answer = await fetch("/web/validate", { method: "POST", body: new URLSearchParams(new FormData(form)) })
    .then((response) => (response.ok ? response.json() : null))
    .catch(() => null);
  if (!answer || number !== lastRequest) return null;
  clear();
  model.textContent = answer.model;
  verdict.textContent = answer.message;
  verdict.classList.toggle("soft", !answer.ok);
  verdict.classList.toggle("alarm", answer.ok && answer.too_large);
  const field = answer.ok ? null : form.elements[answer.field];
  const spot = field && (touched.has(field.name) ? field : planField(field.name) && planField(latest));
  if (spot) point(spot, answer.message);
  if (answer.ok) fill(answer.filled);
  return answer;
}

/** Shows the values that empty fields take, marked; a field that the user changes is the user's. */
function fill(filled) {
  for (const [name, { value, source }] of Object.entries(filled)) {
    const field = form.elements[name];
    field.value = value;
    assumed.set(name, value);
    mark(field, source);
  }
  form.querySelector("[data-assumed]").textContent = summary();
}

function summary() {
  const value = (name) => Number(form.elements[name].value).toLocaleString("en");
  return `sequence length ${value("training.seq_len")}, global batch ${value("training.global_batch_size")}, ${form.elements["training.precision"].value}: open to change`;
}

function mark(field, source) {
  field.classList.toggle("assumed", Boolean(source));
  field.closest("label").querySelector("[data-source]").textContent = source;
}

function point(field, text) {
  const line = document.createElement("p");
  line.className = "field-error";
  line.id = "field-error";
  line.textContent = text;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", line.id);
  (field.closest("label") ?? field).after(line);
}

function clear() {
  document.getElementById("field-error")?.remove();
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
}

/** A plan's degrees depend on each other: what follows from the field that was changed is told there. */
function planField(name) {
  return name.startsWith("plan.") ? form.elements[name] : null;
}

function changed({ target }) {
  if (target.name) touched.add((latest = target.name));
  if (assumed.delete(target.name)) mark(target, "");
  if (target.name === "config" && target.value.trim()) form.elements.preset.value = "";
  if (target.name === "preset" && target.value) form.elements.config.value = "";
  clearTimeout(timer);
  timer = setTimeout(check, PAUSE_MS);
}

async function readFile(file) {
  form.elements.config.value = await file.text();
  form.elements.kind.value = "";
  form.elements.preset.value = "";
  touched.add("config");
  check();
}

/** A refused form stays as it is, with the focus on the field; no page of a POST comes between here and Back. */
async function submit(event) {
  event.preventDefault();
  const button = form.querySelector(".submit .button");
  button.disabled = true;
  const answer = (await check()) ?? (await check()); // once more if another question came between
  if (answer && !answer.ok) refuse(form.elements[answer.field], answer.message);
  else if (await uploaded()) {
    sessionStorage.setItem(KEPT, JSON.stringify([...new FormData(form)].filter(([name]) => !HIDDEN.includes(name))));
    return form.submit();
  }
  button.disabled = false;
}

function refuse(field, text) {
  if (!field) return;
  const fold = field.closest("details");
  if (fold) fold.open = true;
  if (!document.getElementById("field-error")) point(field, text);
  touched.add(field.name);
  field.focus();
}

async function uploaded() {
  if (!traces.files.length || form.elements.traces.value) return true;
  try {
    form.elements.traces.value = await uploadTraces(form, [...traces.files]);
    return true;
  } catch (error) {
    const line = form.querySelector("[data-upload]");
    line.textContent = `Not uploaded: ${error.message}`;
    line.closest("details").open = true;
    line.scrollIntoView({ block: "center" });
    return false;
  }
}

/** Pages are not kept by the browser (no-store), so Back would lead to an empty form. */
function restore() {
  if (performance.getEntriesByType("navigation")[0]?.type !== "back_forward") return;
  for (const [name, value] of JSON.parse(sessionStorage.getItem(KEPT) ?? "[]")) {
    const field = form.elements[name];
    if (field?.type === "checkbox") field.checked = true;
    else if (field && typeof value === "string") field.value = value;
  }
}

function takeTraces(files) {
  const chosen = new DataTransfer();
  for (const file of files) chosen.items.add(file);
  traces.files = chosen.files;
  traces.dispatchEvent(new Event("change"));
}

traces.onchange = () => {
  form.elements.traces.value = "";
  const [count, names] = [traces.files.length, [...traces.files].map((file) => file.name)];
  const message = count ? `${count === 1 ? names[0] : `${count} files`}, uploaded when you submit.` : "No trace among these files.";
  form.querySelector("[data-upload]").textContent = message;
};
for (const input of form.querySelectorAll("[data-into]")) {
  input.onchange = () => input.files[0] && readFile(input.files[0]);
  input.onchange(); // a file may have been chosen before this script ran
}
form.addEventListener("formdata", ({ formData }) => assumed.forEach((_, name) => formData.delete(name)));
form.addEventListener("input", changed);
form.addEventListener("submit", submit);
acceptDrops(form.querySelector("[data-drop-model]"), CONFIG_ENDINGS, ([file]) => file && readFile(file));
acceptDrops(form.querySelector("[data-drop]"), traces.accept.split(","), takeTraces);
restore();
addEventListener("pageshow", ({ persisted }) => {
  form.querySelector(".submit .button").disabled = false;
  if (persisted || form.elements.config.value.trim() || form.elements.preset.value) check();
});
