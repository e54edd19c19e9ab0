"""Reads launch scripts: variables, arithmetic, if and case, arrays; the options that the script would pass.

The text is data: nothing in it is run, and no variable is looked up outside the script and the user's own.
"""

import operator
import re
from collections.abc import Iterator, Mapping

_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
# Whitespace patterns end with the line and never adjoin: backtracking over blank lines would take hours.
_ASSIGNMENT = re.compile(
    r"^[ \t]*(?:(?:export|local|readonly|declare)[ \t]+)?([A-Za-z_]\w*)="
    r"(\"[^\"\n]*\"|'[^'\n]*'|(?:\$\(\([^()\n]*\)\)|\$\{[^{}\n]*\}|[^\s;(\"'{}])*)[ \t;]*$"
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^{}$]*))?\}|(\w+))")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*)\)\)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER_WORK = re.compile(r"^[\d\s+*/%-]+$")
_NOISE = re.compile(r"\\\r?\n|[\"';]")
_ARRAY = re.compile(r"(?<=\w)\+?=\(")
_ASSIGNED = re.compile(r"\w+\+?=")
_OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?$", re.DOTALL)
_TEST = re.compile(r"^\s*(!?)\s*\[\[?\s*(.*?)\s*\]\]?\s*$")
_COMPARED = re.compile(r"^(.*?)\s*(==|=|!=|-eq|-ne|-gt|-lt|-ge|-le)\s*(.*)$")
_LIST = re.compile(r"^\(?\[?[\[\]01,*+\s()\d]+\)?$")
_GROUP = re.compile(r"\[([01,\s]*)\](?:\*(\d{1,5}))?")
MAX_LIST = 10_000
_COMPARISONS = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-lt": operator.lt, "-ge": operator.ge,
    "-le": operator.le,
}  # fmt: skip
_MAX_ROUNDS = 8
LIST_OPTIONS = frozenset({"recompute_modules", "cuda_graph_scope", "cuda_graph_modules", "offload_modules"})
"""Options that take several words; of all others the words behind the first belong to something else."""


def has_options(text: str) -> bool:
    """Whether the text is arguments at all, and not YAML."""
    return re.search(r"(?:^|[\s\"'(=])--[A-Za-z]", _COMMENT.sub("", text)) is not None


def parse_arguments(text: str, variables: Mapping[str, str] | None = None) -> dict[str, str | bool]:
    """Options by name with underscores: the value, True for a flag; the last of a repeated option wins.

    `variables` are the user's own and win over the script's assignments.
    """
    values = dict(variables or {})
    lines = _live_lines(_COMMENT.sub("", text).splitlines(), values, frozenset(values))
    words = _NOISE.sub(" ", _ARRAY.sub("= ", "\n".join(lines))).split()
    options: dict[str, str | bool] = {}
    name = None
    for word in words:
        # The bracket that ends a bash array may be attached to its last word; that of a list is its own.
        word = word if "(" in word else word.rstrip(")")
        if option := _OPTION.match(word):
            name = option[1].replace("-", "_")
            options[name] = True if option[2] is None else option[2]
        elif _ASSIGNED.match(word):
            name = None  # the next line of the script, not a value
        elif name in LIST_OPTIONS and word:
            earlier = options[name]
            options[name] = word if earlier is True else f"{earlier} {word}"
        elif name is not None and word:
            options[name], name = word, None
    return options


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """With variables and arithmetic resolved as far as they are known."""

    def value(match: re.Match[str]) -> str:
        default = match[0] if match[2] is None else match[2].strip("\"'")
        return variables.get(match[1] or match[3], default)

    for _ in range(_MAX_ROUNDS):
        before = text
        text = _VARIABLE.sub(value, text)
        text = _ARITHMETIC.sub(lambda match: _compute(match, variables), text)
        if text == before:
            break
    return text


