"""Reads an engineer's notes without a model: plain phrasings become statements, everything else a question.

Each word becomes a token with one letter for its kind (F a plan field, N a number, X a negation, ...); words
that change nothing are dropped. A part of a sentence is read only if the table has all its words and their
letters fit a form, a sentence only if all its parts are. What is not read of fields and numbers is asked.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

from pydantic import JsonValue

from tools.recommend.notes_values import SECONDS
from tools.recommend.report import NoteQuestion, Operator, PlanFields, Statement
from tools.scenario import Scenario
from tools.scenario.columns import CHOICES, MIN_VALUES
from tools.scenario.spec import PLAN_ROLES

MAX_READ_CHARACTERS = 20_000
MAX_SENTENCE_TOKENS = 150
MAX_QUOTES = 20
MAX_QUOTED_WORD = 40
NODE = "devices of a node"
"""The unit of a limit that is stated in nodes."""
TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "eighty": 80, "ninety": 90}
SPELLED = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "single": 1, "twelve": 12, "fifteen": 15, "sixteen": 16, **TENS,
}  # fmt: skip
SHARES = {"half": 50.0, "third": 100 / 3, "quarter": 25.0, "fifth": 20.0, "tenth": 10.0}
"""In percent."""
ABSENT = {name: value for name, value in MIN_VALUES.items() if name not in ("dp", "micro_batch_size")}
"""What "none" means for a field: a degree of 1, no sharding, no recomputation."""
_SUFFIX = r"(?:[ _-]?(?:model|parallel(?:ism)?|size|degree|depth|stages?|batch(?:es)?|ing|ation|e))*"
_CHANGE = r"(?:chang|touch|modif|alter|mov|vary|adjust)(?:e|ed|ing|y|ied)?"
_NOT = r"(?:(?:do|must|should|may|can) not|don['’]?t|can['’]?t|cannot|mustn['’]t|never|not)"
_DIGITS = r"\d{1,15}(?:,\d{3}){0,4}(?:\.\d{1,15})?"
"""More digits than a float holds are no number: they are asked about."""
_SPELLED = rf"(?:{'|'.join(TENS)})[ -](?:{'|'.join([*SPELLED][:9])})|{'|'.join(SPELLED)}"
_NUMBER = rf"(?:{_DIGITS}|{_SPELLED})"
FIGURES = {
    "q": rf"{_NUMBER}(?: ?: ?| to |-to-)(?:1|one)|{_NUMBER}x",
    "p": rf"{_NUMBER} ?(?:%|percent)|(?:an? |one )?(?:{'|'.join(SHARES)})",
    "t": rf"{_NUMBER} ?(?:gb/s|gbytes/s|gbit/s|gbps|gbits?|g)",
    "g": rf"{_NUMBER} ?(?:gib|gb)",
    "c": rf"(?:{_DIGITS} ?|(?:{_SPELLED}) )(?:ms|milliseconds?|seconds?|sec|s|minutes?|min)",
    "N": rf"{_NUMBER}(?:[ -]way)?|(?:{_SPELLED})s",
}
"""A ratio, a share, a bandwidth, an amount of memory, a time, a plain number."""
VALUES: dict[tuple[str, str | int], str] = {
    **{(name, str(word)): str(word) for name in ("recompute", "schedule") for word in CHOICES[name][1:]},
    **{("zero_stage", stage): rf"zero(?:[ -]stage)?[ -]?{stage}" for stage in range(3)},
    ("zero_stage", 3): r"zero(?:[ -]stage)?[ -]?3(?:/fsdp)?|fsdp2?",
    ("schedule", "1f1b"): "1f1b",
}
"""Words that name the field with its value (V)."""
FIELDS = {
    **{name: f"(?:{'|'.join(role.words)}){_SUFFIX}" for name, role in PLAN_ROLES.items() if role.words},
    "pp": f"(?:pp|pipeline){_SUFFIX}|stages(?: (?:of|in) (?:the )?pipeline)?",
    "micro_batch_size": f"(?:micro|mbs){_SUFFIX}",
    "sequence_parallel": f"sequence{_SUFFIX}|sp",
    "schedule": "schedule",
}
WORDS = {
    "K": r"keep|be kept|stay put|stays?|remains?|leave|retain|unchanged|fix|fixed|frozen|freeze|given|pinned|"
    r"lock|locked(?: into)?|hold|preserved?|hard-?coded|baked in(?:to)?|non-negotiable|alone|as is|the same|"
    r"stuck (?:with|at|on)|stick (?:to|with)|as (?:it|they) (?:is|are)|not changeable|hands off|"
    rf"no changes? (?:to|of)|{_NOT} (?:(?:allowed|possible) to )?(?:be )?(?:{_CHANGE}|mess with)",
    "M": r"must(?: be on)?|has to|have to|needs? to|should|shall|only|just|use|set|force|exactly|required|"
    r"need|want|restrict(?:ed)?|enable|either|one of|in(?= ?[{\[])|insist on|can only(?: use)?|mandatory|"
    r"nothing else",
    "O": r"no|none|without|avoid|skip|disabled?|excluded?|forbidden|prohibited|unsupported|ruled out|neither|"
    r"off(?:[ -]limits| the table)?|(?:turn|switch) off|(?:a )?no-go|anything but|does(?: not|n['’]t) work|"
    r"refuse to use|(?:stay away|steer clear) (?:from|of)|"
    r"not (?:allowed|available|supported|possible|an option|acceptable|want)|"
    rf"{_NOT} (?:be )?(?:used?|want|propose|combine)",
    "X": _NOT,
    "L": r"at (?:the )?most|at or below|(?:no|not) (?:more|higher|larger|greater|wider|deeper) than|<=|≤|"
    r"up to|max(?:imum|imal)?(?: of)?|(?:hard )?(?:cap|limit)(?:ped|ed)?(?: at| to)?|the (?:most|limit)|"
    r"or less|(?:may|must|can|should) not (?:exceed|go (?:over|above|beyond))|nothing (?:above|over|beyond)",
    "G": r"at least|no (?:less|fewer|lower) than|>=|≥|min(?:imum)?(?: of)?|or more",
    "A": r"more than|above|over|beyond|exceed|(?:greater|higher|larger|bigger|wider|deeper) than|>",
    "B": r"(?:less|fewer|lower|smaller) than|below|under|<",
    "C": r"crash(?:es|ed)?|hangs?|hung|fails?|failed|deadlock(?:s|ed)|oom(?:s|ed)?|dies|out of memory|"
    r"broken|segfaults|(?:ran|runs|went) (?:out of memory|oom)|"
    r"(?:does(?: not|n['’]t)|won['’]t) fit(?: in memory)?",
    "b": r"between",
    "+": r"together with|with|\+|/",
    ",": r",|and|&|but|so|therefore|[()]",
    "|": r"or|nor",
    "D": r"(?:fit )?(?:inside|within|in|to) (?:the|a|one|each)(?: single)? (?:node|host|nvlink domain)",
    "d": r"(?:cross|span|leave|exceed) (?:the |a )?(?:nodes?|nvlink domain)(?: boundar(?:y|ies))?",
    "m": r"(?:peak |gpu |device )?(?:memory|hbm|vram|mem)(?: (?:usage|use|utili[sz]ation))?",
    "r": r"free|headroom|spare|margin|unused|buffer",
    "R": r"reserve",
    "u": r"usable|available(?: to us)?",
    "o": r"over-?subscri(?:bed|ption)(?: ratio)?(?: by)?(?: a factor of)?|tapered|blocking factor",
    "j": r"infiniband|ib|roce|nics?|network(?:ing)?|fabric|inter[ -]?node|ethernet|links?|spine|"
    r"switch(?:es)?|interconnect|uplinks?",
    "i": r"nvlink|nvswitch",
    "y": r"nvlink domain",
    "h": r"(?:of )?(?:its |their |the )?(?:nominal|speed|bandwidth|peak)",
    "I": r"instead of|rather than|not the|(?:and|,) not",
    "s": r"(?:per |a |one |each |/ ?)?(?:training )?(?:step|iteration|iter)s?(?:[ -]time| duration)?|/ ?it",
    "v": r"measured?|clocked|observed?|logs show|profiler shows",
    "w": r"avg|average|on average|takes?|took|ran(?: (?:at|in|with))?|lasts?|see|seeing|saw",
    "n": r"(?:right )?now|currently|today|at the moment|current",
    "H": r"changes?(?: at a time)?|settings|fields|knobs|parameters",
    "Y": r"(?:saved |existing )?checkpoints?",
    "l": r"layout|format|loadable|compatible|load",
    "z": rf"{_NOT} convert",
    "T": r"there|it|that|this",
    "=": r"=|:|is|are|be|at|of|to|by|->",
    "W": r"(?:do|does) not (?:need|have|want) to|don['’]t have to|need not|we (?:use|run|set)",
    "": r"(?:for|in) (?:us|(?:this|our) (?:run|job|build|setup|cluster))|everything else (?:may vary|is open)"
    r"|may be used|you may|the|an?|our|its|their|your|please|pls|kindly|we(?:['’]re| are)?|you|i|about|"
    r"values?|size|degree|per|each|every|gpus?|devices?|on|in|as|groups?|go|do|let|have|has|hi|hello|hey|fyi|all|able|"
    r"effectively|delivers?|gives?|gets?|sees|reach(?:es)?|runs?(?: at)?|running|combination|plain|always|"
    rf"{_NUMBER} times|twice|repeatedly|"
    r"here|real|ensure|safety|config|baseline|long|again|activation|gradient|[\"'`*{}\[\]~!-]",
}
"""Longer matches win, of equal ones the earlier. W is known to state nothing, and "" changes nothing."""
OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("C", "CO", "O", "OX", "X"), "not"),
    **dict.fromkeys(("L", "AC", "AO", "AX", "AOX"), "<="),
    **dict.fromkeys(("G", "BC", "BO", "BX", "BOX"), ">="),
    "": "=",
}
"""What the cues around a field with numbers mean, whatever their order: "never more than 4" has A and X."""
FORMS: Sequence[tuple[str, Operator, str, Sequence[str], str]] = (
    ("measured_step_time_s", "=", "c", ("s", "v"), "svwn"),
    ("oversubscription", "=", "qN", ("o", "qj"), "ojMnT"),
    ("inter_node_gbps_per_device", "=", "tp", ("jt", "jhp"), "hMnT+"),
    ("intra_node_gbytes_per_s_per_device", "=", "tp", ("it", "ihp"), "hMnT"),
    ("nvlink_domain_size", "=", "N", ("y",), "M"),
    ("max_changes", "<=", "N", ("HL", "HM", "HLM", "HXA", "HOA"), ""),
    ("memory_gib", "=", "g", ("mu",), "M"),
    ("free_memory", "<=", "pg", ("rK", "rM", "rG", "R"), "KMGmT"),
    ("max_memory_fraction", "<=", "pg", ("mL", "mB", "mXA", "mOA"), "MK"),
    ("max_memory_fraction", "<=", "pg", ("mM",), ""),
    ("keep_checkpoint_layout", "keep", "", ("YlK", "YlM", "Yz"), "M"),
)
"""Statements beside the plan's fields: the letters of their one figure, the letters that must be there (all
of one entry), and those that may be."""
REASON = re.compile(
    r"\b(?:because|since|due to|otherwise|thanks to|according to|as (?:we|our)|by (?:our|the))\b"
    r"|, (?=(?:our|the|it|they|we (?:see|have|had)) )",
    re.IGNORECASE,
)
SUPPOSED = (
    r"if|unless|whether|suppos\w+|assum\w+|would|could|might|maybe|perhaps|wonder|recommends?|vendor|next|will|"
    r"kidding"
)
REPORTED = r"says?|said|claims?|was|were|old|last|previous\w*"
DOUBT = re.compile(rf"\?|\b(?:{SUPPOSED}|{REPORTED})\b", re.IGNORECASE)
"""What asks, supposes, reports, or tells of another time: not read without a model."""
HYPOTHESIS = re.compile(rf"\?|\b(?:{SUPPOSED})\b", re.IGNORECASE)
"""What asks, supposes, advises or tells of the future: not believed of a model either. What is reported or
past may hold ("these boxes were bought with 200 gigabit cards"): the whole sentence tells."""
SENTENCE_END = re.compile(r"(?<=[!?])\s|\.(?!\d|\w)|[;\n]|(?<=[!?])$")
UNKNOWN = re.compile(r"\s+|[\w'’.-]*\w|.", re.DOTALL)


class NotesReading(NamedTuple):
    statements: list[Statement]
    questions: list[NoteQuestion]
    """What the notes leave open; nothing of it is applied."""


class Claim(NamedTuple):
    """What a part of a sentence says of a field; with "?" the value is what to ask about it."""

    field: str
    operator: Operator | Literal["?"]
    value: JsonValue
    unit: str | None = None


class Token(NamedTuple):
    letter: str
    text: str
    start: int
    field: str = ""
    value: str | int | None = None
    """The field's value, if the word names it."""

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def number(self) -> float:
        """In digits or words; shares in percent."""
        if digits := re.match(_DIGITS, self.text):
            return float(digits.group().replace(",", ""))
        words = [word.removesuffix("s") for word in re.split(r"\W+", self.text.lower())]
        shares = [SHARES[word] for word in words if word in SHARES]
        numbers = [SPELLED[word] for word in words if word in SPELLED]
        return shares[-1] if shares else float(numbers[0] if self.letter == "q" else sum(numbers))

    @property
    def unit(self) -> str | None:
        """What follows the number; a large B in a bandwidth means bytes."""
        unit = re.sub(rf"^{_NUMBER} ?", "", self.text, flags=re.IGNORECASE)
        if self.letter == "t":
            return "gbytes/s" if "GB" in unit or unit.lower().startswith("gbyte") else "gbit/s"
        return {"p": None, "N": None, "q": ":1"}.get(self.letter, unit.lower())


