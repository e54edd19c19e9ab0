"""Reads an engineer's notes without a model: plain phrasings become statements, everything else nothing.

A clause that asks, supposes, reports what others do, or tells of the past or the future states nothing,
except for what failed and what was measured. What is a wish but leaves open what exactly is meant becomes a
question to the person.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import JsonValue

from tools.recommend.notes_facts import read_fact
from tools.recommend.notes_grammar import Clause, Findings, Mention, by_field, clauses, sentences
from tools.recommend.notes_words import Token, plain_text, tokens
from tools.recommend.report import NoteQuestion, Statement
from tools.scenario import Scenario
from tools.scenario.columns import MIN_VALUES

DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "micro_batch_size")
ABSENT: dict[str, JsonValue] = {
    name: value
    for name, value in MIN_VALUES.items()
    if name not in ("dp", "dp_shard", "micro_batch_size", "schedule")
}
"""What "none" means of a field: a degree of 1, no sharding, no recomputation."""
MODAL = re.compile(r"\b(?:must|should|has to|have to|needs to|stays?|remains?)\b")
CHANGING = re.compile(r"\b(?:changing|touching|moving|altering|varying)\b")
OFF = re.compile(
    r"off|.*(?:not be (?:used|enabled|active|on)|be (?:avoided|excluded|disabled|switched off|turned off))|"
    r"cannot be (?:used|enabled)|not (?:available|offered|allowed|supported|possible)|unavailable|"
    r"unsupported|impossible|disabl|forbid|prohibit|ban|exclud|rul|unusable|disallow"
)


def _is_absent(clause: Clause, name: str) -> bool:
    """ "no pipeline parallelism", "do not use pp", "pp off": the denial stands beside the field."""
    places = [place for place, token in enumerate(clause.tokens) if token.value == name]
    negations = [place for place, token in enumerate(clause.tokens) if token.kind == "neg"]
    for place in places:
        for negation in negations:
            low, high = sorted((place, negation))
            between = clause.tokens[low + 1 : high]
            kinds = {token.kind for token in between} - {"field", "or", "and", "comma", "filler", "req"}
            if negation < place and not kinds:
                return True
            off = OFF.match(str(clause.tokens[negation].value))
            if negation > place and off and not kinds - {"eq"}:
                return True
    return False


def read_plan(clause: Clause, findings: Findings) -> None:
    kinds, assigned = clause.kinds, clause.assigned
    if "fail" in kinds:
        if "neg" not in kinds or not clause.precedes("neg", "fail"):
            _failure(findings, clause)
        return
    if clause.describes or "past_verb" in kinds:
        return
    is_node = "node" in kinds or ("cross" in kinds and bool(clause.of("neg", "max")))
    for name in clause.fields:
        values: list[JsonValue] = [value for owner, value in clause.choices if owner == name]
        if name in {owner for owner, _ in assigned}:
            continue
        if values:
            _choice(findings, clause, name, values)
        elif is_node and name in DEGREES and clause.of("req", "keep", "neg", "max"):
            findings.state(
                clause, name, "<=", findings.scenario.cluster.devices_per_node, "devices of a node"
            )
        elif "cross" not in kinds:
            _without_value(findings, clause, name)
    if assigned:
        _numbers(findings, clause, assigned)


def _choice(findings: Findings, clause: Clause, name: str, values: list[JsonValue]) -> None:
    if clause.of("neg", "off_limits"):
        findings.state(clause, name, "not", values)
    elif "max" in clause.kinds or "min" in clause.kinds:
        findings.state(clause, name, "<=" if "max" in clause.kinds else ">=", values[0])
    elif clause.requires or clause.of("keep") or MODAL.search(clause.text):
        _equal(findings, clause, name, values)


def _equal(findings: Findings, clause: Clause, name: str, values: Sequence[JsonValue]) -> None:
    single = len(values) == 1
    findings.state(clause, name, "=" if single else "in", values[0] if single else list(values))


def _without_value(findings: Findings, clause: Clause, name: str) -> None:
    limits = clause.of("max", "min", "gt", "lt")
    if "vague" in clause.kinds and (clause.requires or limits or clause.of("keep", "neg")):
        findings.ask(clause, name, f"which values of {name} are allowed?")
    elif clause.of("keep", "off_limits") and not clause.of("number"):
        if findings.today(name) is None:
            findings.ask(clause, name, f"the scenario states no {name} of today; which value shall it keep?")
        elif not clause.precedes("neg", "keep") and not _is_qualified(clause):
            findings.state(clause, name, "keep", findings.today(name))
    elif clause.of("neg") and CHANGING.search(clause.text) and findings.today(name) is not None:
        findings.state(clause, name, "keep", findings.today(name))
    elif name in ABSENT and not limits and _is_absent(clause, name):
        findings.state(clause, name, "=", ABSENT[name])
    elif name == "sequence_parallel" and clause.of("req") and "neg" not in clause.kinds:
        findings.state(clause, name, "=", True)


def _numbers(findings: Findings, clause: Clause, assigned: Sequence[tuple[str, Token]]) -> None:
    negated = bool(clause.of("neg", "off_limits"))
    compared = [(name, token, clause.comparison(token)) for name, token in assigned]
    plain = [(name, token) for name, token, operator in compared if operator is None]
    for name, token, operator in compared:
        if operator:
            _compare(findings, clause, name, int(token.number), operator, negated)
    ranges = clause.ranges(plain)
    for name, low, high in ranges:
        if negated:
            findings.ask(clause, name, f"which values of {name} are allowed?")
        else:
            findings.state(clause, name, ">=", low)
            findings.state(clause, name, "<=", high)
    in_range = {name for name, _, _ in ranges}
    left = [(name, token) for name, token in plain if name not in in_range]
    if left:
        is_all = len(left) == len(compared)
        _values(findings, clause, left, negated, is_all)


def _values(
    findings: Findings, clause: Clause, values: Sequence[tuple[str, Token]], negated: bool, is_all: bool
) -> None:
    if "vague" in clause.kinds:
        findings.ask(clause, values[0][0], "which values are allowed?")
    elif negated:
        _avoid(findings, clause, values, is_run=False)
    elif clause.requires or clause.of("keep", "set_of"):
        for name, numbers in by_field(values).items():
            _equal(findings, clause, name, [*numbers])
    elif is_all and not clause.of("describe", "word"):
        findings.ask(clause, values[0][0], "is this a requirement, or what runs today?")


def _compare(findings: Findings, clause: Clause, name: str, value: int, operator: str, negated: bool) -> None:
    wants = clause.requires or bool(clause.of("keep")) or re.search("[<>]", clause.text) is not None
    if operator in ("gt", "lt"):
        at_most = (operator == "gt") == negated
        if negated or wants:
            findings.state(clause, name, "<=" if at_most else ">=", value)
        if wants and not negated:
            findings.state(clause, name, "not", [value])
    elif clause.precedes("neg", "max") or clause.precedes("neg", "min"):
        return
    elif "describe" not in clause.kinds or wants:
        findings.state(clause, name, "<=" if operator == "<=" else ">=", value)


def _avoid(findings: Findings, clause: Clause, values: Sequence[tuple[str, Token]], is_run: bool) -> None:
    """One field's values are excluded; several fields are a plan to avoid, if they are meant together."""
    grouped = by_field(values)
    if len(grouped) == 1 or ("or" in clause.kinds and not is_run):
        for name, numbers in grouped.items():
            findings.state(clause, name, "not", [*numbers])
    elif "and" in clause.kinds and "together" not in clause.kinds and not is_run:
        findings.ask(clause, next(iter(grouped)), "is the combination to be avoided, or each of them?")
    elif all(len(numbers) == 1 for numbers in grouped.values()):
        findings.state(clause, "plan", "not", {name: numbers[0] for name, numbers in grouped.items()})


