"""What agents may claim: statements and references that code checks, and whose sentences code writes."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from graph.answers import Claim, Relation, SuggestedPlan
from graph.context import Context
from graph.state import KnowledgeHit
from tools.kb import Playbook
from tools.kb.entries import Case
from tools.kb.recipes import RecipeMatch, nearest_recipes
from tools.model.predict import Prediction
from tools.physics.terms import STEP_TERMS
from tools.recommend.choose import FAMILY
from tools.recommend.hypotheses import CAUSE_OF_TERM, Hypothesis
from tools.recommend.report import Evidence, PlanFields, Proposal, ScoredPlan, Sensitivity
from tools.recommend.score import check_case, check_playbook, check_profile, check_recipe, family_of
from tools.recommend.words import SHOWN_SHARE, format_same_decimals, objections, short, span
from tools.scenario import Plan, Scenario

MAX_RECIPES = 12
T = TypeVar("T")


class ClaimError(ValueError):
    """Why a claim does not hold, for its author to mend."""


@dataclass(frozen=True)
class Known:
    """A plan that claims may be about."""

    name: str
    prediction: Prediction
    proposal: Proposal | None = None
    in_full: str = ""

    @property
    def references(self) -> set[str]:
        return {entry.ref for entry in self.proposal.evidence} if self.proposal else set()


@dataclass
class Book:
    """What claims may be about; it checks them against the figures and writes their sentences."""

    plans: dict[str, Known]
    pair_error: float
    """The error of a comparison of two predictions: the half width of the log of their ratio."""
    hypotheses: Sequence[Hypothesis] = ()
    cases: Sequence[Sensitivity] = ()
    figures: dict[str, str] = field(default_factory=dict)
    """By `t1.NAME`: a figure of the first tool's result, as code writes it."""

    @classmethod
    def of(
        cls,
        today: Prediction | None,
        proposals: Sequence[Proposal],
        hypotheses: Sequence[Hypothesis],
        cases: Sequence[Sensitivity],
        pair_error: float,
    ) -> "Book":
        plans = {"today": Known("today's plan", today)} if today else {}
        for entry in proposals:
            name, in_full = f"proposal {entry.rank}", short(entry.plan)
            plans[f"p{entry.rank}"] = Known(name, entry.prediction, entry, in_full)
        return cls(plans, pair_error, hypotheses, cases)

    def write(self, claims: Sequence[Claim], *, names_plans: bool = True) -> tuple[str, list[str]]:
        """The sentences of the claims that hold, and why the others do not.

        With `names_plans` a proposal is given in full where it is named first; on its own card it is not.
        """
        said, refused = list[str](), list[str]()
        for number, claim in enumerate(claims, start=1):
            try:
                said.append(self._sentence(claim))
            except ClaimError as error:
                refused.append(f"claim {number} ({claim.relation}): {error}")
        text = " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in dict.fromkeys(said))
        for plan in self.plans.values() if names_plans else ():
            if plan.in_full:
                found = re.search(re.escape(plan.name), text, re.I)
                text = f"{text[: found.end()]} ({plan.in_full}){text[found.end() :]}" if found else text
        return text, refused

    def _sentence(self, claim: Claim) -> str:
        sentence, shown = self._checked(claim)
        if not {*claim.evidence} <= shown:
            raise ClaimError(f"that is no evidence of it; there is: {', '.join(sorted(shown)) or 'none'}")
        return f"{sentence} [{', '.join(claim.evidence)}]" if claim.evidence else sentence

    def _checked(self, claim: Claim) -> tuple[str, set[str]]:
        """The sentence and the references that show it; raises ClaimError if the claim does not hold."""
        if claim.relation == "figure":
            return self._entry(self.figures, claim.subject, "figure"), set()
        if claim.relation == "alters_the_answer":
            cases = {f"if{number}": case for number, case in enumerate(self.cases, start=1) if not case.stays}
            case = self._entry(cases, claim.subject, "case in which another plan is best")
            return f"with {case.if_} {case.summary}", set()
        plan = self._entry(self.plans, claim.subject, "plan")
        if claim.relation == "limited_by":
            return self._limit(plan, claim)
        return self._about(plan, claim), plan.references

    def _about(self, plan: Known, claim: Claim) -> str:
        name, prediction, proposal = plan.name, plan.prediction, plan.proposal
        match claim.relation:
            case "fits" | "does_not_fit":
                _require(prediction.fits == (claim.relation == "fits"), "by its memory it is the other way")
                verb = "fits" if prediction.fits else "does not fit"
                return f"{name} {verb}: {prediction.peak_memory_gib:.1f} GiB per device"
            case "faster_than" | "slower_than" | "even_with":
                return self._compared(plan, self._entry(self.plans, claim.object, "plan"), claim.relation)
            case "needs_less_memory_than" | "needs_more_memory_than":
                other = self._entry(self.plans, claim.object, "plan")
                gib, other_gib = prediction.peak_memory_gib, other.prediction.peak_memory_gib
                is_less = claim.relation == "needs_less_memory_than"
                _require(gib < other_gib if is_less else gib > other_gib, "by its memory it is the other way")
                return f"{name} needs {gib:.1f} GiB per device, {other.name} {other_gib:.1f} GiB"
            case "spends_on" | "shrinks" | "grows":
                return self._term(plan, self._entry(STEP_TERMS, claim.object, "term").phrase, claim)
            case "changes":
                changed = {entry.field: entry for entry in proposal.changes} if proposal else {}
                change = self._entry(changed, claim.object, "changed field")
                return f"{name} changes {change.field} from {change.from_} to {change.to}"
            case "backed_by":
                backed = {entry.ref: entry.says for entry in proposal.evidence} if proposal else {}
                return f"{name}: {self._entry(backed, claim.object, 'ref of its evidence')}"
            case "risks":
                risks = proposal.risks if proposal else []
                numbered = {str(number): risk for number, risk in enumerate(risks, start=1)}
                return f"a risk of {name}: {self._entry(numbered, claim.object, 'number of its risks')}"
        measured = proposal.measured if proposal else None
        if measured is None:
            raise ClaimError("it was not measured")
        return f"{name} took {format_same_decimals(measured.step_time_s)[0]} s per step, measured"

    def _limit(self, plan: Known, claim: Claim) -> tuple[str, set[str]]:
        first = next(iter(self.hypotheses), None)
        diagnosed = self.plans.get("today") or next(iter(self.plans.values()))
        if first is None or plan is not diagnosed or claim.object != first.cause:
            cause = first.cause if first else "unknown"
            raise ClaimError(f"the cause that counts is {cause}, of {diagnosed.name}")
        return f"what limits {plan.name}: {first.summary}; the lever is {first.lever}", {*first.references}

    def _compared(self, plan: Known, other: Known, relation: str) -> str:
        ratio = other.prediction.step_time_s / plan.prediction.step_time_s
        error = 0.0 if ratio == 1 else self.pair_error
        found, words = effect(ratio, ratio * math.exp(-error), ratio * math.exp(error), other.name)
        _require(found == relation, f"by the predictions it is {found}")
        return f"{plan.name} is {words}"

    def _term(self, plan: Known, phrase: str, claim: Claim) -> str:
        """What a plan spends on a term; or how far it moves from today's plan, or from the first."""
        prediction, term = plan.prediction, claim.object
        new_s, step_s = prediction.breakdown_s[term], prediction.step_time_s
        if claim.relation == "spends_on":
            _require(new_s > SHOWN_SHARE * step_s, "it takes less than half a percent of the step")
            return f"{plan.name} spends {new_s / step_s:.0%} of its step on {phrase}"
        before = self.plans.get("today") or next(iter(self.plans.values()))
        old_s = before.prediction.breakdown_s[term]
        moved_s = new_s - old_s if claim.relation == "grows" else old_s - new_s
        _require(moved_s > SHOWN_SHARE * before.prediction.step_time_s, "it does not, beyond half a percent")
        return f"{phrase} {claim.relation} from {span(old_s, new_s)} s in {plan.name}"

    @staticmethod
    def _entry(entries: Mapping[str, T], name: str, kind: str) -> T:
        if name not in entries:
            # Not what was named: a model's own words stay out of the report.
            raise ClaimError(f"there is no such {kind}; there is: {', '.join(entries) or 'none'}")
        return entries[name]


