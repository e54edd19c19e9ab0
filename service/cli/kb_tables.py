"""How `asap kb` prints. Imports rich, so it is itself imported only to print.

Everything printed is data that someone wrote: it goes out as plain text, never as markup.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from service.cli.cells import said
from tools.kb.entry import Entry, Hit

_HEAD = ("id", "title", "status")
_INDENT = (0, 0, 0, 4)


def print_hits(hits: Sequence[Hit], limitation: str | None) -> None:
    """Best first, each with what it says to do or what happened."""
    console = Console()
    for rank, hit in enumerate(hits, start=1):
        mark = Text("  refuted by measurement", "bold red") if hit.warning else Text("")
        console.print(Text.assemble(f"{rank}. ", (hit.entry.id, "bold"), f"  {hit.entry.kind}", mark))
        console.print(Padding(said(hit.entry.title), _INDENT))
        body = hit.entry.body
        gist = body.get("do") or body.get("lesson") or body.get("story", "")
        console.print(Padding(said(gist, style="dim"), _INDENT))
    if not hits:
        console.print("nothing found; try other words, or 'asap kb list'")
    elif limitation:
        sys.stderr.write(f"asap: {limitation} ('asap kb reindex' prepares that)\n")


def print_list(entries: Sequence[Entry]) -> None:
    """One line an entry."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "kind", "status", "title"):
        table.add_column(column, no_wrap=column != "title")
    for entry in entries:
        table.add_row(said(entry.id), entry.kind, entry.status, said(entry.title))
    console = Console()
    console.print(table)
    console.print(f"\n{len(entries)} entries; 'asap kb show ID' gives one in full")


def print_entry(entry: Entry) -> None:
    """Everything that is known of it."""
    console = Console()
    console.print(Text.assemble(said(entry.id, "bold"), f"  {entry.kind}, {entry.status}"))
    console.print(said(entry.title))
    for field, value in entry.body.items():
        if field not in _HEAD and value not in ("", [], {}):
            console.print()
            console.print(said(field, style="bold"))
            for text in _lines(value):
                if "://" in text:  # an address stays in one piece
                    console.print(Text("    ").append_text(said(text)), soft_wrap=True)
                else:
                    console.print(Padding(said(text), _INDENT))


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield f"- {_item(item)}"
    else:
        yield _item(value)


def _item(value: object) -> str:
    if isinstance(value, Mapping):
        return _pairs(value)
    return value if isinstance(value, str) else str(value)


def _pairs(value: Mapping[str, Any]) -> str:
    if value.keys() == {"title", "where"}:
        return f"{value['title']}: {value['where']}"
    if "fact" in value:
        comparisons = (
            f"{key.replace('_', ' ')} {_word(item)}" for key, item in value.items() if key != "fact"
        )
        return f"{value['fact']} {' and '.join(comparisons)}"
    return ", ".join(f"{key} {_word(item)}" for key, item in value.items() if item is not None)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)
