"""`asap kb`: search, read and extend the knowledge base."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from service.cli.io import make_table, read_object, safe_text, write_json_line
from service.cli.parser import add_action
from service.strict_json import JsonObject
from tools.errors import InputError
from tools.kb.entries import ARCHITECTURES, BOTTLENECKS, KINDS, STATUSES, Case, Entry, Hit, Playbook

if TYPE_CHECKING:
    from tools.kb import KnowledgeBase


_HEAD = ("id", "title", "status")
_INDENT = (0, 0, 0, 4)


def print_hits(hits: Sequence[Hit], limitation: str | None) -> None:
    """Best first, each with what it says to do or what happened."""
    console = Console()
    for rank, hit in enumerate(hits, start=1):
        mark = Text("  refuted by measurement", "bold red") if hit.warning else Text("")
        console.print(Text.assemble(f"{rank}. ", (hit.entry.id, "bold"), f"  {hit.entry.kind}", mark))
        console.print(Padding(safe_text(hit.entry.title), _INDENT))
        console.print(Padding(safe_text(_gist(hit.entry.body), style="dim"), _INDENT))
    if not hits:
        console.print("nothing found; try other words, or 'asap kb list'")
    elif limitation:
        sys.stderr.write(f"asap: {limitation} (run 'asap kb reindex')\n")


def _gist(body: Playbook | Case) -> str:
    return body.do if isinstance(body, Playbook) else body.lesson or body.story


def print_list(entries: Sequence[Entry]) -> None:
    """One line per entry."""
    table = make_table("id", "kind", "status", "title", wraps=("title",))
    for entry in entries:
        table.add_row(safe_text(entry.id), entry.kind, entry.status, safe_text(entry.title))
    console = Console()
    console.print(table)
    console.print(f"\n{len(entries)} entries; 'asap kb show ID' prints one in full")


def print_entry(entry: Entry) -> None:
    """All fields of one entry."""
    console = Console()
    console.print(Text.assemble(safe_text(entry.id, "bold"), f"  {entry.kind}, {entry.status}"))
    console.print(safe_text(entry.title))
    for field, value in entry.json_body().items():
        if field not in _HEAD and value not in ("", [], {}):
            console.print()
            console.print(safe_text(field, style="bold"))
            for text in _lines(value):
                if "://" in text:  # an address stays in one piece
                    console.print(Text("    ").append_text(safe_text(text)), soft_wrap=True)
                else:
                    console.print(Padding(safe_text(text), _INDENT))


def _lines(value: JsonValue) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield f"- {_item(item)}"
    else:
        yield _item(value)


def _item(value: JsonValue) -> str:
    if isinstance(value, dict):
        return _pairs(value)
    return value if isinstance(value, str) else str(value)


def _pairs(value: JsonObject) -> str:
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


HELP = """\
Search what is known about sharding: playbooks (advice, with the conditions under which it holds) and cases
(what was measured before and after a change), and store cases of your own.

Examples:
  asap kb search "all-to-all across nodes takes a third of the step" --architecture moe
  asap kb show ep-inside-fast-domain
  asap kb list --kind case --status refuted
  asap kb add case.json --by anna
  asap kb mark our-70b-tp4 --status confirmed --by anna --reason "1.21x over 500 steps"

Your own cases are stored in the data folder (ASAP_DATA_DIR, default .asap), or in the Chroma server of
ASAP_CHROMA_URL.
"""
_MAX_CASE_BYTES = 2**20
_CASE_EXAMPLE = """\
FILE contains one JSON object; - reads standard input:
  {"id": "our-70b-tp4", "title": "tp 8 to 4 on 64 H100", "story": "What was changed, and what happened.",
   "model": "Llama 3.1 70B", "architecture": "dense", "device": "h100-sxm-80gb", "num_devices": 64,
   "framework": "megatron-core", "bottleneck": "communication", "before": {"tp": 8}, "after": {"tp": 4},
   "predicted": {"speedup": 1.2}, "measured": {"metric": "step time, s", "before": 9.8, "after": 8.1}}
Required: id, title and story. "status" defaults to hypothesis. Adding the same case again changes nothing.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_search(add_action(actions, "search", "find the entries that answer a question or a diagnosis"))
    add_action(actions, "show", "print one entry in full").add_argument(
        "id", metavar="ID", help="an id from 'asap kb list'"
    )
    listing = add_action(actions, "list", "print one line per entry")
    listing.add_argument("--kind", choices=KINDS, help="only entries of this kind")
    listing.add_argument("--status", choices=STATUSES, help="only entries with this status")
    adding = add_action(actions, "add", "store a case of your own", _CASE_EXAMPLE)
    adding.add_argument("file", metavar="FILE", help="the case as JSON, or - for standard input")
    adding.add_argument("--by", metavar="NAME", default="command line", help="your name, for the history")
    _add_mark(add_action(actions, "mark", "change the status of a case; the old one stays in its history"))
    add_action(actions, "reindex", "recompute the vectors for search by meaning")
    for action in actions.choices.values():
        action.add_argument("--data-dir", metavar="DIR", type=Path, help="overrides ASAP_DATA_DIR")


