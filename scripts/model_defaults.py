"""Writes kb_seed/models/transformers.json: what transformers' configuration classes supply by default.

    python scripts/model_defaults.py kb_seed/models/transformers.json

Run in an environment of its own with transformers and torch (developers only; the product never imports
them). For
each decoder: the defaults that `tools/scenario` reads, and the exact number of parameters of the default
text model, from building it on the meta device. For a multimodal one: which text model it holds.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto import modeling_auto

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.scenario.vocabulary import SYNONYMS, is_read

ELSEWHERE = ("vision", "visual", "audio", "projector", "vqmodel", "talker", "code2wav")


def main(out: Path) -> None:
    transformers.logging.set_verbosity_error()
    names = {
        **modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    table: dict[str, dict[str, object]] = {}
    for name in sorted(names):
        for key, entry in entries(name):
            table.setdefault(key, {}).update(entry)
    header = {"transformers": transformers.__version__}
    rows = [f"{json.dumps(key)}: {json.dumps(table[key], sort_keys=True)}" for key in sorted(table)]
    out.write_text("{\n" + ",\n".join([f'"_made_with": {json.dumps(header)}', *rows]) + "\n}\n")


def entries(name: str) -> Iterator[tuple[str, dict[str, object]]]:
    """The entry of a model type, and that of the text model inside it."""
    try:
        config = CONFIG_MAPPING[name]()
    except Exception as error:  # noqa: BLE001 - a class that refuses its own defaults has none to supply
        print(f"{name}: {error!r:.150}", file=sys.stderr)
        return
    if config.is_encoder_decoder:
        yield name, {"kind": "encoder-decoder"}
        return
    text = config.get_text_config(decoder=True)
    if text is not config:
        tied = bool(getattr(config, "tie_word_embeddings", False))
        yield name, {"text": text.model_type, "tie_word_embeddings": tied}
    values = {**defaults(type(text)), **patterns(text)}
    entry: dict[str, object] = {"defaults": values}
    has_own_class = text.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    countable = text is config or (not has_own_class and text.to_dict() == type(text)().to_dict())
    if countable and (parameters := count(config)) is not None:
        entry["parameters"] = parameters
        if text is not config:
            values["tie_word_embeddings"] = tied
    yield text.model_type, entry


def defaults(cls: type) -> dict[str, object]:
    values = {}
    for field in dataclasses.fields(cls):
        value = field.default
        if value is None or value is dataclasses.MISSING or not is_read(field.name):
            continue
        if isinstance(value, int | float | str | bool | list | tuple):
            values[SYNONYMS.get(field.name, field.name)] = value
    return values


def patterns(text: object) -> dict[str, object]:
    """What the class derives if a file states no list of layers: the shortest list that repeats, and the
    leading dense layers."""
    found: dict[str, object] = {}
    kinds = getattr(text, "layer_types", None)
    is_derived = type(text).__dict__.get("layer_types") is None
    if is_derived and isinstance(kinds, list) and set(kinds) != {"full_attention"}:
        length = len(kinds)
        period = next(n for n in range(1, length + 1) if kinds == [kinds[i % n] for i in range(length)])
        found["layer_pattern"] = kinds[:period]
    parts = getattr(text, "mlp_layer_types", None)
    if isinstance(parts, list) and "dense" in parts:
        leading = next((i for i, part in enumerate(parts) if part != "dense"), len(parts))
        if "dense" not in parts[leading:]:
            found["first_k_dense_replace"] = leading
    return found


def count(config: object) -> int | None:
    """Of the text model; None where the class cannot be built from its own defaults."""
    for builder in (AutoModelForCausalLM, AutoModelForImageTextToText):
        try:
            with torch.device("meta"):
                model = builder.from_config(config)
            model.tie_weights()
        except Exception as error:  # noqa: BLE001 - a class that fails on its own defaults has no count
            print(f"{config.model_type}: {error!r:.150}", file=sys.stderr)
            continue
        own = {id(value): value for key, value in model.named_parameters() if not is_elsewhere(key)}
        return sum(value.numel() for value in own.values())
    return None


def is_elsewhere(key: str) -> bool:
    return any(part in key for part in ELSEWHERE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
