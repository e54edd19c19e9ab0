"""The options in a launch script or argument file, found without running it.

Understands comments, line continuation, quotes, bash arrays, and variables that the text itself sets to a
plain word (TP=4 ... --tensor-model-parallel-size $TP, ${TP}, ${TP:-4}). A variable set elsewhere stays as it
is written, and is refused where its value is needed.
"""

import re
from typing import Any

_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
# Gaps end with their line, and no two stand side by side: a file of nothing else would take hours.
_ASSIGNMENT = re.compile(
    r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=[\"']?([\w.+-]+)[\"']?(?:[ \t]*;)?[ \t\r]*$"
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([\w.+-]*))?\}|(\w+))")
_NOISE = re.compile(r"\\\r?\n|[\"';]")
_ARRAY = re.compile(r"(?<=\w)\+?=\(")
_ASSIGNED = re.compile(r"\w+\+?=")
_OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?$", re.DOTALL)


def has_options(text: str) -> bool:
    """Whether the text is arguments at all, and not YAML."""
    return re.search(r"(?:^|[\s\"'(=])--[A-Za-z]", _COMMENT.sub("", text)) is not None


def parse_arguments(text: str) -> dict[str, Any]:
    """Options by name with underscores: the value, True for a flag; the last of a repeated one holds."""
    plain = _COMMENT.sub("", text)
    variables = dict(_ASSIGNMENT.findall(plain))
    words = _NOISE.sub(" ", _ARRAY.sub("= ", _substituted(plain, variables))).split()
    found: dict[str, Any] = {}
    name = None
    for word in map(_without_bracket, words):
        if option := _OPTION.match(word):
            name = option[1].replace("-", "_")
            found[name] = True if option[2] is None else option[2]
        elif _ASSIGNED.match(word):
            name = None  # the next line of the script, not a value
        elif name is not None and word:
            found[name], name = word, None
    return found


def _without_bracket(word: str) -> str:
    """The bracket that ends a bash array may be glued to its last word; one that a word opens is its own."""
    return word if "(" in word else word.rstrip(")")


def _substituted(text: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[3], match[2] or match[0])

    return _VARIABLE.sub(value, text)
