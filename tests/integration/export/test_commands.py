"""`asap export` and `asap import` as a user meets them."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from service.cli.main import main
from tools.frameworks import EXPORT_FORMATS, IMPORT_FORMATS

REPO = Path(__file__).resolve().parents[3]
EXAMPLE = str(REPO / "examples" / "llama-3.1-70b-64xh100.json")


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(Path(EXAMPLE).read_text())["model"]))
    return str(path)


def test_export_prints_the_file_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", EXAMPLE, "--format", "megatron"]) == 0
    out, err = capsys.readouterr()
    tp = json.loads(Path(EXAMPLE).read_text())["plan"]["tp"]
    assert f"--tensor-model-parallel-size {tp}\n" in out
    assert err == ""


def test_export_in_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", EXAMPLE, "--format", "nemo", "--json"]) == 0
    export = json.loads(capsys.readouterr().out)
    assert set(export) == {"format", "file_name", "text", "notes"}
    assert export["file_name"] == "nemo.yaml"


def test_notes_of_an_export_go_to_standard_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scenario = json.loads(Path(EXAMPLE).read_text())
    scenario["plan"]["recompute"] = None
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario))
    assert main(["export", str(path), "--format", "megatron"]) == 0
    assert capsys.readouterr().err.startswith("asap: note: the plan does not state recompute")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["export", EXAMPLE, "--format", "accelerate"], "plan.pp: got "),
        (["export", EXAMPLE, "--format", "megatorn"], "did you mean megatron?"),
        (["export", EXAMPLE], "--format"),
        (["export", "absent.json", "--format", "nemo"], "FILE"),
        (["import", "absent.sh", "--format", "megatron"], "FILE"),
        (["import", EXAMPLE, "--format", "deepspeed"], "--num-devices"),
        (["import", EXAMPLE, "--format", "megatron", "--num-devices", "-1"], "--num-devices"),
        (["import", EXAMPLE, "--format", "megatron", "--set", "plan.tp"], "FIELD=VALUE"),
        (["import", EXAMPLE, "--format", "megatron", "--model", "absent.json"], "absent.json"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert part in err


def test_a_binary_file_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"\xff\xfe\x00")
    assert main(["import", str(path), "--format", "maxtext"]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_export_import_predict_work_one_after_the_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_file: str
) -> None:
    main(["export", EXAMPLE, "--format", "megatron"])
    arguments = tmp_path / "args.sh"
    arguments.write_text(capsys.readouterr().out + "\n--lr 1e-4\n")
    words = ["import", str(arguments), "--format", "megatron", "--model", model_file]
    assert main([*words, "--device", "h100", "--num-devices", "64", "--devices-per-node", "8"]) == 0
    out, err = capsys.readouterr()
    assert err == "asap: note: settings without a place in a scenario: lr\n"
    again, example = json.loads(out), json.loads(Path(EXAMPLE).read_text())
    assert {key: again["plan"][key] for key in example["plan"]} == example["plan"]
    scenario = tmp_path / "again.json"
    scenario.write_text(out)
    assert main(["predict", str(scenario), "--json"]) == 0
    main(["predict", EXAMPLE, "--json"])
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["step_time_s"] == second["step_time_s"]


@pytest.mark.parametrize(("command", "formats"), [("export", EXPORT_FORMATS), ("import", IMPORT_FORMATS)])
def test_the_help_explains_every_format(
    command: str, formats: Iterable[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert [name for name in formats if f"\n  {name} " not in printed] == []
