"""The words of engineers' notes: free text becomes tokens that the reader's grammar is written in.

Spelling is evened out first (case, contractions, signs, number words, slips of the finger); every token keeps
its place in the original, so that a statement can quote the words it rests on.
"""

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

import kb_seed
from tools.errors import DataError
from tools.scenario.spec import PLAN_ROLES

TokenValue = str | int | float | tuple[str, str | int | bool] | None


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    value: TokenValue
    start: int
    end: int
    """Places in the plain text."""

    @property
    def number(self) -> float:
        return float(self.value) if isinstance(self.value, int | float) else 0.0


class PlainText(NamedTuple):
    """Lower case, contractions spelled out, signs in ASCII, with the place of each character's origin."""

    text: str
    starts: list[int]
    ends: list[int]

    def quote(self, original: str, start: int, end: int) -> str:
        return original[self.starts[start] : self.ends[end - 1]].strip(" \t\r\n,;:-–—*•()") if end else ""


SIGNS = {
    "≤": "<=", "≥": ">=", "⩽": "<=", "⩾": ">=", "≠": "!=", "×": "x", "∈": " in ", "…": "...", "’": "'",
    "‘": "'", "“": '"', "”": '"', "–": "-", "—": " - ", "‑": "-", "−": "-", "\u00a0": " ", "µ": "u",
    "μ": "u", "→": ":", "=>": ":", "->": ":",
}  # fmt: skip
CONTRACTIONS = {
    "don't": "do not", "dont": "do not", "can't": "cannot", "cant": "cannot", "won't": "will not",
    "wont": "will not", "mustn't": "must not", "shouldn't": "should not", "isn't": "is not",
    "isnt": "is not", "aren't": "are not", "arent": "are not", "doesn't": "does not",
    "doesnt": "does not", "didn't": "did not", "didnt": "did not", "wasn't": "was not",
    "weren't": "were not", "haven't": "have not", "hasn't": "has not", "couldn't": "could not",
    "wouldn't": "would not", "needn't": "need not", "let's": "let us", "i'd": "i would",
    "we'd": "we would", "we'll": "we will", "i'll": "i will", "we're": "we are", "we've": "we have",
    "it's": "it is", "that's": "that is", "pls": "please", "plz": "please", "gonna": "going to",
    "cuz": "because", "bc": "because", "ain't": "is not", "mus": "must", "thats": "that is",
    "gotta": "have to", "nope": "no", "kinda": "maybe", "fyi": "note",
}  # fmt: skip
NUMBER_WORDS = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "ten": "10", "twelve": "12", "fifteen": "15", "sixteen": "16", "twenty": "20", "thirty": "30",
    "forty": "40", "fifty": "50", "sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90",
    "twice": "2 x", "thrice": "3 x", "double": "2 x", "triple": "3 x",
}  # fmt: skip
VOCABULARY = (
    *("tensor", "pipeline", "parallel", "parallelism", "context", "expert", "sequence", "micro", "batch"),
    *("recompute", "recomputation", "activation", "checkpoint", "checkpoints", "checkpointing", "memory"),
    *("headroom", "oversubscribed", "oversubscription", "infiniband", "network", "bandwidth", "measured"),
    *("interleaving", "interleaved", "percent", "maximum", "minimum", "cannot", "instead", "iteration"),
    *("seconds", "nvlink", "schedule", "selective", "degree", "stages", "unchanged", "change", "crashed"),
)
MIN_TYPO_LETTERS = 6
TYPO_CUTOFF = 0.86
_COMPOUNDS = {
    "thirty-two": "32", "thirty two": "32", "sixty-four": "64", "sixty four": "64",
    "hundred twenty-eight": "128", "e.g.": "eg", "i.e.": "ie", "approx.": "about", "no. of": "number of",
    "max.": "max", "min.": "min", "resp.": "resp", "vs.": "vs", "w/o": "without", "w/": "with ",
    "b/c": "because", "can not": "cannot", "incl.": "incl", "etc.": "etc", "ca.": "about", "sec.": "s",
    "out-of-memory": "out of memory",
}  # fmt: skip
_PIECE = re.compile(
    "|".join(
        [
            *(rf"(?<!\w){re.escape(text)}" for text in sorted(_COMPOUNDS, key=len, reverse=True)),
            r"(?P<gbytes>(?<=\d)\s?GB(?:ytes?)?(?:/s(?:ec)?|ps)\b)",
            r"(?P<gbits>(?<=\d)\s?G(?:b(?:it)?(?:/s(?:ec)?|ps)|bits?|b)\b)",
            r"(?P<thousands>(?<=\d),(?=\d{3}\b))",
            r"(?P<figure>(?:(?<= of )|(?<= be )|(?<= is ))one\b(?! of))",
            r"[A-Za-z']+",
            r"[=-]>|.",
        ]
    ),
    re.DOTALL,
)
_ENDLESS = re.compile(r"\d{16,}")
"""No figure of a training run has that many digits: they are not read as a number."""
_NAMED = {"gbytes": " gbytes/s", "gbits": " gbit/s", "thousands": "", "figure": "1"}


def plain_text(original: str) -> PlainText:
    out: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for match in _PIECE.finditer(original):
        piece = _NAMED[match.lastgroup] if match.lastgroup else _plain_piece(match.group())
        out.append(piece)
        same = len(piece) == len(match.group())
        places = range(len(piece))
        starts += [match.start() + (place if same else 0) for place in places]
        ends += [match.start() + place + 1 if same else match.end() for place in places]
    text = _ENDLESS.sub(lambda digits: "#" * len(digits.group()), "".join(out))
    return PlainText(text, starts, ends)


