"""Every plan that the device count, the model and the framework allow, as columns of integers.

The table grows field by field; after each field every applicable rule of `tools.scenario` prunes it.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tools.scenario import SCHEDULES, PlanColumns, PlanFacts, Scenario, get_framework, practice_for, rules_for
from tools.scenario.columns import BoolArray, IntArray, MissingColumn, decode_value
from tools.scenario.spec import AXES, MODEL_AXES, PlanValue
from tools.search.constraints import Constraints

Options = list[tuple[int, ...]]

MAX_SLOTS = 3
"""Chunks beyond the layers that a framework may fill with embedding, loss and MTP."""


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


class PlanSpace:
    """The steps by which a table of plans grows for one scenario."""

    def __init__(self, scenario: Scenario, constraints: Constraints) -> None:
        self.scenario = scenario
        self._framework = get_framework(scenario.training.framework)
        self._constraints = constraints
        # A user who states a field has a reason: practice does not restrict it.
        usual = practice_for(scenario.training.framework) if constraints.space == "practice" else ()
        stated = {f"plan.{name}" for name in constraints.fields}
        self._rules = [
            *rules_for(scenario.training.framework),
            *(rule for rule in usual if rule.field not in stated),
        ]

    def degrees(self) -> PlanColumns:
        """Every size of the axes whose product is the number of devices, with sequence parallelism."""
        limits = {"pp": self.scenario.model.num_hidden_layers + MAX_SLOTS}
        sizes: list[tuple[int, ...]] = [(self.scenario.cluster.num_devices,)]  # last, the devices left: dp
        for name in MODEL_AXES:
            sizes = [
                (*chosen, size, left // size)
                for *chosen, left in sizes
                for size in divisors(left)
                if size <= limits.get(name, left)
            ]
        batch = self.scenario.training.global_batch_size
        products = [row for row in sizes if batch % row[-1] == 0]
        rows = np.array(products, dtype=np.int64).reshape(-1, len(AXES))
        table = self.legal(PlanColumns(zip((*MODEL_AXES, "dp"), rows.T, strict=True)))
        return self._grow(
            table, ("sequence_parallel",), table["tp"], lambda tp: [(0,), (1,)] if tp > 1 else [(0,)]
        )

    def with_pipeline(self, table: PlanColumns) -> PlanColumns:
        """Adds vpp and schedule."""
        max_chunks = self.scenario.model.num_hidden_layers + MAX_SLOTS
        usual = SCHEDULES.index(self._framework.schedule)
        schedules = self._values("schedule", SCHEDULES)

        def options(pp: int) -> Options:
            if pp == 1:  # nothing is scheduled: whatever the user allows
                allowed = [code for code in schedules if self._permits(("schedule",), (code,))]
                return [(1, usual if usual in allowed or not allowed else allowed[0])]
            return [(vpp, code) for vpp in range(1, max_chunks // pp + 1) for code in schedules]

        return self._grow(table, ("vpp", "schedule"), table["pp"], options)

    def with_experts(self, table: PlanColumns) -> PlanColumns:
        """Adds ep and etp: any layout over the ranks of a stage, whatever the tensor groups."""
        experts = divisors(self.scenario.model.num_experts) if self.scenario.model.is_moe else []

        def options(ranks: int) -> Options:
            fitting = [ep for ep in experts if ranks % ep == 0]
            return [(ep, etp) for ep in fitting for etp in divisors(ranks // ep)] or [(1, 1)]

        return self._grow(table, ("ep", "etp"), table["tp"] * table["cp"] * table["dp"], options)

    def with_sharding(self, table: PlanColumns) -> PlanColumns:
        """Adds zero_stage and dp_shard: none, every hybrid size, the whole data-parallel group."""
        permitted = self._values("zero_stage", range(4))
        stages = [stage for stage in permitted if self._constraints.permits("zero_stage", stage)]

        def options(ranks: int) -> Options:
            # Sharding over one rank is no sharding; it is kept only if framework or user always shard.
            plain: Options = [(0, 1)] if 0 in stages else []
            sizes = [d for d in divisors(ranks) if d > 1 or (ranks == 1 and not plain)]
            return plain + [(z, d) for z in stages if z for d in sizes]

        return self._grow(table, ("zero_stage", "dp_shard"), table.data_ranks, options)

    def with_micro_batch(self, table: PlanColumns) -> PlanColumns:
        """Adds micro_batch_size: every divisor of a data rank's share of the batch."""
        batch = self.scenario.training.global_batch_size
        return self._grow(
            table, ("micro_batch_size",), table["dp"], lambda dp: [(size,) for size in divisors(batch // dp)]
        )

    def _grow(
        self, table: PlanColumns, names: tuple[str, ...], by: IntArray, options: Callable[[int], Options]
    ) -> PlanColumns:
        """Each row with each of the options for its value of `by` that the user and the rules permit."""
        parts = [_cross(table.take(slice(0)), names, [])]
        for value in np.unique(by):
            permitted = [option for option in options(int(value)) if self._permits(names, option)]
            parts.append(_cross(table.take(by == value), names, permitted))
        return self.legal(PlanColumns.joined(parts))

    def _permits(self, names: tuple[str, ...], option: tuple[int, ...]) -> bool:
        pairs = zip(names, option, strict=True)
        return all(self._constraints.permits(name, decode_value(name, code)) for name, code in pairs)

    def legal(self, table: PlanColumns) -> PlanColumns:
        """The rows that break no rule, as far as the fields that are there can tell."""
        facts = PlanFacts(self.scenario.model, self.scenario.cluster, self.scenario.training, table)
        legal = permitted_mask(self._constraints, table)
        for rule in self._rules:
            try:
                legal &= ~rule.breaks(facts)
            except MissingColumn:
                continue  # applied once the table has the field
        return table.take(legal)

    def _values(self, name: str, choices: Sequence[PlanValue]) -> list[int]:
        """Positions in `choices` that the framework's rule on this field alone permits."""
        rules = [r for r in self._framework.rules if r.check == "one_of" and r.field == f"plan.{name}"]
        return [i for i, value in enumerate(choices) if all(value in rule.values for rule in rules)]


def permitted_mask(constraints: Constraints, table: PlanColumns) -> BoolArray:
    """The rows whose values the user's constraints on single fields permit."""
    mask = np.ones(table.rows, dtype=np.bool_)
    for name in constraints.fields:
        if name in table:
            codes, rows = np.unique(table[name], return_inverse=True)
            verdicts = [constraints.permits(name, decode_value(name, int(code))) for code in codes]
            mask &= np.asarray(verdicts, dtype=np.bool_)[rows]
    return mask


def _cross(table: PlanColumns, names: tuple[str, ...], options: Options) -> PlanColumns:
    """Each row with each option of the named fields."""
    values = np.array(options, dtype=np.int64).reshape(len(options), len(names))
    grown = {name: np.repeat(column, len(options)) for name, column in table.items()}
    added = {name: np.tile(values[:, i], table.rows) for i, name in enumerate(names)}
    return PlanColumns(grown | added)
