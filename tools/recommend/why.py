"""Why a proposal has its slot: a sentence of at most twenty words, with its numbers, against the fastest and
against today.
"""

from collections.abc import Sequence

from tools.recommend.choose import SAFE, WINDOW
from tools.recommend.report import Evidence, Proposal

SAME_GIB = 0.05
WEIGHTS = {
    "run": 6, "trial": 6, "case": 4, "exact_recipe": 4, "notes": 3, "recipe": 2, "playbook": 1, "profile": 1
}  # fmt: skip
"""What evidence weighs by the kind that its reference names: measured here, confirmed elsewhere, published
for this very job, told, published for the model, advised."""
DECIDES = {
    "run": "a run here",
    "trial": "a trial",
    "case": "a confirmed case",
    "exact_recipe": "its published recipe",
    "notes": "the notes",
    "recipe": "a published recipe",
}
"""How the reason names the evidence that puts a plan before a faster one."""


def why(own: Proposal, proposals: Sequence[Proposal]) -> str:
    """`proposals` are all of them, best first; one of them is the fastest."""
    first, fastest = proposals[0], min(proposals, key=_step_s)
    gain = f"{own.speedup:.2f}x today" if own.speedup else f"{_step_s(own):.3g} s per step"
    if own.measured:
        return f"Measured: {own.measured.step_time_s:.3g} s per step."
    if own is first and is_today(own):
        return f"Keep today's plan: {_best_other(proposals)}."
    if own.speedup and own.speedup < 1.0:
        needed = f"it must measure {1.0 / own.speedup - 1.0:.1%} faster than predicted to win"
        return f"Slower than today ({own.speedup:.2f}x): {needed}."
    if is_today(first):
        needed = f"it must measure beyond the {_error(own):.1%} that a comparison errs by to win"
        return f"Predicted {gain}: {needed}."
    if own is fastest:
        rivals = [first] if own is not first else sorted(proposals, key=_step_s)[1:2]
        ahead = [f"{_apart(rival, own)} ahead of proposal {proposals.index(rival) + 1}, " for rival in rivals]
        return f"Fastest by prediction, {''.join(ahead)}{gain}{_memory(own, first)}."
    if own is not first:
        return f"{_apart(own, fastest)} behind the fastest, {gain}{_memory(own, first)}."
    return (
        f"{_apart(own, fastest)} behind the fastest, {gain}{_memory(own, fastest)}{_decided(own, fastest)}."
    )


def kind_of(evidence: Evidence) -> str:
    return evidence.ref.partition(":")[0]


def _decided(first: Proposal, fastest: Proposal) -> str:
    """What puts the first before a faster one: evidence that the other lacks, the chance to fit, or habit."""

    def strongest(entry: Proposal) -> str:
        kinds = [kind_of(item) for item in entry.evidence]
        return max(kinds, key=lambda kind: WEIGHTS.get(kind, 0), default="")

    kind = strongest(first)
    if kind in DECIDES and WEIGHTS[kind] > WEIGHTS.get(strongest(fastest), 0):
        return f"; {DECIDES[kind]} decides"
    if fastest.prediction.fit_probability < SAFE <= first.prediction.fit_probability:
        return "; safety decides"
    return "; practice decides" if _step_s(first) <= (1.0 + WINDOW) * _step_s(fastest) else ""


def why_not_fastest(proposals: Sequence[Proposal]) -> str:
    """The long form: what the first has over the fastest, and what was known of it."""
    first, fastest = proposals[0], min(proposals, key=_step_s)
    if first is fastest:
        return f"The first proposal is the fastest by prediction. {first.why}"
    shared = {item.ref for item in fastest.evidence}
    reasons = [
        item.says.rstrip(".")
        for item in first.evidence
        if item.kind in ("knowledge", "trial") and item.ref not in shared
    ]
    said = "".join(f" {text[:1].upper()}{text[1:]}." for text in reasons)
    return f"Proposal 1: {first.why}{said} Proposal {fastest.rank}: {fastest.why}"


def is_today(proposal: Proposal) -> bool:
    return proposal.speedup is not None and not proposal.changes and not proposal.settings


def _best_other(proposals: Sequence[Proposal]) -> str:
    if len(proposals) < 2:
        return "no other is predicted faster"
    best = min(proposals[1:], key=_step_s)
    return f"the best other is predicted at {best.speedup:.2f}x, and a comparison errs by {_error(best):.1%}"


def _error(proposal: Proposal) -> float:
    return (proposal.speedup_high or 1.0) / (proposal.speedup or 1.0) - 1.0


def _step_s(proposal: Proposal) -> float:
    return proposal.prediction.step_time_s


def _apart(slower: Proposal, faster: Proposal) -> str:
    return f"{_step_s(slower) / _step_s(faster) - 1.0:.1%}"


def _memory(own: Proposal, other: Proposal) -> str:
    """How the needs of the two differ, if they do, with the chances to fit."""
    more = own.prediction.peak_memory_gib - other.prediction.peak_memory_gib
    if abs(more) < SAME_GIB:
        return ""
    own_chance, chance = (f"{entry.prediction.fit_probability:.0%}" for entry in (own, other))
    fits = f" (fits: {own_chance}, not {chance})" if own_chance != chance else ""
    return f"; needs {abs(more):.1f} GiB {'more' if more > 0 else 'less'}{fits}"
