"""Training configurations of public repositories, imported: right, refused by name, wrong, crashed.

The repositories are git directories (OWNER+NAME/repo) in a folder beside the checkout. A file is a recipe if
it states two of the numbers of NAMES; a second, simple reading of these (a parsed file's leaves, a script's
literal options, the assignments of a Python function) is held against the scenario. `--list` prints what is
not right.
"""

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import JsonValue

from tools.errors import InputError
from tools.frameworks import ImportOptions, import_plan
from tools.frameworks.python_config import module_finder
from tools.frameworks.start import preset_models

MIRRORS = Path(__file__).resolve().parents[2] / ".mirror"
SUFFIXES = (".json", ".py", ".sh", ".toml", ".yaml", ".yml")
NOT_RECIPES = re.compile(r"(^|/)(\.github|\.gitlab|\.ci|docker|node_modules|unit_tests?)/")
MAX_BYTES = 2**20
NAMES = {
    "plan.tp": "tensor_model_parallel_size tensor_parallel_degree ici_tensor_parallelism model_parallel_size",
    "plan.pp": "pipeline_model_parallel_size pipeline_parallel_degree pp_size ici_pipeline_parallelism "
    "pipe_parallel_size",
    "plan.cp": "context_parallel_size context_parallel_degree cp_size ici_context_parallelism ulysses_size",
    "plan.ep": "expert_model_parallel_size expert_parallel_degree ep_size ici_expert_parallelism",
    "plan.micro_batch_size": "micro_batch_size per_device_train_batch_size local_batch_size "
    "train_micro_batch_size_per_gpu pp_microbatch_size pipeline_parallel_microbatch_size",
    "training.global_batch_size": "global_batch_size train_batch_size",
    "training.seq_len": "seq_length seq_len sequence_len cutoff_len max_target_length sequence_length "
    "decoder_seq_length packed_sequence_size",
    "model.num_hidden_layers": "num_layers num_hidden_layers base_num_decoder_layers n_layers",
    "model.hidden_size": "hidden_size base_emb_dim",
    "model.num_attention_heads": "num_attention_heads base_num_query_heads",
    "model.num_experts": "num_experts num_moe_experts num_local_experts n_routed_experts",
}
"""Fields of a scenario, and what the tools call them; a value that a file states twice is not compared."""
FIELD_OF = {name: field for field, names in NAMES.items() for name in names.split()}
VARIABLES = {
    "TP": "2", "PP": "2", "EP": "8", "CP": "1", "MBS": "1", "GBS": "512", "SEQ_LEN": "4096", "VPP": "1",
    "LAYERS_PER_VP": "4",
}  # fmt: skip
LARGER_MODELS: list[dict[str, object]] = [
    {"model": preset_models()[name]} for name in ("Llama 3.1 70B", "Llama 3.1 405B")
]
"""A recipe names its model; the user who gives its config.json gives one with enough layers."""
OFFERS: dict[str, list[dict[str, object]]] = {
    "cluster.num_devices": [{"num_devices": count} for count in (64, 512, 2048, 3072, 416, 608)],
    "model": [{"model": preset_models()["Llama 3.1 8B"]}],
    "training.seq_len": [{"seq_len": 4096}],
    "plan.micro_batch_size": [{"micro_batch_size": 1}],
    "deepspeed: train_micro_batch_size_per_gpu": [{"micro_batch_size": 1}],
    "model.vocab_size": [{"vocab_size": 32000}],
    "variables": [{"variables": VARIABLES}],
    "plan.ep": [{"model": preset_models()["Qwen3 30B-A3B"]}],
    "plan.pp": LARGER_MODELS,
    "plan.vpp": [{"variables": {**VARIABLES, "PP": "1"}}, *LARGER_MODELS],
    "plan.recompute_layers": LARGER_MODELS,
    "training.global_batch_size": [{"global_batch_size": 6144}],
    "deepspeed: train_batch_size": [{"num_devices": 8, "global_batch_size": 64}],
    "training.framework": [{"framework": "megatron-core"}],
    "training.precision": [{"device": "b200"}],
}
"""What a user would add when the importer asks for it."""
GROWS = ("plan.ep", "plan.dp_shard")
"""What too few devices break."""
DIFFERENT = (
    ("num_hidden_layers", "gemma2"), ("tp", "ici_tensor_sequence_parallelism: -1"),
    ("num_experts", "num_moe_experts: 1 "), ("seq_len", "decoder-seq-length"),
    ("seq_len", "total-seq-length"), ("num_hidden_layers", "flextron"),
)  # fmt: skip
"""Fields and marks of files where the number is another thing: MaxText counts Gemma 2's pairs of layers, a
second axis takes the devices that are left, one expert is none, the text decoder's own length and layers are
stated too."""
NOT_UNDERSTOOD = ("not recognised", "must have settings", "not YAML", "not a NeMo")
Numbers = dict[str, int]


