import pytest

from tests.unit.nightly.builders import environment, night
from tools.nightly.attribution import attribute, nights_with_changes
from tools.nightly.night import Night, RunEnvironment
from tools.trace.parts import StepPart

UNKNOWN = RunEnvironment()
OLD, NEW = environment({"torch": "2.12"}), environment({"torch": "2.13"})


def history(*environments: RunEnvironment) -> list[Night]:
    return [night(number, environment=state) for number, state in enumerate(environments)]


@pytest.mark.parametrize(
    ("after", "terms"),
    [((8.5, 3.5), [("dp", 0.75), ("compute", 0.25)]), ((11.0, 1.0), [("compute", 1.5)])],
)
def test_terms_that_grew_are_named_with_their_share_and_those_that_shrank_are_not(
    after: tuple[float, float], terms: list[tuple[str, float]]
) -> None:
    times_s = [(8.0, 2.0)] * 5 + [after] * 3
    nights = [night(n, sum(s), terms_s={"compute": s[0], "dp": s[1]}) for n, s in enumerate(times_s)]
    assert [(change.term, change.share) for change in attribute(nights, 5).terms] == terms


def test_what_changed_that_night_comes_before_what_changed_nearby() -> None:
    old, nearby = (environment({"torch": "2.12", "nccl": nccl}) for nccl in ("2.27", "2.28"))
    new = environment({"torch": "2.13", "nccl": "2.28"})
    changes = attribute(history(*[old] * 4, nearby, new, new), 5).changes
    assert [(change.name, change.before, change.now, change.offset) for change in changes] == [
        ("torch", "2.12", "2.13", 0),
        ("nccl", "2.27", "2.28", -1),
    ]


def test_what_was_reverted_or_not_recorded_is_not_a_change_and_one_is_seen_across_such_nights() -> None:
    assert attribute(history(OLD, OLD, NEW, OLD, OLD), 2).changes == []
    attribution = attribute(history(OLD, UNKNOWN, OLD), 1)
    assert (attribution.changes, attribution.unknown) == ([], ["plan", "nodes", "data"])
    nights = history(OLD, UNKNOWN, NEW)
    assert nights_with_changes(nights) == {2}
    assert [change.now for change in attribute(nights, 2).changes] == ["2.13"]


def test_the_traces_of_two_nights_name_the_cause() -> None:
    def parts(gemm_us: float) -> list[StepPart]:
        place = {"kind": "kernel", "module": "", "op": "aten::mm", "shape": "", "least_us": 0.0}
        figures = {"count": 4, "busy_us": 0.0, "message_bytes": 0.0}
        return [
            StepPart(**place, **figures, kernel="gemm", own_us=gemm_us),
            StepPart(**place, **figures, kernel="other", own_us=70.0),
        ]

    nights = [night(n, 10.0 + n // 5, parts=parts(100.0 + 50.0 * (n // 5))) for n in range(8)]
    (cause,) = attribute(nights, 5).causes
    assert (cause.cause, cause.change_us) == ("kernel_slower", 50.0)
    assert cause.where == "gemm in aten::mm"
    untraced = [*nights[:5], *(one.model_copy(update={"parts": []}) for one in nights[5:])]
    assert attribute(untraced, 5).causes == []
