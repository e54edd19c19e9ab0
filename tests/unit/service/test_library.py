"""The package `asap`: each function gives what the command of its name prints."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import asap
from service.cli.main import main
from tests.workloads import SMALL

REPO = Path(__file__).resolve().parents[3]
SCRIPT = """\
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --vocab-size 128256 --swiglu \\
    --seq-length 8192 --global-batch-size 64 --micro-batch-size 1 --bf16 --use-flash-attn \\
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 1  # as it always was
"""


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    (file := tmp_path / "scenario.json").write_text(json.dumps(SMALL))
    return file


def test_a_job_is_a_file_a_dict_or_a_scenario(
    scenario_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_file = asap.predict(scenario_file)
    assert by_file == asap.predict(SMALL) == asap.predict(asap.read_scenario(SMALL))
    assert main(["predict", "--json", str(scenario_file)]) == 0
    assert by_file.model_dump(mode="json") == json.loads(capsys.readouterr().out)


def test_optimize_proposes_what_the_command_proposes(
    scenario_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shares: list[float] = []
    report = asap.optimize(SMALL, progress=shares.append)
    assert main(["optimize", "--json", str(scenario_file)]) == 0
    assert (
        json.loads(report.model_dump_json())["proposals"] == json.loads(capsys.readouterr().out)["proposals"]
    )
    assert max(shares) == 1.0
    assert asap.explain(SMALL, {"tp": 8}).winner == report.proposals[0].plan


def test_a_script_is_read_exported_and_patched(tmp_path: Path) -> None:
    (script := tmp_path / "pretrain.sh").write_text(SCRIPT)
    today = asap.import_config(script, "16 x H100").scenario
    assert today.plan
    assert (today.plan.tp, today.plan.dp) == (8, 2)
    proposed = today.model_copy(update={"plan": today.plan.model_copy(update={"tp": 2, "dp": 8})})
    patch = asap.patch(script, today, proposed)
    assert patch.text == SCRIPT.replace("parallel-size 8", "parallel-size 2")
    assert "--tensor-model-parallel-size 2" in asap.export(proposed, "megatron").text


def test_wrong_input_names_the_argument(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    without_plan = {key: part for key, part in SMALL.items() if key != "plan"}
    wrong: dict[str, Callable[[], object]] = {
        "plan": lambda: asap.predict(without_plan),
        "devices": lambda: asap.import_config("config.json", "many"),
        "file": lambda: asap.import_config(tmp_path / "absent.json", "8 x H100"),
        "job": lambda: asap.predict(tmp_path / "absent.json"),
        "folder": lambda: asap.diagnose(tmp_path),
    }
    for path, call in wrong.items():
        with pytest.raises(asap.InputError) as refused:
            call()
        assert refused.value.path == path


def test_a_users_own_tools_are_named_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").touch()
    # as where it is installed: what finds the packages of a checkout finds their modules inside another's too
    installed = "sys.meta_path[:] = [each for each in sys.meta_path if '_EditableFinder' not in str(each)]"
    program = f"import sys; {installed}; sys.path.insert(0, {str(tmp_path)!r}); import asap"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert "ImportError: a package 'tools' of yours hides the one of asap-sharding" in done.stderr
