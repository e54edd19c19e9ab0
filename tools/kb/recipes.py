"""Published recipes (`kb_seed/recipes`): tuned and measured plans, the nearest to a workload.

They are evidence to point at ("NVIDIA's recipe for this model on this device"), not cases: nothing was
compared in them.
"""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import kb_seed
from tools.errors import DataError
from tools.hardware import get_device
from tools.kb.entries import Source
from tools.physics.sizes import count_parameters
from tools.scenario import Plan, Scenario, StatedPlan, resolve_defaults
from tools.scenario.spec import Precision, Recompute

SAME_SIZE = 0.04
"""Counts of one model's parameters differ by this much: tied embeddings, multi-token prediction, rounding."""
FAR = 2.0
"""Models that differ by more than this factor have nothing to say to each other."""


@dataclass(frozen=True, slots=True)
class RecipeModel:
    """Whose recipe it is; parameters in billions."""

    name: str
    parameters: float
    active: float
    hidden_size: int
    num_experts: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """A plan as it was published, and the figure that was measured with it; 0 and None: not stated."""

    model: RecipeModel
    publisher: str
    framework: str
    device: str
    num_devices: int
    precision: Precision
    global_batch_size: int
    micro_batch_size: int
    seq_len: int
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    zero_stage: int
    dp_shard: int
    recompute: Recompute | None
    tokens_per_s_per_device: float
    software_date: str
    source: Source

    @property
    def dp(self) -> int:
        return self.num_devices // (self.tp * self.pp * self.cp)

    @property
    def id(self) -> str:
        parts = (self.model.name, self.device, self.num_devices, self.precision, self.global_batch_size)
        return "-".join(str(part) for part in parts).lower()

    @property
    def plan(self) -> Plan:
        """The plan with what the framework does by default for what the publication leaves open."""
        names = ("tp", "pp", "vpp", "cp", "ep", "dp", "dp_shard", "zero_stage", "recompute")
        stated = {name: getattr(self, name) for name in names}
        plan = StatedPlan.model_validate({**stated, "micro_batch_size": self.micro_batch_size or 1})
        return resolve_defaults(plan, self.framework, num_hidden_layers=self.pp * self.vpp)

    @property
    def title(self) -> str:
        """Whose it is: "NVIDIA's recipe for DeepSeek-V3 on 256 gb200 (megatron-core, mxfp8, 2026-08)"."""
        kind = f"{self.framework}, {self.precision}, {self.software_date}"
        return f"{self.publisher}'s recipe for {self.model.name} on {self.num_devices} {self.device} ({kind})"

    @property
    def summary(self) -> str:
        """The plan in short, and the figure."""
        names = ("tp", "pp", "vpp", "cp", "ep", "dp")
        degrees = [f"{name} {getattr(self, name)}" for name in names if getattr(self, name) > 1]
        plan = [*degrees, f"ZeRO {self.zero_stage}", f"sequences of {self.seq_len:,} tokens"]
        if self.micro_batch_size:
            plan.append(f"micro-batch {self.micro_batch_size} of {self.global_batch_size:,}")
        if self.recompute:
            plan.append(f"recompute {self.recompute}")
        return f"{', '.join(plan)}: {self.tokens_per_s_per_device:,.0f} tokens/s per device"


class RecipeMatch(NamedTuple):
    """A recipe and how near it is."""

    recipe: Recipe
    is_same_model: bool
    is_same_device: bool
    distance: float
    """0: the same workload; each factor of two in size or devices adds about one."""


@cache
def load_recipes() -> tuple[Recipe, ...]:
    """All recipes that come with ASAP, in the order of the file."""
    file = kb_seed.folder("recipes").joinpath("published.toml")
    recipes = []
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        models = {name: RecipeModel(name, **sizes) for name, sizes in data["models"].items()}
        for source in data["sources"]:
            where = Source(title=source["title"], where=source["where"])
            shared = {"publisher": source["publisher"], "framework": source["framework"], "source": where}
            for row in source["rows"]:
                fields = dict(zip(data["columns"], row, strict=True))
                fields |= {"model": models[fields["model"]], "recompute": fields["recompute"] or None}
                recipes.append(Recipe(**shared, **fields))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"kb_seed/recipes/published.toml: {error}") from error
    return tuple(recipes)


def nearest_recipes(
    scenario: Scenario, limit: int = 3, recipes: Sequence[Recipe] | None = None
) -> list[RecipeMatch]:
    """The recipes for workloads most like this one, nearest first; of those that come with ASAP."""
    count = count_parameters(scenario.model)
    known = load_recipes() if recipes is None else recipes
    matches = [_match(recipe, scenario, count.total / 1e9, count.active / 1e9) for recipe in known]
    return sorted((match for match in matches if match), key=lambda match: match.distance)[:limit]


def _match(recipe: Recipe, scenario: Scenario, total: float, active: float) -> RecipeMatch | None:
    """None if the models have nothing to say to each other; their parameters in billions."""
    theirs, own = recipe.model, scenario.model
    sizes = abs(math.log2(theirs.parameters / total)) + abs(math.log2(theirs.active / active))
    if bool(theirs.num_experts) != own.is_moe or sizes > 2 * math.log2(FAR):
        return None
    is_same_shape = (theirs.hidden_size, theirs.num_experts) == (own.hidden_size, own.num_experts)
    is_same_model = is_same_shape and abs(theirs.parameters / total - 1) < SAME_SIZE
    cluster, training = scenario.cluster, scenario.training
    ours, other = get_device(cluster.device), get_device(recipe.device)
    device = 0.0 if ours.name == other.name else 1.0 if ours.generation == other.generation else 3.0
    distance = (
        (0.0 if is_same_model else 2.0 + sizes)
        + device
        + (0.0 if ours.vendor == other.vendor else 2.0)
        + abs(math.log2(recipe.num_devices / cluster.num_devices))
        + 0.5 * abs(math.log2(recipe.seq_len / training.seq_len))
        + (0.0 if recipe.framework == training.framework else 1.0)
        + (0.0 if recipe.precision == training.precision else 0.25)
    )
    return RecipeMatch(recipe, is_same_model, device == 0.0, distance)
