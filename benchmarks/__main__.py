"""Runs a benchmark by its name, or lists them: python -m benchmarks [NAME [OPTIONS]]."""

import ast
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def benchmarks() -> dict[str, str]:
    """The name and the first line of every module here that can be run."""
    found = {}
    for file in sorted(FOLDER.glob("[a-z]*.py")):
        text = file.read_text()
        if 'if __name__ == "__main__"' in text:
            found[file.stem] = (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
    return found


def main() -> None:
    known = benchmarks()
    name = sys.argv[1] if len(sys.argv) > 1 else None
    if name not in known:
        listed = "\n".join(f"  {each:<12} {summary}" for each, summary in known.items())
        print(f"make bench NAME=... [ARGS=...]\n{listed}", file=sys.stderr if name else sys.stdout)
        sys.exit(f"NAME: got {name!r}; allowed: one of the above" if name else 0)
    sys.argv = [f"benchmarks.{name}", *sys.argv[2:]]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
