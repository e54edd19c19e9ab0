"""A first scenario from a model and a cluster alone, for `asap optimize --devices` and the form of a new
session: what neither states is assumed, and every assumption is named.
"""

import tomllib
from dataclasses import dataclass, replace
from functools import cache

import kb_seed
from tools.frameworks.formats import import_plan, recognise
from tools.frameworks.importing import ImportedScenario, ImportOptions
from tools.frameworks.reading import parse_text
from tools.frameworks.trainer import BATCH_SETTING
from tools.scenario.fields import JsonObject, usable_count

HUGGING_FACE = "huggingface"
ASSUMED_FRAMEWORK = "megatron-core"
ASSUMABLE = ("seq_len", "global_batch_size", "framework")
MAX_ASSUMED_SEQ_LEN = 8192
ASSUMED_TOKENS = 4 * 2**20
"""Per step: usual for pretraining (Llama 3, arXiv 2407.21783, section 3.4)."""


@dataclass(frozen=True)
class Start:
    imported: ImportedScenario
    assumed: dict[str, int | str]
    """Fields of ImportOptions that neither the file nor the user stated."""


def is_scenario(text: str) -> bool:
    """Whether the text is a whole scenario, rather than a model or a tool's configuration."""
    return '"model"' in text and ('"training"' in text or '"cluster"' in text)


def start_scenario(text: str, format: str | None, stated: ImportOptions) -> Start:
    """From any configuration that `import_plan` reads; a config.json says nothing about training."""
    name = format or recognise(text)
    config = parse_text(text, "JSON") if name == HUGGING_FACE else {}
    if not config or BATCH_SETTING in config:  # a configuration of training, which states its own
        return Start(import_plan(text, name, stated), {})
    inner = config.get("text_config")
    longest = {**config, **(inner if isinstance(inner, dict) else {})}.get("max_position_embeddings")
    usual = min(usable_count(longest) or MAX_ASSUMED_SEQ_LEN, MAX_ASSUMED_SEQ_LEN)
    seq_len, count = stated.seq_len or usual, stated.num_devices or 1
    whole = replace(
        stated,
        seq_len=seq_len,
        global_batch_size=stated.global_batch_size or max(ASSUMED_TOKENS // seq_len // count, 1) * count,
        framework=stated.framework or ASSUMED_FRAMEWORK,
    )
    assumed = {key: getattr(whole, key) for key in ASSUMABLE if getattr(stated, key) is None}
    return Start(import_plan(text, name, whole), assumed)


@cache
def preset_models() -> dict[str, JsonObject]:
    """Well-known models by name, each as a config.json."""
    text = kb_seed.folder("models").joinpath("presets.toml").read_text(encoding="utf-8")
    return {name: {**config, "name": name} for name, config in tomllib.loads(text).items()}
