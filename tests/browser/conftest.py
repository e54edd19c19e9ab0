"""Chromium and an installation, both started once per file; a page that is signed in for each test.

They end with their file: Playwright keeps an event loop running in the thread of the tests.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.installation import Installation, installed
from tests.browser.scenes import small
from tests.browser.watching import PATIENCE_MS, Cookies, Watched, find_chromium, opened, sign_in, watch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = find_chromium()
    if found is None:
        pytest.skip("no Chromium on this machine; `make test-browser` installs one where it can")
    expect.set_options(timeout=PATIENCE_MS)  # a busy machine may take its time
    with opened(found) as browser:
        yield browser


@pytest.fixture(scope="module")
def installation(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """With a few sessions of the past; a test that skips for want of a browser starts no server."""
    with installed(tmp_path_factory.mktemp("installation"), 20) as started:
        yield started


@pytest.fixture(scope="module")
def done(installation: Installation) -> str:
    """The address of a session that is done, for tests that only look at it."""
    id = installation.submit(small())
    installation.wait(id)
    return f"/sessions/{id}"


@pytest.fixture
def waiting(installation: Installation) -> str:
    """The address of a session that waits for a person."""
    id = installation.submit(small(approval="person"))
    installation.wait(id, "waiting_approval")
    return f"/sessions/{id}"


@pytest.fixture(scope="module")
def signed_in(browser: Browser, installation: Installation) -> Cookies:
    return sign_in(browser, installation.server.address, installation.key)


@pytest.fixture
def page(browser: Browser, installation: Installation, signed_in: Cookies) -> Iterator[Watched]:
    with watch(browser, installation.server.address, signed_in) as watched:
        yield watched
