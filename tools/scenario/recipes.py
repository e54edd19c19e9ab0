"""What a framework sets where a scenario leaves it open: `settings.*` in `kb_seed/recipes`.

A recipe that the framework publishes for the model, device and precision comes first, in the newest release
that `software_date` allows; then the framework's own defaults. Each setting carries its source, and a plan
that cannot run it runs without: whatever prices, writes or names a setting asks `run_trainings`.
"""

import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Annotated, NamedTuple

import numpy as np

import kb_seed
from tools.errors import DataError
from tools.hardware import get_device
from tools.scenario.columns import IntArray, PlanColumns, PlanFacts
from tools.scenario.fields import FromList, StrictModel
from tools.scenario.levers import SettingValue, where_offered
from tools.scenario.model import ModelSpec
from tools.scenario.spec import (
    CudaGraph,
    Fabric,
    GraphScope,
    MoeDispatcher,
    Month,
    Precision,
    PrecisionScope,
    Recompute,
    RecomputeModule,
    Scenario,
    StateType,
    TrainingSpec,
)

CACHED = 4096
TUNED_FABRICS = ("ib", "roce")
NEAR_DEPTH = 1.25
"""A model of the same widths and up to so many times the layers, or as many times fewer, takes the recipe:
what its kernels and messages look like does not depend on depth. One that is cut down further is a test."""


class RecipeSettings(StrictModel):
    """Fields of `training` and `plan` that a recipe or a default states; None: it does not."""

    moe_dispatcher: MoeDispatcher | None = None
    overlap_moe_communication: bool | None = None
    overlap_tensor_communication: bool | None = None
    cuda_graph: CudaGraph | None = None
    cuda_graph_scopes: Annotated[tuple[GraphScope, ...] | None, FromList] = None
    recompute: Recompute | None = None
    recompute_modules: Annotated[tuple[RecomputeModule, ...] | None, FromList] = None
    recompute_layers: int | None = None
    activation_offload: int | None = None
    optimizer_state: StateType | None = None
    gradient_dtype: StateType | None = None
    compile: bool | None = None
    precision_scope: PrecisionScope | None = None


PLAN_DEPENDENT: Mapping[str, SettingValue] = {
    "moe_dispatcher": "alltoall",
    "overlap_moe_communication": False,
    "overlap_tensor_communication": False,
    "cuda_graph": "none",
    "compile": False,
    "optimizer_state": "fp32",
    "activation_offload": False,
}
"""Settings that levers have needs for, and what a plan runs instead that does not meet them."""
TRAINING_SETTINGS = tuple(name for name in RecipeSettings.model_fields if name in TrainingSpec.model_fields)


class ModelKey(StrictModel):
    """The sizes by which a model with recipes is recognised."""

    hidden_size: int
    intermediate_size: int = 0
    """0: any."""
    num_hidden_layers: int = 0
    """0: any."""
    num_experts: int = 0
    hybrid: bool = False

    def depth_ratio(self, m: ModelSpec) -> float:
        """The model's layers over those that the recipe is for; 0: another model."""
        sizes = (m.hidden_size, m.num_experts, m.mixer is not None)
        is_as_wide = self.intermediate_size in (0, m.intermediate_size)
        if sizes != (self.hidden_size, self.num_experts, self.hybrid) or not is_as_wide:
            return 0.0
        return m.num_hidden_layers / self.num_hidden_layers if self.num_hidden_layers else 1.0


class DefaultRow(StrictModel):
    """What a framework does by itself from a release on, for every model or those with experts."""

    framework: str
    settings: RecipeSettings
    source: str
    since: Month = "2000-01"
    with_experts: bool = False
    models: Annotated[tuple[str, ...], FromList] = ()
    """Empty: every model."""


class RecipeRow(StrictModel):
    """A published recipe, from a release on until one that says otherwise."""

    framework: str
    since: Month
    model: str
    device: str
    precisions: Annotated[tuple[Precision, ...], FromList]
    settings: RecipeSettings
    source: str
    lora: bool = False


class RecipeData(StrictModel):
    """`settings.toml`."""

    models: Mapping[str, ModelKey]
    defaults: Annotated[tuple[DefaultRow, ...], FromList]


class StatedSettings(NamedTuple):
    """Settings with the source of each, by its name."""

    settings: RecipeSettings
    sources: Mapping[str, str]
    of_model: frozenset[str] = frozenset()
    """Those that are stated for the one model, not for whatever the framework trains."""


class Assumption(NamedTuple):
    """A setting that the scenario leaves open, what it is taken for, and who says so."""

    name: str
    value: object
    source: str


def assumed_settings(s: Scenario) -> tuple[Assumption, ...]:
    """What a prediction of the scenario takes from recipes and defaults. Recipes are published for InfiniBand
    and RoCE: on other fabrics the framework's own defaults are what runs."""
    found, run = _found(s), run_training(s)
    return tuple(
        Assumption(name, value, found.sources[name])
        for name, value in _opened(s.training, found.settings).items()
        if getattr(run, name) == value
    )


def run_training(s: Scenario) -> TrainingSpec:
    """The scenario's training with what its own plan runs where it says nothing."""
    if s.plan is None:
        return s.training.model_copy(update=_opened(s.training, _found(s).settings))
    (training,) = run_trainings(s, PlanColumns.of([s.plan]))[0].values()
    return training