def _plain_piece(piece: str) -> str:
    low = piece.lower()
    if low in _COMPOUNDS:
        return _COMPOUNDS[low]
    if low in CONTRACTIONS:
        return CONTRACTIONS[low]
    if low in NUMBER_WORDS:
        return NUMBER_WORDS[low]
    if piece in SIGNS:
        return SIGNS[piece]
    if low.isalpha() and len(low) >= MIN_TYPO_LETTERS:
        return _without_typo(low)
    if len(piece) == 1 and not piece.isascii():
        even = unicodedata.normalize("NFKC", piece).lower()
        return even if even.isascii() and even else piece
    return low


@cache
def _without_typo(word: str) -> str:
    if word in VOCABULARY or any(word.startswith(known) for known in VOCABULARY):
        return word
    near = get_close_matches(word, VOCABULARY, n=1, cutoff=TYPO_CUTOFF)
    # A slip leaves the first letter and about the length: "exports" is no misspelt "expert".
    return near[0] if near and near[0][0] == word[0] and abs(len(near[0]) - len(word)) <= 1 else word


class ValueWords(BaseModel):
    field: str
    value: str | int
    phrases: list[str]


class NotePatterns(BaseModel):
    """The data file: phrases by kind of token."""

    macros: dict[str, str]
    fields: dict[str, list[str]]
    values: list[ValueWords]
    units: dict[str, list[str]]
    words: dict[str, list[str]]


class Lexeme(NamedTuple):
    kind: str
    value: TokenValue
    pattern: re.Pattern[str]


@cache
def _patterns() -> NotePatterns:
    """From `kb_seed/patterns/notes.toml`."""
    source = kb_seed.folder("patterns").joinpath("notes.toml")
    try:
        return NotePatterns.model_validate(tomllib.loads(source.read_text("utf-8")))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise DataError(f"kb_seed/patterns/notes.toml: {error}") from error


@cache
def _units() -> tuple[Lexeme, ...]:
    return tuple(
        Lexeme(kind, None, _compiled(phrases, r"(?<![\w.])")) for kind, phrases in _patterns().units.items()
    )


@cache
def _lexemes() -> tuple[Lexeme, ...]:
    patterns = _patterns()
    values = [
        Lexeme("value", (words.field, words.value), _compiled(words.phrases, r"(?<![a-z0-9_])"))
        for words in patterns.values
    ]
    # A new plan field is known by the words of its role until the data file has better ones.
    named = {name: [*map(re.escape, role.words)] for name, role in PLAN_ROLES.items() if role.words}
    fields = [
        Lexeme("field", name, _compiled(phrases, r"(?<![a-z])"))
        for name, phrases in (named | patterns.fields).items()
    ]
    words = [Lexeme(kind, None, _compiled_words(phrases)) for kind, phrases in patterns.words.items()]
    return (*values, *fields, *words)


def _compiled(phrases: list[str], before: str) -> re.Pattern[str]:
    """Longer phrases first: an alternation takes the first that fits."""
    macros = _patterns().macros

    def expand(match: re.Match[str]) -> str:
        return _MACRO.sub(expand, macros[match.group(1)])

    return re.compile(f"{before}(?:{_MACRO.sub(expand, '|'.join(sorted(phrases, key=len, reverse=True)))})")


def _compiled_words(phrases: list[str]) -> re.Pattern[str]:
    """Whole words only; a sign such as "<=" needs no space around it."""
    bounded = [
        rf"(?<![a-z0-9])(?:{phrase})(?![a-z0-9])" if re.search(r"(?<!\\)[a-z]", phrase) else phrase
        for phrase in phrases
    ]
    return _compiled(bounded, "")


_MACRO = re.compile(r"<([a-z]+)>")
_FIGURE = re.compile(r"\d+(?:\.\d+)?")
_PLAIN_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[ -]?(?:way|fold|x)(?![a-z]))?(?![\w%])")
_WORD = re.compile(r"[a-z0-9_.'-]+|\S")


def tokens(text: str) -> Iterator[Token]:
    """Longest match of the first kind that fits; what is no word of the grammar is a `word`."""
    place = 0
    after_field = False
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        token = _number_at(text, place, after_field) or _word_at(text, place)
        joins = token.kind == "eq" or token.value in ("-", "_")
        after_field = token.kind == "field" or (after_field and joins)
        yield token
        place = token.end


def _number_at(text: str, place: int, after_field: bool) -> Token | None:
    """Not the digits of a name such as h100; those of "tp8" count."""
    if not text[place].isdigit() or not (after_field or place == 0 or not text[place - 1].isalnum()):
        return None
    for unit in _units():
        match = unit.pattern.match(text, place)
        if match:
            return Token(unit.kind, match.group(), place, match.end())
    match = _PLAIN_NUMBER.match(text, place) or (_FIGURE.match(text, place) if after_field else None)
    figure = _FIGURE.match(text, place)
    if match is None or figure is None:
        return None
    value = figure.group()
    return Token("number", float(value) if "." in value else int(value), place, match.end())


def _word_at(text: str, place: int) -> Token:
    best: Token | None = None
    for lexeme in _lexemes():
        match = lexeme.pattern.match(text, place)
        if match and match.end() > (best.end if best else place):
            best = Token(lexeme.kind, lexeme.value or match.group(), place, match.end())
    if best:
        return best
    match = _WORD.match(text, place)
    end = match.end() if match else place + 1
    return Token("word", text[place:end], place, end)