def read_notes(notes: str, scenario: Scenario) -> NotesReading:
    """What the notes plainly state about this scenario, in their order."""
    out = NotesReading([], [])
    quotes: list[str] = []
    unread: list[str] = []
    for sentence in _sentences(notes):
        reason = REASON.search(sentence)
        said, rest = (sentence[: reason.start()], sentence[reason.start() :]) if reason else (sentence, "")
        tokens, more = list(_tokens(said)), list(_tokens(rest))
        is_plain = len(tokens) <= MAX_SENTENCE_TOKENS and "?" not in said and not DOUBT.search(rest)
        last = out.statements[-1].operator if out.statements else ""
        found = _read_parts(said, tokens, scenario, last) if is_plain else None
        for quote, (field, operator, value, unit) in found or ():
            if operator == "?":
                out.questions.append(NoteQuestion(field=field, quotes=[quote], text=f'"{quote}": {value}'))
            else:
                stated = Statement(quote=quote, field=field, operator=operator, value=value, unit=unit)
                out.statements.append(stated)
        left = more if found is not None else [*tokens, *more]
        words = [token.text for token in left if token.letter in "FVNqptgcmo" or token.text[0].isdigit()]
        unread += words
        quotes += [" ".join(sentence.split())] if words else []
    places = [f'"{word[:MAX_QUOTED_WORD]}"' for word in list(dict.fromkeys(unread))[:MAX_QUOTES]]
    if len(notes) > MAX_READ_CHARACTERS:
        places.append(f"all but the first {MAX_READ_CHARACTERS:,} characters")
    if places:
        # The words themselves stand apart: a text of ours repeats no sentence of somebody else's.
        text = f'not understood in the notes: {", ".join(places)}. What must hold, such as "tp must be 8"?'
        out.questions.append(NoteQuestion(field="notes", quotes=quotes[:MAX_QUOTES], text=text))
    return out


