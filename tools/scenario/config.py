"""A model's config.json as its parts are read: blocks flattened, synonyms renamed, class defaults filled in.

Reads are lenient: what has a wrong type counts as not stated here, and the typed field of `ModelSpec` that it
ends in says what is wrong with it.
"""

import re
from functools import lru_cache

from pydantic import JsonValue

from tools.errors import InputError
from tools.names import NEAR_MISS, nearest
from tools.scenario import vocabulary as words
from tools.scenario.families import family_data, find_outer_tie, get_family
from tools.scenario.fields import JsonObject, get_object, shown, usable_count
from tools.scenario.model import MAX_LAYERS, ModelSpec

MAX_FIELDS = 1000
"""Each is compared with every known name; real configurations have some 200."""
TOWER_SIZES = (
    "depth", "hidden_size", "intermediate_size", "patch_size", "spatial_merge_size", "out_hidden_size",
)  # fmt: skip
MODALITIES = ("vision", "visual", "audio", "image", "video", "speech", "talker", "code2wav", "vq")
_SHAPE_WORDS = re.compile(
    r"layer|expert|head|width|_dim|size|rank|block|conv|mamba|ssm|window|sparse|compress|index|mtp|nextn|mixer|gate|"
    r"residual|shared|attn|attention|pattern|hash|latent|stream"
)
_OTHER_WORDS = re.compile(
    r"token|rope|rotary|layernorm|dropout|_ids?$|dtype|scaling|init|theta|image|audio|video|vision|patch|prob|beam|"
    r"chunk_size|length|temperature|softcap|quant|_loss|aux|time_step|hidden_act|router|ep_size|position|qk_norm|"
    r"_bias|rescale|multiplier|in_fp32|kernel|ignore_index|qk_head_dim|group_size"
)


class ModelConfig:
    """Fields under their canonical names, and `spec`: the fields of `ModelSpec` that they turn out to be."""

    def __init__(self, fields: JsonObject) -> None:
        self.fields = fields
        self.spec: JsonObject = {}
        model_type = fields.get("model_type")
        self.model_type = model_type if isinstance(model_type, str) else ""

    @classmethod
    def of(cls, stated: JsonObject) -> "ModelConfig":
        """Raises InputError for what is no decoder-only language model, and for contradicting synonyms."""
        config = flatten(stated)
        outer = {**stated, **config}
        if "_class_name" in outer or "_diffusers_version" in outer:
            rule = "a diffusion model; allowed: a language model"
            raise InputError("model", str(outer.get("_class_name")), rule)
        if outer.get("is_encoder_decoder") is True:
            name = str(outer.get("model_type") or "encoder-decoder")
            rule = "an encoder-decoder model; allowed: decoder-only models"
            raise InputError("model.model_type", name, rule)
        for name, reason in family_data().refused_fields.items():
            if config.get(name):
                raise InputError(f"model.{name}", shown(config[name]), f"not supported: {reason}")
        if not (stated.keys() | config.keys()) & {"architectures", "transformers_version"}:
            for key in config:  # written by hand: a near miss is a mistake
                if close := _near_miss(str(key)):
                    hint = f"unknown field, did you mean {close}?"
                    raise InputError(f"model.{key}", shown(config[key]), hint)
        fields = _renamed(config)
        if isinstance(hub_type := fields.get("model_type"), str):
            family = get_family(hub_type)
            fields = {**family.defaults, **fields, "model_type": family.model_type, "hub_type": hub_type}
        return cls(fields)

    def get(self, name: str) -> JsonValue:
        return self.fields.get(name)

    def first(self, *names: str) -> JsonValue:
        return next((value for name in names if (value := self.fields.get(name)) is not None), None)

    def count(self, *names: str) -> int:
        """The first that is a positive whole number; 0 if none is."""
        return next((value for name in names if (value := usable_count(self.fields.get(name)))), 0)

    def is_true(self, name: str) -> bool:
        return self.fields.get(name) is True

    def items(self, name: str) -> list[JsonValue]:
        value = self.fields.get(name)
        return value if isinstance(value, list) else []

    def ints(self, name: str) -> list[int]:
        return [item for item in self.items(name) if isinstance(item, int)]

    def texts(self, name: str) -> list[str]:
        return [item for item in self.items(name) if isinstance(item, str)]

    def section(self, name: str) -> "ModelConfig":
        value = self.fields.get(name)
        return ModelConfig(value if isinstance(value, dict) else {})

    @property
    def layers(self) -> int:
        """Stated, or the length of the pattern (Nemotron 3 states no number)."""
        for name in ("layers_block_type", "hybrid_override_pattern"):
            pattern = self.fields.get(name)
            if isinstance(pattern, str):
                pattern = [*pattern.split("/")[0].replace("|", "")]
            if isinstance(pattern, list) and pattern:
                return min(len(pattern), MAX_LAYERS)
        return min(self.count("num_hidden_layers"), MAX_LAYERS)


