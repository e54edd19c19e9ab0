"""What becomes of today's checkpoint under another plan, by the framework's own data."""

import json
from pathlib import Path

import pytest

from tools.recommend.optimize import optimize
from tools.recommend.report import Speedup
from tools.recommend.switch import checkpoint_under, two_runs, with_commands
from tools.scenario import framework_names, parse_scenario

EXAMPLE = json.loads((Path(__file__).parents[3] / "examples/llama-3.1-70b-64xh100.json").read_text())


@pytest.mark.parametrize(
    ("framework", "change", "loads"),
    [
        ("megatron-core", {"micro_batch_size": 2}, "as it is"),
        ("megatron-core", {"dp_shard": 1}, "resharded"),
        ("megatron-core", {"tp": 4, "dp": 4}, "converted"),
        ("torchtitan", {"tp": 4, "dp": 4}, "resharded"),
        ("deepspeed", {"dp_shard": 1}, "converted"),
        ("accelerate", {"dp_shard": 1}, "resharded"),
        ("huggingface", {"zero_stage": 0}, "converted"),
        ("automodel", {"tp": 4, "dp": 4}, "resharded"),
        ("nanotron", {"tp": 4, "dp": 4}, "converted"),
        ("maxtext", {"tp": 4, "dp": 4}, "resharded"),
        ("maxtext", {"pp": 2, "dp": 4}, "unknown"),
        ("internevo", {"tp": 4, "dp": 4}, "unknown"),
    ],
)
def test_a_checkpoint_loads_as_the_framework_says(framework: str, change: dict[str, int], loads: str) -> None:
    scenario = parse_scenario(EXAMPLE)
    training = scenario.training.model_copy(update={"framework": framework})
    today = scenario.plan
    assert today is not None
    plan = today.model_copy(update=change)
    made = checkpoint_under(scenario.model_copy(update={"training": training}), today, plan, 70 * 10**9)
    assert made is not None
    assert made.loads == loads
    assert bool(made.moved_gib) == (loads != "as it is")
    assert bool(made.command) == (loads == "converted")


def test_every_proposal_against_a_plan_of_today_says_how_to_compare_and_what_to_do_with_checkpoints() -> None:
    found = optimize(parse_scenario(EXAMPLE)).proposals
    assert all(entry.checkpoint and entry.two_runs and entry.two_runs.steps for entry in found)
    for place, entry in enumerate(found, start=1):
        assert entry.two_runs
        assert entry.two_runs.commands[1].startswith(f"asap patch FILE --report report.json --plan {place} ")
    cold = optimize(parse_scenario({**EXAMPLE, "plan": None}, need_plan=False)).proposals
    assert not any(entry.checkpoint or entry.two_runs for entry in cold)


@pytest.mark.parametrize("framework", framework_names())
def test_the_two_runs_start_the_file_as_its_framework_does_on_all_nodes(framework: str) -> None:
    scenario = parse_scenario(EXAMPLE)
    training = scenario.training.model_copy(update={"framework": framework})
    runs = two_runs(scenario.model_copy(update={"training": training}), Speedup())
    made = with_commands(runs, 2, "run.sh")
    assert made.commands[0] == made.commands[2] == made.commands[-1]
    assert "run.sh" in made.launch.replace("FILE", "run.sh")
    assert not {"{", "}"} & {*"".join(made.commands)}
    if "--nnodes" in made.launch:
        assert "--nnodes 8 --nproc-per-node 8" in made.launch
