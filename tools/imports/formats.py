"""The table of formats that can be imported, and the framework each belongs to."""

from collections.abc import Callable
from typing import NamedTuple

from tools.errors import InputError
from tools.imports.assemble import Draft, Given, Imported, assemble
from tools.imports.deepspeed import read_deepspeed
from tools.imports.maxtext import read_maxtext
from tools.imports.megatron import read_megatron
from tools.imports.torchtitan import read_torchtitan
from tools.scenario import did_you_mean


class _Format(NamedTuple):
    framework: str
    read: Callable[[str, Given], Draft]


_TABLE = {
    "torchtitan": _Format("torchtitan", read_torchtitan),
    "megatron": _Format("megatron-core", read_megatron),
    "deepspeed": _Format("deepspeed", read_deepspeed),
    "maxtext": _Format("maxtext", read_maxtext),
}
IMPORT_FORMATS = tuple(_TABLE)


def import_plan(text: str, format: str, given: Given) -> Imported:
    """The scenario that the text and what is given beside it describe; InputError names what is missing."""
    if format not in _TABLE:
        raise InputError("--format", format, did_you_mean(format, IMPORT_FORMATS))
    chosen = _TABLE[format]
    return assemble(chosen.read(text, given), given, chosen.framework)
