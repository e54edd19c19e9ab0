"""The grammar of engineers' notes: sentences, clauses, and which number belongs to which plan field."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from pydantic import JsonValue

from tools.recommend.notes_words import PlainText, Token, tokens
from tools.recommend.report import NoteQuestion, Operator, Statement
from tools.scenario import Scenario

CUES = frozenset({"keep", "max", "min", "gt", "lt", "neg", "req", "fail", "off_limits", "between", "soft"})
COMPARISONS = {"max": "<=", "min": ">=", "gt": "gt", "lt": "lt"}
SUBSTANCE = frozenset({"field", "value", "number", "percent", "gigabytes", "rate", "ratio", "time"})
TRANSITIVE = re.compile(
    r"(?:needs?|requires?|allows?|supports|permits?|keeps|holds|leaves|maintains|limits|caps|saves|uses|sets|locks)"
)
"""After a field these say what it does, not what it must be: "pp 8 requires more micro batches"."""
ADJACENT = frozenset({"only", "just", "exactly", "either", "always", "please"})
"""Restrict only what they stand beside: "tp 4 only", not "tp 4 helps only attention"."""
IMPERATIVE = frozenset({"use", "run", "set", "sets", "choose", "pick", "go with", "make it", "search only"})
PASSIVE = re.compile(
    r"(?:is |are )?(?:required|mandatory|forced?|enforced?|obligatory|compulsory|needed|approved|certified|"
    r"validated|qualified|allowed|permitted|restricted|confined?|turned on|enabled?|insists?|requirement)"
)
MODAL = re.compile(
    r"(?:must|has to|have to|needs? to be|needs?|should|shall|want|requires?|"
    r"would (?:like|love|want)(?: to)?)$"
)
MAX_TOKENS = 150


@dataclass
class Sentence:
    start: int
    text: str
    """The plain words."""
    is_question: bool
    kinds: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Clause:
    tokens: list[Token]
    sentence: Sentence
    group: frozenset[str]
    """Kinds of the whole part between words such as "but" and "because"."""

    @cached_property
    def kinds(self) -> frozenset[str]:
        return frozenset(token.kind for token in self.tokens)

    def of(self, *kinds: str) -> list[Token]:
        return [token for token in self.tokens if token.kind in kinds]

    @property
    def text(self) -> str:
        start, end = self.span
        return self.sentence.text[start - self.sentence.start : end - self.sentence.start]

    @property
    def span(self) -> tuple[int, int]:
        return self.tokens[0].start, self.tokens[-1].end

    @cached_property
    def is_covered(self) -> bool:
        """Whether the grammar knows every word up to the last one that counts.

        A word it does not know may be anything ("nobody", "provided", "argues"): then a person is asked.
        """
        places = [
            place for place, token in enumerate(self.tokens) if token.kind in SUBSTANCE | CUES | {"memory"}
        ]
        if not places:
            return True
        return all(token.kind != "word" for token in self.tokens[: places[-1]])

    @cached_property
    def requires(self) -> bool:
        """Whether some word demands what the clause names."""
        return any(self._demands(place) for place, token in enumerate(self.tokens) if token.kind == "req")

    def _demands(self, place: int) -> bool:
        word = str(self.tokens[place].value)
        before = [token for token in self.tokens[:place] if token.kind not in ("filler", "eq", "comma")]
        after = [
            token for token in self.tokens[place + 1 :] if token.kind not in ("filler", "eq", "comma", "to")
        ]
        beside = [*before[-1:], *after[:1]]
        if word in ADJACENT:
            return any(token.kind in SUBSTANCE or token.kind == "req" for token in beside)
        if word in IMPERATIVE:
            following = self.tokens[place + 1] if place + 1 < len(self.tokens) else None
            if following is not None and following.value == "of":
                return False
            return not before or before[-1].kind in ("req", "and", "there", "soft")
        if MODAL.match(word):
            return any(token.kind in SUBSTANCE or token.kind in ("req", "keep") for token in after)
        return PASSIVE.match(word) is not None or any(token.kind in SUBSTANCE for token in after)

    @cached_property
    def describes(self) -> bool:
        """Whether a field is the subject of a plain verb: "tp 8 keeps the links busy", "tp 8 is common"."""
        for place, token in enumerate(self.tokens[:-1]):
            after = self.tokens[place + 1 :]
            is_verdict = token.kind == "eq" and token.value in ("is", "are") and after[0].kind == "word"
            if is_verdict and not any(following.kind in CUES for following in after):
                return True
        for place, token in enumerate(self.tokens[1:], start=1):
            before = self.tokens[place - 1]
            follows = before.kind in ("field", "number", "value")
            if token.kind in ("req", "keep", "max") and follows and TRANSITIVE.fullmatch(str(token.value)):
                kinds = [following.kind for following in self.tokens[place + 1 : place + 3]]
                counts = kinds[:1] == ["number"] and kinds[1:] in (["counted"], ["word"])
                if kinds and (counts or kinds[0] not in ("to", "number", "keep", "eq", "max", "min")):
                    return True
        return False

    def precedes(self, first: str, second: str) -> bool:
        earlier, later = self.of(first), self.of(second)
        return bool(earlier and later) and earlier[0].start < later[0].start

    @property
    def fields(self) -> list[str]:
        """Named plan fields, each once."""
        named = [str(token.value) for token in self.of("field")]
        by_value = [token.value[0] for token in self.of("value") if isinstance(token.value, tuple)]
        return list(dict.fromkeys([*named, *by_value]))

    @property
    def choices(self) -> list[tuple[str, str | int | bool]]:
        """Values that name their field themselves: "full recompute"."""
        return [token.value for token in self.of("value") if isinstance(token.value, tuple)]

    @cached_property
    def assigned(self) -> list[tuple[str, Token]]:
        """Each whole number with the field it belongs to: "4-way tensor", "tp at most 4", "8 for tp"."""
        out = []
        for place, token in enumerate(self.tokens):
            if token.kind == "number" and token.number == int(token.number):
                owner = self._owner(place)
                if owner:
                    out.append((owner, token))
        return out

    def _owner(self, place: int) -> str | None:
        after = self.tokens[place + 1] if place + 1 < len(self.tokens) else None
        if after is not None and after.kind == "field" and not self._follows_field(place):
            return str(after.value)
        if after is not None and after.kind == "counted":
            return None
        before = [at for at, token in enumerate(self.tokens[:place]) if token.kind == "field"]
        if before:
            between = self.tokens[before[-1] + 1 : place]
            unknown = sum(token.kind == "word" for token in between)
            return str(self.tokens[before[-1]].value) if unknown <= 1 else None
        for token in self.tokens[place + 1 :]:
            if token.kind == "field":
                return str(token.value)
            if token.kind == "word":
                return None
        return None

    def _follows_field(self, place: int) -> bool:
        for token in reversed(self.tokens[:place]):
            if token.kind == "field":
                return True
            if token.kind not in ("eq", "max", "min", "gt", "lt", "or", "number", "to", "filler"):
                return False
        return False

    def comparison(self, number: Token) -> str | None:
        """The operator before the number or behind it: "at most 4", "4 max", "4 is the limit"."""
        place = self.tokens.index(number)
        after = self.tokens[place + 1 :]
        next_kinds = [token.kind for token in after[:2]]
        if next_kinds[:1] and next_kinds[0] in ("max", "min") and next_kinds[1:] != ["number"]:
            return COMPARISONS[next_kinds[0]]
        for token in reversed(self.tokens[:place]):
            if token.kind in COMPARISONS:
                return COMPARISONS[token.kind]
            if token.kind == "number":
                break
        if next_kinds[:1] and next_kinds[0] in ("eq", "field"):
            for token in after[:3]:
                if token.kind in ("max", "min"):
                    return COMPARISONS[token.kind]
        return None

    def ranges(self, plain: Sequence[tuple[str, Token]]) -> list[tuple[str, int, int]]:
        """ "between 2 and 8", "2 to 8"."""
        out = []
        for (name, low), (other, high) in pairwise(plain):
            between = [
                token.kind for token in self.tokens if low.end <= token.start and token.end <= high.start
            ]
            is_range = between == ["to"] or ("between" in self.kinds and between == ["and"])
            if name == other and is_range and low.number < high.number:
                out.append((name, int(low.number), int(high.number)))
        return out


def by_field(values: Sequence[tuple[str, Token]]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for name, token in values:
        if int(token.number) not in grouped.setdefault(name, []):
            grouped[name].append(int(token.number))
    return grouped


class Mention(NamedTuple):
    """What a later "it", "that" or "there" refers to."""

    fields: list[str]
    values: dict[str, list[int]]
    choices: list[tuple[str, str | int | bool]]
    start: int


@dataclass
class Findings:
    """What the reader has found so far in one text."""

    original: str
    plain: PlainText
    scenario: Scenario
    statements: list[Statement] = field(default_factory=list)
    questions: list[NoteQuestion] = field(default_factory=list)
    mention: Mention | None = None

    def state(
        self, clause: Clause, name: str, operator: Operator, value: JsonValue, unit: str | None = None
    ) -> None:
        if "soft" in clause.kinds:
            self.ask(clause, name, "is this a must, or a preference that may give way?")
        elif not clause.is_covered:
            self.ask(clause, name, f"does this require something of {name}?")
        else:
            quote = self._quote(clause)
            self.statements.append(
                Statement(quote=quote, field=name, operator=operator, value=value, unit=unit)
            )

    def ask(self, clause: Clause, name: str, text: str) -> None:
        quote = self._quote(clause)
        self.questions.append(NoteQuestion(field=name, quotes=[quote], text=f'"{quote}": {text}'))

    def _quote(self, clause: Clause) -> str:
        start, end = clause.span
        if self.mention and not clause.fields and "there" in clause.kinds:
            start = min(start, self.mention.start)
        return self.plain.quote(self.original, start, end)

    def today(self, name: str) -> JsonValue:
        return getattr(self.scenario.plan, name, None) if self.scenario.plan else None


_SENTENCE_END = re.compile(r"[!?]+|\.(?!\d|\w)|;|\n")
_QUESTION_START = re.compile(
    r"\s*(?:and |so |but |ok |hi,? |hey,? )?(?:(?:should|would|could|can|shall|may|might|is|are|does|did|was|"
    r"were|will|has|have|do|am) (?:we|i|it|you|the|this|that|there|they|tp|pp|cp|ep|anyone|someone|our|an?|"
    r"any|these|more|less|having)\b|(?:what|why|how|which|when|where|who)\b(?! matters| counts| is fixed))"
)


def sentences(text: str) -> Iterator[Sentence]:
    """A question is one by its mark or by its first words; "can you please keep tp?" is a request."""
    start = 0
    for match in [*_SENTENCE_END.finditer(text), None]:
        end = match.start() if match else len(text)
        part = text[start:end]
        if part.strip():
            asks = (match is not None and "?" in match.group()) or bool(_QUESTION_START.match(part))
            polite = re.search(r"\b(?:can|could|would|will) you please\b|\bplease\b.*\bok$", part)
            yield Sentence(start, part, asks and not polite)
        start = match.end() if match else end


def clauses(sentence: Sentence) -> Iterator[Clause]:
    found = [
        Token(token.kind, token.value, token.start + sentence.start, token.end + sentence.start)
        for token in tokens(sentence.text)
    ]
    if len(found) > MAX_TOKENS:
        # No person's sentence; cutting it up would take time that grows with its square.
        return
    sentence.kinds = frozenset(token.kind for token in found)
    for group in _groups(found):
        kinds = frozenset(token.kind for token in group)
        pieces: list[list[Token]] = [[]]
        for place, token in enumerate(group):
            if token.kind in ("comma", "and") and _starts_clause(pieces[-1], group[place + 1 :], token.kind):
                pieces.append([])
            else:
                pieces[-1].append(token)
        yield from (Clause(piece, sentence, kinds) for piece in pieces if piece)


def _groups(found: Sequence[Token]) -> Iterator[list[Token]]:
    """Parts between words such as "but", "so" and "because": each has a time of its own."""
    part: list[Token] = []
    for token in found:
        if token.kind in ("so", "break"):
            if part:
                yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part


def _starts_clause(left: Sequence[Token], right: Sequence[Token], separator: str) -> bool:
    """Whether a new thing is said after this comma or "and"; lists of fields and of values go on."""
    piece: list[Token] = []
    for token in right:
        if token.kind in ("comma", "and") and piece:
            break
        if token.kind not in ("comma", "and"):
            piece.append(token)
    if not piece or not left:
        return False
    left_kinds, kinds = {token.kind for token in left}, {token.kind for token in piece}
    is_named = bool(kinds & {"field", "value", "memory", "inter_link", "step", "checkpoint", "there"})
    if not left_kinds - {"field", "and", "comma", "or"}:
        return False
    if separator == "and":
        measurable = {"memory", "inter_link", "oversub", "time"}
        own = left_kinds & CUES - ({"req"} if not left_kinds & {"number", "value"} else set())
        is_other = bool(kinds & measurable) != bool(left_kinds & measurable)
        return is_named and bool(
            (kinds & (CUES | {"future"}) and own) or (is_other and (kinds | left_kinds) & CUES)
        )
    starts_list = piece[0].kind in ("number", "or", "percent") and not is_named
    return not starts_list and not _belongs_together(left_kinds, kinds)


def _belongs_together(left: set[str], right: set[str]) -> bool:
    """Of the kinds on both sides of a comma: whether the right side goes on with what the left one says."""
    if right <= {"field", "or", "word", "filler"} and "field" in right:
        return True
    # "the combination tp 4, pp 8" is one thing, and so is "tp 4, pp 8 crashed".
    pairs = {"field", "eq", "number", "filler"}
    if "together" in left and right <= pairs:
        return True
    if "number" in left and left <= pairs and right >= {"field", "number", "fail"}:
        return True
    # "tp 8, fixed": the cue belongs to what stands before the comma.
    return right <= CUES | {"filler", "eq", "set_of"} and "field" in left and not left & CUES
