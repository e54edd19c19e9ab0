"""Has a page draw its figures, which it does as they come into view."""

from playwright.sync_api import Page

PATIENCE_MS = 60_000
SHOWN = "one => one.dataset.drawn || one.querySelector('.canvas.drawn p')"


def draw_all(page: Page) -> set[str]:
    """Scrolls to every figure; the names of those that were drawn, without those that say why not."""
    drawn = set()
    for figure in page.locator("figure[data-figure]").all():
        figure.scroll_into_view_if_needed()
        page.wait_for_function(SHOWN, arg=figure.element_handle(), timeout=PATIENCE_MS)
        if figure.get_attribute("data-drawn"):
            assert figure.locator("svg.main-svg").first.is_visible()
            drawn.add(str(figure.get_attribute("data-figure")).rpartition("/")[2])
    return drawn
