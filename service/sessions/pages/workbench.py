"""The workbench of a session's page: two plans loss by loss, and the chosen one as chips to edit.

Its state is the address (`?plan=2&vs=today&tp=8`): a link restores it, and it works without a script.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from service.errors import NotFoundError
from service.planner.what_if import PLAN_FIELDS, Control, ask, controls_of
from service.render.text import seconds, signed_percent, times
from service.render.view import TODAY, PlanView, ReportView, planned_of
from service.render.waterfall import LossChange, loss_changes
from tools.errors import InputError
from tools.recommend.report import Change, changes
from tools.scenario import Plan

YOURS = "yours"
MAIN_CHIPS = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "recompute")
RARE_DEGREES = ("vpp", "cp", "ep")
CHIP_NAMES = {"zero_stage": "ZeRO", "micro_batch_size": "micro-batch", "sequence_parallel": "seq. parallel"}


class Choice(NamedTuple):
    """A plan to choose: one of the report, of the search, or a person's own."""

    key: str
    planned: PlanView
    gain: str
    """How many times as fast as today; empty where gains over today's plan mean nothing."""


@dataclass(frozen=True)
class Workbench:
    choices: Sequence[Choice]
    chosen: Choice
    base: str
    """The key of the plan that the chips start from."""
    against: Choice
    losses: Sequence[LossChange]
    chips: Sequence[Control]
    changes: Sequence[Change]
    """From the plan that it is held against."""
    refusal: InputError | None
    measured: str
    """The measured step of the plan that it is held against."""
    beside_first: str
    """For a plan that is not proposed, its step time beside proposal 1's."""
    ratio: str
    """The step held against over the chosen one's; empty where no gain is told."""
    decided: str
    """What was decided about the chosen plan, if something was."""
    is_offered: bool
    """Whether approving the chosen plan is the step to take now."""

    chip_names: ClassVar = CHIP_NAMES

    @property
    def main_fields(self) -> list[str]:
        """The chips in sight; the rarer degrees are where a plan shown, or edited, has more than one."""
        plans = (self.chosen.planned.plan, self.against.planned.plan)
        used = {name for name in RARE_DEGREES if any(getattr(plan, name) != 1 for plan in plans)}
        used |= {chip.name for chip in self.chips if chip.start != "1"}
        used |= {"vpp"} if any(plan.pp > 1 for plan in plans) else set()
        return [name for name in MAIN_CHIPS if name in used or name not in RARE_DEGREES]


def workbench_of(
    view: ReportView,
    find: Callable[[str], Plan | None],
    stated: Mapping[str, str],
    decided: Mapping[int, str] | None = None,
) -> Workbench:
    """`find` knows the plans of the search by the keys that addresses have for them; `decided` is the last
    decision about each proposal."""
    plans = {plan.key: plan for plan in view.plans}

    def get(key: str) -> str:
        if key not in plans:
            plan = find(key)
            if plan is None:
                raise NotFoundError("plan", key)
            plans[key] = planned_of(f"plan {key[1:]}", view.workload, plan)
        return key

    first = view.proposals[0]
    base = chosen = get(stated.get("plan") or str(view.report.chosen or first.key))
    edits = {name: stated[name] for name in PLAN_FIELDS if stated.get(name)}
    refusal = None
    if edits:
        answer = ask(view.workload, plans[base].plan, edits)
        refusal = answer.refusal
        if answer.variant and answer.variant.plan != plans[base].plan:
            plans[YOURS], chosen = replace(answer.variant, name=YOURS), YOURS
    against = stated.get("vs") or (TODAY if TODAY in plans else first.key)
    if get(against) == chosen:
        against = next((key for key in plans if key != chosen), chosen)
    sells = view.headline.sells
    today_s = plans[TODAY].prediction.step_time_s if TODAY in plans and sells else None

    def choice(key: str) -> Choice:
        gain = times(today_s / plans[key].prediction.step_time_s) if today_s and key != TODAY else ""
        return Choice(key, plans[key], gain)

    planned, before = plans[chosen], plans[against]
    off = planned.prediction.step_time_s / first.prediction.step_time_s - 1
    measured = view.measured_step_s(before)
    verdict = (decided or {}).get(planned.proposal.rank, "") if planned.proposal else ""
    ratio = times(before.prediction.step_time_s / planned.prediction.step_time_s)
    return Workbench(
        choices=[choice(key) for key in plans],
        chosen=choice(chosen),
        base=base,
        against=choice(against),
        losses=loss_changes(view, before, planned),
        chips=controls_of(view.workload.with_plan(plans[base].plan), edits)["Plan"],
        changes=[c for c in changes(before.plan, planned.plan) if c.from_ != c.to],
        refusal=refusal,
        measured=seconds(measured) if measured else "",
        beside_first="" if planned.proposal else f"{signed_percent(off)} beside proposal 1",
        ratio=ratio if sells or TODAY not in (against, chosen) else "",
        decided=verdict,
        is_offered=view.headline.decision is None and view.headline.stance in ("switch", "start", "unfit"),
    )