def flatten(stated: JsonObject) -> JsonObject:
    """Multimodal configurations hold the decoder's fields in a block, some of them in a block inside that."""
    config = stated
    while block := next((name for name in words.TEXT_BLOCKS if config.get(name) is not None), None):
        inner = get_object(config[block], f"model.{block}")
        kept = {key: config[key] for key in words.OUTER if key in config}
        outer_type, tied = config.get("model_type"), config.get("tie_word_embeddings")
        if isinstance(outer_type, str):
            # The outer type says which text model it is, and by default whether embeddings are tied.
            kept |= {} if "model_type" in inner else {"model_type": outer_type}
            tied = find_outer_tie(outer_type) if tied is None else tied
        left_out = _other_modalities(config)
        config = {**kept, **inner, **({} if tied is None else {"tie_word_embeddings": tied})}
        if left_out:
            config["left_out"] = [*ModelConfig(kept).texts("left_out"), *left_out]
    if config is stated and (left_out := _other_modalities(config)):
        config = {**config, "left_out": [*left_out]}
    for block in words.SUB_BLOCKS:
        if config.get(block) is not None:
            config = {**get_object(config[block], f"model.{block}"), **config}
    if len(config) > MAX_FIELDS:
        raise InputError("model", shown(config), f"allowed: at most {MAX_FIELDS:,} fields")
    return config


def unread_fields(stated: JsonObject) -> list[str]:
    """Fields that say something about the shape of the model, by their names, and are not read."""
    return [
        key
        for key, value in flatten(stated).items()
        if value
        and not words.is_read(key)
        and not _is_other_modality(key)
        and _SHAPE_WORDS.search(key)
        and not _OTHER_WORDS.search(key)
    ]


def _is_other_modality(key: str) -> bool:
    """Whether a block of a configuration describes something else than the text model."""
    return key.endswith("_config") and any(part in key for part in MODALITIES)


def _other_modalities(config: JsonObject) -> list[str]:
    """Parts beside the text model, with the size of those whose shape is known (towers of Qwen3-VL, 3.5)."""
    parts = []
    for name, value in config.items():
        if not value or not _is_other_modality(name):
            continue
        block = ModelConfig(value if isinstance(value, dict) else {})
        sizes = [block.count(key) for key in TOWER_SIZES]
        if all(sizes) and "num_position_embeddings" in block.fields:
            depth, hidden, width, patch, merge, out = sizes
            pixels = 3 * (block.count("temporal_patch_size") or 2) * patch * patch
            merged = hidden * merge * merge
            outlet = merged * (merged + 1) + (merged + 1) * out
            deep = len(block.items("deepstack_visual_indexes"))
            layer = 4 * hidden * (hidden + 1) + hidden * (2 * width + 1) + width + 4 * hidden
            table = (pixels + 1 + block.count("num_position_embeddings")) * hidden
            total = table + depth * layer + 2 * hidden + outlet + deep * (2 * merged + outlet)
            name = f"{name} ({total:,} parameters)"
        parts.append(name)
    return parts


@lru_cache(maxsize=10_000)  # a batch repeats the same few keys, and comparing names is slow
def _near_miss(key: str) -> str | None:
    """The known field that the key must have meant; None for a known one and for one unlike any."""
    if words.is_read(key) or key in words.IGNORED:
        return None
    known = set(ModelSpec.model_fields) | set(words.SYNONYMS) | words.INPUTS
    return next(iter(nearest(key, known, cutoff=NEAR_MISS, count=1)), None)


def _renamed(config: JsonObject) -> JsonObject:
    """Synonyms under their canonical names; two that contradict each other are an error."""
    fields = {key: value for key, value in config.items() if key not in words.SYNONYMS}
    if not isinstance(fields.get("model_type"), str):
        fields.pop("model_type", None)
    for synonym, canonical in words.SYNONYMS.items():
        value = config.get(synonym)
        if value is None or synonym in words.OTHER_MEANINGS.get(str(config.get("model_type")), ()):
            continue
        stated = fields.get(canonical)
        if stated is not None and stated != value:
            rule = f"must equal {canonical}, of which it is a synonym"
            raise InputError(f"model.{synonym}", shown(value), rule)
        fields[canonical] = value
    for name in words.PER_LAYER & fields.keys():
        value = fields[name]  # one number, if a list says the same for every layer (Hunyuan)
        if isinstance(value, list) and len(value) > 1 and all(item == value[0] for item in value):
            fields[name] = value[0]
    return fields
