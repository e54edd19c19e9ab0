"""The table of formats that can be imported, and the framework each belongs to."""

from collections.abc import Callable
from typing import NamedTuple

from tools.errors import InputError
from tools.imports.assemble import Draft, Given, Imported, assemble, missing
from tools.imports.deepspeed import read_deepspeed
from tools.imports.huggingface import read_huggingface
from tools.imports.maxtext import read_maxtext
from tools.imports.megatron import read_megatron
from tools.imports.torchtitan import read_torchtitan
from tools.scenario import did_you_mean


class _Format(NamedTuple):
    framework: str | None
    """None: the file belongs to no training framework."""
    read: Callable[[str, Given], Draft]


_TABLE = {
    "torchtitan": _Format("torchtitan", read_torchtitan),
    "megatron": _Format("megatron-core", read_megatron),
    "deepspeed": _Format("deepspeed", read_deepspeed),
    "maxtext": _Format("maxtext", read_maxtext),
    "huggingface": _Format(None, read_huggingface),
}
IMPORT_FORMATS = tuple(_TABLE)


def import_plan(text: str, format: str, given: Given) -> Imported:
    """The scenario that the text and what is given beside it describe; InputError names what is missing."""
    if format not in _TABLE:
        raise InputError("--format", format, did_you_mean(format, IMPORT_FORMATS))
    chosen = _TABLE[format]
    if chosen.framework and given.framework not in (None, chosen.framework):
        raise InputError("--framework", given.framework, f"the file is {chosen.framework}'s")
    draft = chosen.read(text, given)
    framework = chosen.framework or given.framework
    if framework is None:
        raise missing("--framework", "what will train it, for instance torchtitan or megatron-core")
    return assemble(draft, given, framework)
