"""The Markdown report, read back by a Markdown parser: its structure is ours whatever the text says."""

import re
from itertools import pairwise

import cmarkgfm
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from service.render.report import escape_markdown
from service.render.text import pieces
from tests.unit.service.render.scenes import SMALL, full, markdown_report, session

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = (
    "<script>alert(1)</script> | [x](javascript:alert(1)) **b** _i_ `a|b` # h\n- item\n\n"
    "# Heading &amp; \x1b[31m ~~s~~"
)
SECTIONS = [
    "Trials", "Diagnosis", "The plans", "Proposals", "What to try first", "What would change the answer",
    "Advice from the playbooks", "Similar past cases", "Why not other plans", "Other plans considered",
    "Notes", "Decisions", "Incidents", "How this was made",
]  # fmt: skip


def flat(tokens: list[Token]) -> list[Token]:
    return [inner for token in tokens for inner in (token, *flat(token.children or []))]


def structure(page: str) -> list[str]:
    """Every element of the document in order, without its text."""
    return [token.type for token in flat(PARSER.parse(page)) if token.type not in ("text", "code_inline")]


def headings(page: str, level: str) -> list[str]:
    tokens = PARSER.parse(page)
    return [
        text.content
        for token, text in pairwise(tokens)
        if token.type == "heading_open" and token.tag == level
    ]


def test_a_full_report_has_its_sections_in_the_order_an_engineer_asks() -> None:
    assert headings(markdown_report(*full()), "h2") == SECTIONS


def test_every_table_has_as_many_cells_in_each_row() -> None:
    for page in (markdown_report(SMALL, session(SMALL)), markdown_report(*full(HOSTILE))):
        rows = [line for line in page.splitlines() if line.startswith("|")]
        tables = re.findall(r"(?:^\|.*\n)+", page, re.M)
        assert rows
        for table in tables:
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_hostile_text_changes_no_element_and_brings_no_raw_html_and_no_link() -> None:
    page = markdown_report(*full(HOSTILE))
    assert "alert(1)" in page
    hostile = structure(page)
    assert hostile == structure(markdown_report(*full("harmless `code` text")))
    assert not {"html_block", "html_inline", "link_open"} & set(hostile)


@example("1. not a list")
@example("# no heading")
@example("- no item")
@example("+ no item")
@example("=== no rule")
@example("1) no")
@given(st.text(alphabet=st.sampled_from("ab1.)(`*_[]<>|&~$#-+=!\\:/ \n\té\u202e")) | st.text())
def test_escaped_text_reads_back_as_itself(text: str) -> None:
    tokens = flat(PARSER.parse(escape_markdown(text)))
    assert {token.type for token in tokens} <= {
        "paragraph_open", "paragraph_close", "inline", "text", "text_special", "code_inline",
    }  # fmt: skip
    expected = "".join(f"`{piece}`" if is_code else piece for is_code, piece in pieces(text))
    shown = "".join(
        f"`{token.content}`" if token.type == "code_inline" else token.content
        for token in tokens
        if token.type in ("text", "code_inline")
    )
    assert _dense(shown) == _dense(expected)


def _dense(text: str) -> str:
    return re.sub(r"[\s\N{WORD JOINER}]", "", text)


@pytest.mark.parametrize("page", ["{}", "# {}", "- {}", "| a | b |\n| --- | --- |\n| {} | b |", "a **{}** b"])
@settings(max_examples=300)
@example("`a|<img src=x onerror=alert(1)>`")
@example("_www.evil.example")
@example("https://evil.example/x.sh www.evil.example mail@evil.example @everyone #12 mailto:a@b.example")
@example("``<b>`` \\`<b>` `a\\`<b>")
@given(
    text=st.lists(
        st.sampled_from(
            ["`", "``", "|", "<b>", "<!--", "-->", "]]>", "](x)", "[", "![", "\\", "&lt;", "@team",
             "https://e.example", "www.e.example", "a@e.example", "\n",
             " ", "a", "*", "_", "~~", "#", "1.", ":", "//", "$", "é"]
        ),
        max_size=12,
    ).map("".join) | st.text(max_size=40)
)  # fmt: skip
def test_cmark_gfm_makes_nothing_of_text_from_outside(page: str, text: str) -> None:
    """GitHub's own parser, with raw HTML, tables, links and strikethrough switched on."""
    html = cmarkgfm.github_flavored_markdown_to_html(
        page.format(escape_markdown(text)), options=cmarkgfm.cmark.Options.CMARK_OPT_UNSAFE
    )
    tags = set(re.findall(r"<\s*/?\s*([a-zA-Z!?][^\s>]*)", html))
    assert tags <= {"p", "code", "h1", "ul", "li", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert html.count("<td") in (0, 2)


@settings(max_examples=25)
@given(
    st.text(alphabet="#-|`[]()<>*_\\ab1. \n", min_size=1, max_size=200) | st.text(min_size=1, max_size=200)
)
def test_any_text_anywhere_leaves_a_report_of_the_same_sections(text: str) -> None:
    page = markdown_report(*full(text))
    assert headings(page, "h2") == SECTIONS


def test_the_commands_of_the_two_runs_are_code_that_can_be_copied() -> None:
    blocks = [
        token.content
        for token in PARSER.parse(markdown_report(SMALL, session(SMALL)))
        if token.type == "code_block"
    ]
    assert blocks
    assert all("asap patch FILE --report report.json --plan " in block for block in blocks)
    assert all(" | tee proposal-" in block for block in blocks)
