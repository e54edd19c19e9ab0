"""Input and output of commands: JSON and JSONL from a file or standard input, name=value options, JSON
lines, text cells, and the connection to an `asap serve`.
"""

import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Iterator, Mapping
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from service.strict_json import JsonObject, is_complete, parse_object
from tools.errors import AsapError, InfeasibleError, InputError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from pydantic import JsonValue
    from rich.table import Table
    from rich.text import Text

    from asap_client.calls import ReportForm
    from asap_client.client import Client
    from asap_client.models import Session

MAX_INPUT_BYTES = 512 * 2**20
MAX_SCENARIO_BYTES = 16 * 2**20
"""For commands that read one scenario: no model or plan is described at such length."""
STANDARD_INPUT = "-"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/(?!.*\.(?:jsonl?|toml|ya?ml|sh|py)$)[A-Za-z0-9][\w.-]*")
"""Of a model on the Hugging Face hub: owner/name."""
_INSPECTED_LINES = 20


class JsonRecord(NamedTuple):
    """One object of the input, or the error in its place, and the line where it starts (from 1)."""

    line: int
    content: "JsonObject | InputError"


def read_records(
    source: str, max_bytes: int = MAX_INPUT_BYTES, argument: str = "FILE"
) -> Iterator[JsonRecord]:
    """The objects of a JSONL text in order, or the single object of a JSON text, however it is laid out.

    A bad line yields its error in its place; an unreadable or empty source raises InputError. `argument` is
    what the command line calls the source.
    """
    data, name = read_bytes(source, max_bytes, argument), _name(source)
    if not data.strip():
        raise InputError(name, "no text", "must contain a JSON object, or one per line")
    if not _is_json_lines(data):
        yield _record(data.rstrip(), name, 1)
        return
    for number, line in enumerate(BytesIO(data), start=1):
        if line.strip():
            yield _record(line.rstrip(), name, number)


def read_object(source: str, max_bytes: int = MAX_INPUT_BYTES, argument: str = "FILE") -> JsonObject:
    """The one object of a source. A second one, or none, is an InputError."""
    records = read_records(source, max_bytes, argument)
    first = next(records)
    if isinstance(first.content, InputError):
        raise first.content
    second = next(records, None)
    if second is not None:
        raise InputError(f"{_name(source)} line {second.line}", "a second object", "must contain only one")
    return first.content


def read_bytes(source: str, max_bytes: int = MAX_INPUT_BYTES, argument: str = "FILE") -> bytes:
    """All of a file, or of standard input for `-`, without a byte-order mark."""
    data = _read_at_most(source, max_bytes + 1, argument)
    if len(data) > max_bytes:
        raise InputError(_name(source), "a longer text", f"must be at most {max_bytes} bytes; split it")
    return data.removeprefix(b"\xef\xbb\xbf")


def write_json_line(value: object) -> None:
    """One line of strict JSON on standard output."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def write_document(text: str) -> None:
    """In UTF-8 whatever the terminal's encoding: an HTML page declares it."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)


def _read_at_most(source: str, limit_bytes: int, argument: str) -> bytes:
    if source == STANDARD_INPUT:
        if sys.stdin.isatty():
            sys.stderr.write("asap: reading standard input, end it with Ctrl-D\n")
        return sys.stdin.buffer.read(limit_bytes)
    try:
        with Path(source).open("rb") as file:
            return file.read(limit_bytes)
    except OSError as error:
        reason = f"{error.strerror or error}; give a readable file, or - for standard input"
        if isinstance(error, FileNotFoundError) and HUB_NAME.fullmatch(source):
            reason = (
                "no such file; if it is a model on the Hugging Face hub: ASAP downloads nothing, get its "
                f"config.json ('hf download {source} config.json --local-dir .') and give that file"
            )
        raise InputError(argument, source, reason) from None


def _is_json_lines(data: bytes) -> bool:
    """JSONL has lines that are objects by themselves; one object over several lines has none."""
    lines = list(islice((line for line in BytesIO(data) if line.strip()), _INSPECTED_LINES))
    if len(lines) == 1:
        return False
    if is_complete(lines[0]):
        return True
    return not is_complete(data) and any(
        line.lstrip()[:1] == b"{" and is_complete(line) for line in lines[1:]
    )


def _record(data: bytes, source: str, line: int) -> JsonRecord:
    try:
        return JsonRecord(line, parse_object(data, source, line))
    except InputError as error:
        return JsonRecord(line, error)


def _name(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source


def parse_fields(text: str, option: str) -> JsonObject:
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


FORMS: "dict[str, ReportForm]" = {"markdown": "text/markdown", "html": "text/html"}
COMPLETED, WAITING = "completed", "waiting_approval"


def add_server(actions: "_SubParsersAction[ArgumentParser]") -> None:
    for action in actions.choices.values():
        action.add_argument("--server", metavar="URL", help="address of the server (ASAP_SERVER)")


def connect(server: str | None) -> "Client":
    """To this address, or that of the settings, with the key of the settings."""
    from asap_client.client import Client
    from asap_client.errors import InputError as ClientInputError
    from service.settings import load_settings

    settings = load_settings()
    key = settings.api_key.get_secret_value() if settings.api_key else None
    try:
        return Client(server or settings.server, key)
    except ClientInputError as error:
        raise InputError("--server", error.given, error.allowed) from None


def check_ended(session: "Session") -> bool:
    """Whether it completed. Prints the next step if it waits for a decision; raises if it ended otherwise."""
    if session.state == WAITING:
        sys.stderr.write(
            f"asap: session {session.id} waits for a decision: 'asap sessions decide {session.id} approve'\n"
        )
    if session.state in (COMPLETED, WAITING):
        return session.state == COMPLETED
    error = session.error or {}
    message = error.get("message") or f"session {session.id} was {session.state}"
    raise InfeasibleError(message) if error.get("kind") == "infeasible" else AsapError(message)


def make_table(*columns: str, title: str = "", wraps: Collection[str] = ()) -> "Table":
    """Without lines. ">" before a name aligns its column to the right; only those in `wraps` may wrap."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title=title or None, title_justify="left")
    for column in columns:
        name = column.removeprefix(">")
        table.add_column(name, justify="right" if name != column else "left", no_wrap=name not in wraps)
    return table


def print_fields(fields: Mapping[str, object]) -> None:
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
