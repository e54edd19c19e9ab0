// The page of the simulated schedules: another plan is shown as soon as it is chosen.
import { attachGantts } from "./gantt.js";

export function attach() {
  document.querySelector("[data-show]").hidden = true;
  document.querySelector(".gantt-head select").onchange = (event) => event.target.form.requestSubmit();
  attachGantts(document.querySelector("[data-gantts]"));
}

attach();