def numbers_in(words: str) -> list[float]:
    """All numbers in digits or words; shares in percent."""
    return [token.number for token in _tokens(words) if token.letter in FIGURES]


def is_hypothetical(notes: str, quote: str) -> bool:
    """Whether a sentence that holds the quote asks or supposes."""
    return any(HYPOTHESIS.search(sentence) for sentence in _sentences_with(quote, notes))


def passage(notes: str, quote: str) -> str:
    """What a second reader must see to judge the quote: itself, or its sentence if that reports something."""
    reporting = [sentence for sentence in _sentences_with(quote, notes) if DOUBT.search(sentence)]
    return " ".join(reporting[0].split()) if reporting else quote


def _sentences_with(quote: str, notes: str) -> list[str]:
    return [sentence for sentence in _sentences(notes) if plain(quote) in plain(sentence)]


def plain(text: str) -> str:
    return " ".join(text.lower().split())


def _sentences(notes: str) -> list[str]:
    text = notes[:MAX_READ_CHARACTERS]
    ends = [match.span() for match in SENTENCE_END.finditer(text)]
    starts, stops = [0, *(end for _, end in ends)], [*(start for start, _ in ends), len(text)]
    return [text[start:stop] for start, stop in zip(starts, stops, strict=True)]


@cache
def _patterns() -> list[tuple[str, str, str | int | None, re.Pattern[str]]]:
    """Letter, field, value and pattern: "tp8" has a number, "h100" none; a sign needs no space around it."""
    figure = r"(?:(?<![\w.])|(?<=[tpcde]p)|(?<=mbs))(?:{})(?:(?![\w%])|(?=[tpcde]p\d))"
    word = r"(?:(?<![a-z0-9])|(?=[^a-z0-9]))(?:{})(?:(?<=[^a-z0-9])|(?![a-z0-9]))"
    table: list[tuple[str, str, str | int | None, str]] = [
        *((letter, "", None, figure.format(words)) for letter, words in FIGURES.items()),
        *(("V", field, value, word.format(words)) for (field, value), words in VALUES.items()),
        *((letter, "", None, word.format(words)) for letter, words in WORDS.items()),
        *(("F", field, None, f"(?<![a-z])(?:{words})(?![a-z])") for field, words in FIELDS.items()),
    ]
    return [(*entry, re.compile(pattern, re.IGNORECASE)) for *entry, pattern in table]  # type: ignore[misc]


