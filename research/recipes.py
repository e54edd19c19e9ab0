"""`make recipes MIRRORS=folder`: writes kb_seed/recipes/settings.jsonl, the settings of published recipes.

The folder has git directories of NVIDIA-NeMo/Megatron-Bridge and NVIDIA/NeMo, as OWNER+NAME/repo. A line is
written where a setting differs from that of the release before.
"""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import JsonValue

from research.recipe_reader import Definition, NoRecipeError, Part, Snapshot, Value
from tools.scenario.fields import JsonObject
from tools.scenario.recipes import model_keys

REPO = Path(__file__).resolve().parents[1]
TABLE = REPO / "kb_seed" / "recipes" / "settings.jsonl"
BRIDGE, NEMO, AUTOMODEL = "NVIDIA-NeMo/Megatron-Bridge", "NVIDIA/NeMo", "NVIDIA-NeMo/Automodel"
RELEASES = {
    (NEMO, "v2.3.0"): "2025-04",
    (NEMO, "v2.4.0"): "2025-07",
    (BRIDGE, "v0.2.0"): "2025-11",
    (BRIDGE, "v0.3.0"): "2026-02",
    (BRIDGE, "v0.3.1"): "2026-03",
    (BRIDGE, "v0.4.0"): "2026-04",
    (BRIDGE, "v0.4.2"): "2026-05",
    (BRIDGE, "v0.5.0"): "2026-06",
    (BRIDGE, "v0.6.0"): "2026-08",
    (AUTOMODEL, "v0.2.0"): "2025-12",
    (AUTOMODEL, "v0.3.0"): "2026-02",
    (AUTOMODEL, "v0.4.0"): "2026-04",
    (AUTOMODEL, "v0.5.0"): "2026-06",
}
"""Tags with their month; NVIDIA's containers are named by theirs, as performance summaries repeat it."""
DEVICES = {name: name for name in ("b200", "b300", "gb200", "gb300")} | {"h100": "h100-sxm-80gb"}
PRECISIONS = {
    "bf16": "bf16",
    **dict.fromkeys(("fp8", "fp8_cs", "fp8cs", "fp8_sc", "fp8sc"), "fp8"),
    **dict.fromkeys(("fp8_mx", "fp8mx"), "mxfp8"),
    "nvfp4": "nvfp4",
}
SCRIPT_PRECISIONS = ("bf16", "fp8_cs", "fp8_sc", "fp8_mx", "nvfp4")
"""Of two recipes with 8 bits current scaling is taken, which comes first."""
PROVIDED_DISPATCHER = "alltoall"
"""What every model provider of Megatron-Bridge sets, src/megatron/bridge/models."""
PRESETS = "scripts/performance/configs"
AUTOMODEL_STEMS = {
    "qwen3_moe_30b": "qwen3_30b_a3b",
    "qwen3_moe_235b": "qwen3_235b_a22b",
    "qwen3_next": "qwen3_next_80b_a3b",
    "gptoss_20b": "gpt_oss_20b",
    "gptoss_120b": "gpt_oss_120b",
    "nemotron_nano_v3": "nemotron_3_nano",
    "nemotron_super_v3": "nemotron_3_super",
}
"""Files that are not named like the model of settings.toml."""
AUTOMODEL_FILE = re.compile(r".*/(\w+?)_te_(deepep|fp8|mxfp8)(_gb200)?\.yaml")
FLAT = re.compile(r"(\w+?)_(pretrain|peft)_(\d+)gpu_([a-z]+\d+)_([a-z0-9]+)_config")
BY_GPU = re.compile(r"(\w+?)(?:_(pretrain|lora))?(?:_config)?_([a-z]{1,2}\d{3})(?:_config)?")
QUANTIZED = {
    "*.linear_qkv": "qkv",
    "*.linear_proj": "proj",
    "*mlp.fc[12]_latent_proj": "latent",
    "mtp.*": "mtp",
    "*mixer.out_proj": "mamba_out",
}
"""Patterns of Transformer Engine's recipe by module, with the names in `precision_scope`."""


