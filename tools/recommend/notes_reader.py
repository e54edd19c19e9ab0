"""Reads an engineer's notes without a model: plain phrasings become statements, everything else nothing.

A clause that asks, supposes, reports what others do, or tells of the past or the future states nothing,
except for what failed and what was measured. What is a wish but leaves open what exactly is meant becomes a
question to the person.
"""

from typing import NamedTuple

from tools.recommend.notes_facts import read_fact
from tools.recommend.notes_grammar import Clause, Findings, Mention, by_field, clauses, sentences
from tools.recommend.notes_plan import read_past_failure, read_plan, read_reference
from tools.recommend.notes_words import plain_text, tokens
from tools.recommend.report import NoteQuestion, Statement
from tools.scenario import Scenario

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
