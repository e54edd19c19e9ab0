"""Which two measurements may be compared, and why not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.trials.gate import Comparison, compare, refusals
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


def test_a_fair_comparison_has_the_gain_with_its_interval() -> None:
    gain = {"speedup": 2.0, "speedup_low": 1.9 / 1.1, "speedup_high": 2.1 / 0.9}
    assert compare(BASE, trial()) == Comparison(refusals=[], **gain)


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
            assert str(BASE.fingerprint[entry]) in one_way.refusals[0].says
            assert str(value) in one_way.refusals[0].says


def test_what_a_program_wrote_into_its_fingerprint_is_shown_short_and_printable() -> None:
    wild = {**BASE.fingerprint, "precision": "fp32\x1b[2J\0", "long" * 100: 1}
    found = refusals(BASE, trial(fingerprint=wild))
    assert len(found) == 2
    assert "[2J" in found[0].says + found[1].says
    for refused in found:
        assert refused.says.isprintable()
        assert len(refused.says) < 600
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
    (refusal,) = refusals(BASE, trial(losses=losses))
    assert refusal.entry == "losses"
    assert all(part in refusal.says for part in says)


def test_rounding_is_not_a_difference_in_loss_and_low_precision_may_differ_by_more() -> None:
    assert refusals(BASE, trial(losses=[5.0, 4.5 * (1 + 2e-7), 4.2 * (1 - 5e-7)])) == []
    low = {"fingerprint": {**BASE.fingerprint, "precision": "bf16"}}
    assert refusals(BASE.model_copy(update=low), trial(losses=[5.0, 4.55, 4.25], **low)) == []
    assert refusals(BASE, trial(losses=[5.0, 4.55, 4.25])) != []


@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=4), st.lists(st.floats(1, 9), min_size=1))
def test_a_run_may_always_be_compared_with_itself(fingerprint: dict[str, int], losses: list[float]) -> None:
    run = trial(fingerprint=fingerprint, losses=losses)
    assert compare(run, run).speedup == 1.0