def _failure(findings: Findings, clause: Clause) -> None:
    """A plan that crashed, hung or did not fit is one to avoid."""
    compared = [(name, token, clause.comparison(token)) for name, token in clause.assigned]
    for name, token, operator in compared:
        if operator in ("gt", "lt"):
            findings.state(clause, name, "<=" if operator == "gt" else ">=", int(token.number))
    plain = [(name, token) for name, token, operator in compared if operator is None]
    if plain:
        _avoid(findings, clause, plain, is_run=True)
    elif len(clause.choices) == 1 and not compared:
        name, value = clause.choices[0]
        findings.state(clause, name, "not", [value])


def read_past_failure(clause: Clause, findings: Findings) -> None:
    if "fail" in clause.kinds and clause.assigned and not clause.precedes("neg", "fail"):
        findings.ask(clause, clause.assigned[0][0], "does this still fail today?")


def read_reference(clause: Clause, findings: Findings, mention: Mention) -> None:
    """A clause that names no field itself but "it", "that" or "there"."""
    numbers = clause.of("number")
    if clause.of("vague", "target", "memory", "inter_link", "step", "soft", "past_verb", "counted"):
        return
    avoids = clause.of("fail", "off_limits") or re.search(
        r"\b(?:go|use|do|try|repeat|again|avoid|want|pick|choose|allowed|option|away|possible)\b", clause.text
    )
    if numbers:
        _number_of(findings, clause, mention, numbers[0])
    elif clause.of("keep"):
        for name in mention.fields if not clause.of("neg") else []:
            today = findings.today(name)
            if today is not None and mention.values.get(name) in (None, [today]):
                findings.state(clause, name, "keep", today)
        return
    limits = clause.of("gt", "lt", "max", "min")
    if avoids and clause.of("fail", "neg", "off_limits") and not (limits or clause.precedes("neg", "fail")):
        _avoid_mention(findings, clause, mention)


