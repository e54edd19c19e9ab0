"""Writes asap_client/client.py from asap_client/async_client.py, so that both clients have one source.

Called by `make client`; a test fails if the file is out of date.
"""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "asap_client"
REPLACEMENTS = (
    (
        '"""The client for asyncio. `make client` writes client.py from this file: edit here."""',
        '"""The client. Written by `make client` from async_client.py: edit there."""',
    ),
    ("in an `async with` statement.", "in a `with` statement. Threads may share one."),
    ("from anyio.to_thread import run_sync\n", ""),
    ("import anyio\n", "import time\n"),
    ("anyio.sleep", "time.sleep"),
    ("await run_sync(advance, steps, outcome)  # an upload reads files", "advance(steps, outcome)"),
    ("AsyncBaseTransport", "BaseTransport"),
    ("AsyncClient", "Client"),
    ("AsyncIterator", "Iterator"),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("aclose", "close"),
    ("aread", "read"),
    ("aiter_lines", "iter_lines"),
    ("async ", ""),
    ("await ", ""),
)


def make_client() -> str:
    text = (FOLDER / "async_client.py").read_text(encoding="utf-8")
    for asynchronous, synchronous in REPLACEMENTS:
        text = text.replace(asynchronous, synchronous)
    for command in ("check --select I,UP028 --fix --unsafe-fixes", "format"):
        words = [sys.executable, "-m", "ruff", *command.split(), "--quiet", "--stdin-filename"]
        words += [str(FOLDER / "client.py"), "-"]
        text = subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    (FOLDER / "client.py").write_text(make_client(), encoding="utf-8")
