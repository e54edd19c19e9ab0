"""The HTML page, read back by a parser: self-contained, safe under the strictest policy, readable aloud."""

import base64
import hashlib
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from service.render.report import content_security_policy, stylesheet
from tests.unit.service.render.scenes import SMALL, full, html_report, session
from tests.unit.service.web import browsing

VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(1)> \" ' & \x1b[31m \u202e `<b>code</b>`"


class Page(browsing.Page):
    """With the elements that are still open, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        self.open: list[str] = []
        self.text_of: dict[str, str] = {}
        super().__init__(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text_of[self.open[-1]] = self.text_of.get(self.open[-1], "") + data

    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


def test_nothing_is_loaded_and_nothing_runs() -> None:
    page = Page(html_report(*full(HOSTILE)))
    assert not {"script", "link", "img", "iframe", "object", "form", "base"} & set(page.tags())
    for tag, attributes in page.elements:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("style", "src", "srcdoc")
        ]
        assert tag == "a" or "href" not in attributes
    assert "url(" not in page.text_of["style"]
    assert "@import" not in page.text_of["style"]


def test_the_policy_allows_the_pages_one_stylesheet_and_nothing_else() -> None:
    page = Page(html_report(SMALL, session(SMALL)))
    digest = base64.b64encode(hashlib.sha256(page.text_of["style"].encode()).digest()).decode()
    stated = [a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a]
    policy = content_security_policy(stylesheet())
    assert stated == [policy]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert page.tags().count("style") == 1


def test_hostile_text_changes_no_element_of_the_page_and_is_shown_as_it_is() -> None:
    page = Page(html_report(*full(HOSTILE)))
    assert page.tags() == Page(html_report(*full("harmless `code` text"))).tags()
    assert page.text_of["h1"].startswith("</style><script>alert(1)</script><img src=x onerror=alert(1)>")
    assert r"\x1b[31m \u202e" in page.text_of["h1"]


@settings(max_examples=25)
@given(st.text(alphabet="<>/&\"'`=ab \x1b", min_size=1, max_size=200) | st.text(min_size=1, max_size=200))
def test_any_text_anywhere_leaves_a_page_of_the_same_elements(text: str) -> None:
    shown = Page(html_report(*full(text)))
    assert [tag for tag in shown.tags() if tag not in ("code", "a")] == [
        tag for tag in Page(html_report(*full())).tags() if tag not in ("code", "a")
    ]


def test_links_lead_only_to_the_web_and_tell_nobody_where_from() -> None:
    scenario, report = full()
    report["advice"][0]["sources"] = [
        {"title": "paper", "where": "arXiv 2205.05198"},
        {"title": "code", "where": "javascript:alert(1)"},
    ]
    links = [a for tag, a in Page(html_report(scenario, report)).elements if tag == "a"]
    assert links == [{"href": "https://arxiv.org/abs/2205.05198", "rel": "noopener noreferrer"}]


def test_figures_are_described_for_those_who_do_not_see_them() -> None:
    page = Page(html_report(SMALL, session(SMALL)))
    figures = [attributes for tag, attributes in page.elements if tag == "svg" and "role" in attributes]
    assert figures
    assert all(re.match(r"(today|proposal \d): \S+ ", str(figure["aria-label"])) for figure in figures)


def test_ids_are_unique_and_every_label_names_one() -> None:
    attributes = [attributes for _, attributes in Page(html_report(*full())).elements]
    ids = [element["id"] for element in attributes if "id" in element]
    assert len(ids) == len(set(ids))
    assert {element["aria-labelledby"] for element in attributes if "aria-labelledby" in element} <= set(ids)


def test_text_on_a_segment_is_legible_in_light_and_in_dark() -> None:
    """WCAG 2.2, success criterion 1.4.3: 4.5 to 1 for text of this size."""
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in _palettes())
    for colours in (light, light | dark):
        for segment in ("compute", "tp", "ep", "host"):
            assert _contrast(colours[segment], colours["on-dark"]) >= 4.5, segment
        for segment in ("memory-bound", "cp", "dp", "pp", "bubble", "optimizer"):
            assert _contrast(colours[segment], colours["on-light"]) >= 4.5, segment
        for ink in ("ink", "soft", "accent", "alarm"):
            assert _contrast(colours[ink], colours["page"]) >= 4.5, ink
            assert _contrast(colours[ink], colours["card"]) >= 4.5, ink


def _palettes() -> list[str]:
    found = re.findall(r":root \{([^}]*)\}", stylesheet())
    assert len(found) == 2
    return found


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
