"""`make runs-diff`: the error on left-out sources before a change and now, as a table for its pull request.

Both come from kb_seed/validation.json, at the commit where the change began and here; nothing is fitted, so
that CI can print it every time.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from research.published import REPO
from tools.model.validation import MemoryScore, Validation

DATA = "kb_seed/validation.json"
JUDGED = (
    "runs",
    "tools/model",
    "tools/physics",
    "kb_seed/calibration",
    "kb_seed/hardware",
    "research/fit.py",
)
"""What the scores follow from."""
ABSENT = "–"
MAIN = ("origin/main", "main")
HEADER = "| {} | {} before | now | MAPE before | now | {} before | now |\n|---" + "|---:" * 6 + "|"


class NoBaseError(Exception):
    """There is no earlier commit with scores to compare with."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make runs-diff", description=__doc__)
    parser.add_argument("--base", metavar="COMMIT", help="default: where this branch left main")
    options = parser.parse_args(arguments)
    try:
        base = options.base or find_base()
        before = Validation.model_validate_json(_git("show", f"{base}:{DATA}"))
        now = Validation.model_validate_json((REPO / DATA).read_text("utf-8"))
    except (NoBaseError, OSError, ValidationError) as error:
        print(f"runs-diff: error: {error}", file=sys.stderr)
        return 2
    print(table(before, now))
    changed = _git("diff", "--name-only", base, "--", DATA, *JUDGED).split()
    if changed and DATA not in changed:
        print(f"\nThe scores are older than {', '.join(changed)}: `make validate` renews them.")
    return 0


def find_base() -> str:
    """The commit where this branch left main; on main itself the one before."""
    for name in MAIN:
        try:
            base = _git("merge-base", "HEAD", name).strip()
        except NoBaseError:
            continue
        is_main = base == _git("rev-parse", "HEAD").strip() and not _git("diff", "--name-only", "HEAD")
        return f"{base}~1" if is_main else base
    raise NoBaseError(f"none of {', '.join(MAIN)} is here; --base COMMIT names another")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPO, capture_output=True, text=True)
    if done.returncode:
        raise NoBaseError(done.stderr.strip())
    return done.stdout


def table(before: Validation, now: Validation) -> str:
    """The overall scores, and those of sources and of memory that changed."""
    overall = [score.name for score in now.rows if score.section == now.rows[0].section]
    old, new = (_step_time_cells(each) for each in (before, now))
    shown = [name for name in new | old if name in overall or old.get(name) != new.get(name)]
    lines = [
        HEADER.format("step time, whole sources left out", "runs", "80% interval holds"),
        *(_line(name, old, new) for name in shown),
        "",
        f"{len(new | old) - len(shown)} sources are as before.",
    ]
    old, new = ({m.name: _memory_cells(m) for m in each.memory} for each in (before, now))
    if old != new:
        lines += ["", HEADER.format("peak memory", "runs", "likely to fit")]
        lines += [_line(name, old, new) for name in new | old if old.get(name) != new.get(name)]
    return "\n".join(lines)


def _step_time_cells(validation: Validation) -> dict[str, list[str]]:
    """By group and by source; the first section is of groups as means over sources."""
    first = validation.rows[0].section
    return {
        score.name: [str(score.rows), f"{score.mape:.1%}", f"{score.coverage:.0%}"]
        for score in validation.rows
        if score.section == first or score.grouped_by == "source"
    }


def _memory_cells(score: MemoryScore) -> list[str]:
    return [str(score.rows), f"{score.mape:.1%}" if score.rows else ABSENT, f"{score.fits_share:.1%}"]


def _line(name: str, before: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> str:
    pairs = zip(before.get(name, [ABSENT] * 3), now.get(name, [ABSENT] * 3), strict=True)
    return f"| {' | '.join([name, *(cell for pair in pairs for cell in pair)])} |"


if __name__ == "__main__":
    raise SystemExit(main())
