import pytest

from tests.unit.nightly.builders import environment, night
from tools.nightly.attribution import attribute, nights_with_changes
from tools.nightly.night import Night, RunEnvironment, SlowRank

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


def test_plan_nodes_and_data_are_reported_field_by_field() -> None:
    old = environment(plan={"tp": 4, "pp": 2}, nodes=["n1", "n2"], data="d1")
    new = environment(plan={"tp": 8, "pp": 2}, nodes=["n1", "n3"], data="d2")
    changes = attribute(history(old, old, new), 2).changes
    assert [(change.kind, change.name, change.before, change.now) for change in changes] == [
        ("data", "data", "d1", "d2"),
        ("nodes", "n2", "in use", "none"),
        ("nodes", "n3", "none", "in use"),
        ("plan", "tp", "4", "8"),
    ]


def test_what_was_reverted_or_not_recorded_is_not_a_change_and_one_is_seen_across_such_nights() -> None:
    assert attribute(history(OLD, OLD, NEW, OLD, OLD), 2).changes == []
    attribution = attribute(history(OLD, UNKNOWN, OLD), 1)
    assert (attribution.changes, attribution.unknown) == ([], ["plan", "nodes", "data"])
    nights = history(OLD, UNKNOWN, NEW)
    assert nights_with_changes(nights) == {2}
    assert [change.now for change in attribute(nights, 2).changes] == ["2.13"]


def test_ranks_that_became_slow_are_named_and_those_that_always_were_are_not() -> None:
    usual, late = SlowRank(rank=3, ratio=0.2), SlowRank(rank=9, node="n2", ratio=0.3)
    nights = [night(n, slow_ranks=[usual]) for n in range(4)] + [night(4, slow_ranks=[late, usual])]
    assert attribute(nights, 4).slow_ranks == [late]
