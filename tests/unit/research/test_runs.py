"""The published runs in runs/: every row is whole and sourced, and what is made from them is not stale."""

import gzip
import json

import pytest

from research.published import RUNS, read_runs, read_sources
from research.runs_table import SOURCES_MD, TABLE, check_sources, sources_page, table_rows
from tools.errors import InputError
from tools.model.published import published_runs
from tools.model.runs import Measured, Run, parse_run
from tools.scenario.fields import JsonObject

MAX_FILE_BYTES = 1_000_000


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return read_runs()


@pytest.fixture
def row() -> JsonObject:
    parsed: JsonObject = json.loads((RUNS / "aws-moe.jsonl").read_text("utf-8").splitlines()[0])
    return parsed


def test_every_run_has_an_id_of_its_own_and_a_source_with_a_licence(runs: list[Run]) -> None:
    sources = read_sources()
    assert sum(run.crashed for run in runs) >= 600
    assert len({run.id for run in runs}) == len(runs) >= 2000
    assert {run.source for run in runs} == set(sources)
    assert all(source.licence for source in sources.values())
    assert all(run.measured.read_from and run.confidence for run in runs if not run.crashed)


def test_a_row_of_an_unknown_source_or_with_another_s_id_is_refused(runs: list[Run]) -> None:
    check_sources(read_sources(), runs)
    elsewhere, twice = runs[0].model_copy(update={"source": "nowhere"}), [runs[0], *runs]
    for wrong, field in (([elsewhere], "source"), (twice, "id")):
        with pytest.raises(InputError) as caught:
            check_sources(read_sources(), wrong)
        assert caught.value.path == f"{runs[0].id}: {field}"


def test_a_label_that_the_rows_do_not_have_is_refused(runs: list[Run]) -> None:
    sources = read_sources()
    assert sum(label.rows for source in sources.values() for label in source.labels) > 800
    relabelled = [
        run.model_copy(update={"measured": Measured()}) if run.source == "mb-skills" else run for run in runs
    ]
    with pytest.raises(InputError, match="peak_memory_kind") as caught:
        check_sources(sources, relabelled)
    assert caught.value.path == "mb-skills.labels: rows"


def test_a_file_holds_one_source_and_is_below_a_megabyte() -> None:
    for file in RUNS.glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        (source,) = {row["source"] for row in rows}
        assert file.stem in (source, f"{source}-crashed")
        assert file.stat().st_size < MAX_FILE_BYTES


def test_a_plan_that_ran_breaks_no_rule(runs: list[Run]) -> None:
    assert all(run.is_legal or run.crashed for run in runs)


def test_what_is_made_from_the_runs_is_not_stale(runs: list[Run]) -> None:
    """`make runs-table` renews it."""
    assert SOURCES_MD.read_text("utf-8") == sources_page(read_sources(), runs)
    assert gzip.decompress(TABLE.read_bytes()).decode() == table_rows()


def test_the_installed_table_has_every_run_with_its_result(runs: list[Run]) -> None:
    def facts(run: Run) -> tuple[object, ...]:
        return (run.id, run.source, run.scenario, run.measured.step_time_s, run.crashed)

    assert [facts(run) for run in published_runs()] == [facts(run) for run in runs]


def test_a_run_written_out_is_read_again_as_it_was(runs: list[Run]) -> None:
    for run in runs[::20]:
        assert parse_run(run.to_data(), published=True) == run
