"""The commands of a documentation page, as one shell script.

A fenced block is run when it is `sh` (as it stands), `console` (lines after `$ ` are run, and what the page
shows of their output must come) or `python`. The line `<!-- not run: REASON -->` above leaves one out.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^\s*```(\w*)\s*$")
NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
PORT = re.compile(r"(?<=localhost:)8000|(?<=127\.0\.0\.1:)8000|(?<=--port )8000")
ELISION = "..."


@dataclass(frozen=True)
class Block:
    kind: str
    line: int
    text: str
    reason: str | None
    """Why it is not run."""


def fenced_blocks(page: str) -> list[Block]:
    """Every block, whatever it holds, in order."""
    found: list[Block] = []
    lines = page.splitlines()
    start: int | None = None
    kind = ""
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if fence and start is None:
            start, kind = number, fence[1]
        elif fence and start is not None:
            above = NOT_RUN.match(lines[start - 1]) if start else None
            text = "\n".join(lines[start + 1 : number])
            found.append(Block(kind, start + 1, text, above[1] if above else None))
            start = None
    return found


def blocks(page: str) -> list[Block]:
    """Those that hold commands."""
    return [block for block in fenced_blocks(page) if block.kind in _WRITERS]


def script(page: str, port: int) -> str:
    """Every block of the page in one process, so that later ones find what earlier ones made."""
    parts = [_HEAD]
    for block in blocks(page):
        if block.reason is None:
            text = PORT.sub(str(port), block.text)
            parts += [f"place={block.line}", _WRITERS[block.kind](text, port)]
    return "\n".join(parts) + "\n"


_HEAD = """\
missing() { cat shown.txt >&2; return 1; }
set -Eeuo pipefail
trap 'echo "the block at line $place failed: $BASH_COMMAND" >&2' ERR
trap 'jobs -p | xargs --no-run-if-empty kill 2> serve.end; wait' EXIT
"""


def _shell(text: str, port: int) -> str:
    """A server goes to the background, and is waited for."""
    ready = f"until curl -sf localhost:{port}/readyz > ready.json; do kill -0 $!; sleep 0.2; done"
    started = rf"\g<1> > serve.out 2> serve.log &\n{ready}"
    return re.sub(r"^(asap serve[^#&\n]*)(?:&\s*)?(?:#.*)?$", started, text, flags=re.MULTILINE)


def _console(text: str, port: int) -> str:
    """The output is kept, whatever the status, and every line that the page shows must be in it."""
    made = []
    for exchange in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = exchange.partition("\n")
        made.append(f"{{ {command}; }} > shown.txt 2>&1 || true")
        made += [
            f"grep --quiet --fixed-strings -- {shlex.quote(part.strip())} shown.txt || missing"
            for line in output.splitlines()
            for part in line.split(ELISION)
            if part.strip()
        ]
    return "\n".join(made)


def _python(text: str, port: int) -> str:
    return f"python - <<'END_OF_EXAMPLE'\n{text}\nEND_OF_EXAMPLE"


_WRITERS = {"sh": _shell, "console": _console, "python": _python}


def pages(repo: Path) -> list[Path]:
    return [
        repo / "README.md",
        *sorted((repo / "docs").glob("*.md")),
        *sorted((repo / "skills").glob("*/SKILL.md")),
    ]
