"""A template's command: a list of words, some of which are placeholders.

A placeholder is a whole word and is replaced by a whole word. Values are paths and numbers that ASAP makes
itself, so nothing that a request says can become an option or reach a shell.
"""

import re
from collections.abc import Mapping, Sequence

from tools.errors import InputError
from tools.scenario.names import did_you_mean

RENDEZVOUS = "rendezvous"
PLACEHOLDERS = {
    "scenario": "path of the scenario, as JSON",
    "config": "path of the exported plan in the framework's own format",
    "out": "folder for results",
    "steps": "measured steps",
    "warmup": "steps before them",
    "profile_steps": "profiled steps after them",
    "seed": "of weights and data",
    "nnodes": "nodes",
    "nproc": "processes on each node",
    "key": "the trial's key, for --rdzv-id",
    RENDEZVOUS: "host:port where torchrun's nodes meet",
}
_WHOLE = re.compile(r"\{([A-Za-z_]\w*)\}")


def placeholder_of(word: str) -> str | None:
    """The name, where the word is nothing but a placeholder."""
    found = _WHOLE.fullmatch(word)
    return found[1] if found else None


def check_command(command: Sequence[str], field: str) -> None:
    """Raises InputError for an empty command, an unknown placeholder or one inside a longer word."""
    if not command or not command[0] or placeholder_of(command[0]):
        raise InputError(field, list(command)[:1], "must begin with the program to run")
    for word in command:
        _check_word(word, field)


def _check_word(word: str, field: str) -> None:
    if "\0" in word:
        raise InputError(field, word, "a word of a command cannot hold a zero byte")
    name = placeholder_of(word)
    if name is not None and name not in PLACEHOLDERS:
        raise InputError(field, word, f"unknown placeholder, {did_you_mean(name, PLACEHOLDERS)}")
    inside = _WHOLE.search(word)
    if name is None and inside:
        raise InputError(field, word, f"the placeholder {inside[0]} must be a word of its own")


def fill(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The words to run; raises InputError where the job has no value for a placeholder."""
    return [_fill_word(word, values) for word in command]


def _fill_word(word: str, values: Mapping[str, str]) -> str:
    name = placeholder_of(word)
    if name is None:
        return word
    if name not in values:
        raise InputError(name, None, f"the template's command needs a {name}: {PLACEHOLDERS[name]}")
    return values[name]
