"""The pages measured in a real browser over 10,000 sessions, beside their bars.

    make bench NAME=web

Milliseconds are those of the wall clock, so an idle machine is needed; beside them stands the server's CPU
time per request, which other programs disturb less. Bytes are those that travel at a first visit, with the
figures' data.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from playwright.sync_api import Browser, Page, Request, Response, ViewportSize

from service.db.engine import open_database
from service.sessions.store import find_search, keep_search
from service.settings import Settings
from tests.browser.gallery import fill, upload, write_nights
from tests.browser.installation import Installation, installed
from tests.browser.scenes import write_million, write_ranks
from tests.browser.screenshots import PAGES
from tests.browser.watching import (
    CONTROLS,
    FRAMES,
    PATIENCE_MS,
    Cookies,
    draw_all,
    find_chromium,
    opened,
    sign_in,
)
from tools.search.ranked import Ranked, fastest_first, pack, unpack

SESSIONS = 10_000
PLANS = 100_000
TIMES = 15
DESKTOP: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
FIRST_PAINT = """() => new Promise((done) => new PerformanceObserver((list) => {
    for (const paint of list.getEntries()) if (paint.name === "first-contentful-paint") done(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""
SIZES = """() => [...document.querySelectorAll("body *")]
    .filter((one) => one.checkVisibility())
    .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((one) => getComputedStyle(one).fontSize)"""
ABOVE_FOLD = "charts => charts.filter(chart => chart.getBoundingClientRect().top < innerHeight).length"
BOTH_FRAMES = """async (keys) => {
    const [map, timeline] = ["minimap", "timeline"].map((one) =>
        document.querySelector(`[data-${one}] canvas`));
    const frames = [[], []];
    for (const key of ["theme", ...keys]) {
        if (key === "theme") document.dispatchEvent(new Event("themechange")); // both are drawn anew
        else timeline.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
        [timeline, map].forEach((canvas, i) => frames[i].push(Number(canvas.dataset.frameMs)));
    }
    return frames;
}"""
"""How long each key took to draw on the timeline and on the map, in ms."""
ZOOM = "wwwwwwwwwwwwaaddssssssssssf"
LINKS = {
    "/sessions/{done}?plan=2&vs=today&cause=tp_comm_exposed": "#loss-tp_comm_exposed[aria-selected=true]",
    "/sessions/{done}?plan=1&tp=2": ".strip a.yours[aria-current]",
    "/sessions/{done}/plans?tp=2&sort=-memory_bytes&row=3": "tr[data-row='3'][aria-selected=true], #plan h2",
    "/what-if?session={done}&tp=2": ".control.moved",
    "/trace?a={traced}&t=100..200&find=mm": "[data-status]:has-text('100 ms in view')",
}
MODEL = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


def say(what: str, measured: str, bar: str) -> None:
    print(f"{what:62}{measured:>24}   bar {bar}", flush=True)


@dataclass(frozen=True)
class Bench:
    browser: Browser
    installation: Installation
    data: Path
    cookies: Cookies
    shown: dict[str, str]
    """Sessions by what they show."""

    @contextmanager
    def page(self) -> Iterator[Page]:
        address = self.installation.server.address
        context = self.browser.new_context(base_url=address, storage_state=self.cookies, viewport=DESKTOP)
        context.set_default_timeout(5 * PATIENCE_MS)
        yield context.new_page()
        context.close()

    @property
    def client(self) -> httpx.Client:
        jar = {cookie["name"]: cookie["value"] for cookie in self.cookies["cookies"]}
        return httpx.Client(base_url=self.installation.server.address, cookies=jar, timeout=60)

    def server_cpu_s(self) -> float:
        """Of the server and of children that it waited for."""
        process = self.installation.server.process
        assert process
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium on this machine: scripts/install-chromium.sh")
    with tempfile.TemporaryDirectory() as data, opened(chromium) as browser:
        write_nights(Path(data))
        with installed(Path(data), SESSIONS) as installation:
            cookies = sign_in(browser, installation.server.address, installation.key)
            bench = Bench(browser, installation, Path(data), cookies, fill(installation))
            print(f"{SESSIONS:,} sessions; load average {os.getloadavg()[0]:.1f}")
            for measure in MEASURES:
                measure(bench)


def actions(bench: Bench) -> None:
    """From the list to three proposals, config.json at hand."""
    config, taken = bench.data / "config.json", 0
    config.write_text(json.dumps(MODEL))
    with bench.page() as page:
        page.goto("/")
        steps: list[Callable[[], object]] = [
            lambda: page.get_by_role("link", name="New session").click(),
            lambda: page.locator("[data-into]").set_input_files(config),
            lambda: page.get_by_label("Devices", exact=True).fill("16 x H100 SXM"),
            lambda: page.get_by_role("button", name="Submit").click(),
        ]
        for step in steps:
            step()
            taken += 1
        page.locator("article.card").nth(2).wait_for()
    say("actions from the list to three proposals", str(taken), "5")


def session_page(bench: Bench) -> None:
    path = f"/sessions/{bench.shown['done']}"
    with bench.page() as page:
        page.goto(path)
        charts = page.locator("#where, #cloud canvas").evaluate_all(ABOVE_FOLD)
    say("charts above the fold of the session page at 1440x900", str(charts), "2")
    sent, read = weight(bench, path)
    say("session page, sent (read)", f"{sent / 1e3:.0f} kB ({read / 1e3:.0f} kB)", "150 kB")


def looks(bench: Bench) -> None:
    """Over all pages, as wide as a desk and as narrow as a phone."""
    sizes, controls, heights = set[str](), dict[str, int](), dict[str, int]()
    with bench.page() as page:
        for name, path in PAGES.items():
            page.set_viewport_size(DESKTOP)
            page.goto(path.format(**bench.shown))
            page.wait_for_load_state("networkidle")
            sizes |= set(page.evaluate(SIZES))
            controls[name] = page.evaluate(CONTROLS)
            page.set_viewport_size(PHONE)
            heights[name] = page.evaluate("document.documentElement.scrollHeight")
    of_sessions = {name: count for name, count in controls.items() if name.split("-")[0] == "session"}
    most, tallest = max(of_sessions, key=of_sessions.__getitem__), max(heights, key=heights.__getitem__)
    say("controls above the fold of a session's page, most", f"{controls[most]} ({most})", "25")
    say("font sizes of all pages", f"{len(sizes)} ({', '.join(sorted(sizes))})", "5")
    say("tallest page of a phone", f"{heights[tallest]:,} px ({tallest})", "5,000 px")


def weight(bench: Bench, path: str) -> tuple[int, int]:
    """Bytes as sent and as read."""
    answers = list[Response]()
    with bench.page() as page:
        page.on("response", lambda answer: answers.append(answer))
        page.goto(path)
        draw_all(page)
        page.wait_for_load_state("networkidle")
        own = [answer for answer in answers if "/events" not in answer.url]
        sent = sum(answer.request.sizes()["responseBodySize"] for answer in own)
        return sent, sum(len(answer.body()) for answer in own)


def scripts_and_styles(bench: Bench) -> None:
    """As sent by all pages that draw charts, each file once."""
    sizes = defaultdict[str, int](int)

    def note(request: Request) -> None:  # what the browser has kept is sent as nothing
        sizes[request.url] = max(sizes[request.url], request.sizes()["responseBodySize"])

    with bench.page() as page:
        page.on("requestfinished", note)
        for name in ("session", "plans", "figures", "trace", "schedule-simulated", "trials", "topology"):
            page.goto(PAGES[name].format(**bench.shown))
            draw_all(page)
            page.wait_for_load_state("networkidle")
    sent = sum(size for url, size in sizes.items() if "/static/" in url)
    say("script and style of all pages with charts, sent", f"{sent / 1e3:.0f} kB", "250 kB")


def list_of_sessions(bench: Bench) -> None:
    paints_ms = []
    with bench.page() as page:
        for _ in range(TIMES):
            page.goto("/")
            paints_ms.append(page.evaluate(FIRST_PAINT))
    say(f"list of {SESSIONS:,}: first paint, median (best)", spread(paints_ms), "100 ms")
    answers(bench, "list: answer of the server", "/", "100 ms")
    answers(bench, "list, searched: answer of the server", "/?q=needle", "100 ms")


def spread(times_ms: list[float]) -> str:
    return f"{statistics.median(times_ms):.0f} ({min(times_ms):.0f}) ms"


def answers(bench: Bench, name: str, path: str, bar: str) -> None:
    times_ms = []
    with bench.client as client:
        client.get(path, headers={"Accept": "text/html"})
        before_s = bench.server_cpu_s()
        for _ in range(TIMES):
            start = time.perf_counter()
            assert client.get(path, headers={"Accept": "text/html"}).status_code == 200, path
            times_ms.append(1000 * (time.perf_counter() - start))
        cpu_ms = 1000 * (bench.server_cpu_s() - before_s) / TIMES
    say(name, f"{spread(times_ms)}, CPU {cpu_ms:.0f}", bar)


def searched_space(bench: Bench) -> None:
    answers(bench, "searched-space figure", f"/sessions/{bench.shown['done']}/figures/space", "300 ms")


def explorer(bench: Bench) -> None:
    """The plans of a real search, repeated with other times until there are enough."""
    id, settings = bench.shown["done"], Settings(data_dir=bench.data, _env_file=None)
    with closing(open_database(settings.database)) as database, database.begin() as conn:
        packed = find_search(conn, "", id)
        assert packed
        found = unpack(packed)
        keep_search(conn, id, pack(repeated(found, PLANS)))
    took: dict[str, list[float]] = {"sort": [], "filter": [], "brush": []}
    with bench.page() as page:
        page.goto(f"/sessions/{id}/plans")
        root = page.locator("[data-explorer][data-took]")
        root.wait_for()
        shown = page.locator("[data-shown]").inner_text()

        def note(what: str) -> None:
            took[what].append(float(root.get_attribute("data-took") or "nan"))

        box = page.locator("[data-coordinates]").bounding_box()
        assert box
        for name in ("memory, GiB", "tp", "step time, s") * 2:
            page.locator("[data-names] button", has_text=name).first.click()
            note("sort")
        for value in ("2", "4", ""):
            page.locator("[data-filters] select[name=tp]").select_option(value)
            note("filter")
        for share in (0.8, 0.6, 0.4):
            page.mouse.move(box["x"] + 38, box["y"] + box["height"] - 12)
            page.mouse.down()
            page.mouse.move(box["x"] + 38, box["y"] + share * box["height"])
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            note("brush")
            page.mouse.up()
    for what, times_ms in took.items():
        say(f"explorer, {shown}: {what}, median (worst)", worst(times_ms), "200 ms")


def workbench(bench: Bench) -> None:
    """Over the plans that the explorer's measure has kept."""
    took: dict[str, list[float]] = {"chip edit to redraw": [], "hover to 4 linked views": [], "brush": []}
    with bench.page() as page:
        page.goto(f"/sessions/{bench.shown['done']}")
        root, cloud = page.locator("#workbench"), page.locator("[data-cloud][data-drawn]")
        cloud.wait_for()
        for value in ("2", "4", "8", "4") * 3:
            root.evaluate("one => delete one.dataset.took")
            page.locator("#chosen select[name=tp]").select_option(value)
            page.wait_for_selector("#workbench[data-took]")
            took["chip edit to redraw"].append(float(root.get_attribute("data-took") or "nan"))
        for cause in ("recompute", "tp_comm_exposed", "pipeline_bubble") * 4:
            page.locator(f"#loss-{cause}").hover()
            took["hover to 4 linked views"].append(float(root.get_attribute("data-lit") or "nan"))
        box = cloud.locator("canvas").bounding_box()
        assert box
        page.mouse.move(box["x"] + 80, box["y"] + 40)
        page.mouse.down()
        for share in (0.3, 0.5, 0.7, 0.9):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + share * box["height"])
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            took["brush"].append(float(cloud.get_attribute("data-took") or "nan"))
        page.mouse.up()
    bars = ("50 ms", "16 ms", "50 ms")
    for (what, times_ms), bar in zip(took.items(), bars, strict=True):
        say(f"workbench, {PLANS:,} plans: {what}, median (worst)", worst(times_ms), bar)


def links(bench: Bench) -> None:
    """What each link must restore, as a part of the page that only its parameters bring about."""
    restored = []
    with bench.page() as page:
        for path, part in LINKS.items():
            page.goto(path.format(**bench.shown))
            page.locator(part).first.wait_for(state="attached")
            restored.append(path)
    say("views restored from their links", f"{len(restored)} of {len(LINKS)}", "all")


def repeated(found: Ranked, count: int) -> Ranked:
    rows = np.arange(count) % len(found.step_time_s)
    stretch = np.random.default_rng(1).uniform(1, 2, count)
    more = found.take(rows)
    return fastest_first(Ranked(more.plans, more.step_time_s * stretch, more.memory_bytes))


def worst(times_ms: list[float]) -> str:
    return f"{statistics.median(times_ms):.0f} ({max(times_ms):.0f}) ms"


def million_events(bench: Bench) -> None:
    folder = bench.data / "million"
    folder.mkdir()
    write_million(folder / "rank0.json.gz")
    reference = upload(bench.installation, folder)
    for when in ("while the upload is analysed", "afterwards"):
        with bench.page() as page:
            start = time.perf_counter()
            page.goto(f"/trace?a={reference}")
            page.wait_for_selector("[data-timeline][data-loaded-ms]")
            first_s = time.perf_counter() - start
            say(f"1,000,000 events: first view {when}", f"{first_s:.2f} s", "3 s")
            page.locator("[data-kernel]").first.wait_for()
            frames_ms = page.evaluate(FRAMES, list(ZOOM))
    say("1,000,000 events: zoom, median (worst) per frame", worst(frames_ms), "50 ms")


def thousand_ranks(bench: Bench) -> None:
    """One of them is late; every key moves the timeline and what the map marks of it."""
    folder = bench.data / "ranks"
    folder.mkdir()
    write_ranks(folder, 1024, late=700)
    reference = upload(bench.installation, folder)
    with bench.page() as page:
        page.goto(f"/trace?a={reference}&ranks=692-707")
        page.wait_for_selector("[data-timeline][data-overviews='1']")
        shown = page.locator("[data-minimap] canvas")
        assert shown.get_attribute("data-rows") == "1024"
        frames_ms, maps_ms = page.evaluate(BOTH_FRAMES, list(ZOOM))
    say("1,024 ranks: timeline, median (worst) per frame", worst(frames_ms), "50 ms")
    say("1,024 ranks: map, median (worst) per frame", worst(maps_ms), "50 ms")


def console_errors(bench: Bench) -> None:
    """Of every page; the browser itself reports the 404 of the page that is not there."""
    errors: list[str] = []
    with bench.page() as page:
        page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
        page.on(
            "console",
            lambda message: errors.append(f"{page.url}: {message.text}") if message.type == "error" else None,
        )
        paths = [path.format(**bench.shown) for name, path in PAGES.items() if name != "not-found"]
        for path in paths:
            page.goto(path)
            draw_all(page)
    say(f"console errors over {len(paths)} pages", str(len(errors)), "0")
    for error in errors:
        print("  ", error)


MEASURES = (
    actions, session_page, looks, scripts_and_styles, list_of_sessions, searched_space, explorer, workbench,
    links, million_events, thousand_ranks, console_errors,
)  # fmt: skip

if __name__ == "__main__":
    main()
