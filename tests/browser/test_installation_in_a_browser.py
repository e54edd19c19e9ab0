"""Ten thousand sessions, a server that dies and comes back, two servers behind one address."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.installation import Installation, installed, server_of
from tests.browser.proxy import Proxy
from tests.browser.scenes import small
from tests.browser.watching import Cookies, Watched, watch
from tests.integration.service.api_process import running
from tests.unit.service.served import SCENARIO

PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def installation(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Of their own: the others' would be killed with it."""
    with installed(tmp_path_factory.mktemp("installation"), 10_000) as started:
        yield started


def test_ten_thousand_sessions_are_searched_and_paged_through(page: Watched) -> None:
    view = page.page
    view.goto("/")
    expect(view.locator(".tabs")).to_contain_text(re.compile(r"all 10,\d\d\d"))
    view.get_by_label("Search").fill("needle model-05")
    view.get_by_role("button", name="Filter").click()
    expect(view.locator("#lines tbody tr")).to_have_count(10)
    assert "q=needle" in view.url
    view.get_by_label("Search").fill("")
    view.get_by_role("button", name="Filter").click()
    first = view.locator("#lines tbody th a").first.inner_text()
    view.get_by_role("link", name="Older").click()
    expect(view.locator("#lines tbody th a").first).not_to_have_text(first)
    view.get_by_role("link", name="Newest").click()
    expect(view.locator("#lines tbody th a").first).to_have_text(first)


def test_the_list_follows_by_itself_and_keeps_what_was_chosen(
    page: Watched, installation: Installation
) -> None:
    view = page.page
    view.goto("/")
    box = view.locator("#lines input[type=checkbox]").nth(3)
    chosen = box.get_attribute("value")
    box.check()
    id = installation.submit(small(labels={"fresh": "one"}))
    expect(view.locator(f'a[href="/sessions/{id}"]')).to_be_visible(timeout=PATIENCE_MS)
    assert view.locator(f'#lines input[value="{chosen}"]').is_checked()


def test_a_page_outlives_its_server_and_goes_on(
    page: Watched, installation: Installation, waiting: str
) -> None:
    view = page.page
    view.goto(waiting)
    expect(view.locator(".state").first).to_have_text("waiting for approval", timeout=PATIENCE_MS)
    installation.server.kill()
    expect(view.get_by_role("status").filter(has_text="Connection lost, retrying")).to_be_visible()
    installation.server.start()
    expect(view.locator("#connection")).to_be_hidden(timeout=PATIENCE_MS)
    view.locator("article.card").first.get_by_role("button", name="Approve").click()
    expect(view.locator(".state").first).to_have_text("done", timeout=PATIENCE_MS)


def test_two_servers_behind_one_address_are_one_to_the_browser(
    browser: Browser, installation: Installation, signed_in: Cookies
) -> None:
    """Each connection meets the other server: pages, forms, events and figures must not care."""
    with (
        running(server_of(installation.server.folder, "api")) as other,
        Proxy([installation.server.port, other.port]) as proxy,
    ):
        with watch(browser, proxy.address, signed_in) as watched:
            view = watched.page
            view.goto("/sessions/new?example=true")
            view.locator('[name="devices"]').fill("8 x H100")
            for name in ("plan.dp", "plan.dp_shard", "plan.vpp"):
                view.locator(f'[name="{name}"]').fill("")
            for name in ("plan.tp", "plan.pp"):
                view.locator(f'[name="{name}"]').fill("2")
            view.locator('[name="config"]').fill(json.dumps(SCENARIO["model"]))
            expect(view.locator("[data-verdict]")).to_contain_text("Fits")
            view.get_by_role("button", name="Submit").click()
            expect(view.locator(".state").first).to_have_text("done", timeout=PATIENCE_MS)
            view.get_by_role("link", name="Figures").click()
            figure = view.locator("figure[data-figure]").first
            figure.scroll_into_view_if_needed()
            expect(figure).to_have_attribute("data-drawn", "true", timeout=PATIENCE_MS)
        assert min(proxy.met.values()) >= 1
