"""The reference trainer on real gloo ranks: whatever the plan, the losses are those of one rank.

Some plans of PyTorch run to the end and do not train: equal losses over several updates are the proof.
Updates are plain SGD, since Adam would hide gradients of a wrong size. Observed differences are at most
2.1e-7 of the loss (summation order in fp32); the tolerance is ten times that.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.trainer import main
from tests.servers import free_port
from tests.unit.testbed import scenarios
from tests.unit.testbed.scenarios import MOE, Json, fsdp

REPO = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("run_reference_plans.py")
TOLERANCE = 2e-6

pytest.importorskip("torch")

pytestmark = pytest.mark.real

Plans = dict[str, tuple[str, Json]]
Losses = dict[str, list[float]]

MODELS: dict[str, Json] = {
    "dense": {},
    "tied": {"tie_word_embeddings": True, "gated_mlp": False},
    "moe": MOE | {"num_shared_experts": 1, "first_k_dense_replace": 1},
}


FOUR_RANKS: Plans = {
    "hsdp, accumulated": ("dense", fsdp(4, micro_batch_size=1) | {"dp_shard": 2}),
    "hybrid zero 2, accumulated": ("dense", fsdp(4, stage=2, micro_batch_size=1) | {"dp_shard": 2}),
    "ddp x tp": ("dense", {"dp": 2, "tp": 2}),
    "fsdp x tp with sequence parallel": ("dense", fsdp(2, tp=2, sequence_parallel=True)),
    "cp x tp with sequence parallel": ("dense", {"cp": 2, "tp": 2, "sequence_parallel": True}),
    "cp x fsdp": ("dense", fsdp(2, cp=2) | {"dp_shard": 4}),
    "pp x ddp": ("dense", {"pp": 2, "dp": 2, "micro_batch_size": 1}),
    "pp x fsdp": ("dense", fsdp(2, pp=2, micro_batch_size=1)),
    "interleaved x fsdp, full recomputation": (
        "dense", fsdp(2, pp=2, vpp=2, micro_batch_size=1, recompute="full"),
    ),
    "interleaved x tp with sequence parallel": (
        "dense", {"pp": 2, "vpp": 2, "tp": 2, "sequence_parallel": True},
    ),
    "zero bubble x ddp": (
        "dense", {"pp": 2, "vpp": 2, "dp": 2, "micro_batch_size": 1, "schedule": "zero_bubble"},
    ),
    "experts and their replicas under hsdp": ("moe", fsdp(4, ep=2, micro_batch_size=1) | {"dp_shard": 2}),
    "experts over tensor and data ranks under fsdp": ("moe", fsdp(2, tp=2, ep=2, sequence_parallel=True)),
    "experts x pp x fsdp": ("moe", fsdp(2, pp=2, ep=2)),
}  # fmt: skip


def scenario(ranks: int, model: str, plan: Json) -> Json:
    return scenarios.scenario(ranks, {"micro_batch_size": 2} | plan, MODELS[model])


def launch(ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [*torchrun, *words],
        cwd=REPO,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def losses(ranks: int, plans: Plans, folder: Path, **seeds: int) -> Losses:
    """Of every plan, all trained by one start of torchrun; `seeds` other than 0 by the plan's name."""
    folder.mkdir()
    cases = {
        name: {"scenario": scenario(ranks, model, plan), "seed": seeds.get(name, 0)}
        for name, (model, plan) in plans.items()
    }
    (folder / "cases.json").write_text(json.dumps(cases))
    done = launch(ranks, str(DRIVER), str(folder / "cases.json"), str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: json.loads((folder / name / "result.json").read_text())["losses"] for name in cases}


@pytest.fixture(scope="module")
def of_one_rank(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    plans: Plans = {"another_seed": ("dense", {})}
    plans |= {name: (name, {}) for name in MODELS}
    return losses(1, plans, tmp_path_factory.mktemp("one") / "runs", another_seed=1)


@pytest.fixture(scope="module")
def of_four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    return losses(4, FOUR_RANKS, tmp_path_factory.mktemp("four") / "runs")


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUR_RANKS)
def test_four_ranks_have_the_losses_of_one_rank(
    of_one_rank: Losses, of_four_ranks: Losses, name: str
) -> None:
    assert of_four_ranks[name] == pytest.approx(of_one_rank[FOUR_RANKS[name][0]], rel=TOLERANCE)


@pytest.mark.slow
def test_a_run_leaves_its_measurements_and_traces(tmp_path: Path) -> None:
    file, out = tmp_path / "scenario.json", tmp_path / "out"
    file.write_text(json.dumps(scenario(2, "dense", fsdp(2))))
    words = ["--steps", "3", "--warmup", "1", "--profile-steps", "1", "--out", str(out)]
    done = launch(2, "-m", "testbed.trainer", str(file), *words)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((out / "result.json").read_text())
    assert len(result["step_times_s"]) == 3
    assert len(result["losses"]) == 4
    assert all(
        peak > before > 0
        for peak, before in zip(result["peak_memory_bytes"], result["before_model_memory_bytes"], strict=True)
    )
    assert result["world_size"] == len(result["ranks"]) == sum(result["fingerprint"]["nodes"].values()) == 2
    beats = [json.loads(line) for line in (out / "progress.jsonl").read_text().splitlines()]
    assert [beat["phase"] for beat in beats] == ["warmup", *["measure"] * 3, *["profile"] * 2]
    assert sorted(path.name for path in (out / "traces").glob("*.json.gz")) == [
        "rank0.json.gz",
        "rank1.json.gz",
    ]
    assert not (out / "failures").exists()


@pytest.mark.parametrize("started", [0, 1])
def test_another_number_of_ranks_is_refused_in_one_line_and_leaves_its_field(
    started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(scenario(2, "dense", {"dp": 2})))
    if started:
        torchruns = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        for name, value in torchruns.items():
            monkeypatch.setenv(name, str(value))
    assert main([str(file), "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("trainer: error: cluster.num_devices: got 2; ")
    assert len(printed.splitlines()) == 1
    failures = [json.loads(path.read_text()) for path in (tmp_path / "failures").iterdir()]
    assert [failure["field"] for failure in failures] == ["cluster.num_devices"]
