"""What points at a step of the step time before the step time itself proves it: recorded changes, and terms
of the step that grew.

Both lower the proof that a step on that night needs; neither is an alarm by itself.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tools.nightly.night import Night
from tools.nightly.noise import USUAL_SCATTER
from tools.nightly.steps import Hint, Rules, detect_steps

EXPLAINED_ALARMS = 0.3
"""False alarms on nights with a recorded change, all together, per false alarm on other nights."""
TERM_ODDS = 300.0
"""A term that grew leaves open whether another one shrank as much, and little else."""
EXPLAINED_CHANGE = 2.0
"""The largest step of the step time that a term explains, in the term's own growth."""
TERM_CHANCE = 0.2
"""Factor on the chance of a false alarm for the terms: there are several of them."""
ALIKE_CHANCE = 0.2
"""Factor on the chance of a false alarm if terms are known and none of them grew against the rest: all terms
slow down alike on a busy machine, seldom by a cause that stays."""
MIN_TERM_CHANGE = 0.005
"""Of the step."""


def recorded_hints(changed: Collection[int]) -> list[Hint]:
    """Nights on which the environment changed; the rarer they are, the more each one counts."""
    nights = sorted(changed)
    return [
        Hint(night, night, EXPLAINED_ALARMS * (night + 1) / (position + 1))
        for position, night in enumerate(nights)
    ]


def step_time_evidence(
    nights: Sequence[Night], changed: Collection[int], rules: Rules
) -> tuple[Rules, list[Hint]]:
    """By which rules the step time is judged, and what points at a step.

    With terms on most nights, a step that none of them shows and no recorded change explains needs more
    proof.
    """
    recorded = recorded_hints(changed)
    if 2 * sum(bool(night.terms_s) for night in nights) <= len(nights):
        return rules, recorded
    strict = replace(rules, false_alarm_chance=ALIKE_CHANCE * rules.false_alarm_chance)
    explained = [replace(hint, odds=hint.odds / ALIKE_CHANCE) for hint in recorded]
    return strict, [*explained, *term_hints(nights, recorded, rules)]


def term_hints(nights: Sequence[Night], recorded: Sequence[Hint], rules: Rules) -> list[Hint]:
    """Nights from which on a term of the step takes longer, measured against the rest of the step.

    What slows the whole step on some nights (a shared machine, a hot summer) slows every term: against the
    rest of the step a term scatters less than the step time does.
    """
    strict = replace(rules, false_alarm_chance=TERM_CHANCE * rules.false_alarm_chance)
    return [
        Hint(
            positions[step.night],
            positions[step.confirmed],
            TERM_ODDS,
            EXPLAINED_CHANGE * (step.after - step.before),
        )
        for positions, values, share in _term_series(nights)
        for step in detect_steps(
            values, USUAL_SCATTER * math.sqrt(share), MIN_TERM_CHANGE, strict, _moved(recorded, positions)
        ).steps
        if step.after > step.before and step.confirmed is not None
    ]


def _term_series(nights: Sequence[Night]) -> Iterator[tuple[list[int], list[float], float]]:
    """For each term the nights that have it, the term in shares of the step, and its usual share."""
    for name in sorted({name for night in nights for name in night.terms_s}):
        known = [
            (position, night.terms_s[name], sum(night.terms_s.values()) - night.terms_s[name])
            for position, night in enumerate(nights)
            if name in night.terms_s
        ]
        terms_s = np.asarray([term_s for _, term_s, _ in known])
        rests_s = np.asarray([rest_s for _, _, rest_s in known])
        if min(rests_s) <= 0 or min(terms_s) < 0:
            continue
        step_s, rest_s = float(np.median(terms_s + rests_s)), float(np.median(rests_s))
        shares = terms_s / rests_s * (rest_s / step_s)
        yield [position for position, _, _ in known], shares.tolist(), float(np.median(terms_s)) / step_s


def _moved(hints: Sequence[Hint], positions: list[int]) -> list[Hint]:
    """As positions in a series that leaves nights out."""
    places = {night: place for place, night in enumerate(positions)}
    return [Hint(places[hint.night], places[hint.night], hint.odds) for hint in hints if hint.night in places]
