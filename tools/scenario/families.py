"""What a `model_type` stands for: defaults of its configuration class, synonyms of its own, and refusals by
name.

Data: kb_seed/models/transformers.json (made by scripts/model_defaults.py) and families.toml.
"""

import json
import tomllib
from dataclasses import dataclass
from functools import cache

from pydantic import JsonValue

import kb_seed
from tools.errors import InputError
from tools.names import nearest
from tools.scenario.fields import JsonObject, shown


@dataclass(frozen=True, slots=True)
class Family:
    """A decoder's architecture: the type whose code it shares, and what its configuration class supplies."""

    model_type: str
    defaults: JsonObject


@cache
def _transformers() -> dict[str, JsonObject]:
    table: dict[str, JsonObject] = json.loads(
        kb_seed.folder("models").joinpath("transformers.json").read_text(encoding="utf-8")
    )
    return table


@cache
def _families() -> dict[str, JsonObject]:
    table: dict[str, JsonObject] = tomllib.loads(
        kb_seed.folder("models").joinpath("families.toml").read_text(encoding="utf-8")
    )
    return table


def refuse_other_models(config: JsonObject) -> None:
    """Raises InputError for what is no decoder-only language model."""
    if "_class_name" in config or "_diffusers_version" in config:
        raise InputError(
            "model", str(config.get("_class_name")), "a diffusion model; allowed: a language model"
        )
    if config.get("is_encoder_decoder") is True:
        name = str(config.get("model_type") or "encoder-decoder")
        raise InputError("model.model_type", name, "an encoder-decoder model; allowed: decoder-only models")


def refuse_fields(config: JsonObject) -> None:
    """Raises InputError for a field that makes the model something else than its type says."""
    for name, reason in _families()["refused_fields"].items():
        if config.get(name):
            raise InputError(f"model.{name}", shown(config[name]), f"not supported: {reason}")


def find_outer_tie(model_type: str) -> bool | None:
    """Whether the class of a multimodal model ties its embeddings; None for a type that is none."""
    tied = _transformers().get(model_type, {}).get("tie_word_embeddings")
    return tied if isinstance(tied, bool) else None


@cache
def get_family(model_type: str) -> Family:
    """Of a `model_type`; raises InputError for one that is not known or not supported."""
    families, table = _families(), _transformers()
    refused = families["refused"]
    if model_type in refused:
        raise InputError("model.model_type", model_type, f"not supported: {refused[model_type]}")
    base = str(families["like"].get(model_type, model_type))
    entry = table.get(base)
    if entry is None or base.startswith("_"):
        known = [*families["like"], *(name for name in table if name not in refused)]
        close = nearest(model_type, known, count=1)
        hint = f"did you mean {close[0]}? " if close else ""
        says = f"not a known architecture; {hint}leave model_type out if the fields describe the model"
        raise InputError("model.model_type", model_type, says)
    if entry.get("kind") == "encoder-decoder":
        says = "an encoder-decoder model; allowed: decoder-only models"
        raise InputError("model.model_type", model_type, says)
    if "text" in entry and entry["text"] != base:
        inner = get_family(str(entry["text"]))
        tied = entry.get("tie_word_embeddings")
        return Family(inner.model_type, {**inner.defaults, "tie_word_embeddings": tied})
    own = families.get("defaults", {}).get(model_type, {})
    defaults: dict[str, JsonValue] = dict(_object(entry.get("defaults")))
    return Family(base, {**defaults, **_object(own)})


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}
