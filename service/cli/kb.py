"""`asap kb`: search, read and extend the knowledge base."""

from argparse import ArgumentParser, Namespace
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from service.cli.io import make_table, naming_arguments, read_object, safe_text, write_json, write_note
from service.cli.parser import add_action, add_actions, add_options
from tools.kb.entries import ARCHITECTURES, BOTTLENECKS, KINDS, STATUSES, Entry, Playbook

if TYPE_CHECKING:
    from pydantic import JsonValue

    from tools.kb import KnowledgeBase

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
MAX_CASE_BYTES = 2**20
CASE_EXAMPLE = """\
FILE contains one JSON object; - reads standard input:
  {"id": "our-70b-tp4", "title": "tp 8 to 4 on 64 H100", "story": "What was changed, and what happened.",
   "model": "Llama 3.1 70B", "architecture": "dense", "device": "h100-sxm-80gb", "num_devices": 64,
   "framework": "megatron-core", "bottleneck": "communication", "before": {"tp": 8}, "after": {"tp": 4},
   "predicted": {"speedup": 1.2}, "measured": {"metric": "step time, s", "before": 9.8, "after": 8.1}}
Required: id, title and story. "status" defaults to hypothesis. Adding the same case again changes nothing.
"""
INDENT = (0, 0, 0, 4)
WRITING = ("add", "mark", "reindex")


def add_arguments(parser: ArgumentParser) -> None:
    actions = add_actions(parser)
    what = "find the entries that answer a question or a diagnosis"
    searching = add_action(actions, "search", what, search)
    add_options(
        searching,
        ("query", "QUERY", "words, a sentence, or a whole diagnosis"),
        ("--device", "NAME", "prefer entries about this device, for example h100-sxm-80gb"),
    )
    searching.add_argument("--architecture", choices=ARCHITECTURES, help="prefer entries about such models")
    searching.add_argument("--bottleneck", choices=BOTTLENECKS, help="prefer entries about this bottleneck")
    most = "maximum number of hits (default: 5)"
    searching.add_argument("--limit", metavar="N", type=int, default=5, help=most)
    showing = add_action(actions, "show", "print one entry in full", show)
    showing.add_argument("id", metavar="ID", help="an id from 'asap kb list'")
    listing = add_action(actions, "list", "print one line per entry", list_entries)
    listing.add_argument("--kind", choices=KINDS, help="only entries of this kind")
    listing.add_argument("--status", choices=STATUSES, help="only entries with this status")
    adding = add_action(actions, "add", "store a case of your own", add, CASE_EXAMPLE)
    adding.add_argument("file", metavar="FILE", help="the case as JSON, or - for standard input")
    adding.add_argument("--by", metavar="NAME", default="command line", help="your name, for the history")
    what = "change the status of a case; the old one stays in its history"
    marking = add_action(actions, "mark", what, mark)
    marking.add_argument("id", metavar="ID", help="the id of a case")
    marking.add_argument("--status", choices=STATUSES, required=True, help="the new status")
    marking.add_argument("--by", metavar="NAME", required=True, help="your name, for the history")
    marking.add_argument("--reason", metavar="TEXT", required=True, help="what was observed")
    add_action(actions, "reindex", "recompute the vectors for search by meaning", reindex)
    for action in actions.choices.values():
        action.add_argument("--data-dir", metavar="DIR", type=Path, help="overrides ASAP_DATA_DIR")


def run(args: Namespace) -> None:
    from service.runtime import embedder_of, has_knowledge, open_knowledge
    from service.settings import load_settings
    from tools.kb import open_seed

    settings = load_settings()
    if args.data_dir is not None:
        settings = settings.model_copy(update={"data_dir": args.data_dir})
    is_kept = args.action in WRITING or has_knowledge(settings)
    with closing(open_knowledge(settings) if is_kept else open_seed(embedder=embedder_of(settings))) as base:
        args.act(base, args)


