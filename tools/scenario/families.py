"""What a `model_type` stands for: defaults of its configuration class, synonyms of its own, and refusals by
name.

Data: kb_seed/models/transformers.json (made by scripts/model_defaults.py) and families.toml.
"""

import tomllib
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel, TypeAdapter

import kb_seed
from tools.errors import InputError
from tools.names import nearest
from tools.scenario.fields import JsonObject


class _ClassData(BaseModel):
    """A configuration class of transformers."""

    kind: str = ""
    text: str | None = None
    """Type of the text part of a multimodal model."""
    tie_word_embeddings: bool | None = None
    defaults: JsonObject = {}


class FamilyData(BaseModel):
    """Types without a class, those that are not supported, and fields that make a model something else."""

    like: dict[str, str]
    defaults: dict[str, JsonObject] = {}
    refused: dict[str, str]
    refused_fields: dict[str, str]


@dataclass(frozen=True, slots=True)
class Family:
    """A decoder's architecture: the type whose code it shares, and what its configuration class supplies."""

    model_type: str
    defaults: JsonObject


@cache
def _classes() -> dict[str, _ClassData]:
    file = kb_seed.folder("models").joinpath("transformers.json")
    return TypeAdapter(dict[str, _ClassData]).validate_json(file.read_bytes())


@cache
def family_data() -> FamilyData:
    file = kb_seed.folder("models").joinpath("families.toml")
    return FamilyData.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))


def find_outer_tie(model_type: str) -> bool | None:
    """Whether the class of a multimodal model ties its embeddings; None for a type that is none."""
    return _classes()[model_type].tie_word_embeddings if model_type in _classes() else None


@cache
def get_family(model_type: str) -> Family:
    """The family of a `model_type`; raises InputError for one that is not known or not supported."""
    data, classes = family_data(), _classes()
    if model_type in data.refused:
        raise InputError("model.model_type", model_type, f"not supported: {data.refused[model_type]}")
    base = data.like.get(model_type, model_type)
    entry = classes.get(base)
    if entry is None or base.startswith("_"):
        known = [*data.like, *(name for name in classes if name not in data.refused)]
        close = nearest(model_type, known, count=1)
        hint = f"did you mean {close[0]}? " if close else ""
        rule = f"not a known architecture; {hint}leave model_type out if the fields describe the model"
        raise InputError("model.model_type", model_type, rule)
    if entry.kind == "encoder-decoder":
        rule = "an encoder-decoder model; allowed: decoder-only models"
        raise InputError("model.model_type", model_type, rule)
    if entry.text and entry.text != base:
        inner = get_family(entry.text)
        return Family(inner.model_type, {**inner.defaults, "tie_word_embeddings": entry.tie_word_embeddings})
    return Family(base, {**entry.defaults, **data.defaults.get(model_type, {})})
