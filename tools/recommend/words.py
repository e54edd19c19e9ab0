"""Predictions and plans as text, with matching decimals within a range; and prose with slots: a writer names
a figure (`{p1.speedup}`) and code writes it.

Free figures, spelled-out multiples, directions, addresses and commands are refused in a writer's prose: what
a text promises is code's, its words are the writer's.
"""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence

from tools.cost.predict import Prediction
from tools.cost.terms import STEP_TERMS
from tools.scenario import Plan

DIGITS = 3


def format_same_decimals(*values: float) -> list[str]:
    """Three digits of the largest, and as many decimals of the others: 0.0469 beside 2 is 0.05."""
    largest = max(map(abs, values))
    decimals = max(DIGITS - 1 - math.floor(math.log10(largest)), 0) if largest else 0
    return [f"{value:,.{decimals}f}" for value in values]


def span(start: float, end: float) -> str:
    return " to ".join(format_same_decimals(start, end))


TERMS = {name: term.phrase for name, term in STEP_TERMS.items()}
SHOWN_SHARE = 0.005


def short(plan: Plan) -> str:
    """The degrees above one, sharding, micro-batch and recomputation."""
    degrees = {name: getattr(plan, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")}
    words = [f"{name} {value}" for name, value in degrees.items() if value > 1]
    words += [plan.sharding_text, f"micro-batch {plan.micro_batch_size}", f"recompute {plan.recompute}"]
    if plan.recompute_layers is not None:
        words[-1] += f" of {plan.recompute_layers} layers per stage"
    if plan.recompute_modules is not None:
        words[-1] += f" of {listing(plan.recompute_modules)}"
    return ", ".join(words)


def difference(before: Prediction, after: Prediction) -> str:
    """Which terms shrink and which grow, largest first; those below half a percent are left out."""
    old, new = before.breakdown_s, after.breakdown_s
    by_size = sorted(TERMS, key=lambda term: -abs(new[term] - old[term]))
    moved = [term for term in by_size if abs(new[term] - old[term]) > SHOWN_SHARE * before.step_time_s][:4]
    shrinking = [_from_to(term, old, new) for term in moved if new[term] < old[term]]
    growing = [_from_to(term, old, new) for term in moved if new[term] > old[term]]
    parts = [
        f"{listing(terms)} {verb}{'s' if len(terms) == 1 else ''}"
        for terms, verb in ((shrinking, "shrink"), (growing, "grow"))
        if terms
    ]
    return "; ".join(parts) or "no term moves by more than half a percent of the step"


def listing(words: Sequence[str]) -> str:
    """One, two and three."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _from_to(term: str, old: Mapping[str, float], new: Mapping[str, float]) -> str:
    return f"{TERMS[term]} ({span(old[term], new[term])} s)"


def largest(prediction: Prediction, count: int = 3) -> str:
    """The largest terms with their share of the step."""
    parts, whole = prediction.breakdown_s, prediction.step_time_s
    order = sorted(parts, key=lambda term: -parts[term])[:count]
    return ", ".join(f"{TERMS[term]} {parts[term] / whole:.0%}" for term in order)


MAX_PROSE_CHARACTERS = 2000
_SLOT = re.compile(r"\{([a-z][a-z0-9_.]*)\}")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_ADDRESS = re.compile(
    r"://|\bwww\.|\bhttps?\b|\bftp\b|\b[\w-]+\.(?:com|org|net|io|ai|dev|sh|app|co|xyz|info|example|edu|gov)\b"
    r"|@[\w-]+|\b[\w-]+@",
    re.I,
)
_COMMAND = re.compile(
    r"[`$|<>\\#~^=*_]|&&|--|(?:^|\s)/\w|\w/\w+/|\b(?:curl|wget|sudo|bash|zsh|chmod|chown|ssh|scp|eval|exec|pip|apt|npm|git|"
    r"docker|kubectl|python|perl|powershell|cmd|rm|dd|mkfs|printenv|srun|sbatch|torchrun)\b",
    re.I,
)
_MULTIPLE = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w*teen|twenty|thirty|forty|fifty|sixty|"
    r"seventy|eighty|ninety|hundreds?|thousands?|millions?|billions?|dozens?|score|zero|half|halves|halved?|"
    r"halving|thirds|quarters?|fifths?|tenths?|twice|thrice|doubl\w*|tripl\w*|quadrupl\w*|quintupl\w*|\w+fold|"
    r"folds?|percent\w*|magnitude|manifold)\b",
    re.I,
)
_DIRECTION = re.compile(
    r"\b(?:fast(?:er|est)|slow(?:er|est)|quick(?:er|est)|speed-?\s?ups?|speeds?\s+up|sped|outperform\w*|"
    r"accelerates?|accelerated|improve\w*|regress\w*|lever|gains?|wins?)\b",
    re.I,
)
_REFUSED = (
    (_ADDRESS, "an address"),
    (_COMMAND, "a command or markup"),
    (_MULTIPLE, "a spelled-out figure"),
    (_DIRECTION, "a direction that only code may state"),
)


def objections(text: str, slots: Mapping[str, str]) -> list[str]:
    """What may not stand in a writer's text; empty if all of it may."""
    unknown = ["an unknown slot"] if any(name not in slots for name in _SLOT.findall(text)) else []
    free = unicodedata.normalize("NFKC", _SLOT.sub(" ", text))
    found = [*unknown]
    if len(text) > MAX_PROSE_CHARACTERS:
        found.append(f"more than {MAX_PROSE_CHARACTERS} characters")
    if any(character.isnumeric() for character in free):
        found.append("a free figure")
    if "{" in free or "}" in free:
        found.append("a broken slot")
    if any(
        unicodedata.category(character) in ("Cf", "Cc", "Co", "Cs") for character in free if character != "\n"
    ):
        found.append("an invisible character")
    return found + [what for rule, what in _REFUSED if rule.search(free)]


def fill(text: str, slots: Mapping[str, str]) -> str:
    """The text with its slots written out by code; call it for texts without objections only."""
    return _SLOT.sub(lambda match: slots[match.group(1)], text).strip()


def numbers_in(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in _NUMBER.findall(text)]
