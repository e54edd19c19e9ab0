"""Shows a key at the door, as a person does."""

from playwright.sync_api import Browser, expect

from tests.browser.watching import Cookies


def sign_in(browser: Browser, address: str, key: str) -> Cookies:
    """The cookies of somebody who has signed in."""
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.goto("/knowledge")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Knowledge")).to_be_visible()
    kept = context.storage_state()
    context.close()
    return kept