def search(knowledge: "KnowledgeBase", args: Namespace) -> None:
    """Best first, each with what it says to do or what happened."""
    from tools.hardware import get_device

    facets = {name: value for name in ("architecture", "bottleneck") if (value := getattr(args, name))}
    if args.device:
        with naming_arguments(args):
            facets["device"] = get_device(args.device).name
    knowledge.prepare(lambda count: write_note(f"computing the vectors of {count} entries, once"))
    hits = knowledge.search(args.query, facets, limit=args.limit)
    if args.json:
        for hit in hits:
            found = {"warning": hit.warning, "score": round(hit.score, 4), "matched": list(hit.matched)}
            write_json({**_head(hit.entry), **found, "body": hit.entry.json_body()})
        return
    console = Console()
    for rank, hit in enumerate(hits, start=1):
        warning = Text("  refuted by measurement", "bold red") if hit.warning else Text("")
        console.print(Text.assemble(f"{rank}. ", (hit.entry.id, "bold"), f"  {hit.entry.kind}", warning))
        body = hit.entry.body
        gist = body.do if isinstance(body, Playbook) else body.lesson or body.story
        console.print(Padding(safe_text(hit.entry.title), INDENT))
        console.print(Padding(safe_text(gist, style="dim"), INDENT))
    if not hits:
        console.print("nothing found; try other words, or 'asap kb list'")
    elif knowledge.limitation:
        write_note(f"{knowledge.limitation} (run 'asap kb reindex')")


def show(knowledge: "KnowledgeBase", args: Namespace) -> None:
    _print_entry(knowledge.get(args.id), args)


def list_entries(knowledge: "KnowledgeBase", args: Namespace) -> None:
    entries = knowledge.entries(kind=args.kind, status=args.status)
    if args.json:
        write_json(*map(_head, entries))
        return
    rows = ((entry.id, entry.kind, entry.status, entry.title) for entry in entries)
    console = Console()
    console.print(make_table("id", "kind", "status", "title", rows=rows, wraps=("title",)))
    console.print(f"\n{len(entries)} entries; 'asap kb show ID' prints one in full")


def add(knowledge: "KnowledgeBase", args: Namespace) -> None:
    _print_entry(knowledge.add(read_object(args.file, MAX_CASE_BYTES), by=args.by), args)


def mark(knowledge: "KnowledgeBase", args: Namespace) -> None:
    _print_entry(knowledge.mark(args.id, args.status, by=args.by, reason=args.reason), args)


def reindex(knowledge: "KnowledgeBase", args: Namespace) -> None:
    vectors = knowledge.reindex()
    if args.json:
        write_json({"vectors": vectors, "limitation": knowledge.limitation})
    elif vectors:
        print(f"{vectors} entries indexed by meaning")
    else:
        print(f"nothing to compute; {knowledge.limitation}")


def _head(entry: Entry) -> dict[str, str | dict[str, list[str]]]:
    return {
        "id": entry.id,
        "kind": entry.kind,
        "title": entry.title,
        "status": entry.status,
        "facets": {name: list(values) for name, values in entry.facets.items()},
    }


def _print_entry(entry: Entry, args: Namespace) -> None:
    if args.json:
        write_json({**_head(entry), "body": entry.json_body()})
        return
    console = Console()
    console.print(Text.assemble(safe_text(entry.id, "bold"), f"  {entry.kind}, {entry.status}"))
    console.print(safe_text(entry.title))
    for field, value in entry.json_body().items():
        if field in ("id", "title", "status") or value in ("", [], {}):
            continue
        console.print()
        console.print(safe_text(field, style="bold"))
        lines = [f"- {_line(item)}" for item in value] if isinstance(value, list) else [_line(value)]
        for text in lines:
            if "://" in text:  # an address stays in one piece
                console.print(Text("    ").append_text(safe_text(text)), soft_wrap=True)
            else:
                console.print(Padding(safe_text(text), INDENT))


def _line(value: "JsonValue") -> str:
    """A source, a condition on a fact, pairs of names and values, or any other value."""
    if not isinstance(value, dict):
        return str(value)
    if value.keys() == {"title", "where"}:
        return f"{value['title']}: {value['where']}"
    if "fact" in value:
        rest = (f"{key.replace('_', ' ')} {_word(item)}" for key, item in value.items() if key != "fact")
        return f"{value['fact']} {' and '.join(rest)}"
    return ", ".join(f"{key} {_word(item)}" for key, item in value.items() if item is not None)


def _word(value: "JsonValue") -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)