def _compute(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """Whole numbers with + - * / %, from left to right by precedence; anything else stays as it is."""
    work = _NAME.sub(lambda name: variables.get(name[0], name[0]), match[1])  # needs no $ there
    if not _NUMBER_WORK.match(work) or len(work) > 200:
        return match[0]
    terms = re.findall(r"\d+|[+*/%-]", work)
    if len(terms) % 2 == 0 or any(term.isdigit() == i % 2 for i, term in enumerate(terms)):
        return match[0]
    total, factor, sign = 0, int(terms[0]), 1
    for step, number in zip(terms[1::2], map(int, terms[2::2]), strict=True):
        if step in "+-":
            total, factor, sign = total + sign * factor, number, 1 if step == "+" else -1
        elif step == "*":
            factor *= number
        elif number == 0:
            return match[0]
        else:
            factor = factor // number if step == "/" else factor % number
    return str(total + sign * factor)


def _live_lines(lines: list[str], values: dict[str, str], fixed: frozenset[str]) -> Iterator[str]:
    """The lines that would run, with variables resolved; assignments are remembered on the way."""
    branches: list[tuple[bool, bool]] = []  # (a branch has been taken, this one is live)
    case_word: list[str] = []
    for raw in lines:
        line, word = raw.strip(), raw.strip().split(" ")[0].rstrip(";")
        outer_live = all(live for _, live in branches)
        if word == "if":
            taken = outer_live and _condition(line[2:], values)
            branches.append((taken, taken))
        elif word in ("elif", "else") and branches:
            taken, _ = branches.pop()
            now = not taken and (word == "else" or _condition(line[4:], values))
            branches.append((taken or now, now))
        elif word in ("fi", "esac") and branches:
            branches.pop()
            if word == "esac" and case_word:
                case_word.pop()
        elif word == "case" and line.endswith(" in"):
            case_word.append(_plain(substitute(line[4:-3], values)))
            branches.append((False, False))
        elif case_word and branches and (label := re.match(r"^\(?([^()\s]+)\)(.*)$", line)):
            taken, _ = branches.pop()
            wanted = [_plain(part) for part in label[1].split("|")]
            now = not taken and (case_word[-1] in wanted or "*" in wanted)
            branches.append((taken or now, now))
            if now and label[2].strip():
                yield from _assign(label[2], values, fixed)
        elif outer_live:
            yield from _assign(raw, values, fixed)


def _assign(line: str, values: dict[str, str], fixed: frozenset[str]) -> Iterator[str]:
    if match := _ASSIGNMENT.match(line.rstrip(";")):
        value = _plain(substitute(match[2], values))
        if match[1] not in fixed and f"${match[1]}" not in value and f"${{{match[1]}" not in value:
            values[match[1]] = value
        if "--" not in value:
            return
    yield substitute(line, values)


def _condition(text: str, values: Mapping[str, str]) -> bool:
    """A test as bash would decide it without further variables: unknown ones are empty."""
    plain = text.split(";")[0].strip().removesuffix("then").strip()
    if "||" in plain:
        return any(_condition(part, values) for part in plain.split("||"))
    if "&&" in plain:
        return all(_condition(part, values) for part in plain.split("&&"))
    match = _TEST.match(plain)
    if match is None:
        return False
    test = _VARIABLE.sub("", substitute(match[2], values))
    if test.startswith(("-z ", "-n ")):
        holds = bool(_plain(test[3:])) == test.startswith("-n")
    elif compared := _COMPARED.match(test):
        left, sign, right = _plain(compared[1]), compared[2], _plain(compared[3])
        if sign in ("==", "=", "!="):
            holds = (left == right) == (sign != "!=")
        else:
            are_numbers = left.lstrip("-").isdigit() and right.lstrip("-").isdigit()
            holds = are_numbers and _COMPARISONS[sign](int(left), int(right))
    else:
        holds = bool(_plain(test)) and not test.startswith("-")
    return holds != bool(match[1])


def _plain(text: str) -> str:
    return text.strip().strip("\"'")


def parse_layer_list(text: str) -> list[int] | None:
    """`([0]*3+[1]*58)` or `[1,1,0]*4` as a list of flags; None for anything else."""
    text = text.strip(" \"'")
    if "[" not in text or not _LIST.match(text):
        return None
    flags: list[int] = []
    for group, times in _GROUP.findall(text.replace(" ", "")):
        flags += [int(flag) for flag in group.split(",") if flag] * int(times or 1)
        if len(flags) > MAX_LIST:
            return None
    return flags or None