class Key(NamedTuple):
    """What a recipe is for."""

    model: str
    device: str
    precision: str
    lora: bool


class Found(NamedTuple):
    """What a recipe sets, and the file that sets it."""

    settings: JsonObject
    path: str
    num_gpus: int


def bridge_recipes(snapshot: Snapshot) -> Iterator[tuple[Key, Found]]:
    for path in sorted(snapshot.files):
        is_flat = bool(re.fullmatch(r"src/megatron/bridge/perf_recipes/\w+/[a-z]+\d+/\w+\.py", path))
        if not is_flat and not (path.startswith(f"{PRESETS}/") and path.endswith(("train.py", "tune.py"))):
            continue
        module = snapshot.module(path)
        for name in module.definitions:
            match, recipe = (FLAT if is_flat else BY_GPU).fullmatch(name), module.lookup(name)
            if match is None or not isinstance(recipe, Definition):
                continue
            words: dict[str, dict[str, Value]]
            if is_flat:
                model, task, count, gpu, word = match.groups()
                words = {word: {}}
            else:
                model, task, gpu, count = *match.groups(), 0
                words = {word: {"precision": word} for word in SCRIPT_PRECISIONS}
                presets = f"{path.rpartition('/')[0]}/workload_base_configs.py"
                if presets in snapshot.files:  # v0.2.0 takes another precision's preset where one is missing
                    stem, names = f"{model}_{gpu}".upper(), snapshot.module(presets).definitions
                    words = {w: words[w] for w in words if f"{stem}_{w.upper()}_BASE_CONFIG" in names}
            if gpu not in DEVICES or model not in model_keys():
                continue
            for word, arguments in words.items():
                try:
                    config = recipe.call([], arguments)
                except NoRecipeError:
                    continue
                if isinstance(config, Part):
                    key = Key(model, DEVICES[gpu], PRECISIONS[word], task in ("peft", "lora"))
                    settings = _settings(config, snapshot, is_moe=bool(model_keys()[model].num_experts))
                    yield key, Found(settings, path, int(count))


def _settings(config: Part, snapshot: Snapshot, *, is_moe: bool) -> JsonObject:
    """The fields of the contract, from those of a ConfigContainer."""
    find, settings = config.find, JsonObject()
    if is_moe:
        kind = find("model.moe_token_dispatcher_type") or PROVIDED_DISPATCHER
        settings["moe_dispatcher"] = str(
            find("model.moe_flex_dispatcher_backend") if kind == "flex" else kind
        )
        settings["overlap_moe_communication"] = bool(find("comm_overlap.overlap_moe_expert_parallel_comm"))
    scopes = find("model.cuda_graph_scope") or find("model.cuda_graph_modules")
    scopes = [scopes] if isinstance(scopes, str) else scopes if isinstance(scopes, list) else []
    match find("model.cuda_graph_impl"):
        case None | "none":
            settings["cuda_graph"] = "none"
        case "full_iteration":
            settings["cuda_graph"] = "full"
        case _ if "full_iteration" in scopes:
            settings["cuda_graph"] = "full"
        case _:
            settings |= {"cuda_graph": "scoped", "cuda_graph_scopes": sorted(scopes)}
    settings |= _recompute(config)
    if layers := find("model.cpu_offloading_num_layers"):
        settings["activation_offload"] = int(str(layers))
    is_short = find("optimizer.exp_avg_dtype") == "torch.bfloat16"
    is_used = bool(find("optimizer.use_precision_aware_optimizer"))
    settings["optimizer_state"] = "bf16" if is_used and is_short else "fp32"
    settings["gradient_dtype"] = "bf16" if find("ddp.grad_reduce_in_fp32") is False else "fp32"
    if (overlaps := find("comm_overlap.tp_comm_overlap")) is not None:
        settings["overlap_tensor_communication"] = bool(overlaps)
    if scope := _precision_scope(config, snapshot):
        settings["precision_scope"] = scope
    return settings


