// Draws the figures of a page: fetches each as JSON when it comes into view, resolves its colours from the
// stylesheet, and hands it to Plotly, which is loaded with the first one.

const PLOTLY = new URL("./plotly.min.js", import.meta.url).href;
const CONFIG = { displayModeBar: false, responsive: true };
let loading = null;

/** Plotly writes styles into the page, which the content policy refuses: figures.css has its rules instead, and
 *  a style attribute is set through the object model. */
function keepToPolicy() {
  const [create, set] = [document.createElement, Element.prototype.setAttribute];
  document.createElement = (name, ...more) => create.call(document, name === "style" ? "template" : name, ...more);
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else set.call(this, name, value);
  };
  for (const id of ["plotly.js-style-global", "plotly.js-style-maplibre"])
    document.head.append(Object.assign(document.createElement("template"), { id, className: "no-inline-styles" }));
}

function loadPlotly() {
  loading ??= new Promise((resolve, reject) => {
    keepToPolicy();
    const script = document.createElement("script");
    script.src = PLOTLY;
    script.onload = () => resolve(window.Plotly);
    script.onerror = reject;
    document.head.append(script);
  });
  return loading;
}

/** The same figure with `--name` in place of a colour resolved. */
export function painted(part, style = getComputedStyle(document.documentElement)) {
  if (typeof part === "string") return part.startsWith("--") ? style.getPropertyValue(part).trim() : part;
  if (Array.isArray(part)) return part.map((item) => painted(item, style));
  if (part && typeof part === "object")
    return Object.fromEntries(Object.entries(part).map(([name, value]) => [name, painted(value, style)]));
  return part;
}

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
  try {
    const [{ ok, body, retry }, Plotly] = await Promise.all([fetchFigure(figure), loadPlotly()]);
    if (ok) {
      figure.drawing = body;
      await draw(figure, Plotly);
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

async function draw(figure, Plotly) {
  const canvas = figure.querySelector(".canvas");
  if (!canvas.classList.contains("js-plotly-plot")) canvas.replaceChildren();
  const { data, layout } = painted(figure.drawing);
  await Plotly.react(canvas, data, fitted(layout, canvas), CONFIG);
  figure.dataset.drawn = "true";
}

/** On a narrow page: the legend under the figure takes the room that titles leave. */
function fitted(layout, canvas) {
  canvas.classList.add("drawn");
  if (canvas.clientWidth >= 560) return layout;
  return { ...layout, font: { ...layout.font, size: 11 }, margin: { ...layout.margin, l: 48, r: 8 } };
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

document.addEventListener("themechange", async () => {
  const Plotly = await loading;
  for (const figure of document.querySelectorAll("figure[data-drawn]")) draw(figure, Plotly);
});
