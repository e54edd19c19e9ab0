"""What people write for devices and batches: "64 x H100", "8 nodes of 8 H100s", "2x8xH100", "4M tokens".

What has two meanings is refused with both, never guessed.
"""

import math
import re
import tomllib
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import kb_seed
from tools.errors import InputError
from tools.hardware import get_device
from tools.hardware.catalogue import find_reported

MAX_DIGITS = 12
WORDS = "one two three four five six seven eight nine ten eleven twelve"
NUMBERS = {word: number for number, word in enumerate(WORDS.split(), 1)}
NUMBERS |= {"a": 1, "single": 1, "sixteen": 16, "thirty-two": 32, "sixty-four": 64}
NODES = r"(?:nodes?|hosts?|machines?|servers?|instances?|boxes|box)"
PER_NODE = re.compile(rf"\b(?:per|in every|in each|on each) {NODES}\b|/ ?{NODES}\b|\beach\b")
NODE_COUNT = re.compile(rf"\b((?:on|across|over|in|among) )?(\d+)\s*(?:x\s*)?(?:gpu )?{NODES}\b")
SEVERAL_NODES = re.compile(rf"\b(?:{NODES}(?<=s)(?!=)\b|{NODES} (?=(?:x )?\d))")
TOTAL_COUNT = re.compile(r"\b(?:in )?(?:total|all|overall|altogether)\b")
MARKS = PER, AT, OVER, PLURAL = "per-node", "nodes=", "over=", "nodes"
"""Marks among the words: "8 per node", "8 nodes", "64 on 8 nodes", and "nodes" behind a device."""
TPU_SLICE = re.compile(r"(?:(\d+)\s*(?:x\s*)?)?(?:tpu[ -])?(v4|v5p|v5e|v5litepod|v6e)-(\d+)")
CORES_PER_CHIP = {"v4": 2, "v5p": 2}
"""A slice's name counts TensorCores for these (https://cloud.google.com/tpu/docs/v5p), chips for others."""
RACK = re.compile(r"(\d+)\s*(?:x\s*)?(?:racks?)\b")
RACK_NAME = re.compile(r"\b(gb[23]00)[ -]nvl72\b")
RACK_DEVICES = 72
NOISE = re.compile(
    "x|of|on|with|and|the|in|my|our|them|way|nvidia|amd|intel|google|aws|instinct|hopper|tensor|core|cluster"
    "|(?:gpu|card|chip|accelerator|device|system)s?|node|host|machine|server|instance|box"
)
"""Words that say nothing about the device or its number."""
SYSTEMS = ("dgx", "hgx")
EXAMPLES = 'allowed: a number and a device, for example "64 x H100", "8 nodes x 8 H100" or "4 x p5.48xlarge"'
AMOUNT = re.compile(
    r"([0-9][0-9,_]*)(\.[0-9]{1,6})?(?:e([0-9]{1,2}))?\s*(ki?|mi?|million)?\s*(tok(?:en)?s?|sequences?|seqs?|samples?)?",
    re.IGNORECASE,
)
POWER = re.compile(r"\b2\s*(?:\^|\*\*)\s*([1-4]?[0-9])(?![0-9.])")
PRODUCT = re.compile(r"\s*([0-9,]+)\s*[x×*]\s*([0-9][0-9,]*\s*k?)(?:\s*tok(?:en)?s?)?\s*", re.IGNORECASE)
"""A batch as sequences of a length: 512 x 8k."""
TOTAL = re.compile(r"([0-9][0-9,]*(?:\.[0-9]+)?)\s*([kmbt]?)\s*(?:tokens?)?", re.IGNORECASE)
TOTAL_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
MAX_TOKENS = 1e16
UNITS = {"": 1, "k": 2**10, "ki": 2**10, "m": 2**20, "mi": 2**20, "million": 2**20}
"""Binary, as people mean 8k of context and 4M tokens per step (Llama 3: 512 sequences of 8192)."""


class DeviceWords(NamedTuple):
    num_devices: int
    device: str
    devices_per_node: int | None
    """None: not stated."""


