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

from tools.kb.entry import Entry, Hit

_PROSE = ("symptoms", "do", "why", "effect", "story", "lesson")
_HEAD = ("id", "title", "status")
_INDENT = (0, 0, 0, 4)


def print_hits(hits: Sequence[Hit], limitation: str | None) -> None:
    """Best first, each with what it says to do or what happened."""
    console = Console()
    for rank, hit in enumerate(hits, start=1):
        mark = Text("  refuted by measurement", "bold red") if hit.warning else Text("")
        console.print(Text.assemble(f"{rank}. ", (hit.entry.id, "bold"), f"  {hit.entry.kind}", mark))
        console.print(Padding(Text(hit.entry.title), _INDENT))
        said = hit.entry.body.get("do") or hit.entry.body.get("lesson") or hit.entry.body.get("story", "")
        console.print(Padding(Text(_one_line(said), style="dim"), _INDENT))
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
        table.add_row(Text(entry.id), entry.kind, entry.status, Text(entry.title))
    console = Console()
    console.print(table)
    console.print(f"\n{len(entries)} entries; 'asap kb show ID' gives one in full")


def print_entry(entry: Entry) -> None:
    """Everything that is known of it."""
    console = Console()
    console.print(Text.assemble((entry.id, "bold"), f"  {entry.kind}, {entry.status}\n{entry.title}"))
    for field, value in entry.body.items():
        if field not in _HEAD and value not in ("", [], {}):
            console.print(Text(f"\n{field}", style="bold"))
            for text in _lines(field, value):
                if "://" in text:  # an address stays in one piece
                    console.print(Text(f"    {text}"), soft_wrap=True)
                else:
                    console.print(Padding(Text(text), _INDENT))


def _lines(field: str, value: object) -> Iterator[str]:
    if field in _PROSE:
        yield _one_line(value)
    elif isinstance(value, list):
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


def _one_line(value: object) -> str:
    return " ".join(str(value).split())
