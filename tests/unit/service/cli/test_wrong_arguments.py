"""Mistakes on the command line: each is told in one line that names the argument, with exit status 2."""

import io
import json
from pathlib import Path

import pytest

from service.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
SCENARIO = str(EXAMPLES / "llama-3.1-70b-64xh100.json")
TRACES = str(EXAMPLES / "traces/ddp-gloo-straggler")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("explain", SCENARIO, "--plan", "tp=" + "[" * 100_000), "plan.tp: got"),
        (
            ("export", SCENARIO, "--format", "megatron", "--proposal", "2"),
            "--proposal: got 2; needs",
        ),
        (("export", SCENARIO, "--format", "megatron", "--report", "absent"), "--report: got 'absent'"),
        (("diagnose", TRACES, "--workers", "x"), "--workers: must be a whole number of 1 or more"),
        (("diagnose", TRACES, "--workers", "0"), "--workers: must be a whole number of 1 or more"),
        (("diagnose", TRACES, "--scenario", "absent"), "--scenario: got 'absent'"),
        (("diagnose", TRACES, "--compare", "absent"), "--compare: got 'absent'"),
        (("diagnose", TRACES, "--compare", SCENARIO), "--compare: got"),
        (("predict", SCENARIO, "--calibration", "absent"), "--calibration: got 'absent'"),
        (("import", "-", "--format", "torchtitan", "--device", "h100"), "FILE: got 'no text'"),
        (("import", SCENARIO, "--format", "huggingface", "--model", "absent"), "--model: got 'absent'"),
    ],
)
def test_the_argument_at_fault_is_named(
    words: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b" \n")))
    assert main(list(words)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert says in printed.err


@pytest.mark.parametrize("name", ["[/x]", "[red]", "\x1b[31m", "[bold"])
def test_names_are_printed_as_they_are_and_no_terminal_obeys_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    scenario = json.loads(Path(SCENARIO).read_text())
    scenario["model"]["name"] = scenario["id"] = name
    for count in (1, 2):
        (tmp_path / "scenarios.jsonl").write_text(f"{json.dumps(scenario)}\n" * count)
        assert main(["predict", str(tmp_path / "scenarios.jsonl")]) == 0
        printed = capsys.readouterr().out
        assert name.replace("\x1b", "\\x1b") in printed
        assert "\x1b" not in printed