def _tokens(text: str) -> Iterator[Token]:
    """The longest match at each place; a word that the table does not have is a W."""
    place = 0
    while place < len(text):
        best = Token("W", "", place)
        for letter, field, value, pattern in _patterns():
            match = pattern.match(text, place)
            if match and len(match.group()) > len(best.text):
                best = Token(letter, match.group(), place, field, value)
        if not best.text:
            match = UNKNOWN.match(text, place)
            best = Token("W", match.group() if match else text[place], place)
        place = best.end
        if best.letter and not best.text.isspace():
            yield best


def _read_parts(
    sentence: str, tokens: Sequence[Token], scenario: Scenario, last: str
) -> list[tuple[str, Claim]] | None:
    """Part by part between commas and "and", each as long as it can be read, with the words it is quoted by;
    None unless all are. `last` is the operator of what was stated before."""
    cuts = [-1, *(place for place, token in enumerate(tokens) if token.letter == ","), len(tokens)]
    out: list[tuple[str, Claim]] = []
    start = 0
    while start < len(cuts) - 1:
        for end in range(len(cuts) - 1, start, -1):
            first = tokens[cuts[start]].end if start else 0
            stop = tokens[cuts[end]].start if cuts[end] < len(tokens) else len(sentence)
            quote = sentence[first:stop].strip(" \t\r\n,:-*()").removeprefix("and ")
            before = out[-1][1].operator if out else last
            claims = _read_part(tokens[cuts[start] + 1 : cuts[end]], quote, scenario, before)
            if claims is not None:
                out += [(quote, claim) for claim in claims]
                start = end
                break
        else:
            return None
    return out


