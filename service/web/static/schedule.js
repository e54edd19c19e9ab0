// The form of a schedule: shows the cron field when it counts, adds workloads.
const form = document.querySelector("[data-schedule]");
const add = form.querySelector("[data-add-workload]");
const cron = form.querySelector("[data-cron]");

const showCron = () => (cron.hidden = form.elements.days.value !== "cron");
form.elements.days.onchange = showCron;
showCron();

add.hidden = false;
add.onclick = () => {
  const last = [...form.querySelectorAll("[data-workload]")].at(-1);
  const [old, next] = [last.dataset.workload, String(Number(last.dataset.workload) + 1)];
  const fresh = last.cloneNode(true);
  fresh.dataset.workload = next;
  for (const field of fresh.querySelectorAll("[name]")) {
    field.name = field.name.replace(`[${old}]`, `[${next}]`);
    if (field.tagName !== "SELECT") field.value = "";
    field.removeAttribute("aria-invalid");
  }
  for (const part of fresh.querySelectorAll("[id], [for]")) {
    if (part.id) part.id = `scenario-${next}`;
    if (part.htmlFor) part.htmlFor = `scenario-${next}`;
  }
  last.after(fresh);
  fresh.querySelector("input").focus();
};
