"""A model's remark holds no figure, direction, address or command, in whatever letters."""

import pytest

from tools.recommend.words import objections


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
        "Ninety percent less.",
        "It is faster.",
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
        "Take {p1.speedup}.",
        "A\u200bhidden word.",
    ],
)
def test_what_only_code_may_state_is_refused(text: str) -> None:
    assert objections(text)