def _read_part(tokens: Sequence[Token], quote: str, scenario: Scenario, before: str) -> list[Claim] | None:
    letters = [token.letter for token in tokens]
    shape = "".join(letter for letter in letters if letter in "FNV,|+").strip(",")
    cues = {*letters} - {*"FNV,|+="}
    if "F" not in shape and "V" not in shape:
        repeats = before == "not" and not shape and cues & {*"XOC"} and cues <= {*"TXOCM"}
        return [] if repeats or not tokens else _read_form(tokens, scenario)
    if "c" in cues:
        return _read_run(tokens, cues, shape, scenario)
    if cues - {*"KMOXLGABCbDdT"}:
        return None
    if re.fullmatch(r"F(?:[,|+]F)*", shape):
        return _read_fields(tokens, cues, scenario)
    if re.fullmatch(r"F?N(?:[,|]N)*F?|(?:(?:FN|F?V)[,|+]?)+|(?:NF[,|+]?)+|F?V(?:[,|+]V)*F?", shape):
        return _read_values(tokens, cues, shape, "combination" in quote.lower())
    return None


def _read_form(tokens: Sequence[Token], scenario: Scenario) -> list[Claim] | None:
    """A figure beside the plan's fields; the one after "instead of" is not it."""
    places = {place for place, token in enumerate(tokens) if token.letter == "I"}
    tokens = [token for place, token in enumerate(tokens) if not {place, place - 1} & places]
    kinds = {token.letter for token in tokens} - {"="}
    for field, operator, letters, needs, allows in FORMS:
        figures = [token for token in tokens if token.letter in letters]
        fits = any({*need} <= kinds <= {*need, *letters, *allows} for need in needs)
        if not fits or len(figures) != bool(letters):
            continue
        if not figures:
            return [Claim(field, operator, True)] if scenario.plan else None
        unit, number, is_share = figures[0].unit, figures[0].number, figures[0].letter == "p"
        value = round(number / 100, 6) if is_share else int(number) if number % 1 == 0 else number
        if field == "free_memory":
            field = "max_memory_fraction"
            value, unit = (value, f"{unit} free") if unit else (round(1 - value, 6), None)
        elif is_share and field != "max_memory_fraction":
            unit = "of nominal"
        return [Claim(field, operator, value, unit)]
    return None


