"""What people write for devices and batches: "64 x H100", "8 nodes of 8 H100s", "2x8xH100", "4M tokens".

What has two meanings is refused with both, never guessed.
"""

import math
import re
import tomllib
from functools import cache
from typing import NamedTuple

import kb_seed
from tools.errors import InputError
from tools.hardware import get_device
from tools.hardware.catalogue import find_reported

MAX_DIGITS = 12
WORDS = ("a", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {"single": 1} | {word: max(number, 1) for number, word in enumerate(WORDS)}
NODES = r"(?:nodes?|hosts?|machines?|servers?|instances?|boxes|box)"
PER_NODE = re.compile(rf"\b(?:per|in every|in each) {NODES}\b|\beach\b")
NODE_COUNT = re.compile(rf"\b(\d+)\s*(?:x\s*)?{NODES}\b")
TPU_SLICE = re.compile(r"(?:(\d+)\s*(?:x\s*)?)?(?:tpu[ -])?(v4|v5p|v5e|v5litepod|v6e)-(\d+)")
CORES_PER_CHIP = {"v4": 2, "v5p": 2}
"""A slice's name counts TensorCores for these (https://cloud.google.com/tpu/docs/v5p), chips for others."""
RACK = re.compile(r"(\d+)\s*(?:x\s*)?(?:racks?)\b")
RACK_NAME = re.compile(r"\b(gb[23]00)[ -]nvl72\b")
RACK_DEVICES = 72
NOISE = re.compile(
    "x|of|with|and|the|in|total|nvidia|amd|intel|google|aws|instinct|tensor|core|cluster"
    "|(?:gpu|card|chip|accelerator|device|system|node|host|machine|server)s?"
)
"""Words that say nothing about the device or its number."""
SYSTEMS = ("dgx", "hgx")
EXAMPLES = 'allowed: a number and a device, for example "64 x H100", "8 nodes x 8 H100" or "4 x p5.48xlarge"'
AMOUNT = re.compile(r"([0-9][0-9,_]*)\s*([km]?)\s*(tokens?|sequences?|seqs?|samples?)?", re.IGNORECASE)
TOTAL = re.compile(r"([0-9][0-9,]*(?:\.[0-9]+)?)\s*([kmbt]?)\s*(?:tokens?)?", re.IGNORECASE)
TOTAL_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
MAX_TOKENS = 1e16
UNITS = {"": 1, "k": 2**10, "m": 2**20}
"""Binary, as people mean 8k of context and 4M tokens per step (Llama 3: 512 sequences of 8192)."""


class DeviceWords(NamedTuple):
    num_devices: int
    device: str
    devices_per_node: int | None
    """None: not stated."""


def parse_devices(text: str, field: str) -> DeviceWords:
    """How many of which device, and how many of them per node if the words say it."""
    words = re.sub(r"(?<=\d)[,_](?=\d{3}\b)", "", text.lower())
    words = words.replace("×", "x").replace("*", " x ").replace("_", "-").replace("-gpu", " gpu")
    if slice_ := TPU_SLICE.fullmatch(words.strip()):
        chips = int(slice_[3][:MAX_DIGITS]) // CORES_PER_CHIP.get(slice_[2], 1)
        return DeviceWords(max(chips, 1) * int(slice_[1] or 1), get_device(slice_[2]).name, None)
    words = re.sub(r"(?<![a-wyz.\d-])(\d+)\s*x\s*(?=[\da-z])", r"\1 x ", words.replace("a single", "1"))
    words = re.sub(r"\bx(\d+)\b|(?<![a-z\d])(\d+)x\b", r"\1\2 ", words)
    words = " ".join(str(NUMBERS.get(word, word)) for word in words.split())
    if RACK_NAME.search(words):
        racks = RACK.search(words)
        if racks is None:
            rule = f'a rack has {RACK_DEVICES}; say "144 x GB200" or "2 racks of GB200 NVL72"'
            raise InputError(field, text, rule)
        words = RACK_NAME.sub(r"\1", words).replace(racks[0], str(int(racks[1]) * RACK_DEVICES))
    words = PER_NODE.sub(" ", words)
    nodes = NODE_COUNT.search(words)
    if nodes:
        words = words.replace(nodes[0], " ", 1)
    tokens = [token for token in re.split(r"[\s,;:()]+", words) if token and not NOISE.fullmatch(token)]
    for length in range(len(tokens), 0, -1):
        for start in range(len(tokens) - length + 1):
            found = _find(tokens[start : start + length])
            numbers = [*tokens[:start], *tokens[start + length :]]
            if found and all(number.isdigit() for number in numbers):
                if nodes:
                    numbers = [nodes[1], *(numbers or [str(_per_node(found))])]
                if not 1 <= len(numbers) <= 2 or any(len(number) > MAX_DIGITS for number in numbers):
                    raise InputError(field, text, EXAMPLES)
                count = math.prod(map(int, numbers)) * found.devices
                if not count:
                    raise InputError(field, text, EXAMPLES)
                is_split = len(numbers) == 2 or found.devices > 1
                in_node = found.devices * (int(numbers[1]) if len(numbers) == 2 else 1)
                return DeviceWords(count, found.device, in_node if is_split else None)
    named = [token for token in tokens if not token.isdigit()]
    if named and len(tokens) > len(named):
        try:
            get_device(" ".join(named))
        except InputError as error:
            raise InputError(field, text, error.rule) from None
    raise InputError(field, text, EXAMPLES)


def parse_amount(text: str, field: str, seq_len: int | None = None) -> int:
    """A whole number as people write it; of sequences of this length, if tokens are meant."""
    match = AMOUNT.fullmatch(text.strip())
    digits = re.sub(r"[,_]", "", match[1]) if match else ""
    if match is None or len(digits) > MAX_DIGITS or not int(digits):
        raise InputError(field, text, 'allowed: a whole number, for example "128", "8k" or "4M tokens"')
    value, unit = int(digits) * UNITS[match[2].lower()], (match[3] or "").lower()
    is_batch = field.endswith(("batch_size", "batch-size"))
    if not unit.startswith("token"):
        if is_batch and not unit and match[2].lower() == "m":
            raise InputError(field, text, f'say "{text} tokens" or "{text} sequences"')
        return value
    if not is_batch:
        return value
    if seq_len is None:
        raise InputError(field, text, "tokens are counted in sequences: state the sequence length too")
    if value % seq_len:
        low = value // seq_len
        near = " or ".join(f"{count}" for count in (low, low + 1) if count)
        rule = f"{value:,} tokens are no whole number of sequences of {seq_len}; {near} sequences are near"
        raise InputError(field, text, rule)
    return value // seq_len


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


def _per_node(found: _Machine) -> int:
    """How many of it a node has, if nobody says so."""
    return get_device(found.device).devices_per_node if found.devices == 1 else 1
