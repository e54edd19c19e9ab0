"""What a question states: plan fields, switches, another cluster, batch, length or precision, proposals.

Each reader takes its words away; what nobody took is what the answer must say that it did not use.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import get_args

from graph.events import plain
from graph.request import parse_request
from tools.errors import InputError
from tools.hardware import device_names, get_device
from tools.recommend.report import PlanFields
from tools.scenario import SCHEDULES, Scenario
from tools.scenario.levers import PLAN_SETTINGS, SettingValue, framework_levers
from tools.scenario.spec import DEGREES, RecomputeModule, TrainingSpec

MAX_DEVICES = 2048
NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4}
PRECISIONS = get_args(TrainingSpec.model_fields["precision"].annotation)
_IS = r"\s*(?:=|of|is|are|at|to|were|was)?\s*"
_FIELD = re.compile(
    rf"\b(?P<name>{'|'.join(name for name in DEGREES if name != 'dp')}"
    r"|zero(?:[ _-]?stage)?|micro[ _-]?batch(?:[ _-]?size)?|recompute(?:[ _]layers)?"
    rf"|dp[ _-]?shard){_IS}(?P<value>\d+|none|selective|full)\b",
    re.I,
)
_RECOMPUTE = re.compile(r"\b(no|without|selective|full) (?:activation )?(?:recomput\w+|checkpointing)", re.I)
_MODULE = rf"(?:{'|'.join(name.replace('_', '[ _]') for name in get_args(RecomputeModule))})"
_MODULES = re.compile(
    rf"\brecomput\w* (?:only )?(?:the )?({_MODULE}(?:(?:,| and|,? the| and the)? {_MODULE})*)"
    r"(?: activations?)?\b",
    re.I,
)
_SCHEDULE = re.compile(rf"\b({'|'.join(name.replace('_', '[ _-]') for name in SCHEDULES)})\b", re.I)
_ABSENT = re.compile(
    r"\b(?:instead of|rather than|without|no) (pipeline|tensor|context|expert)[ -]parallel(?:ism)?\b",
    re.I,
)
_OFF, _ON = r"(?:without|no|disable|turn off)", r"(?:with|enable|turn on)"
_DEVICE_WORDS = r"(?:devices|gpus|accelerators|chips|cards)"
_NODES = re.compile(
    rf"(?<!\bin )(?<!\binside )\b(\d+|{'|'.join(COUNTS)})\s+(?P<sign>more |fewer |less )?(?:nodes?|hosts?)"
    r"(?: (?P<after>more|fewer|less|dies|die|fails?|lost|down))?\b",
    re.I,
)
_BATCH = re.compile(rf"\b(?:global[ -]?)?batch(?:[ -]?size)?{_IS}(\d+)\b", re.I)
_SEQUENCE = re.compile(
    rf"\b(?:seq(?:uence)?(?:[ _-]?len(?:gth)?)?|context(?: length)?){_IS}(\d+)(k?)\b"
    r"|\b(\d+)(k?)[ -](?:seq(?:uence)?|context)s?\b",
    re.I,
)
_SCALED = re.compile(
    rf"\b(doubl\w*|twice|halv\w*|half)\s+(?:the |our |a )?(?:global )?(batch|sequence|nodes|{_DEVICE_WORDS})"
    r"(?:[ -](?:size|length))?\b",
    re.I,
)
_PRECISION = re.compile(rf"\b({'|'.join(PRECISIONS)})\b", re.I)
_PROPOSAL = re.compile(
    r"\b(?:(?:proposals?|plans?|options?)\s+(\d)(?:\s+and\s+(?:\w+ )?(\d))?"
    r"|(first|second|third) (?:proposal|plan|option|one))\b",
    re.I,
)
ORDINALS = {"first": 1, "second": 2, "third": 3, "recommended": 1}
_WORD = re.compile(r"[A-Za-z][\w'/-]*|\d[\d.,]*\w*")
EVERYDAY = re.compile(
    r"""a|about|cost|costs|dispatcher|gpu|gpus|pipeline|scale|schedule|turning|above|activation|activations|all|also|an|and|any|anybody|anyone|are|as|at|balance|be|been|
    best|better|between|bit|but|by|can|change|changed|changes|compare|could|days|device|devices|did|do|does|
    each|else|enough|ever|fast|faster|first|fit|fits|for|from|get|give|gives|global|go|goes|good|had|
    happen|happens|has|have|help|helps|hour|hours|how|i|if|in|instead|into|is|it|its|job|just|keep|know|
    less|like|long|made|make|makes|many|may|me|mean|means|memory|model|more|most|moving|much|my|need|needed|
    needs|new|no|not|now|of|off|on|one|only|or|other|our|out|over|per|plan|plans|possible|predicted|
    proposal|proposals|rate|same|say|second|seconds|set|should|size|slow|slower|so|some|speed|step|
    steps|still|sure|switched|system|take|takes|team|than|that|the|their|then|there|these|they|third|
    this|throughput|time|to|today|today's|together|token|tokens|too|train|trained|training|turn|turned|
    under|until|up|us|use|used|using|very|want|was|we|were|what|what's|when|where|which|while|who|why|will|
    with|work|works|worse|worth|would|you|your""",
    re.X | re.I,
)
"""Words that change nothing of what is asked."""


@dataclass
class Words:
    """A question, and which of its words have been used."""

    text: str
    used: list[tuple[int, int]] = field(default_factory=list)

    def take(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        for match in pattern.finditer(self.text):
            if not any(start < match.end() and match.start() < end for start, end in self.used):
                self.used.append(match.span())
                yield match

    def unused(self, *, figures_only: bool) -> list[str]:
        """Words, or only figures, that no part of the answer rests on."""
        return [
            word[0].rstrip(".,")
            for word in _WORD.finditer(self.text)
            if (word[0][0].isdigit() or not (figures_only or EVERYDAY.fullmatch(word[0])))
            and not any(start <= word.start() < end for start, end in self.used)
        ]

    def proposals(self, count: int) -> list[int]:
        """The ranks that are named."""
        named = []
        for match in self.take(_PROPOSAL):
            named += [int(rank) for rank in match.groups()[:2] if rank]
            named += [ORDINALS[match[3].lower()]] if match[3] else []
        if wrong := [rank for rank in named if not 0 < rank <= count]:
            raise InputError("proposal", wrong[0], f"allowed: 1 to {count}")
        return list(dict.fromkeys(named))


def fields_of(words: Words) -> PlanFields:
    """The fields of a plan that a question names."""
    fields: PlanFields = {}
    for match in words.take(_FIELD):
        name, value = re.sub(r"[ -]", "_", match["name"].lower()), match["value"].lower()
        name = {"zero": "zero_stage", "micro_batch": "micro_batch_size"}.get(name, name)
        fields[name] = int(value) if value.isdigit() else value
    for match in words.take(_MODULES):
        named = re.findall(_MODULE, match[1], re.I)
        fields["recompute"] = "selective"
        fields["recompute_modules"] = tuple(map(_spelt, named))  # type: ignore[assignment]
    for match in words.take(_RECOMPUTE):
        stated = match[1].lower()
        fields["recompute"] = stated if stated in ("selective", "full") else "none"
    for match in words.take(_ABSENT):
        fields[f"{match[1][0].lower()}p"] = 1
    for match in words.take(_SCHEDULE):
        fields["schedule"] = _spelt(match[1])
    for match in words.take(_switch(r"sequence[ _-]?parallel(?:ism)?")):
        fields["sequence_parallel"] = not _is_off(match)
    return fields


def settings_of(words: Words, framework: str) -> dict[str, SettingValue]:
    """The switches of the framework that a question names."""
    settings: dict[str, SettingValue] = {}
    for lever in framework_levers(framework):
        name, value = lever.setting, lever.value
        if name in PLAN_SETTINGS:
            continue
        said = name.replace("_", "[ _-]?") + "s?"
        if isinstance(value, str):
            for _ in words.take(re.compile(rf"\b(?:{said}{_IS}{value}|{value} {said})\b", re.I)):
                settings[name] = value
            if value not in ("full", "none", "natural", "forced") and value not in PRECISIONS:
                for _ in words.take(re.compile(rf"\b{value}\b", re.I)):
                    settings[name] = value
        for match in words.take(_switch(said)):
            off = "none" if isinstance(value, str) else False
            settings[name] = off if _is_off(match) else value
    return settings


def changed_scenario(words: Words, scenario: Scenario) -> tuple[Scenario, list[str]]:
    """The scenario with another cluster, batch or sequence length, and these in words; none if it is the
    same."""
    raw, told = scenario.model_dump(mode="json", exclude_none=True), dict[str, str]()
    cluster, training = raw["cluster"], raw["training"]

    def named(device: str) -> str:
        return get_device(device.removesuffix("s") if device[-1] in "sS" else device).name

    def resize(devices: int) -> None:
        if not 0 < devices <= MAX_DEVICES:
            raise InputError("devices", devices, f"allowed: 1 to {MAX_DEVICES}")
        cluster["num_devices"] = devices
        told["devices"] = f"{devices} devices"

    def train(name: str, value: int) -> None:
        training[name] = value
        told[name] = {
            "global_batch_size": f"a global batch {value}", "seq_len": f"a sequence length of {value}"
        }[name]  # fmt: skip

    for match in words.take(re.compile(rf"\b(\d+)\s*(?:x\s*)?(?:{_DEVICE_WORDS}\b|(?={_devices()}))", re.I)):
        resize(int(match[1]))
    for match in words.take(_NODES):
        count, how = COUNTS.get(match[1].lower()) or int(match[1]), (match["sign"] or match["after"] or "")
        devices = count * scenario.cluster.devices_per_node
        sign = 1 if how.strip().lower() == "more" else -1
        resize(scenario.cluster.num_devices + sign * devices if how else devices)
    for match in words.take(_BATCH):
        train("global_batch_size", int(match[1]))
    for match in words.take(_SEQUENCE):
        train("seq_len", int(match[1] or match[3]) * (1024 if match[2] or match[4] else 1))
    for match in words.take(_SCALED):
        half = match[1].lower().startswith("hal")
        names = {"batch": (training, "global_batch_size"), "sequence": (training, "seq_len")}
        part, name = names.get(match[2].lower(), (cluster, "num_devices"))
        value = part[name] // 2 if half else part[name] * 2
        resize(value) if part is cluster else train(name, value)
    pairs = [(named(match[0]), match) for match in words.take(re.compile(_devices(), re.I))]
    others = [pair for pair in pairs if pair[0] != scenario.cluster.device]
    for device, match in others or pairs:
        if told.setdefault("device", device) == device:
            cluster |= {"device": device, "overrides": {}, "topology": None}
        else:  # a second one: it is told that it was not used
            words.used.remove(match.span())
    return (_parsed(raw, scenario) if told else scenario), [*told.values()]


def with_precision(words: Words, scenario: Scenario) -> tuple[Scenario, list[str]]:
    """The scenario in another precision. Apart from `changed_scenario`, since alone the report knows it."""
    raw, told = scenario.model_dump(mode="json", exclude_none=True), list[str]()
    for match in words.take(_PRECISION):
        if match[1].lower() != scenario.training.precision:
            raw["training"]["precision"] = match[1].lower()
            told = [match[1].lower()]
    return (_parsed(raw, scenario) if told else scenario), told


def _parsed(raw: Mapping[str, dict[str, int | str]], scenario: Scenario) -> Scenario:
    """Checked as a request is; today's plan is kept where it has a place."""
    parts = {name: part for name, part in raw.items() if name not in ("plan", "traces", "notes")}
    changed = parse_request(plain(parts)).scenario
    if changed.cluster.num_devices != scenario.cluster.num_devices:
        return changed
    return changed.model_copy(update={"plan": scenario.plan})


@cache
def _devices() -> str:
    """The names of the catalogue as a pattern, the longest first."""
    names = {name for device in device_names() for name in (device, *get_device(device).aliases)}
    return rf"\b(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})s?\b"


def _switch(said: str) -> re.Pattern[str]:
    """Something that is on or off, named so or so."""
    return re.compile(
        rf"\b(?:(?P<before>{_OFF}|{_ON}) (?:the )?)?{said}(?:{_IS}(?P<after>on|off|true|false))?\b", re.I
    )


def _is_off(match: re.Match[str]) -> bool:
    return bool(
        re.fullmatch(_OFF, match["before"] or "", re.I) or (match["after"] or "").lower() in ("off", "false")
    )


def _spelt(text: str) -> str:
    return re.sub(r"[ -]", "_", text.lower())
