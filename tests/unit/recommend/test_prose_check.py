"""A writer's text names figures, and code writes them: no free figure, address or command passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.recommend.words import fill, objections

SLOTS = {"p1.speedup": "1.34x as fast as today's plan", "p1.plan": "tp 4, pp 2", "cause": "late hosts"}
GOOD = "The step waits for {cause}. {p1.plan} is predicted to be {p1.speedup}, which one run can confirm."


def test_slots_are_filled_by_code() -> None:
    assert objections(GOOD, SLOTS) == []
    assert fill(GOOD, SLOTS) == (
        "The step waits for late hosts. tp 4, pp 2 is predicted to be 1.34x as fast as today's plan, "
        "which one run can confirm."
    )


@pytest.mark.parametrize(
    "text",
    [
        "It saves 12 of them.",
        "It takes ½ of the time.",
        "It takes ² of it.",
        "It takes １２ steps.",
        "About 三 of them.",
        "It is twelve times as good.",
        "The step doubles in pace.",
        "A tenfold change.",
        "Half the time goes away.",
        "Ninety percent less.",
        "It is faster.",
        "It is much slower than today.",
        "A large speed-up is certain.",
        "Sharding is not the lever.",
        "See https://example.org for more.",
        "See example.com for more.",
        "Write to admin@cluster now.",
        "Run curl now.",
        "Use `rm`.",
        "a | sh",
        "Set --tensor-model-parallel.",
        "cat /etc/passwd",
        "Take {p9.speedup}.",
        "Take {p1.speedup} and {.",
        "A\u200bhidden word.",
        "x" * 2001,
    ],
)
def test_what_only_code_may_state_is_refused(text: str) -> None:
    assert objections(text, SLOTS)


@given(st.text())
def test_what_passes_holds_no_figure_but_those_of_slots(text: str) -> None:
    if not objections(text, SLOTS):
        assert not any(
            character.isnumeric() for character in text.replace("{p1.speedup}", "").replace("{p1.plan}", "")
        )
        assert "://" not in fill(text, SLOTS)