def _read_run(tokens: Sequence[Token], cues: set[str], shape: str, scenario: Scenario) -> list[Claim] | None:
    """How long a step of a plan took: of today's plan the measured step, of another one a run."""
    times = [token for token in tokens if token.letter == "c"]
    if len(times) != 1 or cues - {*"csvwT"} or not re.fullmatch(r"[,+]?(?:(?:FN|F?VF?)[,+]?)+", shape):
        return None
    owners = [token for token in tokens if token.letter in "FNV"]
    values: PlanFields = {}
    for place, token in enumerate(owners):
        if token.letter != "F":
            field = token.field or owners[place - 1].field
            values[field] = int(token.number) if token.letter == "N" else token.value
    time, unit = times[0].number, times[0].unit or ""
    if scenario.plan and all(getattr(scenario.plan, name) == value for name, value in values.items()):
        return [Claim("measured_step_time_s", "=", time, unit)]
    seconds = time * SECONDS.get(unit.rstrip("s") if unit != "ms" else unit, 1.0)
    return [Claim("run", "=", {**values, "step_time_s": seconds})]


def _read_fields(tokens: Sequence[Token], cues: set[str], scenario: Scenario) -> list[Claim] | None:
    """Fields without a number: kept, absent, or within a node."""
    fields = list(dict.fromkeys(token.field for token in tokens if token.letter == "F"))
    wanted = "".join(sorted(cues - {*"MT"}))
    if wanted in ("DK", "DL", "Xd", "Od") or (wanted == "D" and "M" in cues):
        limit = scenario.cluster.devices_per_node
        is_degree = not any(field in CHOICES or field == "zero_stage" for field in fields)
        return [Claim(field, "<=", limit, NODE) for field in fields] if is_degree else None
    if wanted == "K":
        today = {field: getattr(scenario.plan, field, None) for field in fields}
        ask = "the scenario states no value of today; which one shall it keep?"
        return [Claim(field, *(("?", ask) if now is None else ("keep", now))) for field, now in today.items()]
    if wanted == "O" and all(field in ABSENT for field in fields):
        return [Claim(field, "=", ABSENT[field]) for field in fields]
    if cues == {"M"} and fields == ["sequence_parallel"]:
        return [Claim("sequence_parallel", "=", True)]
    return None


def _read_values(
    tokens: Sequence[Token], cues: set[str], shape: str, is_combination: bool
) -> list[Claim] | None:
    """Fields with their values: equal, one of, excluded, in a range, at most, at least."""
    named = [token for token in tokens if token.letter in "FNV"]
    if any(token.number % 1 for token in named if token.letter == "N"):
        return None
    is_reversed = shape[0] == "N"  # the fields stand behind their values
    owners = named[::-1] if is_reversed else named
    values: dict[str, list[JsonValue]] = {}
    field = next(token.field for token in owners if token.field)
    for token in owners:
        field = token.field or field
        if token.letter != "F":
            values.setdefault(field, []).append(int(token.number) if token.letter == "N" else token.value)
    if {token.field for token in named if token.field} != set(values):
        return None
    if is_reversed:
        values = {name: listed[::-1] for name, listed in values.items()}
    chosen, is_one, either = values[field], len(values) == 1, "|" in shape
    operator = OPERATORS.get("".join(sorted(cues - {*"MKT"})))
    if not cues and not either:
        return [Claim(field, "?", "is this a requirement, or what runs today?")]
    if operator == "=" and "T" not in cues and (is_one or not either):
        return [
            Claim(name, "=", listed[0]) if len(listed) == 1 else Claim(name, "in", listed)
            for name, listed in values.items()
        ]
    each = either or [token.letter in "XO" for token in tokens].count(True) == len(values)
    if operator == "not" and "K" not in cues and (is_one or each):
        return [Claim(name, "not", listed) for name, listed in values.items()]
    if operator == "not" and "K" not in cues and all(len(listed) == 1 for listed in values.values()):
        if "," in shape and "C" not in cues and not is_combination:
            return [Claim(field, "?", "is the combination to be avoided, or each of them?")]
        return [Claim("plan", "not", {name: listed[0] for name, listed in values.items()})]
    if not is_one or field in CHOICES:
        return None
    if cues - {"M"} == {"b"} and len(chosen) == 2:
        return [Claim(field, ">=", chosen[0]), Claim(field, "<=", chosen[1])]
    is_limit = operator in ("<=", ">=") and len(chosen) == 1
    return [Claim(field, operator, chosen[0])] if operator and is_limit else None
