// The theme: the system's, or the one that a person chose. Runs before the page is painted; what draws on
// a canvas listens to `themechange`.
{
  const CHOICES = ["auto", "light", "dark"];
  const system = matchMedia("(prefers-color-scheme: dark)");

  const chosen = () => {
    try {
      return localStorage.getItem("theme") ?? "auto";
    } catch {
      return "auto"; // storage is switched off
    }
  };

  const apply = () => {
    const choice = chosen();
    document.documentElement.dataset.theme = choice === "auto" ? (system.matches ? "dark" : "light") : choice;
    document.dispatchEvent(new Event("themechange"));
  };

  const wire = () => {
    const button = document.querySelector("[data-theme-switch]");
    if (!button) return;
    const show = () => (button.textContent = `Theme: ${chosen()}`);
    button.hidden = false;
    button.onclick = () => {
      localStorage.setItem("theme", CHOICES[(CHOICES.indexOf(chosen()) + 1) % CHOICES.length]);
      apply();
      show();
    };
    show();
  };

  document.documentElement.classList.add("scripts");
  apply();
  system.addEventListener("change", apply);
  addEventListener("DOMContentLoaded", wire);
}
