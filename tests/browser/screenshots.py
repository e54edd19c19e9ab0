"""`make screenshots`: every page of a filled installation as PNG, light and dark, wide and as on a phone.

Those in README and docs are renewed too. Further arguments name the pages to take, all if there are none.
"""

import shutil
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, ViewportSize

from tests.browser.gallery import fill, write_nights
from tests.browser.installation import installed
from tests.browser.watching import draw_all, find_chromium, opened, sign_in

PAST = 60
SIZES: dict[str, ViewportSize] = {
    "": {"width": 1440, "height": 900},
    "-phone": {"width": 390, "height": 844},
}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PAGES = {
    "sessions": "/",
    "new-session": "/sessions/new?example=true",
    "session": "/sessions/{done}",
    "session-waits": "/sessions/{waits}",
    "session-cold": "/sessions/{cold}",
    "session-traces": "/sessions/{traced}",
    "session-failed": "/sessions/{failed}",
    "schedule-simulated": "/sessions/{done}/schedule?plan=2",
    "plans": "/sessions/{done}/plans",
    "plan": "/sessions/{done}/plans/3",
    "topology": "/topology?session={done}",
    "trace": "/trace?a={traced}",
    "notes": "/sessions/{done}/notes",
    "fit": "/sessions/{failed}/fit",
    "trials": "/sessions/{done}/trials",
    "trail": "/sessions/{done}/trail",
    "compare": "/compare?a={done}&a_plan=today&b={done}&b_plan=1",
    "what-if": "/what-if?session={done}&inter=0.5",
    "knowledge": "/knowledge?q=gradients+are+exposed",
    "case": "/knowledge/example-trial-0",
    "fleet": "/fleet",
    "workload": "/fleet/llama-70b",
    "schedules": "/schedules",
    "new-schedule": "/schedules/new",
    "api": "/docs",
    "hardware": "/hardware",
    "device": "/hardware/h100-sxm-80gb",
    "clusters": "/clusters",
    "accuracy": "/accuracy",
    "not-found": "/nowhere",
    "first-look": "/sessions/{done}#main",
    "figures": "/sessions/{done}/figures",
    "plans-first-look": "/sessions/{done}/plans#main",
    "schedule-first-look": "/sessions/{done}/schedule?plan=2#main",
    "trace-first-look": "/trace?a={traced}#main",
    "trail-first-look": "/sessions/{done}/trail#main",
    "what-if-first-look": "/what-if?session={done}&tp=4&recompute=selective#main",
}
IN_DOCS = {
    "first-look": "session", "figures": "figures", "plans-first-look": "plans",
    "schedule-first-look": "schedule", "trace-first-look": "trace", "trail-first-look": "trail",
    "what-if-first-look": "what-if",
}  # fmt: skip
DOCS = Path(__file__).resolve().parents[2] / "docs" / "screenshots"


def main(folder: Path, names: list[str]) -> None:
    chromium = find_chromium()
    if chromium is None:
        sys.exit("no Chromium on this machine")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, opened(chromium) as browser:
        write_nights(Path(data))
        with installed(Path(data), PAST) as installation:
            shown, address = fill(installation), installation.server.address
            cookies = sign_in(browser, address, installation.key)
            for scheme, size in product(SCHEMES, SIZES):
                context = browser.new_context(
                    base_url=address,
                    storage_state=cookies,
                    color_scheme=scheme,
                    viewport=SIZES[size],
                    reduced_motion="reduce",
                )
                page = context.new_page()
                for name in names or PAGES:
                    file = folder / f"{name}-{scheme}{size}.png"
                    take(page, PAGES[name].format(**shown), file)
                    if (scheme, size) == ("light", "") and name in IN_DOCS:
                        shutil.copy(file, DOCS / f"{IN_DOCS[name]}.png")
                context.close()


def take(page: Page, path: str, file: Path) -> None:
    """The whole page, or one screen of it from where the address points to."""
    page.goto(path)
    page.wait_for_load_state("networkidle")
    draw_all(page)
    place = path.partition("#")[2]
    if place:
        page.evaluate("id => document.getElementById(id).scrollIntoView()", place)
        page.screenshot(path=file)
    else:
        take_whole(page, file)
    print(file)


def take_whole(page: Page, file: Path) -> None:
    """In a window as high as the page: what sticks to the window's edge would else cover the middle."""
    size = page.viewport_size
    assert size
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": size["width"], "height": height})
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=file)
    page.set_viewport_size(size)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
