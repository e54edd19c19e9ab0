// Shows a proposal as a framework's configuration, and copies it.

async function load(details) {
  const [format, pre, notes, copy] = [
    details.querySelector("select").value,
    details.querySelector("pre"),
    details.querySelector("ul"),
    details.querySelector("[data-copy]"),
  ];
  const answer = await fetch(`${details.dataset.export}?format=${encodeURIComponent(format)}`);
  const body = await answer.json();
  pre.textContent = answer.ok ? body.text : body.detail;
  notes.replaceChildren(
    ...(body.notes ?? []).map((text) => Object.assign(document.createElement("li"), { textContent: text })),
  );
  pre.hidden = false;
  notes.hidden = !answer.ok || !body.notes.length;
  copy.hidden = !answer.ok;
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
