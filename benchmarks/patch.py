"""Public configurations and scripts, each patched to ASAP's own proposal by `asap patch` and read back.

A patch counts if `git apply` takes the diff, the file parses, and the importer reads the proposal's plan and
otherwise the same scenario from it. Files that `asap import` refuses are not counted.
"""

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import yaml

from tools.errors import AsapError, InputError
from tools.frameworks import ImportOptions, import_plan
from tools.frameworks.python_config import looks_like_python
from tools.frameworks.start import preset_models
from tools.recommend.optimize import optimize
from tools.scenario import parse_scenario

CONFIGS = Path(__file__).resolve().parents[2] / "shared" / "configs"
SUFFIXES = (".json", ".py", ".sh", ".toml", ".yaml", ".yml")
VARIABLES = {
    "TP": "2", "PP": "2", "EP": "8", "CP": "1", "MBS": "1", "GBS": "512", "SEQ_LEN": "4096", "VPP": "1",
    "LAYERS_PER_VP": "4",
}  # fmt: skip
DEGREES = ("tp", "pp", "vpp", "cp", "dp", "micro_batch_size")
OFFERS: dict[str, list[dict[str, object]]] = {
    "cluster.num_devices": [{"num_devices": 64}, {"num_devices": 128}],
    "model": [{"model": preset_models()["Llama 3.1 8B"]}],
    "training.seq_len": [{"seq_len": 4096}],
    "plan.micro_batch_size": [{"micro_batch_size": 1}],
    "deepspeed: train_micro_batch_size_per_gpu": [{"micro_batch_size": 1}],
    "model.vocab_size": [{"vocab_size": 32000}],
    "variables": [{"variables": VARIABLES}],
    "plan.ep": [{"model": preset_models()["Qwen3 30B-A3B"]}],
    "plan.vpp": [{"variables": {**VARIABLES, "PP": "1"}}],
    "training.global_batch_size": [{"global_batch_size": 6144}],
    "deepspeed: train_batch_size": [{"num_devices": 8, "global_batch_size": 64}],
    "training.framework": [{"framework": "megatron-core"}],
}
"""What a user would add when the importer asks for it."""


def parse(text: str, kind: str) -> None:
    """As the framework's own parser would; raises if it is no such file."""
    if kind == ".sh":
        subprocess.run(["bash", "-n"], input=text, text=True, check=True, capture_output=True)
    elif kind == ".py":
        ast.parse(text)
    else:
        {".toml": tomllib.loads, ".json": json.loads}.get(kind, yaml.safe_load)(text)


def complete(text: str) -> ImportOptions:
    """The options that make the file a scenario; InputError if none do."""
    stated: dict[str, object] = {"device": "h100-sxm-80gb"}
    offers = {path: list(values) for path, values in OFFERS.items()}
    if looks_like_python(text):
        names = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        offers["variables"] = [{"variables": {"CONFIG": name}} for name in names]
    while True:
        options = ImportOptions(**stated)  # type: ignore[arg-type]
        try:
            import_plan(text, None, options)
        except InputError as error:
            if not offers.get(error.path):
                raise
            stated |= offers[error.path].pop(0)
        else:
            return options


def judge(file: Path, folder: Path) -> str:
    """What became of one file."""
    text = file.read_text()
    try:
        options = complete(text)
    except InputError as error:
        return f"not imported: {error}"
    scenario = parse_scenario(import_plan(text, None, options).scenario, need_plan=False)
    if scenario.plan is None:
        return "not imported: states no plan"
    try:
        proposal = next((entry for entry in optimize(scenario).proposals if entry.changes), None)
    except AsapError as error:
        return f"no proposal: {error}"
    if proposal is None:
        return "no proposal: today's plan is the best"
    report = {"scenario": scenario.model_dump(mode="json"), "proposals": [proposal.model_dump(mode="json")]}
    (folder / "report.json").write_text(json.dumps(report))
    (folder / file.name).write_text(text)
    sets = [word for name, value in options.variables.items() for word in ("--set", f"{name}={value}")]
    asap = [sys.executable, "-m", "service.cli.main", "patch", file.name, "--report", "report.json", *sets]
    done = subprocess.run(asap, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        return f"refused: {done.stderr.strip()}"
    if done.stdout:
        git = subprocess.run(["git", "apply"], input=done.stdout, cwd=folder, capture_output=True, text=True)
        if git.returncode:
            return f"wrong: git apply: {git.stderr.strip()}"
    changed = (folder / file.name).read_text()
    try:
        parse(changed, file.suffix)
        if options.micro_batch_size:  # the program's, not the file's
            options = replace(options, micro_batch_size=proposal.plan.micro_batch_size)
            options = replace(options, global_batch_size=scenario.training.global_batch_size)
        after = parse_scenario(import_plan(changed, None, options).scenario)
    except (AsapError, subprocess.CalledProcessError, ValueError, SyntaxError, yaml.YAMLError) as error:
        return f"wrong: {error}"
    contract = ("seq_len", "global_batch_size", "precision", "framework", "lora")
    kept = [getattr(after.training, name) == getattr(scenario.training, name) for name in contract]
    degrees = [getattr(after.plan, name) == getattr(proposal.plan, name) for name in DEGREES]
    model = after.model.model_copy(update={"vocab_size": scenario.model.vocab_size})  # Megatron pads it by tp
    if not all(kept + degrees) or model != scenario.model:
        return "wrong: reads another plan"
    return "patched" if done.stdout else "nothing to change"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=CONFIGS)
    folder: Path = parser.parse_args().folder
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        for file in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES):
            outcome = judge(file, Path(scratch))
            outcomes[outcome.partition(":")[0]] += 1
            if outcome != "patched":
                print(f"{file.relative_to(folder)}: {outcome}")
    tried = sum(outcomes[each] for each in ("patched", "nothing to change", "refused", "wrong"))
    print(json.dumps(dict(outcomes)))
    print(f"patched {outcomes['patched']} of {tried}")


if __name__ == "__main__":
    main()
