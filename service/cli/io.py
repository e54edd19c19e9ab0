"""Input and output of commands: JSON from files or standard input, options, notes, tables."""

import json
import re
import sys
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from service.strict_json import JsonObject, is_complete, parse_object
from tools.errors import InputError

if TYPE_CHECKING:
    from pydantic import JsonValue
    from rich.table import Table
    from rich.text import Text

    from tools.scenario import Scenario

MAX_INPUT_BYTES = 512 * 2**20
MAX_SCENARIO_BYTES = 16 * 2**20
"""For commands that read one scenario: no model or plan is described at such length."""
STANDARD_INPUT = "-"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/(?!.*\.(?:jsonl?|toml|ya?ml|sh|py)$)[A-Za-z0-9][\w.-]*")
"""Name of a model on the Hugging Face hub: owner/name."""
INSPECTED_LINES = 20
ARGUMENTS = {
    "text": "FILE",
    "folder": "DIR",
    "format": "--format",
    "model": "--model",
    "model.vocab_size": "--vocab-size",
    "device": "--device",
    "devices": "--devices",
    "precision": "--precision",
    "cluster.device": "--device",
    "cluster.num_devices": "--num-devices",
    "cluster.devices_per_node": "--devices-per-node",
    "cluster.num_slices": "--num-slices",
    "training.seq_len": "--seq-len",
    "training.global_batch_size": "--global-batch-size",
    "training.framework": "--framework",
    "training.precision": "--precision",
    "plan.micro_batch_size": "--micro-batch-size",
    "overrides": "--set",
    "variables": "--set",
}
"""What commands call a path of the domain that they have an argument for."""


class JsonRecord(NamedTuple):
    """One object of the input, or the error in its place, and the line where it starts (from 1)."""

    line: int
    content: "JsonObject | InputError"


GOAL_OPTIONS = {
    "price": "price_per_device_hour",
    "failures": "device_hours_between_failures",
    "checkpoint_s": "checkpoint_s",
}
"""Options of a run's forecast that are numbers, and their fields."""


def read_records(
    source: str, max_bytes: int = MAX_INPUT_BYTES, argument: str = "FILE"
) -> Iterator[JsonRecord]:
    """The objects of a JSONL text in order, or the single object of a JSON text, however it is laid out.

    A bad line yields its error in its place; an unreadable or empty source raises InputError. `argument` is
    what the command line calls the source.
    """
    data, name = read_bytes(source, max_bytes, argument), source_name(source)
    if not data.strip():
        raise InputError(name, "no text", "must contain a JSON object, or one per line")
    # JSONL has lines that are objects by themselves; one object over several lines has none.
    first, *more = islice((line for line in BytesIO(data) if line.strip()), INSPECTED_LINES)
    is_jsonl = bool(more) and (
        is_complete(first)
        or (not is_complete(data) and any(line.lstrip()[:1] == b"{" and is_complete(line) for line in more))
    )
    for number, line in enumerate(BytesIO(data) if is_jsonl else [data], start=1):
        if line.strip():
            try:
                yield JsonRecord(number, parse_object(line.rstrip(), name, number))
            except InputError as error:
                yield JsonRecord(number, error)


def read_goal(run: "JsonValue", args: Namespace) -> "JsonValue":
    """A scenario's `run` with what the options state of it."""
    stated = {name: text for name in GOAL_OPTIONS if (text := getattr(args, name))}
    if not stated and not args.tokens:
        return run
    from tools.frameworks.words import parse_total

    goal = dict(run) if isinstance(run, dict) else {}
    if args.tokens:
        goal["tokens"] = parse_total(args.tokens, "--tokens")
    for name, text in stated.items():
        try:
            goal[GOAL_OPTIONS[name]] = float(text)
        except ValueError:
            raise InputError(f"--{name.replace('_', '-')}", text, "must be a number") from None
    return goal


def read_scenario(source: str, argument: str = "FILE", *, need_plan: bool = True) -> "Scenario":
    from tools.scenario import parse_scenario

    return parse_scenario(read_object(source, argument=argument), need_plan=need_plan)


