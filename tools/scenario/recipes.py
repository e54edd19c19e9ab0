"""What a framework sets where a scenario leaves it open: `settings.*` in `kb_seed/recipes`.

A recipe that the framework publishes for the model, device and precision comes first, in the newest release
that `software_date` allows; then the framework's own defaults. Each setting carries its source.
"""

import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Annotated, NamedTuple

import kb_seed
from tools.errors import DataError
from tools.scenario.fields import FromList, StrictModel
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

    def fits(self, m: ModelSpec) -> bool:
        sizes = (m.hidden_size, m.num_experts, m.mixer is not None)
        is_as_wide = self.intermediate_size in (0, m.intermediate_size)
        is_as_deep = self.num_hidden_layers in (0, m.num_hidden_layers)
        return sizes == (self.hidden_size, self.num_experts, self.hybrid) and is_as_wide and is_as_deep


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
    key = next((name for name, sizes in model_keys().items() if sizes.fits(model)), "")
    return _settings(framework, key, model.is_moe, device, precision, software_date or "9999", lora)


def with_recipe(s: Scenario, fabric: Fabric) -> TrainingSpec:
    """The scenario's training with what the framework sets where it says nothing. Recipes are published for
    InfiniBand and RoCE: on other fabrics the framework's own defaults are what runs."""
    t = s.training
    device = s.cluster.device if fabric in TUNED_FABRICS else ""
    found = recipe_settings(
        t.framework, s.model, device, t.precision, t.software_date, lora=t.lora is not None
    ).settings
    open_ones = {
        name: value
        for name in TRAINING_SETTINGS
        if getattr(t, name) is None and (value := getattr(found, name)) is not None
    }
    if "cuda_graph" not in open_ones:  # scopes belong to the graphs that the same recipe has
        open_ones.pop("cuda_graph_scopes", None)
    return t.model_copy(update=open_ones) if open_ones else t


@lru_cache(CACHED)
def _settings(
    framework: str, key: str, is_moe: bool, device: str, precision: Precision, date: str, lora: bool
) -> StatedSettings:
    values, sources = dict[str, object](), dict[str, str]()
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
    sources = {name: source for name, source in sources.items() if name in values}
    return StatedSettings(RecipeSettings.model_validate(values), sources)


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