@dataclass(frozen=True)
class Recipe:
    """One configuration: a file, or a function of a Python file."""

    path: Path
    text: str
    function: str | None
    numbers: Numbers
    """What the simple reading found, by fields of the scenario."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=MIRRORS)
    parser.add_argument("--only", default="", help="a part of the repositories' names")
    parser.add_argument("--list", action="store_true", help="print every file that is not right")
    args = parser.parse_args()
    totals, compared = Counter[str](), 0
    # Many recipes of a repository follow the same modules.
    ast.parse = lru_cache(maxsize=300)(ast.parse)  # type: ignore[assignment]
    header = "| repository | commit | recipes | right | refused by name | not understood | wrong | crashed |"
    mirrors = sorted(args.folder.glob(f"*{args.only}*/repo"))
    if not mirrors:
        print(
            f"no repositories OWNER+NAME/repo in {args.folder}: docs/import.md has their list",
            file=sys.stderr,
        )
        sys.exit(2)
    print(header + "\n" + re.sub(r"[^|]+", " --- ", header), flush=True)
    for mirror in mirrors:
        outcomes, commit = Counter[str](), git(mirror, "log", "-1", "--format=%h %cs").decode().split()
        with tempfile.TemporaryDirectory() as scratch:
            tree = Path(scratch)
            checkout(mirror, tree)
            for recipe in recipes(tree):
                outcome, count = judge(recipe)
                outcomes[outcome.partition(":")[0]] += 1
                compared += count
                if args.list and outcome != "right":
                    name = f"{recipe.path.relative_to(tree)}:{recipe.function or ''}"
                    print(f"  {mirror.parent.name} {name} {outcome}", flush=True)
        totals += outcomes
        print(row(mirror.parent.name.replace("+", "/"), f"{commit[0]} ({commit[1]})", outcomes), flush=True)
    print(row("all", f"{compared} numbers compared", totals))


def git(directory: Path, *command: str) -> bytes:
    return subprocess.run(["git", "-C", str(directory), *command], capture_output=True, check=True).stdout


def checkout(mirror: Path, tree: Path) -> None:
    """The configurations of the newest commit; a snapshot may lack its largest files."""
    listed = git(mirror, "ls-tree", "-r", "HEAD").decode().splitlines()
    entries = [(line.split("\t")[1], line.split()[2]) for line in listed if line.startswith("100")]
    wanted = [(name, each) for name, each in entries if name.endswith(SUFFIXES)]
    asked = "".join(f"{each}\n" for _, each in wanted).encode()
    command = ["git", "-C", str(mirror), "cat-file", "--batch"]
    answer = io.BytesIO(subprocess.run(command, input=asked, capture_output=True, check=True).stdout)
    for name, _ in wanted:
        header = answer.readline().split()
        if header[-1] != b"missing":
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(answer.read(int(header[2])))
            answer.readline()


def row(name: str, commit: str, outcomes: Counter[str]) -> str:
    kinds = ("right", "refused", "not understood", "wrong", "crashed")
    return f"| {name} | {commit} | {outcomes.total()} | {' | '.join(str(outcomes[kind]) for kind in kinds)} |"


def recipes(tree: Path) -> Iterator[Recipe]:
    for path in sorted(tree.rglob("*")):
        name = str(path.relative_to(tree))
        if path.suffix not in SUFFIXES or NOT_RECIPES.search(name) or not path.is_file() or path.is_symlink():
            continue
        if path.stat().st_size > MAX_BYTES:
            continue
        text = path.read_text(errors="replace")
        if path.suffix != ".py":
            numbers = unambiguous(stated(text, path.suffix))
            if len(numbers) >= 2:
                yield Recipe(path, text, None, numbers)
        elif re.search(
            r"ConfigContainer|config_registry|ParallelismConfig\(|TransformerConfig|run\.Partial", text + name
        ):
            for function in python_functions(text):
                numbers = unambiguous(assigned(function))
                if len(numbers) >= 2:
                    yield Recipe(path, text, function.name, numbers)


def unambiguous(pairs: Iterator[tuple[str, JsonValue]]) -> Numbers:
    """The counts that a file states once, or always the same."""
    found: dict[str, set[int]] = {}
    for name, value in pairs:
        leaf = name.lstrip("-").replace("-", "_")
        if leaf in FIELD_OF and ((isinstance(value, str) and value.isdigit()) or type(value) is int):
            found.setdefault(FIELD_OF[leaf], set()).add(
                max(int(value), 1) if FIELD_OF[leaf] == "plan.pp" else int(value)
            )
    return {field: min(values) for field, values in found.items() if len(values) == 1 and min(values) > 0}


def stated(text: str, suffix: str) -> Iterator[tuple[str, JsonValue]]:
    """Leaves of a parsed file; a script's literal options, and variables that are assigned once."""
    if suffix == ".sh":
        lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        assignments: dict[str, set[str]] = {}
        for name, value in re.findall(r"(?m)^\s*(?:export )?([A-Za-z_]\w*)=\"?(\w*)\"?\s*$", lines):
            assignments.setdefault(name, set()).add(value)
        for name, value in re.findall(r"--([\w-]+)[ =]+\"?(\d+|\$\{?\w+\}?)\"?(?=[\s\\)]|$)", lines):
            values = assignments.get(value.strip("${}"), {value})
            yield from ((name, each) for each in values)
        return
    try:
        parsers = {".toml": tomllib.loads, ".json": json.loads}
        parsed = parsers.get(suffix, yaml.safe_load)(text)
    except (ValueError, yaml.YAMLError, RecursionError):
        return
    yield from leaves(parsed)


