"""Before and after."""

from tools.trace.breakdown import Breakdown, StepProfile
from tools.trace.compare import KernelChange, compare
from tools.trace.rank_profile import KernelTotal, RankProfile


def _profile(total_ns: int, steps: int, kernel_ns: int) -> RankProfile:
    terms = Breakdown(compute_ns=total_ns, total_ns=total_ns)
    return RankProfile(
        file="f",
        rank=0,
        basis="device",
        breakdown=terms,
        steps=[StepProfile(number, 0, terms) for number in range(steps)],
        top_kernels=[KernelTotal("gemm", "compute", 1, kernel_ns)],
    )


def test_steps_are_compared_not_traces_of_different_length() -> None:
    result = compare([_profile(10_000, 3, 30_000)], [_profile(5_000, 6, 30_000)])
    assert result.speedup == 2.0
    assert result.per == "rank and step"


def test_where_one_side_marks_no_steps_whole_traces_are_compared() -> None:
    marked, unmarked = _profile(12_000, 3, 6_000), _profile(12_000, 0, 6_000)
    marked.steps = [StepProfile(number, 0, Breakdown(total_ns=4_000)) for number in range(3)]
    for result in (compare([marked], [unmarked]), compare([unmarked], [marked])):
        assert (result.per, result.speedup) == ("rank", 1.0)
        assert result.kernels[0].change_us == 0.0


def test_each_term_has_its_change() -> None:
    result = compare([_profile(10_000, 2, 0)], [_profile(15_000, 2, 0)])
    (compute,) = [term for term in result.terms if term.term == "compute"]
    assert (compute.change_us, compute.ratio) == (5.0, 1.5)


def test_kernels_are_compared_per_step() -> None:
    result = compare([_profile(10_000, 2, 8_000)], [_profile(10_000, 4, 8_000)])
    assert result.kernels[0] == KernelChange(name="gemm", before_us=4.0, after_us=2.0, change_us=-2.0)


def test_a_term_that_was_zero_has_no_ratio() -> None:
    result = compare([_profile(10_000, 2, 0)], [_profile(10_000, 2, 0)])
    (memory,) = [term for term in result.terms if term.term == "memory"]
    assert memory.ratio is None