def parse_devices(text: str, field: str) -> DeviceWords:
    """How many of which device, and how many of them per node if the words say it."""
    words = re.sub(r"(?<=\d)[,_](?=\d{3}\b)", "", text.lower())
    words = words.replace("×", "x").replace("*", " x ").replace("_", "-").replace("-gpu", " way")
    words = re.sub(r"\beach (?:with|having|of)\b", "of", words.replace("standard-", ""))
    if slice_ := TPU_SLICE.fullmatch(words.strip()):
        chips = int(slice_[3][:MAX_DIGITS]) // CORES_PER_CHIP.get(slice_[2], 1)
        return DeviceWords(max(chips, 1) * int(slice_[1] or 1), get_device(slice_[2]).name, None)
    words = re.sub(r"(?<![a-wyz.\d-])(\d+)\s*x\s*(?=[\da-z])", r"\1 x ", words.replace("a single", "1"))
    words = re.sub(r"\bx(\d+)\b|(?<![a-z\d])(\d+)x\b", r"\1\2 ", words)
    words = " ".join(str(NUMBERS.get(word, word)) for word in words.split())
    if thousands := re.search(r"\b(\d{1,6})k\b", words):
        count = int(thousands[1])
        raise InputError(field, text, f"say {count * 1000} or {count * 1024}: {thousands[0]} may be either")
    if RACK_NAME.search(words):
        racks = RACK.search(words)
        if racks is None:
            rule = f'a rack has {RACK_DEVICES}; say "144 x GB200" or "2 racks of GB200 NVL72"'
            raise InputError(field, text, rule)
        words = RACK_NAME.sub(r"\1", words).replace(racks[0], str(int(racks[1]) * RACK_DEVICES))
    words, totals = TOTAL_COUNT.subn(" ", PER_NODE.sub(f" {PER} ", words))
    words = NODE_COUNT.sub(lambda match: f" {OVER if match[1] or totals else AT}{match[2]} ", words)
    words = SEVERAL_NODES.sub(f"{PLURAL} ", words)
    tokens = [token for token in re.split(r"[\s,;:()~]+", words) if token and not NOISE.fullmatch(token)]
    for length in range(len(tokens), 0, -1):
        for start in range(len(tokens) - length + 1):
            named, rest = tokens[start : start + length], [*tokens[:start], *tokens[start + length :]]
            found = None if any(token.startswith(MARKS) for token in named) else _find(named)
            if found and all(token.isdigit() or token.startswith(MARKS) for token in rest):
                is_long = any(len(token) > MAX_DIGITS + len(AT) for token in rest)
                counted = None if is_long else _count(rest, start, found, words, is_total=totals > 0)
                if counted is None:
                    raise InputError(field, text, EXAMPLES)
                return DeviceWords(counted[0], found.device, counted[1])
    named = [token for token in tokens if not token.isdigit()]
    if named and len(tokens) > len(named):
        try:
            get_device(" ".join(named))
        except InputError as error:
            raise InputError(field, text, error.rule) from None
    raise InputError(field, text, EXAMPLES)