def _recompute(config: Part) -> JsonObject:
    layers, modules = config.find("model.recompute_num_layers"), config.find("model.recompute_modules")
    match config.find("model.recompute_granularity"):
        case "full" if config.find("model.recompute_method") == "block":
            return {"recompute": "full", "recompute_layers": int(str(layers))}
        case "full":
            return {"recompute": "full"}
        case "selective" if modules is None:
            return {"recompute": "selective"}
        case "selective" if isinstance(modules, list) and modules:
            return {"recompute": "selective", "recompute_modules": sorted(modules)}
    return {"recompute": "none"}


def _precision_scope(config: Part, snapshot: Snapshot) -> JsonObject:
    """Parts in another precision than the others: by module, the last layers, 8-bit attention and output."""
    scope: dict[str, list[JsonValue]] = {}
    if isinstance(quantization := config.find("model.quant_recipe"), str):
        for matcher in yaml.safe_load(snapshot.show(quantization))["matchers"].values():
            scope.setdefault(matcher["config"], []).append(QUANTIZED[matcher["pattern"]])
        scope["bf16"].append("lm_head")  # Megatron's output layer, unless fp8_output_proj
    eight_bits = {
        "core_attn": config.find("mixed_precision.fp8_dot_product_attention"),
        "lm_head": config.find("model.fp8_output_proj"),
    }
    if any(eight_bits.values()):
        scope["mxfp8"] = [name for name, is_so in eight_bits.items() if is_so]
    last = config.find("mixed_precision.num_layers_at_end_in_bf16")
    if config.find("mixed_precision.first_last_layers_bf16") and isinstance(last, int):
        return {**scope, "bf16_last_layers": last}
    return {**scope}


def bridge_snapshot(git: Path, tag: str) -> Snapshot:
    def get_workload_base_config(
        model_family_name: str, model_recipe_name: str, gpu: str, compute_dtype: str, task: str, **_: Value
    ) -> Value:
        """The preset by its name, the newest variant first, as the snapshot's own function looks it up."""
        name = f"{model_recipe_name}_{task}_config_{gpu}_{compute_dtype}".upper()
        for path in sorted(snapshot.files):
            if not path.startswith(f"{PRESETS}/{model_family_name}/") or "workload_base" not in path:
                continue
            module = snapshot.module(path)
            for variant in (f"{name}_V2", f"{name}_V1", name):
                if variant in module.definitions:
                    return module.lookup(variant)
        raise NoRecipeError(name)

    def load_quantization_recipe(*_: Value) -> Value:
        return next(path for path in sorted(snapshot.files) if path.endswith("nemotronh/te_quant.cfg"))

    def set_cuda_graph_modules(model: Part, modules: Value) -> None:
        model.fields["cuda_graph_scope"] = modules

    functions = (get_workload_base_config, load_quantization_recipe, set_cuda_graph_modules)
    hooks: dict[str, Callable[..., Value]] = {function.__name__: function for function in functions}
    snapshot = Snapshot(git, tag, ("scripts/performance", "src"), hooks)
    return snapshot


