// The form of a new session: shows what fits the kind of file, asks the server what is wrong, uploads traces.
import { acceptDrops } from "./drops.js";
import { uploadTraces } from "./uploads.js";

const form = document.querySelector("[data-new-session]");
const verdict = form.querySelector("[data-verdict]");
const traces = form.querySelector("[data-traces]");
const touched = new Set();
const PAUSE_MS = 400;
let timer = null;
let lastRequest = 0;

function showFor(kind) {
  for (const part of form.querySelectorAll("[data-for]")) part.hidden = !part.dataset.for.split(" ").includes(kind);
}

async function check() {
  const number = ++lastRequest;
  const answer = await fetch("/web/validate", { method: "POST", body: new URLSearchParams(new FormData(form)) })
    .then((response) => (response.ok ? response.json() : null))
    .catch(() => null);
  if (!answer || number !== lastRequest) return;
  clear();
  verdict.textContent = answer.ok ? answer.says : `${answer.field}: ${answer.says}`;
  verdict.classList.toggle("soft", !answer.ok);
  const field = answer.ok ? null : fieldFor(answer.field);
  if (field && touched.has(field.name)) point(field, answer.says);
}

/** The field that an error names, or the one that holds it. */
function fieldFor(name) {
  const parts = { model: "config", scenario: "config", cluster: "cluster.device", training: "training.seq_len", plan: "plan.tp" };
  return form.elements[name] ?? form.elements[parts[String(name).split(".")[0]]] ?? null;
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

function later(event) {
  if (event.target.name) touched.add(event.target.name);
  clearTimeout(timer);
  timer = setTimeout(check, PAUSE_MS);
}

async function readFile(input) {
  const [file] = input.files;
  if (!file) return;
  const place = form.elements[input.dataset.into];
  place.value = await file.text();
  form.elements.kind.value = guess(file.name, place.value);
  showFor(form.elements.kind.value);
  touched.add(place.name);
  check();
}

/** What kind of file this is, by its name and by what it holds. */
function guess(name, text) {
  if (name.endsWith(".toml")) return "torchtitan";
  if (name.endsWith(".sh") || text.includes("--tensor-model-parallel-size")) return "megatron";
  if (/\.ya?ml$/.test(name)) return "maxtext";
  if (text.includes('"zero_optimization"')) return "deepspeed";
  return text.includes('"cluster"') && text.includes('"model"') ? "scenario" : "huggingface";
}

async function submit(event) {
  if (!traces.files.length || form.elements.traces.value) return;
  event.preventDefault();
  const button = form.querySelector(".submit .button");
  button.disabled = true;
  try {
    form.elements.traces.value = await uploadTraces(form, [...traces.files]);
    form.submit();
  } catch (error) {
    const line = form.querySelector("[data-upload]");
    line.textContent = `Not uploaded: ${error.message}`;
    line.scrollIntoView({ block: "center" });
    button.disabled = false;
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
for (const input of form.querySelectorAll("[data-into]")) input.onchange = () => readFile(input);
form.elements.kind.onchange = (event) => showFor(event.target.value);
form.addEventListener("input", later);
form.addEventListener("submit", submit);
acceptDrops(form.querySelector("[data-drop]"), traces.accept.split(","), takeTraces);
showFor(form.elements.kind.value);
if (form.elements.config.value.trim()) check();
