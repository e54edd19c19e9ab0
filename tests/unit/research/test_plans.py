"""The scorer of the benchmark on a handful of runs whose scores were worked out by hand."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import plans
from benchmarks.plans import (
    MARKS,
    PAGE,
    PICTURE,
    README,
    SUBMISSIONS,
    Run,
    Submission,
    choice_pairs,
    draws,
    errors,
    mean_over,
    picked,
    picture,
    read_runs,
    read_submission,
    task_scores,
)
from tools.model.validation import find_benchmark

ROWS: dict[str, tuple[float | None, int, str]] = {
    "a-1": (10.0, 1, "none"),
    "a-2": (10.4, 2, "none"),
    "a-3": (20.0, 4, "none"),
    "a-4": (None, 8, "none"),
    "b-1": (4.0, 1, "none"),
    "b-2": (8.0, 1, "full"),
}
"""Step time (None: crashed), tp and recomputation. A source is one workload; b-2 has twice b-1's batch."""
SPLITS = {"train": {"a": "a-1 a-2 a-3 a-4"}, "test": {"b": "b-1 b-2"}}


def write_rows(folder: Path, b2_batch: int = 16) -> None:
    lines = []
    for name, (step_time_s, tp, recompute) in ROWS.items():
        scenario = {
            "model": {"hidden_size": 8},
            "cluster": {"device": "gpu"},
            "training": {"global_batch_size": b2_batch if name == "b-2" else 8, "seq_len": 4},
            "plan": {"tp": tp, "recompute": recompute, "vpp": None},
        }
        row = {"id": name, "source": name[0], "scenario": scenario, "workload": name[0]}
        crashed = step_time_s is None
        lines.append(
            {**row, "crashed": True} if crashed else {**row, "measured": {"step_time_s": step_time_s}}
        )
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "splits.json").write_text(json.dumps(SPLITS))


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    write_rows(tmp_path)
    return read_runs(tmp_path, tmp_path / "splits.json")


def submission(tmp_path: Path, **times: float | None) -> Submission:
    lines: list[dict[str, str | float | None]] = [{"name": "mine"}]
    lines += [{"id": name.replace("_", "-"), "step_time_s": time_s} for name, time_s in times.items()]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_submission(file)


def test_error_is_a_mean_over_sources_and_skips_what_is_not_answered(tmp_path: Path, runs: list[Run]) -> None:
    mine = submission(tmp_path, a_1=11.0, a_3=14.0, a_2=None, b_1=4.0)
    found = errors(mine, runs, "step_time_s")
    assert found == {
        "a-1": ("a", pytest.approx(0.1)), "a-3": ("a", pytest.approx(0.3)), "b-1": ("b", 0.0),
    }  # fmt: skip
    assert mean_over(found.values()) == pytest.approx((0.2 + 0.0) / 2)


def test_a_choice_is_judged_where_nothing_else_differs(tmp_path: Path) -> None:
    write_rows(tmp_path, b2_batch=8)
    runs = read_runs(tmp_path, tmp_path / "splits.json")
    assert [(fast.id, slow.id) for fast, slow in choice_pairs(runs, "recomputation")] == [("b-1", "b-2")]
    assert choice_pairs(runs, "dispatcher") == []


def test_regret_is_against_the_best_measured_and_ties_are_shared(tmp_path: Path, runs: list[Run]) -> None:
    sweep = runs[:4]
    assert picked(submission(tmp_path, a_1=3.0, a_3=2.0), sweep) == plans.Pick(crashed=0, near=0, slower=1.0)
    tie = picked(submission(tmp_path, a_1=2.0, a_2=2.0, a_3=2.0, a_4=2.0), sweep)
    assert tie is not None
    assert (tie.crashed, tie.near) == (0.25, 0.5)
    assert tie.slower == pytest.approx((0.0 + 0.04 + 1.0) / 3)
    assert picked(submission(tmp_path, a_1=2.0), sweep) is None


def test_the_page_shows_what_the_recorded_submissions_score() -> None:
    """By the file alone, as an entrant runs it: a Python without packages."""
    script = str(Path(plans.__file__))
    done = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, check=True)
    shown = PAGE.read_text().split(MARKS[0])[1].split(MARKS[1])[0]
    assert done.stdout == shown
    step_times = README.read_text().split(MARKS[0])[1].split(MARKS[1])[0]
    assert step_times.startswith("| submission | all sources | runs |")
    assert step_times in done.stdout


def test_picture_and_page_data_are_of_the_recorded_submissions_and_leave_no_answer_empty() -> None:
    """`make bench NAME=plans ARGS=--write` renews them."""
    submissions = [read_submission(file) for file in sorted(SUBMISSIONS.glob("*.jsonl.gz"))]
    scores = task_scores(read_runs(plans.ROWS), submissions, submissions[0])
    benchmark = find_benchmark()
    assert benchmark
    assert benchmark.beside == submissions[0].name
    assert [score.model_dump() for score in benchmark.scores] == [score._asdict() for score in scores]
    drawn = PICTURE.read_text()
    assert drawn == picture(scores, submissions[0].name)
    ElementTree.fromstring(drawn)
    silent = [score for score in scores if not score.answered]
    assert drawn.count("no answers") == len(silent) == 2
    assert drawn.count("<rect class=") == 1 + len(scores) - len(silent)


def test_draws_give_each_cluster_runs_that_are_not_judged() -> None:
    for draw in draws(read_runs(plans.ROWS)):
        assert len(draw.given) == draw.shots
        assert draw.judged
        assert not {run.id for run in draw.given} & {run.id for run in draw.judged}


@pytest.mark.parametrize("file", sorted(SUBMISSIONS.glob("*.jsonl.gz")), ids=lambda file: file.name)
def test_a_recorded_submission_is_small_and_says_what_made_it(file: Path) -> None:
    head = json.loads(gzip.decompress(file.read_bytes()).splitlines()[0])
    assert head["name"]
    assert head["commit"]
    assert head["settings"]
    assert file.stat().st_size < 100_000
    known = {run.id for run in read_runs(plans.ROWS)}
    found = read_submission(file)
    assert found.predictions.keys() <= known
    assert all(math.isfinite(p.step_time_s) for p in found.predictions.values() if p.step_time_s is not None)