def _require(holds: bool, why_not: str) -> None:
    if not holds:
        raise ClaimError(why_not)


def effect(ratio: float, low: float, high: float, other: str) -> tuple[Relation, str]:
    """The direction is code's: how much faster or slower than another plan, with its interval."""
    interval = f"80% interval {low:.2f} to {high:.2f}"
    if low > 1:
        return "faster_than", f"predicted {ratio:.2f}x as fast as {other} ({interval})"
    if high < 1:
        return "slower_than", f"predicted slower than {other}, {ratio:.2f}x its speed ({interval})"
    words = f"no different from {other} beyond the error of a comparison, {ratio:.2f}x ({interval})"
    return "even_with", words


def effect_of(proposal: Proposal) -> str:
    """Against today's plan."""
    if proposal.speedup is None or proposal.speedup_low is None or proposal.speedup_high is None:
        return f"predicted at {format_same_decimals(proposal.prediction.step_time_s)[0]} s per step"
    return effect(proposal.speedup, proposal.speedup_low, proposal.speedup_high, "today's plan")[1]


def remark_of(remark: str, by: str) -> str:
    """A model's own words, quoted and marked; nothing if they hold a figure, an address or a command."""
    text = " ".join(remark.split())
    return f' {by} remarks, unchecked: "{text}"' if text and not objections(text) else ""


