"""A recorded session answers again without its model, and what is not recorded is left to the rules."""

import math
from pathlib import Path

from benchmarks.standins import StandInModel
from graph.context import Context
from graph.request import parse_request
from research.cassette import Label, Recorder, Replay, read_cassette
from tests.unit.graph.cases import report_of, small
from tools.kb import open_seed
from tools.recommend.optimize import workload_of

SHIPPED = Path(__file__).resolve().parents[3] / "examples/sessions/mixtral-8x22b-128xh100.jsonl"
LABEL = Label(answered_by="stand-in random", recorded_at="2026-11-17", request=small())


def test_a_replay_gives_the_report_of_the_recording(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    recorder = Recorder(StandInModel("random", seed=3), file, LABEL)
    recorded = report_of(small(), Context(open_seed(), reasoner=recorder))
    replayed = report_of(small(), Context(open_seed(), reasoner=Replay(file)))
    label, exchanges = read_cassette(file)
    assert label == LABEL
    assert {"find_cause", "propose_plans", "explain"} <= {exchange.question for exchange in exchanges}
    for name in (
        "verdict",
        "explanation",
        "authors",
        "hypotheses",
        "proposals",
        "considered",
        "incidents",
        "usage",
    ):
        assert replayed[name] == recorded[name], name


def test_the_shipped_recording_names_who_answered_and_still_counts() -> None:
    replay = Replay(SHIPPED)
    report = report_of(replay.label.request, Context(open_seed(), reasoner=replay))
    rules = report_of(replay.label.request)
    assert "Claude" in replay.label.answered_by
    assert len(report["notes"]["accepted"]) > len(rules["notes"]["accepted"])
    assert report["authors"]["explanation"] == replay.name
    fastest_s = min(proposal["prediction"]["step_time_s"] for proposal in report["proposals"])
    pair_error = workload_of(parse_request(replay.label.request).scenario).pair_error
    assert report["proposals"][0]["prediction"]["step_time_s"] <= fastest_s * math.exp(pair_error)


def test_what_is_not_recorded_is_left_to_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text(LABEL.model_dump_json() + "\n")
    report = report_of(small(), Context(open_seed(), reasoner=Replay(file)))
    assert report["verdict"] == report_of(small())["verdict"]
    assert [incident["kind"] for incident in report["incidents"]] == ["cassette"]
