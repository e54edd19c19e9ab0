"""`asap export` of today's plan, and of a proposal that a report holds; `asap import` of what it wrote."""

import json

from tests.unit.service.cli.commands import EXAMPLE, Asap

EXPORT = ("export", EXAMPLE, "--format", "megatron")
SCENARIO = json.loads(EXAMPLE.read_text())
PLAN = SCENARIO["plan"]


SETTINGS = {"cuda_graph": "scoped", "fused_loss": True}


def test_the_settings_of_a_proposal_are_written(asap: Asap) -> None:
    report = {"proposals": [{"plan": PLAN | {"recompute": "none"}, "settings": SETTINGS}]}
    plain, changed = asap(*EXPORT).out, asap(*EXPORT, "--report", report).out
    assert "--cross-entropy-loss-fusion" in plain  # what is priced without a word is written too
    assert "--cross-entropy-loss-fusion" in changed
    assert "--cuda-graph-impl" in {*changed.split()} - {*plain.split()}


def test_notes_of_an_export_go_to_standard_error(asap: Asap) -> None:
    result = asap("export", SCENARIO | {"plan": PLAN | {"recompute": None}}, "--format", "megatron")
    assert result.status == 0
    assert result.err.startswith("asap: note: the plan does not state recompute")


def test_export_import_and_predict_work_one_after_the_other(asap: Asap) -> None:
    arguments = asap(*EXPORT).out + "\n--lr 1e-4\n"
    cluster = ("--device", "h100", "--num-devices", "64", "--devices-per-node", "8")
    imported = asap(
        "import", arguments.encode(), "--format", "megatron", "--model", SCENARIO["model"], *cluster
    )
    assert imported.err.splitlines() == [
        "asap: note: parameters: 70,553,706,496",
        "asap: note: ignored (harmless): lr",
    ]
    again = json.loads(imported.out)
    assert {key: again["plan"][key] for key in PLAN} == PLAN
    times = [asap("predict", scenario, "--json").answer["step_time_s"] for scenario in (again, SCENARIO)]
    assert times[0] == times[1]
