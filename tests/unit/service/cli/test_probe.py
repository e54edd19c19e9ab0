"""`asap probe --preflight` as a user calls it."""

from tests.unit.service.cli.commands import REPO, Asap

RECORDED = REPO / "tests/unit/probe/recorded"


def test_the_command_prints_what_costs_most_first_and_needs_no_folder(asap: Asap) -> None:
    result = asap("probe", "--preflight", "--results", str(RECORDED))
    assert result.status == 0, result.err
    first = result.out.splitlines()[0]
    assert "up to" in first
    assert "PCIe lanes 8" in result.out
    here = asap("probe", "--preflight", "--json").answer
    assert here["facts"]["cpus online"]
    assert asap("probe", "--device", "cpu").refused