def leaves(value: object, name: str = "") -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, str(key))
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, name if not isinstance(item, int) else "")
    else:
        yield name, value  # type: ignore[misc]


def python_functions(text: str) -> Iterator[ast.FunctionDef]:
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return
    for node in body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def assigned(function: ast.FunctionDef) -> Iterator[tuple[str, JsonValue]]:
    """Literals that a function assigns to attributes or gives by keyword."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    yield target.attr, node.value.value  # type: ignore[misc]
        elif isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant) and node.arg:
            yield node.arg, node.value.value  # type: ignore[misc]


def judge(recipe: Recipe) -> tuple[str, int]:
    """What became of one recipe, and how many of its numbers were compared."""
    stated: dict[str, object] = {"device": "h100-sxm-80gb", "find_module": module_finder(str(recipe.path))}
    if recipe.function:
        stated["variables"] = {"CONFIG": recipe.function}
    offers = {path: list(values) for path, values in OFFERS.items()}
    while True:
        try:
            imported = import_plan(recipe.text, None, ImportOptions(**stated))  # type: ignore[arg-type]
            break
        except InputError as error:
            is_small = error.path in GROWS and "must divide" in error.rule and "num_devices" in stated
            path = "cluster.num_devices" if is_small else error.path
            if (recipe.function and path == "variables") or not offers.get(path):
                unclear = any(words in str(error) for words in NOT_UNDERSTOOD)
                return f"{'not understood' if unclear else 'refused'}: {error}"[:300], 0
            offer = offers[path].pop(0)
            if recipe.function and "variables" in offer:
                continue  # of scripts only: a function is chosen by one
            stated |= offer
        except Exception as error:  # noqa: BLE001 - the benchmark counts crashes
            return f"crashed: {type(error).__name__}: {error}"[:300], 0
    found, count = imported.scenario, 0
    for path, number in recipe.numbers.items():
        section, _, field = path.partition(".")
        value = found.get(section, {}).get(field)
        if any(field == each and mark in recipe.text + recipe.path.name for each, mark in DIFFERENT):
            continue
        if field in stated or section in stated or (section == "plan" and "plan" not in found):
            continue
        count += 1
        if value != number:
            return f"wrong: {path} is {number} in the file, {value} in the scenario", count
    return "right", count


if __name__ == "__main__":
    main()