def published_recipes(context: Context, scenario: Scenario) -> list[RecipeMatch]:
    """The plans published for this model, the nearest first."""
    recipes = nearest_recipes(scenario, MAX_RECIPES, context.recipes)
    return [match for match in recipes if match.is_same_model]


def confirmed_runs(
    context: Context, scenario: Scenario, hits: Sequence[KnowledgeHit], tenant: str | None
) -> list[tuple[str, PlanFields]]:
    """Plans that were run on this device and may be tried here: a reference and the fields they state."""
    recipes: dict[tuple[int, ...], tuple[str, PlanFields]] = {}
    for match in published_recipes(context, scenario):
        if match.is_same_device and check_recipe(match, match.recipe.plan, scenario):
            family = family_of(match.recipe.plan)
            fields: PlanFields = dict(zip(FAMILY, family, strict=True))
            recipes.setdefault(family, (f"recipe:{match.recipe.id}", fields))
    entries = [context.knowledge.find(hit.id, tenant) for hit in hits if hit.kind == "case"]
    cases = [
        (
            f"case:{entry.id}",
            {name: value for name, value in entry.body.after.items() if name in SuggestedPlan.model_fields},
        )
        for entry in entries
        if entry is not None
        and entry.status == "confirmed"
        and isinstance(entry.body, Case)
        and entry.body.after
        and entry.body.device == scenario.cluster.device
    ]
    return [*recipes.values(), *cases]


def checked_references(
    context: Context,
    scenario: Scenario,
    scored: ScoredPlan,
    references: Sequence[str],
    before: Plan,
    playbooks: Sequence[Playbook],
    tenant: str | None,
) -> list[Evidence]:
    """Those references of a suggestion that code can confirm: a run, a playbook, the cause that counts."""
    if scored.proposal is None or not isinstance(scored.plan, Plan):
        return []
    plan, evidence = scored.proposal.plan, list[Evidence | None]()
    for reference in dict.fromkeys(references):
        kind, _, name = reference.partition(":")
        if kind == "case":
            entry = context.knowledge.find(name, tenant)
            evidence.append(check_case(entry, plan, scenario) if entry else None)
        elif kind == "recipe":
            recipes = published_recipes(context, scenario)
            matches = [match for match in recipes if match.recipe.id == name]
            evidence += [check_recipe(match, plan, scenario) for match in matches[:1]]
        elif kind == "playbook":
            books = [book for book in playbooks if book.id == name]
            evidence += [check_playbook(book, before, plan, scenario) for book in books[:1]]
        elif kind == "profile":
            term = next((term for term, cause in CAUSE_OF_TERM.items() if cause == name), None)
            old = context.workload(scenario).predict([before])[0]
            evidence.append(check_profile(term, old, scored.proposal.prediction, reference))
    return [item for item in evidence if item is not None]
