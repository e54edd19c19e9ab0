// Keeps parts of a page up to date: fetches the page again and swaps what changed.

const banner = () => document.getElementById("connection");

/** Says that the server cannot be reached, or (without a text) that it can again. */
export function tellConnection(text) {
  const place = banner();
  if (!place || (text ?? "") === place.textContent) return;
  place.textContent = text ?? "";
  place.hidden = !text;
}

/** The page as it is now, parsed; null where the server does not answer. What is posted may be refused by a page. */
export async function fetchPage(address, posted) {
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" }, ...posted });
    if (answer.status === 401 || answer.redirected) location.reload();
    if (!answer.ok && !posted) throw new Error(String(answer.status));
    tellConnection(null);
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  } catch {
    tellConnection("Connection lost, retrying");
    return null;
  }
}

/** Puts what `page` has under these ids in place of what is here; keeps choices, focus and what was typed. */
export function swap(page, ids) {
  for (const id of ids) {
    const [old, fresh] = [document.getElementById(id), page.getElementById(id)];
    if (!old || !fresh || old.outerHTML === fresh.outerHTML) continue;
    const kept = remember(old);
    old.replaceWith(fresh);
    recall(fresh, kept);
  }
}

function remember(part) {
  const focused = part.contains(document.activeElement) ? address(document.activeElement) : null;
  const checked = [...part.querySelectorAll("input:checked")].map((input) => input.value);
  const open = [...part.querySelectorAll("details[id][open]")].map((details) => details.id);
  const fields = [...part.querySelectorAll("input[name], select[name], textarea[name]")];
  const typed = fields.filter(isChanged).map((field) => [address(field), field.value]);
  return { focused, checked, open, typed };
}

function recall(part, { focused, checked, open, typed }) {
  for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = checked.includes(box.value);
  for (const id of open) part.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
  for (const [place, value] of typed) Object.assign(part.querySelector(place) ?? {}, { value });
  if (focused) part.querySelector(focused)?.focus();
}

function isChanged(field) {
  if (field.localName === "select") return [...field.options].some((option) => option.selected !== option.defaultSelected);
  return field.value !== field.defaultValue;
}

/** A selector that finds the same element in the next version of the page. */
function address(element) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  const attributes = ["href", "name", "value"].filter((name) => element.hasAttribute(name));
  const own = attributes.map((name) => `[${name}="${CSS.escape(element.getAttribute(name))}"]`);
  return `#${CSS.escape(element.closest("[id]").id)} ${element.localName}${own.join("")}`;
}