def parse_amount(text: str, field: str, seq_len: int | None = None) -> int:
    """A whole number as people write it; of sequences of this length, if tokens are meant."""
    text = POWER.sub(lambda power: str(2 ** int(power[1])), text)
    is_batch = field.endswith(("batch_size", "batch-size"))
    if is_batch and (product := PRODUCT.fullmatch(text)):
        length = parse_amount(product[2], "seq_len")
        if seq_len not in (None, length):
            raise InputError(field, text, f"the sequence length is {seq_len}")
        return parse_amount(product[1], field)
    match = AMOUNT.fullmatch(text.strip())
    digits = re.sub(r"[,_]", "", match[1]) + (match[2] or "") if match else ""
    scale = (match[4] or "").lower() if match else ""
    value = Fraction(digits or 0) * UNITS[scale] * 10 ** int(match[3] or 0) if match else Fraction(0)
    if match is None or len(digits) > MAX_DIGITS or value.denominator > 1 or not 0 < value < MAX_TOKENS:
        raise InputError(field, text, 'allowed: a whole number, for example "128", "8k" or "4M tokens"')
    unit = (match[5] or "").lower()
    if not unit.startswith("tok"):
        if is_batch and not unit and scale.startswith("m"):
            raise InputError(field, text, f'say "{text} tokens" or "{text} sequences"')
        return int(value)
    if not is_batch:
        return int(value)
    if seq_len is None:
        raise InputError(field, text, "tokens are counted in sequences: state the sequence length too")
    if value % seq_len:
        low = value // seq_len
        near = " or ".join(f"{count}" for count in (low, low + 1) if count)
        rule = (
            f"{int(value):,} tokens are no whole number of sequences of {seq_len}; {near} sequences are near"
        )
        raise InputError(field, text, rule)
    return int(value // seq_len)


def parse_total(text: str, field: str) -> int:
    """The tokens of a whole run, as people write them: 15T, 1.2T tokens, 300B."""
    match = TOTAL.fullmatch(text.strip())
    value = float(match[1].replace(",", "")) * TOTAL_UNITS[match[2].lower()] if match else 0.0
    if not 1 <= value <= MAX_TOKENS:
        raise InputError(field, text, 'allowed: a number of tokens, for example "15T", "300B" or 2000000000')
    return round(value)


def node_note(count: int, per_node: int, device: str) -> str | None:
    """What it means that the devices do not fill whole nodes."""
    whole, left = divmod(count, per_node)
    if not left or not whole:
        return None
    return (
        f"{count} devices are {whole} nodes of {per_node} {device} and {left} of another node: few degrees "
        f"divide {count}, and groups cross nodes; {whole * per_node} or {(whole + 1) * per_node} fill them; "
        "devices_per_node states another size of a node"
    )


class _Machine(NamedTuple):
    device: str
    devices: int
    """1: a device by itself."""


@cache
def _machines() -> dict[str, _Machine]:
    text = kb_seed.folder("machines").joinpath("machines.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text).items()
    return {name: _Machine(device, count) for device, named in tables for name, count in named.items()}


def _find(tokens: list[str]) -> _Machine | None:
    """The device or machine that these words name, also in the plural."""
    if tokens[0] in SYSTEMS and len(tokens) > 1:
        inner = _find(tokens[1:])
        return inner and _Machine(inner.device, get_device(inner.device).devices_per_node)
    name = "-".join(tokens)
    for spelt in dict.fromkeys((name, name.removesuffix("s"))):
        if machine := _machines().get(spelt):
            return machine
        try:
            return _Machine(get_device(spelt).name, 1)
        except InputError:
            continue
    if len(plain := [token for token in tokens if not token.startswith("sxm")]) not in (0, len(tokens)):
        return _find(plain)  # "A100 80GB SXM4"
    is_counted = any(end.isdigit() for end in (tokens[0], tokens[-1]))
    reported = None if is_counted else find_reported(" ".join(tokens))
    return _Machine(reported, 1) if reported else None


def _count(
    rest: list[str], start: int, found: _Machine, words: str, *, is_total: bool
) -> tuple[int, int | None] | None:
    """The devices, and how many are in a node if the words say so; None if they do not agree.

    `rest` are the numbers and marks around the device, which stood before the one at `start`.
    """
    numbers = [int(token) for token in rest if token.isdigit()]
    nodes = next((int(token.partition("=")[2]) for token in rest if "=" in token), None)
    usual = found.devices if found.devices > 1 else get_device(found.device).devices_per_node
    if 0 in (*numbers, nodes) or len(rest) - len(numbers) > 2 or len(numbers) > 2:
        return None
    size = found.devices if found.devices > 1 else None
    if PER in rest:
        before = [token for token in rest[: rest.index(PER)] if token.isdigit()]
        if not before or size not in (None, int(before[-1])):
            return None
        size = int(before[-1])
        numbers.remove(size)
    if found.devices > 1:  # the number counts machines
        machines = numbers[0] if numbers else nodes
        return (machines * found.devices, size) if machines and nodes in (None, machines) else None
    if (
        nodes is None and rest[start : start + 1] == [PLURAL] and numbers
    ):  # "4 H100 nodes", "8xH100 nodes x 4"
        if len(numbers) == 2:
            size = numbers.pop(1 if start == 2 else 0)  # "two 8xH100 nodes", "8xH100 nodes x 4"
        nodes = numbers.pop()
    if nodes is None and len(numbers) == 2:  # "2 x 8 x H100"
        return math.prod(numbers), numbers[1]
    if size is not None and nodes is None:
        if not numbers:
            return None
        if re.search(rf"\b{numbers[0]} +x +{size}\b", words):  # "4 x 8 H100 per node"
            return numbers[0] * size, size
        return (numbers[0], size) if numbers[0] >= size else None
    if nodes is None:
        return (numbers[0], None) if numbers else None
    if size is None and numbers:
        mark = next(index for index, token in enumerate(rest) if "=" in token) if PLURAL not in rest else 0
        is_whole = rest[mark].startswith(OVER) and (mark > 0 or is_total)
        size, left = divmod(numbers[0], nodes) if is_whole else (numbers[0], 0)
        return None if left or not size else (nodes * size, size)
    size = size or usual
    return (nodes * size, size) if not numbers or numbers[0] == nodes * size else None