def nemo_recipes(snapshot: Snapshot) -> Iterator[tuple[Key, Found]]:
    """NeMo 2 has tables; its graphs are of a layer, with the experts, which drop tokens there."""
    for gpu, device in DEVICES.items():
        path = f"scripts/performance/recommended_model_configs/model_configs_{gpu}.csv"
        if path not in snapshot.files:
            continue
        for row in csv.DictReader(snapshot.show(path).splitlines()):
            model = f"{row['model']}_{row['size']}"
            if model not in model_keys() or row["task"] not in ("pre_train", "lora"):
                continue
            is_moe = bool(model_keys()[model].num_experts)
            settings: JsonObject = {"cuda_graph": "none", "recompute": "none"}
            if is_moe:
                settings |= {"moe_dispatcher": "alltoall", "overlap_moe_communication": False}
            if int(row["cuda_graphs"] or 0):
                scopes: list[JsonValue] = ["attn", "moe" if is_moe else "mlp"]
                settings |= {"cuda_graph": "scoped", "cuda_graph_scopes": scopes}
            if layers := int(float(row["recompute_layers"] or 0)):
                settings |= {"recompute": "full", "recompute_layers": layers}
            if modules := row["recompute_modules"]:
                settings |= {"recompute": "selective", "recompute_modules": [*modules.split("/")]}
            if offloaded := int(float(row["activation_offload_layers"] or 0)):
                settings["activation_offload"] = offloaded
            key = Key(model, device, PRECISIONS[row["dtype"]], row["task"] == "lora")
            yield key, Found(settings, path, int(float(row["num_gpus"])))


def automodel_recipes(snapshot: Snapshot) -> Iterator[tuple[Key, Found]]:
    """AutoModel has a YAML file per benchmark, of H100 if it does not name another device."""
    for path in sorted(snapshot.files):
        match = AUTOMODEL_FILE.fullmatch(path)
        if match is None or "benchmark" not in path:
            continue
        stem, word, gpu = match.groups()
        model = AUTOMODEL_STEMS.get(stem, stem)
        if model not in model_keys():
            continue
        text = snapshot.show(path)
        config = yaml.safe_load(text)
        backend = config["model"]["backend"]
        dispatcher = backend.get("dispatcher") or ("deepep" if backend["enable_deepep"] else "torch")
        settings: JsonObject = {
            "moe_dispatcher": "alltoall" if dispatcher == "torch" else dispatcher,
            "compile": bool(config.get("compile", {}).get("enabled")),
            "recompute": "full" if "activation_checkpointing: true" in text else "none",
        }
        device = DEVICES["gb200" if gpu else "h100"]
        yield Key(model, device, "bf16" if word == "deepep" else word, False), Found(settings, path, 0)


def table(mirrors: Path) -> Iterator[JsonObject]:
    """A row where a release sets something else than the release before, devices and precisions together."""
    current: dict[tuple[str, Key], JsonObject] = {}
    for (repo, tag), month in RELEASES.items():
        git = mirrors / repo.replace("/", "+") / "repo"
        found: dict[Key, Found] = {}
        framework = "automodel" if repo == AUTOMODEL else "megatron-core"
        if repo == BRIDGE:
            recipes = bridge_recipes(bridge_snapshot(git, tag))
        else:
            read = automodel_recipes if repo == AUTOMODEL else nemo_recipes
            recipes = read(Snapshot(git, tag, ()))
        for key, recipe in recipes:
            if key not in found or recipe.num_gpus > found[key].num_gpus:
                found[key] = recipe
        changed: dict[str, list[Key]] = {}
        for key, recipe in sorted(found.items()):
            if current.get((framework, key)) != recipe.settings:
                current[framework, key] = recipe.settings
                same = (key.model, key.device, key.lora, recipe.settings, recipe.path)
                changed.setdefault(json.dumps(same, sort_keys=True), []).append(key)
        for keys in changed.values():
            first, recipe = keys[0], found[keys[0]]
            yield {
                "framework": framework,
                "since": month,
                "model": first.model,
                "device": first.device,
                "precisions": [key.precision for key in keys],
                **({"lora": True} if first.lora else {}),
                "settings": dict(sorted(recipe.settings.items())),
                "source": f"{repo}@{tag}: {recipe.path}",
            }


def main() -> int:
    if len(sys.argv) != 2:
        print("recipes: error: give the folder of the git directories", file=sys.stderr)
        return 2
    rows = [json.dumps(row, separators=(",", ":")) + "\n" for row in table(Path(sys.argv[1]))]
    TABLE.write_text("".join(rows), "utf-8")
    print(f"{len(rows)} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
