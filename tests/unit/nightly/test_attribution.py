from tests.unit.nightly.histories import around, night
from tools.nightly.attribution import attribute, nights_with_changes
from tools.nightly.night import Night, RunEnvironment, SlowRank


def history(*surroundings: RunEnvironment) -> list[Night]:
    return [night(number, environment=one) for number, one in enumerate(surroundings)]


def test_the_part_that_grew_comes_first_with_its_share() -> None:
    before = [night(n, 10.0, terms_s={"compute": 8.0, "dp_comm_exposed": 2.0}) for n in range(5)]
    after = [night(n, 12.0, terms_s={"compute": 8.5, "dp_comm_exposed": 3.5}) for n in range(5, 8)]
    terms = attribute(before + after, 5).terms
    assert [(one.term, one.share) for one in terms] == [("dp_comm_exposed", 0.75), ("compute", 0.25)]


def test_a_part_that_shrank_is_no_cause() -> None:
    before = [night(n, 10.0, terms_s={"compute": 8.0, "pipeline": 2.0}) for n in range(5)]
    after = [night(5, 12.0, terms_s={"compute": 11.0, "pipeline": 1.0})]
    assert [one.term for one in attribute(before + after, 5).terms] == ["compute"]


def test_what_changed_that_night_comes_before_what_changed_nearby() -> None:
    old, nearby = around({"torch": "2.12", "nccl": "2.27"}), around({"torch": "2.12", "nccl": "2.28"})
    new = around({"torch": "2.13", "nccl": "2.28"})
    found = attribute(history(*[old] * 4, nearby, new, new), 5).changes
    assert [(one.name, one.before, one.now, one.offset) for one in found] == [
        ("torch", "2.12", "2.13", 0),
        ("nccl", "2.27", "2.28", -1),
    ]


def test_plan_nodes_and_data_are_told_field_by_field() -> None:
    old = around(plan={"tp": 4, "pp": 2}, nodes=["n1", "n2"], data="d1")
    new = around(plan={"tp": 8, "pp": 2}, nodes=["n1", "n3"], data="d2")
    found = attribute(history(old, old, new), 2).changes
    assert [(one.kind, one.name, one.before, one.now) for one in found] == [
        ("data", "data", "d1", "d2"),
        ("nodes", "n2", "in use", "none"),
        ("nodes", "n3", "none", "in use"),
        ("plan", "tp", "4", "8"),
    ]


def test_a_change_that_was_taken_back_is_not_told() -> None:
    old, tried = around({"torch": "2.12"}), around({"torch": "2.13"})
    assert attribute(history(old, old, tried, old, old), 2).changes == []


def test_what_is_not_recorded_is_no_change_and_is_named() -> None:
    known = around({"torch": "2.12"})
    found = attribute(history(known, RunEnvironment(), known), 1)
    assert found.changes == []
    assert found.unknown == ["plan", "nodes", "data"]


def test_a_change_is_seen_across_nights_that_do_not_tell() -> None:
    nights = history(around(data="d1"), RunEnvironment(), around(data="d2"))
    assert nights_with_changes(nights) == {2}
    assert [one.now for one in attribute(nights, 2).changes] == ["d2"]


def test_ranks_that_became_slow_are_named_and_those_that_always_were_are_not() -> None:
    usual, late = SlowRank(rank=3, ratio=0.2), SlowRank(rank=9, node="n2", ratio=0.3)
    nights = [night(n, slow_ranks=[usual]) for n in range(4)] + [night(4, slow_ranks=[late, usual])]
    assert attribute(nights, 4).slow_ranks == [late]
