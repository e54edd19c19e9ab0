// Draws the figures of a page: fetches each as JSON when it comes into view, and again with other choices.
import { drawChart } from "./charts.js";

async function fetchFigure(figure) {
  const address = new URL(figure.dataset.figure, location.href);
  for (const select of figure.querySelectorAll("select[data-choose]"))
    address.searchParams.set(select.dataset.choose, select.value);
  const answer = await fetch(address, { headers: { Accept: "application/json" } });
  const body = await answer.json();
  return { ok: answer.ok, body, retry: Number(answer.headers.get("Retry-After") ?? 0) };
}

async function show(figure) {
  const canvas = figure.querySelector(".canvas");
  canvas.setAttribute("aria-busy", "true");
  const asked = (figure.asked = (figure.asked ?? 0) + 1);
  try {
    const { ok, body, retry } = await fetchFigure(figure);
    if (asked !== figure.asked) return; // an earlier choice answered late
    canvas.classList.add("drawn");
    if (ok) {
      drawChart(canvas, body);
      figure.dataset.drawn = "true";
    } else {
      tell(canvas, body.detail);
      if (retry) setTimeout(() => show(figure), retry * 1000);
    }
  } catch {
    tell(canvas, "The figure could not be loaded; retrying.");
    setTimeout(() => show(figure), 4000);
  } finally {
    canvas.removeAttribute("aria-busy");
  }
}

function tell(canvas, text) {
  const line = document.createElement("p");
  line.className = "soft small";
  line.textContent = text ?? "There is nothing to draw.";
  canvas.replaceChildren(line);
  canvas.classList.add("drawn");
}

const seen = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      show(target);
    }
  },
  { rootMargin: "300px" },
);

/** Begins with the figures under this element. */
export function attach(root = document) {
  for (const figure of root.querySelectorAll("figure[data-figure]")) {
    seen.observe(figure);
    for (const select of figure.querySelectorAll("select[data-choose]")) select.onchange = () => show(figure);
  }
}

/** Asks again for the figures that are drawn. */
export function refresh(root) {
  for (const figure of root.querySelectorAll("figure[data-drawn]")) show(figure);
}

document.addEventListener("themechange", () => {
  for (const canvas of document.querySelectorAll("figure[data-drawn] .canvas")) canvas.chart?.redraw();
});
