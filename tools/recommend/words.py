"""Predictions and plans as text, with matching decimals within a range; and what a model's remark may not
hold: figures, spelled-out multiples, directions, addresses and commands.
"""

import math
import re
import unicodedata
from collections.abc import Sequence

from tools.model.predict import Prediction
from tools.physics.terms import STEP_TERMS
from tools.scenario import Plan
from tools.scenario.spec import CARRIED_FIELDS, DEGREES, PLAN_ROLES

DIGITS = 3
TERMS = {name: term.phrase for name, term in STEP_TERMS.items()}
SHOWN_SHARE = 0.005
_REFUSED = {
    "an address": r"://|\bwww\.|\bhttps?\b|\bftp\b|@[\w-]+|\b[\w-]+@|"
    r"\b[\w-]+\.(?:com|org|net|io|ai|dev|sh|app|co|xyz|info|example|edu|gov)\b",
    "a command or markup": r"[`$|<>\\#~^=*_{}]|&&|--|(?:^|\s)/\w|\w/\w+/|"
    r"\b(?:curl|wget|sudo|bash|zsh|chmod|chown|ssh|scp|eval|exec|pip|apt|npm|git|"
    r"docker|kubectl|python|perl|powershell|cmd|rm|dd|mkfs|printenv|srun|sbatch|torchrun)\b",
    "a spelled-out figure": r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w*teen|"
    r"twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundreds?|thousands?|millions?|billions?|"
    r"dozens?|score|zero|half|halves|halved?|halving|thirds|quarters?|fifths?|tenths?|twice|thrice|"
    r"doubl\w*|tripl\w*|quadrupl\w*|quintupl\w*|\w+fold|folds?|percent\w*|magnitude|manifold)\b",
    "a direction that only code may state": r"\b(?:fast(?:er|est)|slow(?:er|est)|quick(?:er|est)|sped|"
    r"speed-?\s?ups?|speeds?\s+up|outperform\w*|accelerates?|accelerated|improve\w*|regress\w*|lever|"
    r"gains?|wins?)\b",
}
"""In small letters or large."""


def format_same_decimals(*values: float) -> list[str]:
    """Three digits of the largest, and as many decimals of the others: 0.0469 beside 2 is 0.05."""
    largest = max(map(abs, values))
    decimals = max(DIGITS - 1 - math.floor(math.log10(largest)), 0) if largest else 0
    return [f"{value:,.{decimals}f}" for value in values]


def span(start: float, end: float) -> str:
    return " to ".join(format_same_decimals(start, end))


def short(plan: Plan) -> str:
    """The degrees above one, sharding, micro-batch and recomputation."""
    degrees = {name: getattr(plan, name) for name in DEGREES}
    words = [f"{name} {value}" for name, value in degrees.items() if value > 1]
    words += [plan.sharding_text, f"micro-batch {plan.micro_batch_size}", f"recompute {plan.recompute}"]
    details = ((PLAN_ROLES[name].in_short, getattr(plan, name)) for name in CARRIED_FIELDS)
    stated = (
        text.format(listing(value) if isinstance(value, tuple) else value)
        for text, value in details
        if value is not None
    )
    return ", ".join(words) + "".join(stated)


def difference(before: Prediction, after: Prediction) -> str:
    """Which terms shrink and which grow, largest first; those below half a percent are left out."""
    old, new = before.breakdown_s, after.breakdown_s
    by_size = sorted(TERMS, key=lambda term: -abs(new[term] - old[term]))
    moved = [term for term in by_size if abs(new[term] - old[term]) > SHOWN_SHARE * before.step_time_s][:4]
    parts = []
    for verb, grows in (("shrink", False), ("grow", True)):
        terms = [
            f"{TERMS[term]} ({span(old[term], new[term])} s)"
            for term in moved
            if (new[term] > old[term]) == grows
        ]
        parts += [f"{listing(terms)} {verb}{'s' if len(terms) == 1 else ''}"] if terms else []
    return "; ".join(parts) or "no term moves by more than half a percent of the step"


def in_words(value: object) -> str:
    """A field's value as a sentence has it."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return ", ".join(map(in_words, value)) if isinstance(value, list | tuple) else str(value)


def listing(words: Sequence[str]) -> str:
    """One, two and three."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def largest(prediction: Prediction, count: int = 3) -> str:
    parts, whole = prediction.breakdown_s, prediction.step_time_s
    order = sorted(parts, key=lambda term: -parts[term])[:count]
    return ", ".join(f"{TERMS[term]} {parts[term] / whole:.0%}" for term in order)


def objections(text: str) -> list[str]:
    """What may not stand in a remark; empty if all of it may."""
    free = unicodedata.normalize("NFKC", text)
    kinds = {unicodedata.category(character) for character in free}
    found = {
        "a figure": any(character.isnumeric() for character in free),
        "an invisible character": bool(kinds & {"Cf", "Cc", "Co", "Cs"}),
        **{what: re.search(rule, free, re.I) for what, rule in _REFUSED.items()},
    }
    return [what for what, is_there in found.items() if is_there]
