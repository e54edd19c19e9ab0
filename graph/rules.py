"""The expert rules: the reasoner without a language model, and the fallback of every other."""

from collections.abc import Sequence

from graph.answers import (
    A,
    Answer,
    Confirmation,
    Explained,
    Explanation,
    Finding,
    Question,
    Reading,
    Reply,
    SuggestedPlan,
    Suggestion,
    Suggestions,
    Worklist,
)
from graph.headline import Headline
from graph.questions import (
    AnswerQuestion,
    ConfirmReading,
    Explain,
    FindCause,
    ProposePlans,
    ReadNotes,
    ReviseWorklist,
)
from tools.recommend.report import Diagnosis, Proposal
from tools.recommend.words import format_same_decimals, span

NAME = "expert-rules"
MAX_SUGGESTIONS = 8
MAX_CHANGES = 3
KEEP = (
    "Keep today's plan. Profile a few steps and send the traces: they show where the time goes that no plan "
    "changes."
)
KEEP_PROFILED = (
    "Keep today's plan. Take up the advice from the playbooks, one change at a time, and profile again after "
    "each."
)
FOREIGN = (
    "Record traces of this job on these devices and submit them again: until then nothing here was compared "
    "with a measurement."
)
NO_CHANGE = "None of the other clusters looked at has another best plan."


class Rules:
    """Answers every question; the only reasoner that never fails."""

    name = NAME

    def ask(self, question: Question[A]) -> Reply[A]:
        answer: Answer
        match question.about:
            case ReadNotes():  # the deterministic reader has read them before anybody is asked
                answer = Reading(statements=[])
            case ConfirmReading():
                answer = Confirmation(verdict="unclear")
            case ReviseWorklist():  # the workflow's rules are the worklist: nothing is added to it
                answer = Worklist(items=[])
            case FindCause() as asked:
                answer = find_cause(asked)
            case ProposePlans() as asked:
                answer = propose_plans(asked)
            case Explain():  # `explain` writes the texts before anybody is asked
                answer = Explained(verdict=[], would_change=[], rationales=[])
            case AnswerQuestion():  # answered before anybody is asked
                answer = Explanation(claims=[])
            case other:
                raise TypeError(f"the rules have no answer to {type(other).__name__}")
        if not isinstance(answer, question.answer):
            raise TypeError(f"the rules answer {question.name} with {type(answer).__name__}")
        return Reply(answer, NAME)


def find_cause(asked: FindCause) -> Finding:
    """The default: a measured cause outranks a computed one; among equals the most expensive counts."""
    first = asked.competing[0]
    return Finding(cause=first.cause, references=[evidence.ref for evidence in first.evidence][:8])


def propose_plans(asked: ProposePlans) -> Suggestions:
    """The runs and recipes of this device that are near, and the moves of playbooks whose conditions hold."""
    plans = [(fields, reference) for reference, fields in asked.confirmed]
    plans += [(fields, f"playbook:{book.id}") for book in asked.playbooks for fields in book.moves_here]
    suggestions = [
        Suggestion(plan=SuggestedPlan.model_validate(fields), references=[reference])
        for fields, reference in plans[:MAX_SUGGESTIONS]
    ]
    # More than a model may hand in: the rules' suggestions are code's.
    return Suggestions.model_construct(suggestions=suggestions)


def explain(asked: Explain, headline: Headline) -> dict[str, str]:
    """What follows from the headline: what to do first, what would change the answer, why each proposal."""
    best = asked.proposals[(headline.rank or 1) - 1]
    cases = [case for case in asked.sensitivity if not case.stays and case.best != best.plan]
    changes = "; ".join(f"with {case.if_} {case.summary}" for case in cases[:MAX_CHANGES])
    return {
        "first_step": first_step(headline, asked.proposals, asked.diagnosis, asked.others_tried),
        "would_change": f"{changes[:1].upper()}{changes[1:]}." if changes else NO_CHANGE,
        **{f"rationale {proposal.rank}": proposal.rationale for proposal in asked.proposals},
    }


def first_step(
    headline: Headline, proposals: Sequence[Proposal], diagnosis: Diagnosis, others_tried: bool
) -> str:
    if headline.stance == "foreign" and headline.decision is None:
        return FOREIGN
    if headline.rank is None or (headline.stance == "keep" and not headline.decision):
        if not headline.is_measured:
            return KEEP_PROFILED if diagnosis.profile else KEEP
        other = next((proposal for proposal in proposals if proposal.changes), None)
        if other and other.speedup and not others_tried:
            gain = f"{other.speedup:.2f}x ({other.speedup_low:.2f} to {other.speedup_high:.2f})"
            return (
                f"Measure proposal {other.rank}: it is predicted at {gain} the speed of the plan that runs."
            )
        return "Stay with the plan that runs; a larger gain needs another lever than the plan."
    best = proposals[headline.rank - 1]
    if best.measured:
        return (
            f"Switch to proposal {best.rank}: its losses followed the baseline's step by step, and its "
            f"median step was {span(*best.measured.interval_s)} s. Watch the loss for longer than a trial "
            "does."
        )
    low, high = best.prediction.step_time_low_s, best.prediction.step_time_high_s
    told = f"the median step should lie between {' and '.join(format_same_decimals(low, high))} s"
    if not headline.sells:
        few = f"Run proposal {best.rank} for a few dozen steps and leave the first ones out"
        return f"{few}: {told}. Outside of it, send the traces."
    return (
        f"Run proposal {best.rank} on the same nodes, data and software as today, leave the first steps out: "
        f"{told}. Outside of it the model misses something here: send the traces of both runs."
    )