def _add_search(action: ArgumentParser) -> None:
    action.add_argument("query", metavar="QUERY", help="words, a sentence, or a whole diagnosis")
    action.add_argument(
        "--device", metavar="NAME", help="prefer entries about this device, for example h100-sxm-80gb"
    )
    action.add_argument("--architecture", choices=ARCHITECTURES, help="prefer entries about such models")
    action.add_argument("--bottleneck", choices=BOTTLENECKS, help="prefer entries about this bottleneck")
    action.add_argument(
        "--limit", metavar="N", type=int, default=5, help="maximum number of hits (default: 5)"
    )


def _add_mark(action: ArgumentParser) -> None:
    action.add_argument("id", metavar="ID", help="the id of a case")
    action.add_argument("--status", choices=STATUSES, required=True, help="the new status")
    action.add_argument("--by", metavar="NAME", required=True, help="your name, for the history")
    action.add_argument("--reason", metavar="TEXT", required=True, help="what was observed")


def run(args: Namespace) -> int:
    """Run one action; every error names the field or the option."""
    writes = args.action in ("add", "mark", "reindex")
    knowledge = _open(args.data_dir, writes=writes)
    try:
        _ACTIONS[args.action](knowledge, args)
    finally:
        knowledge.close()
    return 0


def _open(data_dir: Path | None, *, writes: bool) -> "KnowledgeBase":
    from service.runtime import embedder_of, has_knowledge, open_knowledge
    from service.settings import load_settings
    from tools.kb import open_seed

    settings = load_settings()
    if data_dir is not None:
        settings = settings.model_copy(update={"data_dir": data_dir})
    if writes or has_knowledge(settings):
        return open_knowledge(settings)
    return open_seed(embedder=embedder_of(settings))


def _search(knowledge: "KnowledgeBase", args: Namespace) -> None:
    from tools.hardware import get_device

    facets = {name: value for name in ("architecture", "bottleneck") if (value := getattr(args, name))}
    if args.device:
        try:
            facets["device"] = get_device(args.device).name
        except InputError as error:
            raise InputError("--device", error.given, error.allowed) from None
    knowledge.prepare(
        lambda count: sys.stderr.write(f"asap: computing the vectors of {count} entries, once\n")
    )
    hits = knowledge.search(args.query, facets, limit=args.limit)
    if args.json:
        for hit in hits:
            write_json_line(_hit(hit))
        return

    print_hits(hits, knowledge.limitation)


def _show(knowledge: "KnowledgeBase", args: Namespace) -> None:
    _print_entry(knowledge.get(args.id), as_json=args.json)


def _list(knowledge: "KnowledgeBase", args: Namespace) -> None:
    entries: Sequence[Entry] = knowledge.entries(kind=args.kind, status=args.status)
    if args.json:
        for entry in entries:
            write_json_line(_head(entry))
        return

    print_list(entries)


def _add(knowledge: "KnowledgeBase", args: Namespace) -> None:
    case = read_object(args.file, _MAX_CASE_BYTES)
    _print_entry(knowledge.add(case, by=args.by), as_json=args.json)


def _mark(knowledge: "KnowledgeBase", args: Namespace) -> None:
    entry = knowledge.mark(args.id, args.status, by=args.by, reason=args.reason)
    _print_entry(entry, as_json=args.json)


def _reindex(knowledge: "KnowledgeBase", args: Namespace) -> None:
    vectors = knowledge.reindex()
    if args.json:
        write_json_line({"vectors": vectors, "limitation": knowledge.limitation})
    else:
        print(
            f"{vectors} entries indexed by meaning"
            if vectors
            else f"nothing to compute; {knowledge.limitation}"
        )


_ACTIONS = {"search": _search, "show": _show, "list": _list, "add": _add, "mark": _mark, "reindex": _reindex}


def _print_entry(entry: Entry, *, as_json: bool) -> None:
    if as_json:
        write_json_line({**_head(entry), "body": entry.json_body()})
        return

    print_entry(entry)


def _head(entry: Entry) -> JsonObject:
    return {
        "id": entry.id,
        "kind": entry.kind,
        "title": entry.title,
        "status": entry.status,
        "facets": {name: list(values) for name, values in entry.facets.items()},
    }


def _hit(hit: Hit) -> JsonObject:
    return {
        **_head(hit.entry),
        "warning": hit.warning,
        "score": round(hit.score, 4),
        "matched": list(hit.matched),
        "body": hit.entry.json_body(),
    }