def run_trainings(s: Scenario, plans: PlanColumns) -> tuple[Mapping[int, TrainingSpec], IntArray]:
    """The scenario's training with what the framework sets where it says nothing: a version for each set of
    settings that some plan cannot run, by its number, and the number of each plan (one for all alike)."""
    t, code = s.training, np.asarray(0)
    opened = _opened(t, _found(s).settings)
    if not opened:
        return {0: t}, code
    facts = PlanFacts(s.model, s.cluster, t.model_copy(update=opened), plans)
    may_lack = [name for name, instead in PLAN_DEPENDENT.items() if opened.get(name, instead) != instead]
    for bit, name in enumerate(may_lack):
        code = code + np.where(where_offered(name, opened[name], facts), 0, 1 << bit)
    made = dict[int, TrainingSpec]()
    for number in np.unique(code).tolist() or [0]:
        lost = {name: PLAN_DEPENDENT[name] for bit, name in enumerate(may_lack) if number >> bit & 1}
        without = {"cuda_graph_scopes": None} if "cuda_graph" in lost else {}
        made[number] = t.model_copy(update={**opened, **lost, **without})
    return made, code


def scenario_fabric(s: Scenario) -> Fabric:
    """As stated, or what the device's own systems have."""
    return s.cluster.fabric or get_device(s.cluster.device).traits.fabric


def _found(s: Scenario) -> "StatedSettings":
    t = s.training
    device = s.cluster.device if scenario_fabric(s) in TUNED_FABRICS else ""
    return recipe_settings(
        t.framework, s.model, device, t.precision, t.software_date, lora=t.lora is not None
    )


def _opened(t: TrainingSpec, found: RecipeSettings) -> dict[str, SettingValue | int]:
    """The settings found that the scenario leaves open."""
    opened = {
        name: value
        for name in TRAINING_SETTINGS
        if getattr(t, name) is None and (value := getattr(found, name)) is not None
    }
    if "cuda_graph" not in opened:  # scopes belong to the graphs that the same recipe has
        opened.pop("cuda_graph_scopes", None)
    return opened


def recipe_settings(
    framework: str,
    model: ModelSpec,
    device: str,
    precision: Precision,
    software_date: str | None = None,
    *,
    lora: bool = False,
) -> StatedSettings:
    """What the framework sets at a date (None: the newest known) where the scenario says nothing."""
    key, depth = _model_key(model)
    found = _settings(framework, key, model.is_moe, device, precision, software_date or "9999", lora)
    if depth == model.num_hidden_layers:
        return found
    sources = {
        name: f"{source} (for {depth} layers)" if name in found.of_model else source
        for name, source in found.sources.items()
    }
    return found._replace(sources=sources)


def _model_key(model: ModelSpec) -> tuple[str, int]:
    """The model whose recipes are used, "" if none is near enough, and the layers that they are for."""
    ratios = {name: sizes.depth_ratio(model) for name, sizes in model_keys().items()}
    near = {name: ratio for name, ratio in ratios.items() if 1.0 / NEAR_DEPTH <= ratio <= NEAR_DEPTH}
    if not near:
        return "", model.num_hidden_layers
    name = min(near, key=lambda name: abs(near[name] - 1.0))
    return name, model_keys()[name].num_hidden_layers or model.num_hidden_layers


@lru_cache(CACHED)
def _settings(
    framework: str, key: str, is_moe: bool, device: str, precision: Precision, date: str, lora: bool
) -> StatedSettings:
    values, sources, of_model = dict[str, object](), dict[str, str](), set[str]()
    stated: list[DefaultRow | RecipeRow] = [
        row
        for row in _data().defaults
        if row.framework == framework
        and row.since <= date
        and (is_moe or not row.with_experts)
        and (not row.models or key in row.models)
    ]
    recipes = [
        row
        for row in _recipes().get((framework, key, device, lora), ())
        if row.since <= date and precision in row.precisions
    ]
    for row in (*stated, *recipes[-1:]):
        found = {name: value for name, value in row.settings if value is not None}
        if "cuda_graph" in found:
            values.pop("cuda_graph_scopes", None)
        values |= found
        sources |= dict.fromkeys(found, row.source)
        of_model = (
            of_model | found.keys() if isinstance(row, RecipeRow) or row.models else of_model - found.keys()
        )
    sources = {name: source for name, source in sources.items() if name in values}
    return StatedSettings(RecipeSettings.model_validate(values), sources, frozenset(of_model))


def model_keys() -> Mapping[str, ModelKey]:
    """The models that recipes are for."""
    return _data().models


@cache
def _data() -> RecipeData:
    file = kb_seed.folder("recipes").joinpath("settings.toml")
    try:
        return RecipeData.model_validate(tomllib.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"kb_seed/recipes/settings.toml: {error}") from error


@cache
def _recipes() -> Mapping[tuple[str, str, str, bool], tuple[RecipeRow, ...]]:
    """Rows by framework, model, device and whether adapters are trained, oldest first."""
    file = kb_seed.folder("recipes").joinpath("settings.jsonl")
    rows: dict[tuple[str, str, str, bool], tuple[RecipeRow, ...]] = {}
    try:
        for line in file.read_text("utf-8").splitlines():
            row = RecipeRow.model_validate_json(line)
            key = (row.framework, row.model, row.device, row.lora)
            rows[key] = tuple(sorted((*rows.get(key, ()), row), key=lambda row: row.since))
    except (OSError, ValueError) as error:
        raise DataError(f"kb_seed/recipes/settings.jsonl: {error}") from error
    return rows
