"""`asap export` of today's plan, and of a proposal that a report holds; `asap import` of what it wrote."""

import json
from collections.abc import Iterable

import pytest

from tests.unit.service.cli.commands import EXAMPLE, Asap
from tools.frameworks import EXPORT_FORMATS, IMPORT_FORMATS

EXPORT = ("export", EXAMPLE, "--format", "megatron")
IMPORT = ("import", EXAMPLE, "--format", "megatron")
SCENARIO = json.loads(EXAMPLE.read_text())
PLAN = SCENARIO["plan"]
REPORT = {"proposals": [{"plan": PLAN}, {"plan": PLAN | {"tp": 4, "dp": 4, "dp_shard": 4}}]}


@pytest.mark.parametrize(("options", "tp"), [((), 8), (("--report", REPORT, "--proposal", "2"), 4)])
def test_todays_plan_or_a_proposal_of_a_report_is_written(
    asap: Asap, options: tuple[object, ...], tp: int
) -> None:
    result = asap(*EXPORT, *options)
    assert (result.status, result.err) == (0, "")
    assert f"--tensor-model-parallel-size {tp}\n" in result.out


SETTINGS = {"cuda_graph": True, "fused_loss": True}


def test_the_settings_of_a_proposal_are_written(asap: Asap) -> None:
    report = {"proposals": [{"plan": PLAN | {"recompute": "none"}, "settings": SETTINGS}]}
    plain, changed = asap(*EXPORT).out, asap(*EXPORT, "--report", report).out
    assert "--cross-entropy-loss-fusion" in plain  # what is priced without a word is written too
    assert "--cross-entropy-loss-fusion" in changed
    assert "--cuda-graph-impl" in {*changed.split()} - {*plain.split()}


@pytest.mark.parametrize("rank", ["0", "3", "-1"])
def test_a_proposal_that_is_not_there_is_refused(asap: Asap, rank: str) -> None:
    result = asap(*EXPORT, "--report", REPORT, "--proposal", rank)
    assert result.status == 2
    assert "--proposal" in result.err


@pytest.mark.parametrize(
    "content", [{}, {"proposals": 3}, {"proposals": ["x"]}, {"proposals": [{"plan": 7}]}]
)
def test_what_is_not_a_report_is_refused(asap: Asap, content: object) -> None:
    assert asap(*EXPORT, "--report", content).refused


def test_an_export_in_json_is_one_object(asap: Asap) -> None:
    export = asap("export", EXAMPLE, "--format", "nemo", "--json").answer
    assert set(export) == {"format", "file_name", "text", "notes"}
    assert export["file_name"] == "nemo.yaml"


def test_notes_of_an_export_go_to_standard_error(asap: Asap) -> None:
    result = asap("export", SCENARIO | {"plan": PLAN | {"recompute": None}}, "--format", "megatron")
    assert result.status == 0
    assert result.err.startswith("asap: note: the plan does not state recompute")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("export", EXAMPLE, "--format", "accelerate"), "plan.pp: got "),
        (("export", EXAMPLE, "--format", "megatorn"), "did you mean megatron?"),
        (("export", EXAMPLE), "--format"),
        (("export", "absent.json", "--format", "nemo"), "FILE"),
        (("import", "absent.sh", "--format", "megatron"), "FILE"),
        (("import", b"\xff\xfe\x00", "--format", "maxtext"), "UTF-8"),
        (("import", EXAMPLE, "--format", "deepspeed"), "--num-devices"),
        ((*IMPORT, "--num-devices", "-1"), "--num-devices"),
        ((*IMPORT, "--set", "plan.tp"), "FIELD=VALUE"),
        ((*IMPORT, "--model", "absent.json"), "absent.json"),
    ],
)
def test_bad_input_is_refused_in_one_line(asap: Asap, words: tuple[object, ...], part: str) -> None:
    result = asap(*words)
    assert result.refused
    assert part in result.err


def test_export_import_and_predict_work_one_after_the_other(asap: Asap) -> None:
    arguments = asap(*EXPORT).out + "\n--lr 1e-4\n"
    cluster = ("--device", "h100", "--num-devices", "64", "--devices-per-node", "8")
    imported = asap(
        "import", arguments.encode(), "--format", "megatron", "--model", SCENARIO["model"], *cluster
    )
    assert imported.err.splitlines() == [
        "asap: note: parameters: 70,553,706,496",
        "asap: note: not taken over, harmless: lr",
    ]
    again = json.loads(imported.out)
    assert {key: again["plan"][key] for key in PLAN} == PLAN
    times = [asap("predict", scenario, "--json").answer["step_time_s"] for scenario in (again, SCENARIO)]
    assert times[0] == times[1]


@pytest.mark.parametrize(("command", "formats"), [("export", EXPORT_FORMATS), ("import", IMPORT_FORMATS)])
def test_the_help_explains_every_format(asap: Asap, command: str, formats: Iterable[str]) -> None:
    result = asap(command, "--help")
    assert result.status == 0
    assert [name for name in formats if f"\n  {name} " not in result.out] == []
