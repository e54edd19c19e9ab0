"""Which two measurements may be compared, and why not."""

import pytest

from tools.trials.gate import compare
from tools.trials.order import TrialResult

BASE = TrialResult(
    key="s-0", status="measured", template="t", runs=["s-0"], failure=None, device_hours=0.1, seconds=9.0,
    traces=None, step_time_s=2.0, interval_s=(1.9, 2.1), losses=[5.0, 4.5, 4.2],
    fingerprint={
        "model": {"hidden_size": 64}, "data": "tokens", "global_batch_size": 8, "seq_len": 64,
        "precision": "fp32", "versions": ["torch 2.13"], "nodes": {"a": 2, "b": 2},
    },
)  # fmt: skip


def trial(**changed: object) -> TrialResult:
    return BASE.model_copy(update={"step_time_s": 1.0, "interval_s": (0.9, 1.1), **changed})


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("model", {"hidden_size": 32}),
        ("data", "other"),
        ("global_batch_size", 16),
        ("seq_len", 128),
        ("precision", "bf16"),
        ("versions", ["torch 2.12"]),
        ("nodes", {"a": 4}),
        ("kernel", None),  # an entry that the other lacks
    ],
)
def test_anything_else_than_the_plan_refuses_and_names_both_values(entry: str, value: object) -> None:
    other = trial(fingerprint={**BASE.fingerprint, entry: value})
    for one_way in (compare(BASE, other), compare(other, BASE)):
        assert one_way.speedup is None
        assert [refusal.entry for refusal in one_way.refusals] == [entry]
        if entry != "kernel":
            assert str(BASE.fingerprint[entry]) in one_way.refusals[0].reason
            assert str(value) in one_way.refusals[0].reason


def test_what_a_program_wrote_into_its_fingerprint_is_shown_short_and_printable() -> None:
    wild = {**BASE.fingerprint, "precision": "fp32\x1b[2J\0", "long" * 100: 1}
    found = compare(BASE, trial(fingerprint=wild)).refusals
    assert len(found) == 2
    assert "[2J" in found[0].reason + found[1].reason
    for refused in found:
        assert refused.reason.isprintable()
        assert len(refused.reason) < 600
        assert len(refused.entry) <= 200


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([5.0, 4.6, 4.9], ("step 1", "4.6")),
        *((losses, ()) for losses in ([], [5.0], [5.0, 4.5, 4.2, 4.0], [float("nan"), 4.5, 4.2])),
    ],
)
def test_losses_that_do_not_follow_or_cannot_be_compared_refuse(
    losses: list[float], says: tuple[str]
) -> None:
    (refusal,) = compare(BASE, trial(losses=losses)).refusals
    assert refusal.entry == "losses"
    assert all(part in refusal.reason for part in says)
