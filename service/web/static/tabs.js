// The pages of a session are views of one page: a tab is fetched and put in place of what is shown. A module that
// has run before must export `attach` to run again; a page with another one is loaded as a whole.
import { fetchPage } from "./live.js";

const modules = (page) => [...page.querySelectorAll("script[type=module][src]")].map((script) => script.getAttribute("src"));
const styles = (page) => [...page.head.querySelectorAll("link[rel=stylesheet]")];
const known = new Set(modules(document));
let shown = location.pathname;

function loaded(element) {
  return new Promise((done) => {
    element.onload = element.onerror = done;
    document.head.append(element);
  });
}

/** Brings the styles and classic scripts that the page needs and this one lacks. */
async function furnish(page) {
  const has = new Set([...styles(document), ...document.scripts].map((one) => one.getAttribute("href") ?? one.getAttribute("src")));
  const links = styles(page).filter((link) => !has.has(link.getAttribute("href")));
  const scripts = [...page.head.querySelectorAll("script[src]:not([type=module])")].filter((script) => !has.has(script.getAttribute("src")));
  const copies = scripts.map((script) => Object.assign(document.createElement("script"), { src: script.getAttribute("src") }));
  await Promise.all([...links, ...copies].map(loaded));
}

async function show(address, isStep) {
  const page = await fetchPage(address);
  if (!page?.querySelector(".session-tabs")) return location.assign(address);
  const wanted = modules(page).filter((src) => !/\/(tabs|palette)\.js/.test(src));
  const again = await Promise.all(wanted.filter((src) => known.has(src)).map((src) => import(src)));
  if (again.some(({ attach }) => !attach)) return location.assign(address);
  const kept = new Set(styles(page).map((link) => link.getAttribute("href")));
  await furnish(page);
  document.querySelector("main").replaceWith(page.querySelector("main"));
  for (const link of styles(document)) if (!kept.has(link.getAttribute("href"))) link.remove();
  document.title = page.title;
  if (isStep) history.pushState(null, "", address);
  shown = location.pathname;
  scrollTo(0, 0);
  document.querySelector("main").focus({ preventScroll: true });
  for (const { attach } of again) attach();
  for (const src of wanted.filter((src) => !known.has(src))) {
    known.add(src);
    await import(src);
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.(".session-tabs a");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  show(link.href, true);
});
addEventListener("popstate", () => location.pathname !== shown && show(location.href, false));
