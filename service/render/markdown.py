"""The report of a session as GitHub Markdown."""

import re
from functools import cache
from urllib.parse import quote

from jinja2 import BaseLoader, Environment, PackageLoader
from markupsafe import Markup

from graph.report import Report, Source
from service.render import terms, text
from service.render.html import base_environment
from service.render.trials import COLUMNS
from service.render.view import RawJson, view_of

TEMPLATE = "report.md.jinja"
# What means something anywhere in a line; an underscore inside a word does not.
_SPECIAL = re.compile(r"[\\`*\[\]<>|&~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# What GitHub makes a link or a mention of, escaped or not: an invisible character breaks it.
_LIVE = re.compile(r"@(?=\w)|:(?=//)|www(?=\.)|#(?=\d)|(?:mailto|xmpp)(?=:)|GH(?=-\d)", re.IGNORECASE)
_BREAK = "\N{WORD JOINER}"
_ADDRESS = "%/:=&?~#+!$;@()*[]"
# In code nothing is interpreted, but a bar would end a table's cell, and what follows is no code any more.
_PLAIN_CODE = re.compile(r"[A-Za-z0-9_ .,:;=/+()'\"%-]+")
_AT_START = re.compile(r"^(#|[-+=](?=[\s=-]|$)|\d+(?=[.)](?:\s|$)))")


def markdown_report(request: RawJson, report: Report) -> str:
    """The whole document; text from elsewhere cannot become a heading, a link, a table or HTML."""
    view = view_of(request, report)
    page = (
        _environment()
        .get_template(TEMPLATE)
        .render(view=view, report=report, terms=terms, trial_columns=COLUMNS)
    )
    return collapse_blank_lines(page)


def collapse_blank_lines(page: str) -> str:
    """Without the empty lines that templates leave."""
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def escape_markdown(value: object) -> str:
    """Text that shows as it is; only plain `code` between backticks stays code."""
    parts = (_escape_piece(is_code, piece) for is_code, piece in text.pieces(value))
    return _AT_START.sub(_escape_start, "".join(parts))


def _escape_piece(is_code: bool, piece: str) -> str:
    if is_code and _PLAIN_CODE.fullmatch(piece) and piece.strip() == piece:
        return f"`{piece}`"
    shown = f"`{piece}`" if is_code else piece
    return _LIVE.sub(rf"\g<0>{_BREAK}", _SPECIAL.sub(r"\\\g<0>", shown))


def _escape_start(match: re.Match[str]) -> str:
    """A number before a full stop would begin a list: there the stop is escaped, else the mark itself."""
    mark = match.group()
    return f"{mark}\\" if mark.isdigit() else f"\\{mark}"


@cache
def _environment() -> Environment:
    return make_environment(PackageLoader("service.render"))


def make_environment(loader: BaseLoader) -> Environment:
    """Templates whose values print literally."""
    # `finalize` escapes for Markdown and returns Markup, so that Jinja does not escape for HTML.
    environment = base_environment(loader, _finalize)
    environment.filters |= {"source": _source, "cell": _cell}
    return environment


def _finalize(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(escape_markdown(value))


def _cell(value: object) -> Markup:
    """A bar inside code would still end the cell of a table."""
    return Markup(escape_markdown(str(value).replace("`", "'")))


def _source(source: Source) -> Markup:
    """A title with where to find it; a link only if there is an address."""
    title, address = escape_markdown(source.title), text.address(source.where)
    rest = escape_markdown(text.beside_address(source.where))
    link = f"[{title}](<{quote(address, safe=_ADDRESS)}>)" if address else title
    return Markup(f"{link}, {rest}" if rest else link)
