// Shows a proposal as a framework's configuration, and copies it.

async function load(details) {
  const [format, pre, notes, copy] = [
    details.querySelector("select").value,
    details.querySelector("pre"),
    details.querySelector("ul"),
    details.querySelector("[data-copy]"),
  ];
  const { ok, body } = await ask(`${details.dataset.export}?format=${encodeURIComponent(format)}`);
  pre.textContent = ok ? body.text : body.detail;
  notes.replaceChildren(
    ...(body.notes ?? []).map((text) => Object.assign(document.createElement("li"), { textContent: text })),
  );
  pre.hidden = false;
  notes.hidden = !ok || !body.notes.length;
  copy.hidden = !ok;
}

async function ask(address) {
  try {
    const answer = await fetch(address);
    return { ok: answer.ok, body: await answer.json() };
  } catch {
    return { ok: false, body: { detail: "The server did not answer. Close this and open it to try again." } };
  }
}

async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select and copy";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

export function attachExports(root) {
  for (const details of root.querySelectorAll("details[data-export]")) {
    details.ontoggle = () => details.open && load(details);
    details.querySelector("select").onchange = () => load(details);
    const button = details.querySelector("[data-copy]");
    button.onclick = () => copyText(button, details.querySelector("pre").textContent);
    if (details.open) load(details);
  }
}
