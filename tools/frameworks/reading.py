"""Reads configuration files as settings by dotted name, and tracks which were used.

The text is data: nothing in it is executed or looked up outside.
"""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping

import yaml
from pydantic import JsonValue

from tools.errors import InputError
from tools.scenario.fields import shown

JsonObject = dict[str, JsonValue]

MAX_TEXT_CHARACTERS = 1_000_000
# YAML 1.1 reads 1:30:00 as a base-60 number; one with thousands of digits takes minutes to compute.
_LONG_BASE_60 = re.compile(r"(?::[0-5]?[0-9]){20}")
# A name of thousands of parts (a.b.c...) takes minutes to read.
_MAX_DOTS_PER_LINE = 200


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases: a few lines of aliases to aliases expand to more than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, "aliases are not read, write the value itself", mark
            )
        return super().compose_node(parent, index)


def _ignored(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> str:
    """A tag of the tool's own (`!include FILE`): nothing outside the text is read."""
    return f"!{suffix}"


_PlainLoader.add_multi_constructor("!", _ignored)


def parse_toml(text: str) -> JsonObject:
    if any(line.count(".") > _MAX_DOTS_PER_LINE for line in text.splitlines()):
        raise InputError("FILE", text.strip()[:40], "not a name that a setting can have")
    return _mapping(text, "TOML", tomllib.loads)


def parse_json(text: str) -> JsonObject:
    return _mapping(text, "JSON", json.loads)


def parse_yaml(text: str) -> JsonObject:
    if match := _LONG_BASE_60.search(text):
        raise InputError("FILE", match[0], "not a value that a setting can have")
    return _mapping(text, "YAML", lambda plain: yaml.load(plain, _PlainLoader))


def check_length(text: str) -> None:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InputError("FILE", "a longer text", f"must have at most {MAX_TEXT_CHARACTERS:,} characters")


def _mapping(text: str, kind: str, parse: Callable[[str], object]) -> JsonObject:
    check_length(text)
    try:
        value = parse(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError("FILE", text.strip()[:40], f"not {kind}: {_first_line(error)}") from None
    if value is None:
        raise InputError("FILE", "no settings", "must have settings, not comments only")
    if not isinstance(value, dict):
        raise InputError("FILE", shown(value), f"must be {kind} with named settings")
    return {str(key): item for key, item in value.items()}


def _first_line(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    mark = getattr(error, "problem_mark", None)
    place = f" at line {mark.line + 1}" if mark else ""
    problem = getattr(error, "problem", None) or str(error)
    return " ".join(problem.split())[:120] + place


MAX_DEPTH = 6
UNUSED = "not used: "
"""Begins the note about a setting that an import leaves out."""
_HARMLESS = re.compile(
    r"(?i)(^|[._])(log|logg?er|logging|wandb|tensorboard|comet|mlflow|trackio|neptune|swanlab|tracker|report_to|"
    r"save|saves?|load|ckpt|checkpoint(s|ing_params|er)?|resume|exp(eriment)?(_manager|s)?|"
    r"data(set|sets|loader|_path|_cache|_args|_impl)?|tokenizer|vocab_file|merge_file|split|seed|rng|lr|"
    r"learning_rate|scheduler|warmup|decay|weight_decay|adam|betas?|eps(ilon)?|clip|grad_norm|max_norm|momentum|"
    r"init(ializer)?|std|eval(uation)?|val(id|idation)?|test|metrics?|prof(ile|iling|iler)|nsys|timeout|master|"
    r"rdzv|node_rank|machine_rank|port|addr|dir|path|file|folder|name|project|description|tags?|print|"
    r"dump|debug|verbose|interval|freq|steps|iters|epochs?|train_(samples|iters|steps)|max_steps|exit|"
    r"duration|env(_vars)?|template|chat_template|dropout|rope|rotary|position|norm(alization)?|scale|scaling|"
    r"temperature|soft_cap|softcap|token|eos|bos|pad|special_tokens|plugins?|strict|trust_remote_code|hub|"
    r"distributed_(backend|timeout)|backend|manual_gc|gc|deterministic|fusion|fused|workers|prefetch|shuffle|"
    r"image|audio|video|vision|vit|version|format|type|impl|implementation|bias|loss|label|loss_fn|ci|comment)"
)
_SURELY_HARMLESS = re.compile(
    r"(?i)(dropout|layernorm|layer_norm|rms_norm|aux_loss|load_balancing|score_func|router_(dtype|bias|fusion|enable)|"
    r"scaling_factor|mscale|_fusion|permute_fusion|dataloader|no_(load|save)|finetune$|z_loss|rope|_eps$|"
    r"log_|_log|softmax|init)"
)
_CHANGES = re.compile(
    r"(?i)(offload|quant|fp8|fp4|int8|8bit|4bit|compress|overlap|compile|cuda_graph|cudagraph|moe|expert|mtp|"
    r"window|parallel|recompute|checkpoint_activations|activation_checkpoint|remat|sparse|liger|unsloth|"
    r"capacity|layers|hidden|heads|lora|adapter|freeze|frozen|dispatcher|attention|attn|bucket|optimizer|optim$)"
)


def is_harmless(name: str) -> bool:
    """Whether a setting without a place in a scenario leaves speed and memory as they are."""
    if _SURELY_HARMLESS.search(name):
        return True
    return _HARMLESS.search(name) is not None and _CHANGES.search(name) is None


class SettingsReader:
    """A nested mapping under flat names: `parallelism.tensor_parallel_degree`.

    A value that is null or "auto" (written by Hugging Face into DeepSpeed files) counts as absent.
    """

    def __init__(self, values: Mapping[str, JsonValue], source: str, *, bare_flags: bool = False) -> None:
        self._values = dict(_flatten(values, "", MAX_DEPTH))
        self._source = source
        self._used: set[str] = set()
        # In argument text a flag has no value, and the word behind it is something else.
        self._bare_flags = bare_flags

    def integer(self, name: str, minimum: int = 1) -> int | None:
        """The whole number under the name; -1 and the like only if `minimum` allows them."""
        value = self._get(name)
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null", "")):
            return None
        number = _whole(value)
        if number is None or number < minimum or number > 10**9:
            raise self._wrong(name, value, f"allowed: an integer from {minimum} to 1,000,000,000")
        return number

    def number(self, name: str) -> float | None:
        value = self._get(name)
        if value is None:
            return None
        number = _real(value)
        if number is None or not 0 < number <= 1e9:
            raise self._wrong(name, value, "allowed: a number above 0 and up to 1,000,000,000")
        return number

    def flag(self, name: str) -> bool | None:
        value = self._get(name)
        if value is None or isinstance(value, bool):
            return value
        if self._bare_flags or str(value).lower() in ("true", "false"):
            return str(value).lower() != "false"
        raise self._wrong(name, value, "allowed: true or false")

    def word(self, name: str, allowed: Collection[str] | None = None) -> str | None:
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, str) or (allowed is not None and value not in allowed):
            choices = f"allowed: {', '.join(allowed)}" if allowed is not None else "allowed: a name"
            raise self._wrong(name, value, choices)
        return value

    def words(self, name: str) -> list[str]:
        value = self._get(name)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def has(self, name: str) -> bool:
        """Whether the file states the setting at all."""
        return self._get(name) is not None

    def states(self, name: str, value: bool | int | str) -> bool:
        """Whether the file gives the setting this value."""
        stated = self._get(name)
        if isinstance(value, bool):
            return stated is value or str(stated).lower() == str(value).lower()
        if isinstance(stated, list):
            stated = " ".join(map(str, stated))
        return stated is not None and str(stated) == str(value)

    def is_auto(self, name: str) -> bool:
        """Whether the file leaves the setting to what runs it."""
        return self._values.get(name) == "auto"

    def text(self, name: str) -> str | None:
        """Whatever is stated, as text."""
        value = self._get(name)
        return None if value is None else str(value)

    def items(self, name: str) -> list[JsonValue]:
        value = self._get(name)
        return value if isinstance(value, list) else []

    def used(self, *names: str) -> None:
        """Marks settings that say nothing of their own."""
        self._used.update(names)

    def unused_notes(self) -> tuple[str, ...]:
        """A note for each setting that has no place in a scenario."""
        return tuple(f"{UNUSED}{name}" for name in sorted(self._values) if name not in self._used)

    def _get(self, name: str) -> JsonValue:
        self._used.add(name)
        value = self._values.get(name)
        return None if value == "auto" else value

    def _wrong(self, name: str, value: object, allowed: str) -> InputError:
        if isinstance(value, str) and (variable := re.search(r"\$\{?(\w+)", value)):
            reason = f"the file leaves {name} to a variable, so give it here: --set {variable[1]}=VALUE"
            return InputError("--set", value, reason)
        return InputError(f"{self._source}: {name}", shown(value), allowed)


def _flatten(values: Mapping[str, JsonValue], prefix: str, depth: int) -> Iterator[tuple[str, JsonValue]]:
    for key, value in values.items():
        name = f"{prefix}{key}"[:200]
        if isinstance(value, dict) and depth > 1:
            yield from _flatten(value, f"{name}.", depth - 1)
        else:
            yield name, value


def _whole(value: object) -> int | None:
    number = _real(value)
    return int(number) if number is not None and number.is_integer() else None


def _real(value: object) -> float | None:
    """Numbers, and the text of one: argument files have no types."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e18 else None
