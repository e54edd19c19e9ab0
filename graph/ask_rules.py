"""What the rules answer about a finished session, without a model: a table of topics, and what-ifs.

Every change that a question names (plan fields, devices, batch, sequence length, device) is made at once;
what of its figures was not used is said.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from graph.answers import SuggestedPlan
from graph.claims import effect_of
from graph.report import Report
from graph.request import parse_request
from graph.tools import Toolbox
from tools.errors import AsapError, InputError
from tools.hardware import device_names, get_device
from tools.model.forecast import SIZES, forecast
from tools.model.predict import Prediction
from tools.physics.terms import MEMORY_PARTS
from tools.recommend.report import PlanFields, Proposal
from tools.recommend.why import why_not_fastest
from tools.recommend.words import difference, format_same_decimals, largest, listing, short, span
from tools.scenario import Scenario
from tools.scenario.fields import build
from tools.scenario.spec import DEGREES, RunGoal

MAX_DEVICES = 2048
KNOWN = (
    'The rules answer: why not a plan ("why not tp 8?"), what if ("pp 4 on 128 devices, global batch 256?", '
    '"H200?"), step time, MFU, memory, risks, evidence, checkpoints and changes of a proposal, proposals '
    'compared, days and cost ("2T tokens at 2.50 per device-hour?"), what limits the job, how sure that is, '
    "what to measure. A language model answers others."
)
ORDINALS = {"first": 1, "second": 2, "third": 3, "recommended": 1}
NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
_FIELD = re.compile(
    rf"\b(?P<name>{'|'.join(name for name in DEGREES if name != 'dp')}"
    r"|zero(?:[ _-]?stage)?|micro[ _-]?batch(?:[ _-]?size)?|recompute"
    r"|dp[ _-]?shard)"
    r"\s*(?:=|of|is|at|to)?\s*(?P<value>\d+|none|selective|full)\b",
    re.I,
)
_DEVICES = re.compile(r"\b(\d+)\s*(?:devices|gpus|accelerators|chips|cards)\b", re.I)
_BATCH = re.compile(r"\b(?:global[ -]?)?batch(?:[ -]?size)?(?: (?:of|were|was|is|to))?\s*=?\s*(\d+)\b", re.I)
_SEQUENCE = re.compile(
    r"\b(?:seq(?:uence)?[ _-]?len(?:gth)?|context(?: length)?)(?: (?:of|were|is|to))?\s*=?\s*(\d+)(k?)\b",
    re.I,
)
_TOKENS = re.compile(rf"\b{NUMBER}\s*(t|b|m|trillion|billion|million)\b(?: (?:of )?tokens)?", re.I)
_PRICE = re.compile(rf"(?:[$€£]\s*{NUMBER}|\bat {NUMBER})(?=[^.?]*hour)", re.I)
_PROPOSAL = re.compile(
    r"\b(?:(?:proposals?|plans?|options?)\s+(\d)(?:\s+and\s+(\d))?"
    r"|(first|second|third) (?:proposal|plan|option|one))\b",
    re.I,
)


@dataclass
class Asked:
    """A question, and which of its words have been used."""

    text: str
    report: Report
    box: Toolbox
    call: Callable[..., object]
    """Runs a tool and notes it in the trail."""
    used: list[tuple[int, int]] = field(default_factory=list)

    def take(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        for match in pattern.finditer(self.text):
            if not any(start < match.end() and match.start() < end for start, end in self.used):
                self.used.append(match.span())
                yield match

    @property
    def unused(self) -> list[str]:
        """Figures that no part of the answer rests on."""
        numbers = re.finditer(r"\d[\d.,]*\w*", self.text)
        return [
            number[0]
            for number in numbers
            if not any(start <= number.start() < end for start, end in self.used)
        ]

    @property
    def proposals(self) -> list[Proposal]:
        """Those that the question names, else the one that counts."""
        named = []
        for match in self.take(_PROPOSAL):
            named += [int(rank) for rank in match.groups()[:2] if rank]
            named += [ORDINALS[match[3].lower()]] if match[3] else []
        count = len(self.report.proposals)
        if wrong := [rank for rank in named if not 0 < rank <= count]:
            raise InputError("proposal", wrong[0], f"allowed: 1 to {count}")
        ranks = dict.fromkeys(named or [self.report.chosen or 1])
        return [self.report.proposals[rank - 1] for rank in ranks]


def answer_by_rules(question: str, report: Report, box: Toolbox, call: Callable[..., object]) -> str:
    asked = Asked(question, report, box, call)
    try:
        parts = [*_answers(asked)]
    except AsapError as error:
        return f"That is not possible: {error}"
    if parts and asked.unused:
        parts.append(f"Not used of the question: {listing(asked.unused)}.")
    return " ".join(dict.fromkeys(parts)) or KNOWN


def _answers(asked: Asked) -> Iterator[str]:
    tokens = [*asked.take(_TOKENS)]
    if tokens:
        yield from _whole_run(asked, tokens[0])
    elif changed := _what_if(asked):
        yield changed
    else:
        text, proposals = asked.text, asked.proposals
        if len(proposals) > 1:
            yield _compared(*proposals[:2])
        else:
            for pattern, tell in TOPICS:
                if re.search(pattern, text, re.I):
                    yield tell(asked.report, proposals[0])
                    return


def _whole_run(asked: Asked, tokens: re.Match[str]) -> Iterator[str]:
    price = next(asked.take(_PRICE), None)
    stated: dict[str, object] = {"tokens": int(_number(tokens[1]) * SIZES[tokens[2][0].upper()])}
    if price:
        stated["price_per_device_hour"] = _number(price[1] or price[2])
    goal = build(RunGoal, (asked.box.scenario.run or RunGoal()).model_dump() | stated, "run.")
    scenario, percent = asked.box.scenario.model_copy(update={"run": goal}), re.compile(r"\b1 ?%")
    for proposal in asked.proposals:
        found, _ = proposal.prediction, [*asked.take(percent)]
        run = forecast(scenario, found.step_time_s, found.step_time_low_s, found.step_time_high_s)
        if run:
            yield f"Proposal {proposal.rank}: {run.summary}."


def _what_if(asked: Asked) -> str | None:
    """The plan that is named, or the best one, under all changes that the question states."""
    box, fields = asked.box, plan_fields(asked.text)
    [*asked.take(_FIELD)]
    changed, words = _changed(asked, box.scenario)
    if changed is not None:
        box = Toolbox(box.context, changed, box.plan if fields else None, box.tenant)
    elif not fields:
        return None
    there = f"With {listing(words)} " if words else ""
    if not fields:

        def predict_plan(changed: str) -> object:
            return box.predict_plan()

        asked.call(predict_plan, changed=listing(words))
        best = box.workload.predict([box.plan])[0]
        return (
            f"{there}the best plan is {short(box.plan)}: {_pace(best)}, "
            f"{best.tokens_per_s_per_device:.0f} tokens per second per device."
        )
    plan = SuggestedPlan.model_validate(fields)
    asked.call(box.explain_plan, plan=plan)
    why = box.explained(plan)
    pace = ""
    if why.step_time_s:
        pace = f" Predicted {why.step_time_s:.3g} s per step, {why.peak_memory_gib:.1f} GiB per device."
    return f"{there}{why.summary}: {why.why}.{pace}"


def _changed(asked: Asked, scenario: Scenario) -> tuple[Scenario | None, list[str]]:
    """The scenario with another cluster, batch or sequence length, and these in words; None without any."""
    raw, words = scenario.model_dump(mode="json", exclude_none=True), list[str]()
    for match in asked.take(_DEVICES):
        if not 0 < int(match[1]) <= MAX_DEVICES:
            raise InputError("devices", int(match[1]), f"allowed: 1 to {MAX_DEVICES}")
        raw["cluster"]["num_devices"] = int(match[1])
        words.append(f"{match[1]} devices")
    for match in asked.take(_BATCH):
        raw["training"]["global_batch_size"] = int(match[1])
        words.append(f"a global batch {match[1]}")
    for match in asked.take(_SEQUENCE):
        length = int(match[1]) * (1024 if match[2] else 1)
        raw["training"]["seq_len"] = length
        words.append(f"a sequence length of {length}")
    for match in asked.take(_device_names()):
        device = get_device(match[1]).name
        raw["cluster"] |= {"device": device, "overrides": {}, "topology": None}
        words.append(device)
    if not words:
        return None, []
    plan = raw.pop("plan", None)
    changed = parse_request({**raw, "traces": None, "notes": None}).scenario
    if plan is None or changed.cluster.num_devices != scenario.cluster.num_devices:
        return changed, words
    return changed.model_copy(update={"plan": scenario.plan}), words


@cache
def _device_names() -> re.Pattern[str]:
    """Of the catalogue, the longest first."""
    names = {name for device in device_names() for name in (device, *get_device(device).aliases)}
    return re.compile(rf"\b({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})s?\b", re.I)


def plan_fields(question: str) -> PlanFields:
    """The fields of a plan that a question names."""
    fields: PlanFields = {}
    for match in _FIELD.finditer(question):
        name, value = re.sub(r"[ -]", "_", match["name"].lower()), match["value"].lower()
        name = {"zero": "zero_stage", "micro_batch": "micro_batch_size"}.get(name, name)
        fields[name] = int(value) if value.isdigit() else value
    return fields


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
    found = proposal.prediction
    return (
        f"Proposal {proposal.rank}: {format_same_decimals(found.step_time_s)[0]} s per step (80% interval "
        f"{span(found.step_time_low_s, found.step_time_high_s)} s), {found.mfu:.1%} MFU, "
        f"{found.model_tflops_per_device:.0f} TFLOP/s and {found.tokens_per_s_per_device:,.0f} tokens "
        f"per second per device; {largest(found)}."
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
    (r"\bfp8\b|\bprecision\b|\bnvfp4\b|\bmxfp8\b", _precision),
    (r"\b(?:network|bandwidth|links?|fabric)\b", _network),
    (r"\bcheckpoints?\b", _checkpoint),
    (r"\bmemory|\bfits?\b|\bgib\b|\bheadroom\b|\boom\b", _memory),
    (r"\brisks?\b|\bgo wrong\b|\bworry\b|\bdanger", lambda report, entry: _sentence("; ".join(entry.risks))),
    (r"\banybody|\banyone|\bpublished|\brecipes?\b|\bevidence\b|\bever run\b", _published),
    (r"\bflags?\b|\bbesides\b|\bsettings?\b|\badvice\b", lambda report, entry: _advice(report)),
    (r"\bchange\w* (?:your mind|the answer)|\bother answer", lambda report, entry: report.would_change),
    (r"\bquestions?\b.*\bus\b", lambda report, entry: _questions(report)),
    (r"\bmeasure|\bverif|\bconfirm|\bfirst step\b|\bnext\b|\btest it\b", _verify),
    (r"\bhow many plans|\bsearched\b|\blook(?:ed)? at\b", lambda report, entry: _searched(report)),
    (r"\b(?:bottleneck|limit\w*|slow|cause|what takes)\b", _limit),
    (r"\bstep\b.*\btoday|\btoday\b.*\bstep|\bcurrent plan\b|\btoday's\b", _today),
    (r"\b(?:sure|certain|confiden\w*|interval|trust|error)\b", lambda report, entry: _sure(entry)),
    (r"\bchang(?:e|es|ed)\b|\bdiffer", _changes),
    (r"\bmfu\b|\btflop|\btokens per\b|\bthroughput\b|\bstep time\b|\bhow fast\b|\bspeed", _pace_of),
    (r"\bcommunicat|\bwhere\b.*\btime\b|\btime goes\b|\bbubble\b", _today),
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
