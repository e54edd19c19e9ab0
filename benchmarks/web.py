"""How soon the pages come and how heavy they are, over 10,000 sessions, in a real browser.

    make bench-web

Seconds are the server's, asked over the loopback; bytes are those that travel at a first visit, without
Plotly's script (which a browser keeps for good), with the figures' data.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Response

from tests.browser.gallery import LLAMA
from tests.browser.installation import Installation, installed
from tests.browser.watching import Cookies, draw_all, find_chromium, opened, sign_in

SESSIONS = 10_000
TIMES = 30
BARS = "bars: the first page under 300 ms, every page under 150 kB"
PAGES = {
    "sessions": "/",
    "sessions, searched": "/?q=needle",
    "sessions, filtered": "/?state=completed&device=h100-sxm-80gb",
    "new session": "/sessions/new?example=true",
    "a session": "/sessions/{done}",
    "its trail": "/sessions/{done}/trail",
    "what if": "/what-if?session={done}&tp=4",
    "compare": "/compare?a={done}&a_plan=today&b={done}&b_plan=1",
    "knowledge": "/knowledge",
    "fleet": "/fleet",
    "hardware": "/hardware",
    "accuracy": "/accuracy",
}


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium on this machine: scripts/install-chromium.sh")
    with (
        tempfile.TemporaryDirectory() as data,
        opened(chromium) as browser,
        installed(Path(data), SESSIONS) as installation,
    ):
        report(browser, installation)


def report(browser: Browser, installation: Installation) -> None:
    done = installation.submit(LLAMA)
    installation.wait(done)
    cookies = sign_in(browser, installation.server.address, installation.key)
    print(f"{SESSIONS:,} sessions; {TIMES} requests each; {BARS}")
    print(f"{'page':22}{'median ms':>11}{'worst ms':>10}{'kB sent':>9}{'kB read':>9}{'files':>7}")
    for name, path in PAGES.items():
        address = path.format(done=done)
        seconds = sorted(answer_times(installation, cookies, address))
        sent, read, files = weight(browser, installation.server.address, cookies, address)
        middle = 1000 * statistics.median(seconds)
        print(f"{name:22}{middle:11.1f}{1000 * seconds[-1]:10.1f}{sent / 1e3:9.1f}{read / 1e3:9.1f}{files:7}")


def answer_times(installation: Installation, cookies: Cookies, path: str) -> list[float]:
    jar = {cookie["name"]: cookie["value"] for cookie in cookies["cookies"]}
    times_s = []
    with httpx.Client(base_url=installation.server.address, cookies=jar, timeout=30) as client:
        for _ in range(TIMES):
            start = time.perf_counter()
            assert client.get(path, headers={"Accept": "text/html"}).status_code == 200, path
            times_s.append(time.perf_counter() - start)
    return times_s


def weight(browser: Browser, address: str, cookies: Cookies, path: str) -> tuple[int, int, int]:
    """Bytes as sent, bytes as read, and files, all besides Plotly."""
    context = browser.new_context(base_url=address, storage_state=cookies)
    page, answers = context.new_page(), list[Response]()
    page.on("response", lambda answer: answers.append(answer))
    page.goto(path)
    draw_all(page)
    page.wait_for_timeout(300)
    own = [answer for answer in answers if "plotly" not in answer.url and "/events" not in answer.url]
    sent = sum(answer.request.sizes()["responseBodySize"] for answer in own)
    read = sum(len(answer.body()) for answer in own)
    context.close()
    return sent, read, len(own)


if __name__ == "__main__":
    main()
