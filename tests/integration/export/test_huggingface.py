"""transformers' own parser takes the exported TrainingArguments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.frameworks import Export

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

PLANS: list[dict[str, Any]] = [
    {},
    {"zero_stage": 2, "recompute": "none"},
    {"zero_stage": 0, "dp_shard": 1},
    {"zero_stage": 1},
    {"micro_batch_size": 2, "training": {"precision": "fp32"}},
]


@pytest.mark.parametrize("words", PLANS, ids=str)
def test_transformers_parses_the_file_and_means_the_plan(
    exported: Callable[..., Export], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: dict[str, Any]
) -> None:
    module = pytest.importorskip("transformers", reason="transformers is not installed")
    arguments = pytest.importorskip("transformers.training_args")
    if words.get("zero_stage") == 1:
        pytest.importorskip("deepspeed", reason="transformers loads it for ZeRO 1")
    # Devices are looked for when the arguments are checked; this machine has none.
    monkeypatch.setattr(arguments, "is_torch_bf16_gpu_available", lambda: True, raising=False)
    export = exported("huggingface", "deepspeed" if words.get("zero_stage") == 1 else "torch-fsdp2", **words)
    (tmp_path / export.file_name).write_text(export.text)
    (parsed,) = module.HfArgumentParser(module.TrainingArguments).parse_json_file(tmp_path / export.file_name)
    assert parsed.per_device_train_batch_size == words.get("micro_batch_size", 1)
    assert parsed.gradient_accumulation_steps == 256 // 64 // words.get("micro_batch_size", 1)
    stage = words.get("zero_stage", 3)
    assert bool(parsed.fsdp) == (stage in (2, 3))
    assert bool(parsed.deepspeed) == (stage == 1)
    if stage in (2, 3):
        assert parsed.fsdp_plugin_args["reshard_after_forward"] is (stage == 3)
