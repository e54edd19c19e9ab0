"""The report of a session as one HTML page without script, and as GitHub Markdown; their environments."""

import base64
import hashlib
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from service.render import text
from service.render.bars import report_charts
from service.render.trials import COLUMNS
from service.render.view import ReportView
from tools.kb.entries import Source

FILTERS = (
    "address", "beside_address", "count", "counted", "format_value", "gib", "instant", "percent", "seconds",
    "sentence", "times",
)  # fmt: skip
# What means something anywhere in a line; an underscore inside a word does not.
_SPECIAL = re.compile(r"[\\`*\[\]<>|&~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# What GitHub makes a link or a mention of, escaped or not: an invisible character breaks it.
_LIVE = re.compile(r"@(?=\w)|:(?=//)|www(?=\.)|#(?=\d)|(?:mailto|xmpp)(?=:)|GH(?=-\d)", re.IGNORECASE)
_BREAK = "\N{WORD JOINER}"
_ADDRESS = "%/:=&?~#+!$;@()*[]"
# In code nothing is interpreted, but a bar would end a table's cell, and the rest would no longer be code.
_PLAIN_CODE = re.compile(r"[A-Za-z0-9_ .,:;=/+()'\"%-]+")
_AT_START = re.compile(r"^(#|[-+=](?=[\s=-]|$)|\d+(?=[.)](?:\s|$)))")


def html_report(view: ReportView) -> str:
    """The whole page; all text from elsewhere is escaped."""
    style = stylesheet()
    return (
        html_environment()
        .get_template("report.html.jinja")
        .render(
            view=view,
            report=view.report,
            figures=report_charts(view),
            terms=text,
            trial_columns=COLUMNS,
            style=Markup(style),
            policy=content_security_policy(style),
        )
    )


def markdown_report(view: ReportView) -> str:
    shown = {"view": view, "report": view.report, "terms": text, "trial_columns": COLUMNS}
    return render_markdown("report.md.jinja", **shown)


@cache
def stylesheet(*more: str) -> str:
    """The report's, and further files of the templates' folder."""
    folder = files("service.render").joinpath("templates")
    return "\n".join(folder.joinpath(name).read_text("utf-8").strip() for name in ("report.css", *more))


def content_security_policy(style: str) -> str:
    """Allows the page's own stylesheet and nothing else; servers send it as a header too."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


@cache
def html_environment(*packages: str) -> Environment:
    """Templates of these packages and ours: a value prints as one escaped line, unless it is Markup."""

    def printable(value: object) -> object:
        return value if isinstance(value, Markup) else text.plain(value)

    environment = _environment(printable, *packages, keep_trailing_newline=True)
    environment.filters |= {"prose": prose, "place": "{:.3f}%".format}  # a place or width in a figure
    return environment


def prose(value: object) -> Markup:
    """Text in which `code` is set as code."""
    parts = (
        Markup("<code>{}</code>").format(piece) if is_code else escape(piece)
        for is_code, piece in text.pieces(value)
    )
    return Markup("").join(parts)


def render_markdown(template: str, **content: object) -> str:
    """Text from elsewhere cannot become a heading, a link, a table or HTML."""
    document = _markdown_environment().get_template(template).render(**content)
    return re.sub(r"\n{3,}", "\n\n", document).strip() + "\n"  # without the empty lines that templates leave


@cache
def _markdown_environment() -> Environment:
    """`finalize` escapes for Markdown and returns Markup, so that Jinja does not escape for HTML."""

    def finalize(value: object) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape_markdown(value))

    def cell(value: object) -> Markup:
        """A bar inside code would still end the cell of a table."""
        return Markup(escape_markdown(str(value).replace("`", "'")))

    def source(source: Source) -> Markup:
        """A title with where to find it; a link only if there is an address."""
        title, address = escape_markdown(source.title), text.address(source.where)
        rest = escape_markdown(text.beside_address(source.where))
        link = f"[{title}](<{quote(address, safe=_ADDRESS)}>)" if address else title
        return Markup(f"{link}, {rest}" if rest else link)

    def code_line(value: object) -> Markup:
        """One line of an indented block, where nothing is markup."""
        return Markup(" ".join(str(value).split()))

    environment = _environment(finalize)
    environment.filters |= {"source": source, "cell": cell, "code_line": code_line}
    return environment


def _environment(
    finalize: Callable[[object], object], *packages: str, keep_trailing_newline: bool = False
) -> Environment:
    """What templates of every format share; `finalize` makes a value safe to print."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "service.render")]),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=keep_trailing_newline,
    )
    environment.filters |= {name: getattr(text, name) for name in FILTERS}
    return environment


def escape_markdown(value: object) -> str:
    """Text that shows as it is; only plain `code` between backticks stays code."""
    parts = []
    for is_code, piece in text.pieces(value):
        if is_code and _PLAIN_CODE.fullmatch(piece) and piece.strip() == piece:
            parts.append(f"`{piece}`")
        else:
            shown = f"`{piece}`" if is_code else piece
            parts.append(_LIVE.sub(rf"\g<0>{_BREAK}", _SPECIAL.sub(r"\\\g<0>", shown)))

    def escape_start(match: re.Match[str]) -> str:
        """A number before a full stop would begin a list: there the stop is escaped, else the mark itself."""
        mark = match.group()
        return f"{mark}\\" if mark.isdigit() else f"\\{mark}"

    return _AT_START.sub(escape_start, "".join(parts))
