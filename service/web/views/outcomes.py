"""What a tool answered, in a few words; the whole answer is one click away.

Answers are those that the graph told as events: cut where they are long, and of any shape.
"""

import re

from service.report.text import seconds
from service.store.rows import Data

_CUT = re.compile(r"and (\d{1,9}) more")


def outcome(result: object) -> str:
    """Empty where there is nothing short to say."""
    if isinstance(result, list):
        return _counted(result)
    if not isinstance(result, dict):
        return ""
    found = next((said for tell in _TELLERS if (said := tell(result))), "")
    return str(found)


def _counted(items: list[object]) -> str:
    """A list that was cut ends with the words `and 12 more`."""
    cut = _CUT.fullmatch(str(items[-1])) if items else None
    more = int(cut[1]) - 1 if cut else 0
    return f"{len(items) + more} found" if items else "nothing found"


def _scored(result: Data) -> str:
    summary, step_s = result.get("summary"), result.get("step_time_s")
    if not summary:
        return ""
    return f"{summary}: {seconds(step_s)}" if isinstance(step_s, float) else str(summary)


def _searched(result: Data) -> str:
    searched = result.get("searched")
    plans = searched.get("plans") if isinstance(searched, dict) else None
    return f"{plans:,} legal plans decided" if isinstance(plans, int) else ""


def _checked(result: Data) -> str:
    checked, faults = result.get("checked"), result.get("faults")
    if not isinstance(checked, int) or not isinstance(faults, list):
        return ""
    return f"{checked} numbers, {len(faults)} differ"


def _limited(result: Data) -> str:
    inner = result.get("diagnosis")
    bottleneck = (inner if isinstance(inner, dict) else result).get("bottleneck")
    return f"limited by {bottleneck}" if bottleneck else ""


def _proposed(result: Data) -> str:
    struck = result.get("struck")
    return f"{len(struck)} sentences struck" if isinstance(struck, list) else ""


_TELLERS = (_scored, _searched, _checked, _limited, _proposed)
