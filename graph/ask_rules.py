"""What the rules answer about a finished session, without a model: a table of topics, and what-ifs.

Every change that a question names (plan fields, switches, devices, batch, length, device, precision) is made
at once, to the proposal that it names or else to the best plan there; what was not used of it is said.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from graph.answers import SuggestedPlan
from graph.ask_words import NUMBER, Words, changed_scenario, fields_of, settings_of, with_precision
from graph.claims import effect_of
from graph.report import Report
from graph.tools import Toolbox
from tools.errors import AsapError
from tools.model.forecast import SIZES, forecast
from tools.model.predict import Prediction
from tools.physics.terms import MEMORY_PARTS
from tools.recommend.optimize import propose
from tools.recommend.report import PlanFields, Proposal
from tools.recommend.score import complete
from tools.recommend.why import why_not_fastest
from tools.recommend.why_not import explain_plan
from tools.recommend.words import difference, format_same_decimals, largest, listing, short, span
from tools.scenario.fields import build
from tools.scenario.levers import SettingValue
from tools.scenario.spec import RunGoal

KNOWN = (
    'The rules answer: why not a plan ("why not tp 8?"), what if ("pp 4 on 128 devices, global batch 256?", '
    '"H200?", "proposal 2 in fp8"), step time, MFU, memory, risks, evidence, checkpoints and changes of a '
    'proposal, proposals compared, days and cost ("2T tokens at 2.50 per device-hour?"), what limits the '
    "job, how sure that is, what to measure. A language model answers others."
)
_TOKENS = re.compile(
    rf"\b{NUMBER}[ -]?(t|b|m|trillion|billion|million)\b(?![ -](?:param|model|dense|moe))"
    r"(?: (?:of )?tokens)?",
    re.I,
)
_DAYS = re.compile(rf"\b(?:in|within|for) {NUMBER} (day|week|month)s?\b", re.I)
DAYS_OF = {"day": 1, "week": 7, "month": 30}
_PRICE = re.compile(
    rf"(?:[$€£]\s*{NUMBER}|\bat {NUMBER})(?=[^.?]*hour)|hour (?:costs|is|at) [$€£]?\s*{NUMBER}", re.I
)
_LARGEST = re.compile(
    r"\b(?:largest|biggest|longest|max(?:imum|imal)?|how (?:large|big|long) an?) (?:possible )?"
    r"(micro|seq|context)[ _-]?\w*(?:[ -](?:batch|size|length))*\b",
    re.I,
)
MAX_DOUBLINGS, MAX_TERMS = 12, 6
_TODAY = re.compile(r"\b(?:today's plan|today's|today|current plan|the plan we run)\b", re.I)


@dataclass(frozen=True)
class Target:
    """A plan that a question is about, under the changes that it states; without a prediction if it is
    refused, and the name says why."""

    name: str
    prediction: Prediction | None


@dataclass
class Asked:
    """A question about a report."""

    words: Words
    report: Report
    box: Toolbox
    call: Callable[..., object]
    """Runs a tool and notes it in the trail."""

    def __post_init__(self) -> None:
        every = self.report.proposals
        self.named = [every[rank - 1] for rank in self.words.proposals(len(every))]
        self.fields: PlanFields = fields_of(self.words)
        scenario = self.box.scenario
        self.settings: dict[str, SettingValue] = settings_of(self.words, scenario.training.framework)
        self.scenario, self.told = changed_scenario(self.words, scenario)
        if self.told or self.fields or self.settings or self.named:
            self.scenario, precision = with_precision(self.words, self.scenario)
            self.told += precision

    @property
    def is_what_if(self) -> bool:
        return bool(self.told or self.fields or self.settings)

    @property
    def proposals(self) -> list[Proposal]:
        """Those that the question names, else the one that counts."""
        return self.named or [self.report.proposals[(self.report.chosen or 1) - 1]]

    @property
    def there(self) -> str:
        changes = [*self.told, *(f"{name} {value}" for name, value in self.settings.items())]
        return f"With {listing(changes)} " if changes else ""


def answer_by_rules(question: str, report: Report, box: Toolbox, call: Callable[..., object]) -> str:
    words, is_what_if = Words(question), False
    try:
        asked = Asked(words, report, box, call)
        parts, is_what_if = [*_answers(asked)], asked.is_what_if
    except AsapError as error:
        parts = [f"That is not possible: {error}"]
    if parts and (unused := words.unused(figures_only=not is_what_if)):
        parts.append(f"Not used of the question: {listing(unused)}.")
    return " ".join(dict.fromkeys(parts)) or KNOWN


def _answers(asked: Asked) -> Iterator[str]:
    words = asked.words
    tokens = next(words.take(_TOKENS), None)
    days = None if tokens else next(words.take(_DAYS), None)
    if tokens or days:
        wanted = tokens and _number(tokens[1]) * SIZES[tokens[2][0].upper()]
        yield from _whole_run(asked, wanted or 0.0, days)
    elif asked.is_what_if:
        yield from _what_if(asked)
    elif largest_of := next(words.take(_LARGEST), None):
        yield _largest_that_fits(asked, largest_of[1].lower() == "micro")
    elif len(asked.named) > 1:
        yield _compared(*asked.named[:2])
    elif asked.named and asked.report.baseline and re.search(r"\bcompare|\bdifference\b", words.text, re.I):
        yield f"{_today(asked.report, asked.named[0])} {_pace_of(asked.report, asked.named[0])}"
    else:
        for pattern, tell in TOPICS:
            if re.search(pattern, words.text, re.I):
                yield tell(asked.report, asked.proposals[0])
                return


def _whole_run(asked: Asked, tokens: float, days: re.Match[str] | None) -> Iterator[str]:
    """How long and how much; or how many tokens in that time. What the request says of failures counts."""
    price = next(asked.words.take(_PRICE), None)
    stated: dict[str, object] = {"tokens": int(tokens) or int(SIZES["T"])}
    if price:
        stated["price_per_device_hour"] = _number(next(figure for figure in price.groups() if figure))
    [*asked.words.take(re.compile(r"\b1 ?%"))]
    goal = build(RunGoal, (asked.box.scenario.run or RunGoal()).model_dump() | stated, "run.")
    scenario = asked.scenario.model_copy(update={"run": goal})
    for target in _targets(asked):
        found = target.prediction
        if found is None:
            yield f"{target.name}."
            continue
        run = forecast(scenario, found.step_time_s, found.step_time_low_s, found.step_time_high_s)
        if run is None:
            yield f"{target.name}: failures leave it no progress."
        elif days:
            wanted = _number(days[1]) * DAYS_OF[days[2].lower()]
            reached = run.tokens * wanted / run.days / SIZES["B"]
            pace = f"at {found.step_time_s:.3g} s per step"
            yield f"{target.name}: {reached:,.0f}B tokens in {wanted:g} days {pace}."
        else:
            yield f"{target.name}: {run.summary}."


def _what_if(asked: Asked) -> Iterator[str]:
    for target in _targets(asked):
        found = target.prediction
        if found is None:
            yield f"{target.name}."
            continue
        fits = "" if found.fits else " It does not fit."
        rate, before = found.tokens_per_s_per_device, asked.proposals[0]
        scaling = ""
        if asked.scenario.cluster.num_devices != asked.box.scenario.cluster.num_devices:
            share = rate / before.prediction.tokens_per_s_per_device
            scaling = f", {share:.0%} of proposal {before.rank}'s here"
        yield f"{target.name}: {_pace(found)}, {rate:.0f} tokens per second per device{scaling}.{fits}"


def _largest_that_fits(asked: Asked, is_micro_batch: bool) -> str:
    """By doubling, with the rest of the plan as it is."""
    entry, training, size = asked.proposals[0], asked.scenario.training, 0
    what = "micro-batch" if is_micro_batch else "sequence length"
    wanted, last = (entry.plan.micro_batch_size if is_micro_batch else training.seq_len), ""
    for _ in range(MAX_DOUBLINGS):
        plan, scenario = entry.plan, asked.scenario
        if is_micro_batch:
            plan = plan.model_copy(update={"micro_batch_size": wanted})
        else:
            scenario = scenario.model_copy(
                update={"training": training.model_copy(update={"seq_len": wanted})}
            )
        workload = replace(asked.box, scenario=scenario).switched(entry.settings)
        objection, found = workload.objection(plan), workload.predict([plan])[0]
        if objection or not found.fits:
            last = f"; {wanted} does not: {objection or f'it needs {found.peak_memory_gib:.1f} GiB'}"
            break
        size, shown = wanted, _pace(found)
        wanted *= 2
    if not size:
        return f"Proposal {entry.rank} does not fit{last}."
    most = f"doubled as it stands, a {what} of {size} is the largest that fits ({shown})"
    return f"Proposal {entry.rank}: {most}{last}."


def _targets(asked: Asked) -> Iterator[Target]:
    """The plans that are named, or else the best one, under all changes that the question states."""
    box, today = asked.box, asked.box.scenario.plan
    is_today = bool(today and not asked.named and [*asked.words.take(_TODAY)])
    if not asked.is_what_if and not is_today:
        for entry in asked.proposals:
            yield Target(f"Proposal {entry.rank}", entry.prediction)
        return
    box = replace(box, scenario=asked.scenario)
    if asked.told and not (asked.named or asked.fields or is_today):

        def search_plans(changed: str) -> object:
            workload = box.switched(asked.settings)
            found.append(propose(workload, box.context.progress).proposals[0])
            return {"plan": short(found[0].plan), "step_time_s": found[0].prediction.step_time_s}

        found: list[Proposal] = []
        asked.call(search_plans, changed=listing(asked.told))
        best = found[0]
        yield Target(f"{asked.there}the best plan is {short(best.plan)}", best.prediction)
        return
    starts = [(f"proposal {entry.rank}", entry.plan, entry.settings) for entry in asked.proposals]
    for name, start, settings in [("today's plan", today, {})] if is_today and today else starts:
        switches = {**settings, **asked.settings}
        workload = box.switched(switches)
        base = complete(workload, start, {"tp": start.tp})  # its data-parallel degree follows the devices
        own = replace(box, start=base)
        if asked.fields:
            asked.call(own.explain_plan, plan=SuggestedPlan.model_validate(asked.fields))
            plan = complete(workload, base, asked.fields)
            why = explain_plan(workload, plan, base)
            told = (
                f"{why.summary}: {why.why}"
                if plan != base
                else f"{name} has these fields already ({short(plan)})"
            )
            label = asked.there + told
            runs = why.step_time_s is not None
        else:
            plan, refused = base, workload.objection(base)
            label, runs = f"{asked.there}{name} ({short(base)})", refused is None
            if refused:
                label += f" is not possible: {refused}"
            else:
                asked.call(own.predict_plan, settings=switches)
        yield Target(label, workload.predict([plan])[0] if runs else None)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _pace(found: Prediction) -> str:
    return (
        f"{format_same_decimals(found.step_time_s)[0]} s per step, {found.peak_memory_gib:.1f} GiB per device"
    )


def _compared(left: Proposal, right: Proposal) -> str:
    paces = " ".join(
        f"Proposal {entry.rank} ({short(entry.plan)}): {_pace(entry.prediction)}." for entry in (left, right)
    )
    return f"{paces} From {left.rank} to {right.rank}: {difference(left.prediction, right.prediction)}."


def _memory(report: Report, proposal: Proposal) -> str:
    found = proposal.prediction
    parts = [f"{MEMORY_PARTS[name]} {gib:.1f}" for name, gib in found.memory_gib.items()]
    fits = f"fits with a probability of {found.fit_probability:.0%}" if found.fits else "does not fit"
    return (
        f"Proposal {proposal.rank} needs {found.peak_memory_gib:.1f} GiB per device and {fits}; "
        f"GiB by part: {', '.join(parts)}."
    )


def _memories(report: Report, proposal: Proposal) -> str:
    order = sorted(report.proposals, key=lambda entry: entry.prediction.peak_memory_gib)
    each = [f"proposal {entry.rank} {entry.prediction.peak_memory_gib:.1f}" for entry in order]
    return f"GiB per device, the least first: {', '.join(each)}."


def _fastest(report: Report, proposal: Proposal) -> str:
    return why_not_fastest(report.proposals)


def _precision(report: Report, proposal: Proposal) -> str:
    options = "; ".join(option.summary for option in report.beyond_contract)
    return _sentence(options) or "No change of precision or batch was found that would raise throughput."


def _limit(report: Report, proposal: Proposal) -> str:
    """What the verdict names, then what the evidence says of the cause that counts."""
    cause = report.hypotheses[0] if report.hypotheses else None
    limit = report.headline.limit if report.headline else None
    said = f"{_sentence(cause.summary)} The lever: {cause.lever}." if cause else report.diagnosis.bottleneck
    if limit is None or limit.source == "profile":
        return said
    lever = f"proposal {limit.rank} shrinks it" if limit.rank else "no proposal shrinks it"
    return f"{limit.in_words}; {lever}. {said}"


def _crashed(report: Report, proposal: Proposal) -> str:
    known = [f"{plan.summary}: {plan.why}" for plan in report.rejected if plan.binding == "trial"]
    return _sentence("; ".join(known)) or "No crash of a plan of this job is known."


def _published(report: Report, proposal: Proposal) -> str:
    known = [f"{recipe.title} (proposal {recipe.proposal or 'none'})" for recipe in report.recipes]
    known += [f"{case.title} ({case.status})" for case in report.cases]
    backed = [entry.says for entry in proposal.evidence if entry.kind in ("knowledge", "trial")]
    return _sentence("; ".join([*known, *backed])) or "No run or recipe near to this job is known."


def _checkpoint(report: Report, proposal: Proposal) -> str:
    found = proposal.checkpoint
    if found is None:
        return "Nothing is known about checkpoints of this framework, or there is no plan of today's."
    how = f": {found.command}" if found.command else ""
    return f"Under proposal {proposal.rank} today's checkpoint loads {found.loads}{how}."


def _changes(report: Report, proposal: Proposal) -> str:
    changes = [f"{change.field} {change.from_} to {change.to}" for change in proposal.changes]
    changes += [f"{name} {value}" for name, value in proposal.settings.items()]
    return f"Proposal {proposal.rank}: {', '.join(changes) or 'nothing changes'}."


def _verify(report: Report, proposal: Proposal) -> str:
    two_runs = f" {_sentence(proposal.two_runs.meaning)}" if proposal.two_runs else ""
    return f"{report.first_step}{two_runs}"


def _network(report: Report, proposal: Proposal) -> str:
    cases = [f"with {case.if_} {case.summary}" for case in report.sensitivity if "bandwidth" in case.if_]
    return _sentence("; ".join(cases)) or report.would_change


def _pace_of(report: Report, proposal: Proposal) -> str:
    found, plan = proposal.prediction, proposal.plan
    devices = plan.tp * plan.pp * plan.cp * plan.dp
    return (
        f"Proposal {proposal.rank}: {format_same_decimals(found.step_time_s)[0]} s per step (80% interval "
        f"{span(found.step_time_low_s, found.step_time_high_s)} s), {found.mfu:.1%} MFU, "
        f"{found.model_tflops_per_device:.0f} TFLOP/s and {found.tokens_per_s_per_device:,.0f} tokens "
        f"per second per device, {found.tokens_per_s_per_device * devices:,.0f} in all; {largest(found)}."
    )


def _spent(report: Report, proposal: Proposal) -> str:
    today = f"Today's plan: {largest(report.baseline, MAX_TERMS)}. " if report.baseline else ""
    return f"{today}Proposal {proposal.rank}: {largest(proposal.prediction, MAX_TERMS)}."


def _micro_batches(report: Report, proposal: Proposal) -> str:
    plan, training = proposal.plan, (report.scenario or {}).get("training")
    batch = training.get("global_batch_size") if isinstance(training, dict) else None
    if not isinstance(batch, int):
        return _changes(report, proposal)
    count = batch // (plan.dp * plan.micro_batch_size)
    return (
        f"Proposal {proposal.rank}: {count} micro-batches of {plan.micro_batch_size} per step and pipeline."
    )


def _today(report: Report, proposal: Proposal) -> str:
    if report.baseline is None:
        return "There is no plan of today's."
    return (
        f"Today's plan: {_pace(report.baseline)}, {report.baseline.mfu:.1%} MFU; {largest(report.baseline)}."
    )


Topic = tuple[str, Callable[[Report, Proposal], str]]
TOPICS: tuple[Topic, ...] = (
    (r"\bfastest\b", _fastest),
    (r"\b(?:least|less|lowest|smallest|most|more|highest) (?:memory|gib)\b", _memories),
    (r"\bmicro-?batches\b", _micro_batches),
    (r"\bcommunicat|\bwhere\b.*\btime\b|\btime goes\b|\bbubble\b", _spent),
    (r"\bfp8\b|\bprecision\b|\bnvfp4\b|\bmxfp8\b", _precision),
    (r"\b(?:network|bandwidth|links?|fabric)\b", _network),
    (r"\bcheckpoints?\b", _checkpoint),
    (r"\bcrash|\bran out of\b|\boomed\b", _crashed),
    (r"\bmemory|\bfits?\b|\bgib\b|\bheadroom\b|\boom\b", _memory),
    (r"\brisks?\b|\bgo wrong\b|\bworry\b|\bdanger", lambda report, entry: _sentence("; ".join(entry.risks))),
    (r"\banybody|\banyone|\bpublished|\brecipes?\b|\bevidence\b|\bever run\b", _published),
    (r"\bflags?\b|\bbesides\b|\bsettings?\b|\badvice\b", lambda report, entry: _advice(report)),
    (r"\bchange\w* (?:your mind|the answer)|\bother answer", lambda report, entry: report.would_change),
    (r"\bquestions?\b.*\bus\b", lambda report, entry: _questions(report)),
    (r"\bmeasure|\bverif|\bconfirm|\bfirst step\b|\bnext\b|\btest it\b", _verify),
    (r"\bhow many plans|\bsearched\b|\blook(?:ed)? at\b", lambda report, entry: _searched(report)),
    (r"\b(?:bottleneck|limit\w*|slow|cause|what takes)\b", _limit),
    (r"\bhow much (?:faster|slower|do we gain)\b|\bspeed-?up\b|\bgain\b", lambda report, entry: _sure(entry)),
    (r"\bstep\b.*\btoday|\btoday\b.*\bstep|\bcurrent plan\b|\btoday's\b", _today),
    (r"\b(?:sure|certain|confiden\w*|interval|trust|error)\b", lambda report, entry: _sure(entry)),
    (r"\bchang(?:e|es|ed)\b|\bdiffer", _changes),
    (r"\bmfu\b|\btflop|\btokens per\b|\bthroughput\b|\bstep time\b|\bhow fast\b|\bspeed", _pace_of),
    (
        r"\bwhy\b.*\b(?:first|proposal|this plan|recommend)",
        lambda report, entry: f"{entry.why} {entry.rationale}".strip(),
    ),
    (
        r"\bwhich plan\b|\bwould you\b|\brecommend|\bwhat should\b|\bverdict\b",
        lambda report, entry: report.verdict,
    ),
)
"""The first that matches answers."""


def _advice(report: Report) -> str:
    return (
        _sentence("; ".join(f"{entry.title}: {entry.do}" for entry in report.advice)) or "None applies here."
    )


def _questions(report: Report) -> str:
    return " ".join(entry.text for entry in report.questions) or "No question is open."


def _searched(report: Report) -> str:
    found = report.searched
    return f"{found.plans:,} plans were decided, {found.timed:,} of them timed one by one."


def _sure(proposal: Proposal) -> str:
    return f"{short(proposal.plan)} is {effect_of(proposal)}. {' '.join(map(_sentence, proposal.risks))}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""
