"""A first scenario from a model and a cluster: what neither states is assumed, and every assumption is named.

Shared by `asap optimize --devices` and the form of a new session.
"""

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache

import kb_seed
from tools.errors import InputError
from tools.frameworks.formats import import_plan
from tools.frameworks.importing import ImportedScenario, ImportOptions
from tools.frameworks.reading import parse_json
from tools.frameworks.recognition import recognise
from tools.scenario.fields import JsonObject

DEVICES = re.compile(r"\s*([0-9][0-9,_]*)\s*(?:x|×|\*)?\s*([A-Za-z].*?)\s*")
MAX_DIGITS = 12
HUGGING_FACE = "huggingface"
FRAMEWORK = "megatron-core"
ASSUMABLE = ("seq_len", "global_batch_size", "framework")
MAX_ASSUMED_SEQ_LEN = 8192
ASSUMED_TOKENS = 4 * 2**20
"""Per step: usual for pretraining (Llama 3, arXiv 2407.21783, section 3.4)."""


@dataclass(frozen=True)
class Start:
    imported: ImportedScenario
    assumed: dict[str, int | str]
    """Fields of ImportOptions that neither the file nor the user stated."""


def parse_devices(text: str, field: str) -> tuple[int, str]:
    """ "64 x H100 SXM" as a count and a name."""
    match = DEVICES.fullmatch(text)
    digits = re.sub(r"[,_]", "", match[1]) if match else ""
    if match is None or len(digits) > MAX_DIGITS or not int(digits):
        raise InputError(field, text, 'allowed: a number and a device, for example "64 x H100"')
    return int(digits), match[2]


def is_scenario(text: str) -> bool:
    """Whether the text is a whole scenario, rather than a model or a tool's configuration."""
    return '"model"' in text and ('"training"' in text or '"cluster"' in text)


def start_scenario(text: str, format: str | None, stated: ImportOptions) -> Start:
    """From any configuration that `import_plan` reads; a config.json says nothing about training."""
    name = format or recognise(text)
    if name != HUGGING_FACE:
        return Start(import_plan(text, name, stated), {})
    seq_len, count = stated.seq_len or _usual_seq_len(text), stated.num_devices or 1
    whole = replace(
        stated,
        seq_len=seq_len,
        global_batch_size=stated.global_batch_size or max(ASSUMED_TOKENS // seq_len // count, 1) * count,
        framework=stated.framework or FRAMEWORK,
    )
    assumed = {key: getattr(whole, key) for key in ASSUMABLE if getattr(stated, key) is None}
    return Start(import_plan(text, name, whole), assumed)


def _usual_seq_len(text: str) -> int:
    config = parse_json(text)
    inner = config.get("text_config")
    longest = {**config, **(inner if isinstance(inner, dict) else {})}.get("max_position_embeddings")
    usable = longest if isinstance(longest, int) and longest > 0 else MAX_ASSUMED_SEQ_LEN
    return min(usable, MAX_ASSUMED_SEQ_LEN)


@cache
def preset_models() -> dict[str, JsonObject]:
    """Well-known models by name, each as a config.json."""
    text = kb_seed.folder("models").joinpath("presets.toml").read_text(encoding="utf-8")
    return {name: {**config, "name": name} for name, config in tomllib.loads(text).items()}