def read_object(source: str, max_bytes: int = MAX_SCENARIO_BYTES, argument: str = "FILE") -> JsonObject:
    """The one object of a source. A second one, or none, is an InputError."""
    records = read_records(source, max_bytes, argument)
    first = next(records)
    if isinstance(first.content, InputError):
        raise first.content
    second = next(records, None)
    if second is not None:
        place = f"{source_name(source)} line {second.line}"
        raise InputError(place, "a second object", "must contain only one")
    return first.content


def read_bytes(source: str, max_bytes: int = MAX_INPUT_BYTES, argument: str = "FILE") -> bytes:
    """All of a file, or of standard input for `-`, without a byte-order mark."""
    if source == STANDARD_INPUT:
        if sys.stdin.isatty():
            write_note("reading standard input, end it with Ctrl-D")
        data = sys.stdin.buffer.read(max_bytes + 1)
    else:
        try:
            with Path(source).open("rb") as file:
                data = file.read(max_bytes + 1)
        except OSError as error:
            reason = f"{error.strerror or error}; give a readable file, or - for standard input"
            if isinstance(error, FileNotFoundError) and HUB_NAME.fullmatch(source):
                reason = (
                    "no such file; if it is a model on the Hugging Face hub: ASAP downloads nothing, get its "
                    f"config.json ('hf download {source} config.json --local-dir .') and give that file"
                )
            raise InputError(argument, source, reason) from None
    if len(data) > max_bytes:
        raise InputError(source_name(source), "a longer text", f"must be at most {max_bytes} bytes; split it")
    return data.removeprefix(b"\xef\xbb\xbf")


def source_name(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source


@contextmanager
def naming_arguments(args: Namespace, here: Mapping[str, str] | None = None) -> Iterator[None]:
    """A mistake in what this command line states is named by its argument; `here` wins over the table."""
    try:
        yield
    except InputError as error:
        name = {**ARGUMENTS, **(here or {})}.get(error.path, error.path)
        is_of_another = name.startswith("--") and not hasattr(args, name[2:].replace("-", "_"))
        raise (error if is_of_another else error.at(name)) from None


def parse_fields(text: str, option: str) -> JsonObject:
    """A JSON object, or name=value pairs separated by commas."""
    if text.lstrip().startswith("{"):
        return parse_object(text.encode(), option)
    fields: JsonObject = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            allowed = "allowed: name=value pairs separated by commas, or a JSON object"
            raise InputError(option, part, allowed)
        fields[name.strip()] = parse_value(value.strip())
    return fields


def parse_value(text: str) -> "JsonValue":
    """JSON, or else a plain word."""
    try:
        value: JsonValue = json.loads(text)
        return value
    except (ValueError, RecursionError):
        return text


def write_json(*values: object) -> None:
    """Strict JSON on standard output, each value on its line."""
    for value in values:
        sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def write_document(text: str) -> None:
    """In UTF-8 whatever the terminal's encoding: an HTML page declares it."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)


def write_file(path: str, text: str, option: str) -> None:
    """An error names the option that gave the path."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(option, path, f"cannot be written: {error.strerror or error}") from None


def write_note(text: str) -> None:
    """One line on standard error, whatever the text holds."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    sys.stderr.write(f"asap: {line}\n")


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether this process holds the lock of the file; it goes with the process, however that ends."""
    import fcntl

    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def make_table(
    *columns: str, rows: "Iterable[Sequence[str | Text]]" = (), title: str = "", wraps: Collection[str] = ()
) -> "Table":
    """A table without lines. ">" before a name aligns its column to the right; only those in `wraps` wrap."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title=title or None, title_justify="left")
    for column in columns:
        name = column.removeprefix(">")
        table.add_column(name, justify="right" if name != column else "left", no_wrap=name not in wraps)
    for row in rows:
        table.add_row(*(safe_text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def print_fields(fields: "dict[str, str | None]") -> None:
    """A line for each field that has a value."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, value in fields.items():
        if value:
            table.add_row(safe_text(name, "bold"), safe_text(value))
    Console().print(table)


def safe_text(value: object, style: str = "") -> "Text":
    """Printed literally: a name may look like rich's markup or contain terminal control codes."""
    from rich.text import Text

    from service.render.text import plain

    return Text(plain(value), style=style)
