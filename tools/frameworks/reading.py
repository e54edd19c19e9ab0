"""Reads configuration files as settings by dotted name, and tracks which were used.

The text is data: nothing in it is executed or looked up outside.
"""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import yaml
from pydantic import JsonValue

from tools.errors import InputError
from tools.scenario.fields import JsonObject, shown

Notation = Literal["TOML", "JSON", "YAML"]
UnusedReason = Literal["may change the prediction", "harmless"]

MAX_TEXT_CHARACTERS, MAX_JSON_CHARACTERS = 1_000_000, 16_000_000
"""A config.json may list a vocabulary or the modules of a quantization; JSON is read in a moment."""
MAX_DEPTH = 6
MAX_REPEATED = 10_000
"""Values that the aliases of a YAML file may repeat in all."""
# YAML 1.1 reads 1:30:00 as a base-60 number; one with thousands of digits takes minutes to compute.
_LONG_BASE_60 = re.compile(r"(?::[0-5]?[0-9]){20}")
# A name of thousands of parts (a.b.c...) takes minutes to read.
_MAX_DOTS_PER_LINE = 200
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


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases that repeat too much, a few lines of which expand to more than memory holds, and those
    inside of what they repeat."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.repeated, self.closed = 0, set[int]()

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        if not isinstance(event, yaml.AliasEvent):
            self.closed.add(id(node))
            return node
        self.repeated += _size(node)
        if self.repeated > MAX_REPEATED or id(node) not in self.closed:
            rule = "its aliases repeat too much, write the values themselves"
            raise yaml.composer.ComposerError(None, None, rule, event.start_mark)  # type: ignore[arg-type]
        return node


def _size(node: yaml.Node | None) -> int:
    """How many values an alias repeats, counted no further than any file may repeat."""
    found, waiting = 0, [node]
    while waiting and found <= MAX_REPEATED:
        each, found = waiting.pop(), found + 1
        for inner in each.value if isinstance(each, yaml.CollectionNode) else ():
            waiting += inner if isinstance(inner, tuple) else (inner,)
    return found


# A tag of the tool's own (`!include FILE`): nothing outside the text is read.
_PlainLoader.add_multi_constructor("!", lambda loader, suffix, node: f"!{suffix}")


def check_length(text: str, *, is_json: bool = False) -> None:
    most = MAX_JSON_CHARACTERS if is_json else MAX_TEXT_CHARACTERS
    if len(text) > most:
        raise InputError("text", "a longer text", f"must have at most {most:,} characters")


def parse_text(text: str, notation: Notation) -> JsonObject:
    """The named settings of a file; InputError for a text that is not in the notation or holds none."""
    check_length(text, is_json=notation == "JSON")
    if notation == "TOML" and any(line.count(".") > _MAX_DOTS_PER_LINE for line in text.splitlines()):
        raise InputError("text", text.strip()[:40], "not a name that a setting can have")
    if notation == "YAML" and (match := _LONG_BASE_60.search(text)):
        raise InputError("text", match[0], "not a value that a setting can have")
    parsers: dict[Notation, Callable[[str], object]] = {
        "TOML": tomllib.loads,
        "JSON": json.loads,
        "YAML": lambda plain: yaml.load(plain, _PlainLoader),
    }
    try:
        value = parsers[notation](text)
    except RecursionError:
        raise InputError("text", text.strip()[:40], f"not {notation}: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        problem = " ".join((getattr(error, "problem", None) or str(error)).split())[:120]
        raise InputError("text", text.strip()[:40], f"not {notation}: {problem}{place}") from None
    if value is None:
        raise InputError("text", "no settings", "must have settings, not comments only")
    if not isinstance(value, dict):
        raise InputError("text", shown(value), f"must be {notation} with named settings")
    return {str(key): item for key, item in value.items()}


@dataclass(frozen=True, slots=True)
class UnusedSetting:
    """A setting of the file that has no place in a scenario."""

    path: str
    value: str
    reason: UnusedReason

    @classmethod
    def of(cls, path: str, value: object) -> "UnusedSetting":
        """By its name: whether leaving it out leaves speed and memory as they are."""
        is_known = _HARMLESS.search(path) is not None and _CHANGES.search(path) is None
        is_harmless = is_known or _SURELY_HARMLESS.search(path) is not None
        return cls(path, str(shown(value))[:80], "harmless" if is_harmless else "may change the prediction")


class SettingsReader:
    """A nested mapping under flat names: `parallelism.tensor_parallel_degree`.

    A value that is null or "auto" (written by Hugging Face into DeepSpeed files) counts as absent.
    """

    def __init__(self, values: Mapping[str, JsonValue], source: str, *, bare_flags: bool = False) -> None:
        self._values = dict(flatten(values))
        self._source = source
        self._used: set[str] = set()
        # In argument text a flag has no value, and the word behind it is something else.
        self._bare_flags = bare_flags

    def integer(self, name: str, minimum: int = 1) -> int | None:
        """The whole number under the name; -1 and the like only if `minimum` allows them."""
        value = self._get(name)
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null", "")):
            return None
        number = _real(value)
        if number is None or not number.is_integer() or not minimum <= number <= 10**9:
            raise self._wrong(name, value, f"allowed: an integer from {minimum} to 1,000,000,000")
        return int(number)

    def number(self, name: str) -> float | None:
        value = self._get(name)
        number = _real(value)
        if value is not None and (number is None or not 0 < number <= 1e9):
            raise self._wrong(name, value, "allowed: a number above 0 and up to 1,000,000,000")
        return number

    def flag(self, name: str) -> bool | None:
        value = self._get(name)
        if value is None or isinstance(value, bool):
            return value
        if type(value) is int and value in (0, 1):
            return bool(value)
        if self._bare_flags or str(value).lower() in ("true", "false"):
            return str(value).lower() != "false"
        raise self._wrong(name, value, "allowed: true or false")

    def word(self, name: str, allowed: Collection[str] | None = None) -> str | None:
        value = self._get(name)
        if value is None or (isinstance(value, str) and (allowed is None or value in allowed)):
            return value
        raise self._wrong(name, value, f"allowed: {', '.join(allowed) if allowed else 'a name'}")

    def words(self, name: str) -> list[str]:
        return [item for item in self.items(name) if isinstance(item, str)]

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

    def unused(self) -> tuple[UnusedSetting, ...]:
        """The settings that nobody asked for."""
        names = sorted(self._values.keys() - self._used)
        return tuple(UnusedSetting.of(name, self._values[name]) for name in names)

    def _get(self, name: str) -> JsonValue:
        self._used.add(name)
        value = self._values.get(name)
        return None if value == "auto" else value

    def _wrong(self, name: str, value: object, allowed: str) -> InputError:
        if isinstance(value, str) and (variable := re.search(r"\$\{?(\w+)", value)):
            reason = f"the file leaves {name} to a variable, so give it here: {variable[1]}=VALUE"
            return InputError("variables", value, reason)
        return InputError(f"{self._source}: {name}", shown(value), allowed)


def flatten(
    section: Mapping[str, JsonValue], prefix: str = "", depth: int = MAX_DEPTH
) -> Iterator[tuple[str, JsonValue]]:
    """Settings by dotted names."""
    for key, value in section.items():
        name = f"{prefix}{key}"[:200]
        if isinstance(value, dict) and depth > 1:
            yield from flatten(value, f"{name}.", depth - 1)
        else:
            yield name, value


def _real(value: object) -> float | None:
    """Numbers, and the text of one: argument files have no types."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e18 else None
