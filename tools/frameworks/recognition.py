"""Which format a configuration file is in, by what is in it."""

from collections.abc import Mapping

from pydantic import JsonValue

from tools.errors import InputError
from tools.frameworks.python_config import is_recipe, looks_like_python
from tools.frameworks.reading import check_length, parse_json, parse_toml, parse_yaml
from tools.frameworks.shell import has_options

Keys = frozenset[str]

MEGATRON_OPTIONS = ("--num-layers", "--tensor-model-parallel-size", "--micro-batch-size", "--hidden-size")
TRAINER_OPTIONS = ("--model_name_or_path", "--per_device_train_batch_size")
OTHER_KINDS = {
    "verification_index": "a verification card of Megatron-Bridge",
    "apiVersion": "a Kubernetes manifest",
    "services": "a compose file",
    "jobs": "a workflow of GitHub Actions",
    "_class_name": "a diffusion model",
    "tokenizer_class": "a tokenizer's configuration",
    "added_tokens": "a tokenizer",
    "weight_map": "an index of weights",
}
"""Files that are often given by mistake, by a key that only they have."""


def recognise(text: str) -> str:
    """The name of the format; InputError says what the file is instead, or that it is not known."""
    check_length(text)
    start = text.lstrip()[:1]
    if looks_like_python(text):
        return "nemo" if is_recipe(text) else "torchtitan"
    if start == "{":
        return _of_object(text)
    if "\ndef " in text and "import " in text:
        allowed = "only configuration functions of torchtitan and Megatron-Bridge are read"
        raise InputError("FILE", "a Python file", allowed)
    if start == "[" or _is_toml(text):
        return _of_toml(text)
    if not has_options(text):
        return _of_mapping(parse_yaml(text))
    try:
        values = parse_yaml(text)
    except InputError:
        return _of_script(text)
    return _of_mapping(values)


def _is_toml(text: str) -> bool:
    return any(line.startswith("[") and line.rstrip().endswith("]") for line in text.splitlines())


def _of_script(text: str) -> str:
    if any(option in text for option in MEGATRON_OPTIONS):
        return "megatron"
    if any(option in text for option in TRAINER_OPTIONS):
        return "trl"
    raise _unknown("a script without options of Megatron-LM or TRL")


def _of_toml(text: str) -> str:
    keys = parse_toml(text).keys()
    if keys & {"parallelism", "training", "activation_checkpoint", "job"}:
        return "torchtitan"
    raise _unknown(f"TOML with {', '.join(sorted(keys)[:5])}")


def _of_object(text: str) -> str:
    try:
        values = parse_json(text)
    except InputError:
        # GPT-NeoX writes JSON with comments and trailing commas, DeepSpeed's own parser takes JSON only.
        name = _of_mapping(parse_yaml(text))
        return "neox" if name == "deepspeed" and "#" in text else name
    return _of_mapping(values)


def _of_mapping(values: Mapping[str, JsonValue]) -> str:
    keys = frozenset(str(key).replace("-", "_") for key in values)
    for key, what in OTHER_KINDS.items():
        if key in keys:
            raise InputError("FILE", what, "not a configuration of a training run or a model")
    sections = {key: frozenset(map(str, value)) for key, value in values.items() if isinstance(value, dict)}
    for name, found in (
        ("megatron", "MODEL_ARGS" in keys),
        ("maxtext", _is_maxtext(keys)),
        ("axolotl", "base_model" in keys),
        ("llamafactory", _is_llamafactory(keys)),
        ("trl", "model_name_or_path" in keys),
        ("accelerate", bool(keys & {"distributed_type", "compute_environment"})),
        (
            "neox",
            bool(keys & {"pipe_parallel_size", "model_parallel_size", "gpt_j_residual", "comet_project"}),
        ),
        ("automodel", bool(keys & {"step_scheduler", "recipe"}) or "_target_" in sections.get("model", ())),
        ("nanotron", "model_config" in sections.get("model", ()) or {"tokens", "parallelism"} <= keys),
        ("levanter", _is_levanter(sections, keys)),
        ("nemo", _is_nemo(sections, keys)),
        ("huggingface", "per_device_train_batch_size" in keys),
        ("deepspeed", _is_deepspeed(keys)),
        ("huggingface", bool(keys & {"model_type", "architectures", "text_config"})),
        ("megatron", bool(keys & {"tensor_model_parallel_size", "num_layers", "language_model"})),
        ("huggingface", {"hidden_size", "num_hidden_layers"} <= keys),
    ):
        if found:
            return name
    raise _unknown(f"settings like {', '.join(sorted(keys)[:5])}")


def _is_maxtext(keys: Keys) -> bool:
    named = {
        "base_config",
        "base_emb_dim",
        "base_num_decoder_layers",
        "decoder_block",
        "per_device_batch_size",
    }
    return bool(keys & named) or any(key.startswith(("ici_", "dcn_")) for key in keys)


def _is_llamafactory(keys: Keys) -> bool:
    own = {"finetuning_type", "cutoff_len", "template", "stage", "dist_config", "peft_config", "quant_config"}
    return bool(keys & {"model_name_or_path", "model"}) and bool(keys & own)


def _is_levanter(sections: Mapping[str, Keys], keys: Keys) -> bool:
    return "type" in sections.get("model", ()) and "trainer" in keys


def _is_nemo(sections: Mapping[str, Keys], keys: Keys) -> bool:
    model = sections.get("model", frozenset())
    degrees = {
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "micro_batch_size",
        "context_parallel_size",
    }
    return bool(model & degrees) or ({"trainer", "exp_manager"} <= keys)


def _is_deepspeed(keys: Keys) -> bool:
    own = {
        "zero_optimization",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
    }
    return bool(keys & own)


def _unknown(what: str) -> InputError:
    return InputError("FILE", what, "the format is not recognised; give it by --format")
