"""A whole plan from few small runs: first, middle and last stage, few layers, few micro-batches.

Every figure of a rank is linear in its layers of each kind and in its micro-batches once the pipeline is
full, so that two points on each line give the rest exactly (the tests compare with the whole model run as
it is); but for peak memory under DDP with selective recomputation, which may be some percent off. Stages
between the first and the last differ in their layers only; memory is most on the first or the last.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache

from tools.dryrun.figures import Figures, along, plus
from tools.dryrun.rank import Run, run_rank
from tools.scenario import Plan, Scenario
from tools.trainer.stages import ChunkSpec, chunk_specs

LAYERS_RUN_WHOLE = 4
"""Up to so many layers a chunk nothing is extrapolated."""


@dataclass(frozen=True)
class Stages:
    """Figures of every stage's first rank, and how they were got."""

    figures: list[Figures]
    stages_run: list[int]
    extrapolated_layers: bool
    extrapolated_micro_batches: bool


def run_stages(scenario: Scenario, plan: Plan) -> Stages:
    probe = _Probe(scenario, plan)
    return Stages(
        figures=[probe.stage(stage) for stage in range(plan.pp)],
        stages_run=sorted({probe.stand_in(stage) for stage in range(plan.pp)}),
        extrapolated_layers=probe.few_layers,
        extrapolated_micro_batches=len(probe.micro_batches) > 1,
    )


class _Probe:
    def __init__(self, scenario: Scenario, plan: Plan) -> None:
        self.scenario, self.plan = scenario, plan
        self.specs = chunk_specs(scenario.model, plan)
        self.few_layers = max(len(spec.layers) for spec in self.specs) > LAYERS_RUN_WHOLE
        wanted = scenario.training.global_batch_size // (plan.dp * plan.micro_batch_size)
        low, high = _micro_batch_points(plan)
        self.wanted = wanted
        self.micro_batches = (wanted,) if wanted <= high else (low, high)
        # Peak memory grows evenly from the third layer on, on a pipeline's stage from the second.
        self.layers = (2, 3) if plan.pp > 1 else (3, 4)
        self._linear = cache(self._few)

    def stage(self, stage: int) -> Figures:
        if self.few_layers:
            return self._from_few_layers(stage)
        return self._at_micro_batches(stage, tuple(self.specs[stage :: self.plan.pp]))

    def stand_in(self, stage: int) -> int:
        """The stage that is run for it: inner stages differ in their layers only."""
        inner = 0 < stage < self.plan.pp - 1
        return self.plan.pp // 2 if inner and self.few_layers else stage

    def _from_few_layers(self, stage: int) -> Figures:
        low, high = self.layers
        own = self.specs[stage :: self.plan.pp]
        counts = Counter(experts for spec in own for experts in spec.layers.values())
        base, steps = self._linear(self.stand_in(stage))
        figures = base
        for kind, step in steps.items():
            figures = plus(
                figures, step, (counts[kind] - low * self.plan.vpp) / ((high - low) * self.plan.vpp)
            )
        return figures

    def _few(self, stage: int) -> tuple[Figures, dict[bool, Figures]]:
        """With `low` layers of each kind in each chunk, and what `high` instead of `low` of a kind adds."""
        low, high = self.layers
        kinds = sorted({experts for spec in self.specs for experts in spec.layers.values()})
        base = self._at_micro_batches(stage, self._chunks(stage, dict.fromkeys(kinds, low)))
        steps = {}
        for kind in kinds:
            more = self._chunks(stage, dict.fromkeys(kinds, low) | {kind: high})
            steps[kind] = plus(self._at_micro_batches(stage, more), base, -1.0)
        return base, steps

    def _chunks(self, stage: int, counts: dict[bool, int]) -> tuple[ChunkSpec, ...]:
        layers = dict(enumerate(kind for kind, count in counts.items() for _ in range(count)))
        last = self.plan.pp * self.plan.vpp - 1
        numbers = range(stage, last + 1, self.plan.pp)
        return tuple(ChunkSpec(layers, number == 0, number == last) for number in numbers)

    def _at_micro_batches(self, stage: int, specs: tuple[ChunkSpec, ...]) -> Figures:
        runs = [Run(stage, specs, count) for count in self.micro_batches]
        points = [run_rank(self.scenario, self.plan, run) for run in runs]
        if len(points) == 1:
            return points[0]
        low, high = self.micro_batches[0], self.micro_batches[-1]
        return along(points[0], points[1], (self.wanted - low) / (high - low))


def _micro_batch_points(plan: Plan) -> tuple[int, int]:
    """From where on all is linear: accumulation from the third, a pipeline once its first stage was full and
    ran on. Interleaved schedules take whole rounds of pp."""
    if plan.pp == 1:
        return 3, 4
    return (plan.pp + 1, plan.pp + 2) if plan.vpp == 1 else (2 * plan.pp, 3 * plan.pp)
