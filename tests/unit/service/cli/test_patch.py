"""`asap patch` changes what the plan decides and nothing else; what it cannot change it names by line."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.cli.commands import EXAMPLE, Asap

SCENARIO = json.loads(EXAMPLE.read_text())
PLAN: dict[str, Any] = SCENARIO["plan"] | {"recompute": "none"}
WANTED = PLAN | {"tp": 4, "pp": 4, "dp": 4, "dp_shard": 4, "vpp": 2, "micro_batch_size": 2}
SCRIPT = """\
#!/bin/bash
# a comment with --tensor-model-parallel-size 3
TP=8   # chosen in spring
GPUS=64
ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size 4 --use-distributed-optimizer  # ours
    --micro-batch-size 1
    --global-batch-size 128
    --sequence-parallel
    --seq-length 8192
    --bf16
    --lr 1e-4
)
torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py "${ARGS[@]}" "$@"
"""
TOML = """\
# today's run
[training]
local_batch_size = 1   # per device
global_batch_size = 128
seq_len = 8192

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8  # inside a node
[activation_checkpoint]
mode = 'full'
"""
FSDP = PLAN | {"tp": 8, "pp": 1, "dp": 8, "dp_shard": 8, "zero_stage": 3, "recompute": "full"}


def report(today: dict[str, Any], wanted: dict[str, Any], **training: object) -> dict[str, Any]:
    contract = SCENARIO["training"] | training
    return {"scenario": SCENARIO | {"plan": today, "training": contract}, "proposals": [{"plan": wanted}]}


def patched(asap: Asap, folder: Path, name: str, text: str, made: dict[str, Any], *words: str) -> list[str]:
    """The lines that differ after `git apply`; the rest is compared by git."""
    file = folder / name
    file.write_text(text)
    result = asap("patch", file, "--report", made, *words)
    assert (result.status, result.out[: len(name) + 7]) == (0, f"--- a/{name}\n"), result.err
    subprocess.run(["git", "apply"], input=result.out, text=True, cwd=folder, check=True)
    before, after = text.splitlines(), file.read_text().splitlines()
    return [line for line in before if line not in after] + [
        f"+{line}" for line in after if line not in before
    ]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_keeps_its_comments_variables_and_order(asap: Asap, in_folder: Path) -> None:
    assert patched(asap, in_folder, "run.sh", SCRIPT, report(PLAN, WANTED)) == [
        "TP=8   # chosen in spring",
        "    --micro-batch-size 1",
        "+TP=4   # chosen in spring",
        "+    --num-virtual-stages-per-pipeline-rank 2",
        "+    --micro-batch-size 2",
    ]


def test_a_command_over_many_lines_stays_one_command(asap: Asap, in_folder: Path) -> None:
    """An option was taken off the front of a line with others, and the line before lost its backslash."""
    today, wanted = PLAN | {"recompute": "full"}, PLAN
    text = (EXAMPLE.parent / "pretrain-llama-70b.sh").read_text()
    patched(asap, in_folder, "pretrain.sh", text, report(today, wanted))
    commands = (in_folder / "pretrain.sh").read_text().replace("\\\n", " ").splitlines()
    assert [line.split()[0] for line in commands] == ["#!/usr/bin/env", "#", "set", "torchrun"]
    assert "--recompute" not in commands[-1]
    assert "--train-iters 100000" in commands[-1]


def test_toml_is_changed_where_it_states_the_plan(asap: Asap, in_folder: Path) -> None:
    wanted = FSDP | {"tp": 4, "dp": 16, "dp_shard": 16, "recompute": "none"}
    made = report(FSDP, wanted, framework="torchtitan")
    assert patched(asap, in_folder, "train.toml", TOML, made) == [
        "tensor_parallel_degree = 8  # inside a node",
        "mode = 'full'",
        "+tensor_parallel_degree = 4  # inside a node",
        '+mode = "none"',
    ]


def test_a_section_that_json_lacks_is_added(asap: Asap, in_folder: Path) -> None:
    rows = ('"train_batch_size": 128', '"train_micro_batch_size_per_gpu": 1', '"bf16": {"enabled": true}')
    text = "{\n\t" + ",\n\t".join(rows) + "\n}\n"
    today = PLAN | {"tp": 1, "pp": 1, "dp": 64, "dp_shard": 1, "zero_stage": 0, "sequence_parallel": False}
    wanted = today | {"dp_shard": 64, "zero_stage": 3, "micro_batch_size": 2, "recompute": "full"}
    made = report(today | {"recompute": None}, wanted, framework="deepspeed")
    assert patched(asap, in_folder, "ds.json", text, made) == [
        '\t"train_micro_batch_size_per_gpu": 1,',
        '+\t"train_micro_batch_size_per_gpu": 2,',
        '+\t"zero_optimization": {"stage": 3},',
        '+\t"activation_checkpointing": {"number_checkpoints": 80},',
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("TP=8 ", "TP=$((GPUS/8)) ", "line 3: got '$((GPUS/8))'; is not a value that can be replaced"),
        ("--lr 1e-4", "--log-interval $TP", "line 13: log_interval: got '8'; would become '4' too"),
        ("TP=8 ", "TP=2 ", "plan.tp: got 2; the report is about another file: it has 8"),
    ],
)
def test_what_cannot_be_changed_in_place_is_refused_with_its_line(
    asap: Asap, in_folder: Path, old: str, new: str, message: str
) -> None:
    (in_folder / "run.sh").write_text(SCRIPT.replace(old, new))
    result = asap("patch", "run.sh", "--report", report(PLAN, WANTED))
    assert result.refused
    assert message in result.err


def test_a_file_without_a_plan_is_no_file_to_patch(asap: Asap) -> None:
    config = EXAMPLE.parent / "llama-3.1-70b.config.json"
    result = asap("patch", config, "--report", report(PLAN, WANTED))
    assert result.refused
    assert "FILE: got 'no plan'" in result.err


def test_what_another_file_must_state_is_a_note(asap: Asap, in_folder: Path) -> None:
    batch = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), "auto")
    (in_folder / "ds.json").write_text(json.dumps({**batch, "zero_optimization": {"stage": 3}}))
    today = FSDP | {"tp": 1, "dp": 64, "dp_shard": 64, "sequence_parallel": False, "recompute": None}
    made = report(today, today | {"micro_batch_size": 2}, framework="deepspeed", precision="fp32")
    result = asap("patch", "ds.json", "--report", made)
    assert (result.status, result.out) == (0, "")
    assert "plan.micro_batch_size is 2 (today 1): the file leaves it to the program" in result.err
    assert "nothing in this file changes" in result.err


def test_one_command_saves_the_scenario_and_exports_the_first_proposal(asap: Asap, in_folder: Path) -> None:
    words = ("--export", "megatron", "--out", "args.sh", "--save", "scenario.json")
    made = asap("optimize", EXAMPLE, "--json", *words)
    assert "--tensor-model-parallel-size" in (in_folder / "args.sh").read_text()
    again = asap("predict", in_folder / "scenario.json", "--json").answer
    assert again["step_time_s"] == made.answer["baseline"]["step_time_s"]
    assert asap("optimize", EXAMPLE, "--export", "megatron").refused
    assert "--export: got 'megatro'" in asap("optimize", EXAMPLE, "--export", "megatro", "--out", "x").err
