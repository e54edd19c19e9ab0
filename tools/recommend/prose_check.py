"""Prose with slots: a writer names a figure (`{p1.speedup}`) and code writes it.

Free figures, spelled-out multiples, directions, addresses and commands are refused: what a text promises is
code's, its words are the writer's.
"""

import re
import unicodedata
from collections.abc import Mapping

MAX_PROSE_CHARACTERS = 2000
_SLOT = re.compile(r"\{([a-z][a-z0-9_.]*)\}")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_ADDRESS = re.compile(
    r"://|\bwww\.|\bhttps?\b|\bftp\b|\b[\w-]+\.(?:com|org|net|io|ai|dev|sh|app|co|xyz|info|example|edu|gov)\b"
    r"|@[\w-]+|\b[\w-]+@",
    re.I,
)
_COMMAND = re.compile(
    r"[`$|<>\\#~^=*_]|&&|--|(?:^|\s)/\w|\w/\w+/|\b(?:curl|wget|sudo|bash|zsh|chmod|chown|ssh|scp|eval|exec|pip|apt|npm|git|"
    r"docker|kubectl|python|perl|powershell|cmd|rm|dd|mkfs|printenv|srun|sbatch|torchrun)\b",
    re.I,
)
_MULTIPLE = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w*teen|twenty|thirty|forty|fifty|sixty|"
    r"seventy|eighty|ninety|hundreds?|thousands?|millions?|billions?|dozens?|score|zero|half|halves|halved?|"
    r"halving|thirds|quarters?|fifths?|tenths?|twice|thrice|doubl\w*|tripl\w*|quadrupl\w*|quintupl\w*|\w+fold|"
    r"folds?|percent\w*|magnitude|manifold)\b",
    re.I,
)
_DIRECTION = re.compile(
    r"\b(?:fast(?:er|est)|slow(?:er|est)|quick(?:er|est)|speed-?\s?ups?|speeds?\s+up|sped|outperform\w*|"
    r"accelerates?|accelerated|improve\w*|regress\w*|lever|gains?|wins?)\b",
    re.I,
)
_REFUSED = (
    (_ADDRESS, "an address"),
    (_COMMAND, "a command or markup"),
    (_MULTIPLE, "a spelled-out figure"),
    (_DIRECTION, "a direction that only code may state"),
)


def objections(text: str, slots: Mapping[str, str]) -> list[str]:
    """What may not stand in a writer's text; empty if all of it may."""
    unknown = ["an unknown slot"] if any(name not in slots for name in _SLOT.findall(text)) else []
    free = unicodedata.normalize("NFKC", _SLOT.sub(" ", text))
    found = [*unknown]
    if len(text) > MAX_PROSE_CHARACTERS:
        found.append(f"more than {MAX_PROSE_CHARACTERS} characters")
    if any(character.isnumeric() for character in free):
        found.append("a free figure")
    if "{" in free or "}" in free:
        found.append("a broken slot")
    if any(
        unicodedata.category(character) in ("Cf", "Cc", "Co", "Cs") for character in free if character != "\n"
    ):
        found.append("an invisible character")
    return found + [what for rule, what in _REFUSED if rule.search(free)]


def fill(text: str, slots: Mapping[str, str]) -> str:
    """The text with its slots written out by code; call it for texts without objections only."""
    return _SLOT.sub(lambda match: slots[match.group(1)], text).strip()


def numbers_in(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in _NUMBER.findall(text)]