def _number_of(findings: Findings, clause: Clause, mention: Mention, number: Token) -> None:
    if len(mention.fields) != 1 or clause.of("neg"):
        return
    operator = clause.comparison(number)
    if operator in ("<=", ">="):
        findings.state(clause, mention.fields[0], "<=" if operator == "<=" else ">=", int(number.number))
    elif operator is None and clause.of("keep"):
        findings.state(clause, mention.fields[0], "=", int(number.number))


def _avoid_mention(findings: Findings, clause: Clause, mention: Mention) -> None:
    values = mention.values
    if len(values) == 1:
        ((name, numbers),) = values.items()
        findings.state(clause, name, "not", [*numbers])
    elif values and all(len(numbers) == 1 for numbers in values.values()):
        findings.state(clause, "plan", "not", {name: numbers[0] for name, numbers in values.items()})
    elif not values and len(mention.choices) == 1:
        ((name, choice),) = mention.choices
        findings.state(clause, name, "not", [choice])


def _is_qualified(clause: Clause) -> bool:
    """ "keep tp secret": what follows the field is not known to mean "as it is"."""
    last = max(place for place, token in enumerate(clause.tokens) if token.kind == "field")
    after = clause.tokens[last + 1 : last + 2]
    return clause.precedes("keep", "field") and bool(after) and after[0].kind == "word"


MAX_READ_CHARACTERS = 20_000
"""Longer notes are read up to here; the reading says so."""
SENTENCE_BLOCKS = frozenset({"if", "deny", "report"})
CLAUSE_BLOCKS = frozenset({"maybe", "free", "other_keep"})


class NotesReading(NamedTuple):
    statements: list[Statement]
    questions: list[NoteQuestion]
    """What the notes want but leave open; nothing of it is applied."""


def read_notes(notes: str, scenario: Scenario) -> NotesReading:
    """What the notes plainly state about this scenario, in their order; each statement once."""
    read = notes[:MAX_READ_CHARACTERS]
    findings = Findings(read, plain_text(read), scenario)
    for sentence in sentences(findings.plain.text):
        for clause in clauses(sentence):
            _read_clause(clause, findings)
            if clause.fields:
                findings.mention = Mention(
                    clause.fields, by_field(clause.assigned), clause.choices, clause.span[0]
                )
    unique = {statement.without_quote: statement for statement in reversed(findings.statements)}
    if len(notes) > MAX_READ_CHARACTERS:
        text = f"only the first {MAX_READ_CHARACTERS:,} characters of the notes were read; what else counts?"
        findings.questions.append(NoteQuestion(field="notes", text=text))
    return NotesReading(list(reversed(unique.values())), findings.questions)


def is_hypothetical(notes: str, quote: str) -> bool:
    """Whether the sentence that holds the quote asks, supposes, or reports what others say."""
    words = " ".join(plain_text(quote).text.split())
    for sentence in sentences(plain_text(notes[:MAX_READ_CHARACTERS]).text):
        if words and words in " ".join(sentence.text.split()):
            kinds = {token.kind for token in tokens(sentence.text)}
            if sentence.is_question or kinds & (SENTENCE_BLOCKS | CLAUSE_BLOCKS):
                return True
    return False


def _read_clause(clause: Clause, findings: Findings) -> None:
    kinds, group = clause.kinds, clause.group
    if clause.sentence.is_question or clause.sentence.kinds & SENTENCE_BLOCKS or kinds & CLAUSE_BLOCKS:
        return
    if "inquire" in kinds and "neg" not in kinds:
        return
    if "past_time" in group and "resolved" not in group:
        read_past_failure(clause, findings)
    elif not (
        "resolved" in group or "future" in kinds or ("future" in group and not clause.of("keep", "neg"))
    ):
        _read_present(clause, findings)


def _read_present(clause: Clause, findings: Findings) -> None:
    if read_fact(clause, findings):
        return
    if clause.fields:
        read_plan(clause, findings)
    elif findings.mention and "there" in clause.kinds:
        read_reference(clause, findings, findings.mention)
