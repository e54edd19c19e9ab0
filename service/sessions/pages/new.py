"""/sessions/new: the form, its conversion to the body of POST /v1/sessions, and /web/validate."""

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel

from service.db.ids import new_id
from service.errors import ConflictError
from service.render.text import gib, seconds, size_of
from service.sessions.model import SessionCreate
from service.sessions.usecases import Sessions
from service.strict_json import parse_object
from service.web.errors import PageRoute
from service.web.forms import (
    CheckedForm,
    FormFields,
    form_field,
    labels_of,
    labels_text,
    text_of,
    whole_number,
)
from service.web.rendering import Page, SubmitterPage
from tools.errors import InputError
from tools.frameworks import IMPORT_FORMATS, ImportOptions
from tools.frameworks.start import HUGGING_FACE, is_scenario, preset_models, start_scenario
from tools.frameworks.words import parse_devices
from tools.hardware import PRECISIONS, device_names
from tools.model.predict import predict
from tools.physics.memory import GIB
from tools.physics.sizes import count_parameters
from tools.recommend.optimize import workload_of
from tools.scenario import RECOMPUTES, Scenario, framework_names, parse, parse_scenario
from tools.scenario.columns import CHOICES, MIN_VALUES
from tools.scenario.fields import build, get_object
from tools.scenario.spec import MODEL_AXES, REQUIRED_PLAN_FIELDS, SEARCHED_FIELDS
from tools.search.search import Search

SessionBody = dict[str, Any]
"""The body of POST /v1/sessions, or a part of it, before it is parsed."""
_CHANGED = {"tp": 8, "pp": 4, "vpp": 1, "dp": 2, "dp_shard": 2, "recompute": "full"}
EXAMPLE: SessionBody = {**parse.EXAMPLE, "plan": {**get_object(parse.EXAMPLE["plan"], "plan"), **_CHANGED}}
SCENARIO = "scenario"
KINDS = {
    "": "recognised",
    SCENARIO: "a whole scenario (JSON)",
    **{name: f"a configuration of {name}" for name in IMPORT_FORMATS if name != HUGGING_FACE},
    HUGGING_FACE: "a Hugging Face config.json",
}
PARTS = ("model", "cluster", "training", "plan")
CLUSTER = ("devices_per_node",)
TRAINING = ("seq_len", "global_batch_size", "precision", "framework")
NOT_ASKED = ("etp", "schedule")
"""Searched plan fields that the form leaves to the framework's default."""
PLAN = tuple(name for name in SEARCHED_FIELDS if name not in NOT_ASKED)
PLAN_DEFAULTS = {name: MIN_VALUES[name] for name in REQUIRED_PLAN_FIELDS if name != "dp"}
"""What an empty field stands for; data parallelism takes the devices that are left."""
PLAN_NUMBERS = {
    name: str(PLAN_DEFAULTS.get(name, "derived" if name in ("dp", "dp_shard") else "default"))
    for name in PLAN
    if name not in CHOICES
}
"""The integer fields of a plan in the form, each with what stands in it while it is empty."""
WORDS = ("precision", "framework", "recompute")
OPTIONS = ("traces", "notes", "mode", "approval")
FORM_FIELDS = (
    *("kind", "config", "model_config", "model.name", "model.vocab_size", "devices", "constraints", "labels"),
    *OPTIONS,
    *(f"cluster.{name}" for name in CLUSTER),
    *(f"training.{name}" for name in TRAINING),
    *(f"plan.{name}" for name in PLAN),
)
MAX_SHOWN = 60
"""Characters of what was given, in a message about it."""

router = APIRouter(route_class=PageRoute)


@router.get("/sessions/new")
def show(
    page: SubmitterPage,
    source: Annotated[
        str | None, Query(alias="from", max_length=64, description="a session to begin with")
    ] = None,
    example: bool = False,
) -> Response:
    values: FormFields = {}
    if source:  # its request, to be changed and submitted again; what has a field of its own stands there
        row = page.app.get(Sessions).get(page.caller, source, report=False)
        apart = ("mode",) if row.approval == "policy" else ("mode", "approval")
        request = {name: value for name, value in row.request.items() if name not in apart}
        if row.budget:
            request["budget"] = {**row.budget}
        text = json.dumps(request, indent=2, ensure_ascii=False)
        values = {"kind": SCENARIO, "config": text, "labels": labels_text(row.labels)}
        values |= {"mode": row.mode, "approval": row.approval}
    elif example:
        cluster = EXAMPLE["cluster"]
        values = {"kind": HUGGING_FACE, "config": json.dumps(EXAMPLE["model"], indent=2)}
        values["devices"] = f"{cluster['num_devices']} x {cluster['device']}"
        values["cluster.devices_per_node"] = str(cluster["devices_per_node"])
        for part in ("training", "plan"):
            for name, value in EXAMPLE[part].items():
                values[f"{part}.{name}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return _form(page, values)


@router.post("/sessions/new")
def submit(form: CheckedForm, page: SubmitterPage) -> Response:
    # The same form sent twice is one session; changed after Back, it is another.
    digest = hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()
    try:
        body = build(SessionCreate, read_form(form).body)
        row = page.app.get(Sessions).submit(page.caller, body, digest if form.get("key") else None)
    except (InputError, ConflictError) as error:
        return _form(page, form, error)
    return RedirectResponse(f"/sessions/{row.id}", 303)


class FilledField(BaseModel):
    """The value that a field takes if it is left empty, and where it comes from."""

    value: str
    source: str


class FormVerdict(BaseModel):
    """What is wrong with a form; or the size of the model, whether it fits and what was assumed."""

    ok: bool
    message: str
    model: str
    field: str | None = None
    too_large: bool = False
    filled: dict[str, FilledField] = {}


@router.post("/web/validate")
def validate(form: CheckedForm, page: SubmitterPage) -> FormVerdict:
    try:
        reading = read_form(form)
        body = build(SessionCreate, reading.body)
        page.app.get(Sessions).check(page.caller, body)
    except (InputError, ConflictError) as error:
        field, message = _problem(error)
        # The model's size while the rest of the form is still wrong; empty if the model is what is wrong.
        alone: FormFields = {"devices": "1 x h100", "plan.micro_batch_size": "1"}
        alone |= {name: form[name] for name in ("kind", "config", "preset", "model_config") if name in form}
        try:
            size = _size_of(_described(read_form(alone).body))
        except InputError:
            size = ""
        return FormVerdict(ok=False, field=field, message=message, model=size)
    scenario = _described(body.request)
    too_large, message = _summary(scenario)
    values = {f"cluster.{name}": getattr(scenario.cluster, name) for name in CLUSTER}
    values |= {f"training.{name}": getattr(scenario.training, name) for name in TRAINING}
    assumed = {*(f"training.{name}" for name in reading.assumed), *(f"cluster.{name}" for name in CLUSTER)}
    filled = {
        name: FilledField(value=str(value), source="assumed" if name in assumed else "from the file")
        for name, value in values.items()
        if not text_of(form, name)
    }
    return FormVerdict(ok=True, message=message, model=_size_of(scenario), too_large=too_large, filled=filled)


@dataclass(frozen=True)
class FormReading:
    """What a form says: the request, and what it left to the file or to an assumption."""

    body: SessionBody
    assumed: tuple[str, ...] = ()
    """Fields of `training` that nobody stated."""


def read_form(form: FormFields) -> FormReading:
    """Raises InputError for the first thing that no request could say; it names a field of the form."""
    kind, preset = form.get("kind", ""), text_of(form, "preset")
    if kind not in KINDS:
        raise InputError("kind", kind, f"allowed: {', '.join(filter(None, KINDS))}")
    text = text_of(form, "config")
    if text is None:
        if preset is None:
            rule = "choose a model, paste its configuration, or drop the file here"
            raise InputError("config", "nothing", rule)
        if preset not in preset_models():
            raise InputError("preset", preset, f"allowed: {', '.join(preset_models())}")
        text = json.dumps(preset_models()[preset])
    try:
        is_whole = kind == SCENARIO or (not kind and is_scenario(text))
        reading = FormReading(_whole(form, text)) if is_whole else _imported(form, text, kind or None)
    except InputError as error:
        raise error.at(form_field(error.path, FORM_FIELDS)) from None
    stated = {name: value for name in OPTIONS if (value := text_of(form, name))}
    constraints = {"constraints": _json(form, "constraints")} if text_of(form, "constraints") else {}
    labels = labels_of(form.get("labels", ""))
    return replace(reading, body={**reading.body, **stated, **constraints, "labels": labels})


def _whole(form: FormFields, text: str) -> SessionBody:
    """A whole scenario; what is stated beside it wins."""
    body, beside = parse_object(text.encode(), "config"), {"cluster": _part(form, "cluster", CLUSTER)}
    if stated := text_of(form, "devices"):
        words = parse_devices(stated, "devices")._asdict()
        beside["cluster"] |= {name: value for name, value in words.items() if value is not None}
    beside |= {"training": _part(form, "training", TRAINING), "plan": _part(form, "plan", PLAN)}
    for part, fields in beside.items():
        if fields:
            before = body.get(part)
            body[part] = {**(before if isinstance(before, dict) else {}), **fields}
    return body


def _imported(form: FormFields, text: str, kind: str | None) -> FormReading:
    """A model or a tool's file, with what is stated beside it."""
    if not (devices := text_of(form, "devices")):
        raise InputError("devices", "nothing", 'say what to train on, for example "64 x H100 SXM"')
    num_devices, device, per_node = parse_devices(devices, "devices")
    plan = _part(form, "plan", PLAN)
    options = ImportOptions(
        model=_json(form, "model_config") if text_of(form, "model_config") else None,
        device=device,
        num_devices=num_devices,
        micro_batch_size=plan.get("micro_batch_size"),
        vocab_size=_part(form, "model", ("vocab_size",)).get("vocab_size"),
        **{"devices_per_node": per_node, **_part(form, "cluster", CLUSTER)},
        **_part(form, "training", TRAINING),
    )
    start = start_scenario(text, kind, options)
    body: SessionBody = dict(start.imported.scenario)
    if name := text_of(form, "model.name"):
        body["model"] = {**body["model"], "name": name}
    if plan and "plan" not in body:
        plan = {**PLAN_DEFAULTS, **plan}
        others = math.prod(plan[name] for name in MODEL_AXES)
        plan.setdefault("dp", max(num_devices // others, 1) if others else 1)
    if plan:
        body["plan"] = {**body.get("plan", {}), **plan}
    return FormReading(body, tuple(start.assumed))


def _part(form: FormFields, part: str, names: tuple[str, ...]) -> SessionBody:
    """The fields that were filled in, each by its type."""
    fields: SessionBody = {}
    for name in names:
        path = f"{part}.{name}"
        if text := text_of(form, path):
            if name == "sequence_parallel":
                fields[name] = text == "true"
            else:
                fields[name] = text if name in WORDS else whole_number(path, re.sub("[,_ ]", "", text))
    return fields


def _json(form: FormFields, name: str) -> SessionBody:
    try:
        return parse_object(form[name].encode(), "")
    except InputError as error:
        raise InputError(name, error.given, f"{error.path.strip()}: {error.rule}") from None


def _described(request: SessionBody) -> Scenario:
    return parse_scenario({name: request[name] for name in PARTS if request.get(name)}, need_plan=False)


def _size_of(scenario: Scenario) -> str:
    count = count_parameters(scenario.model)
    return f"{scenario.model.name or 'The model'} has {size_of(count.total, count.active, ' parameters')}."


def _summary(scenario: Scenario) -> tuple[bool, str]:
    """Whether every plan is too large; in words also what today's plan takes. Nothing is searched."""
    workload = workload_of(scenario)
    search = Search(scenario, workload.constraints, workload.calibration)
    least_gib, usable = search.least_bytes() / GIB, f"of {gib(workload.limit_gib)} usable per device"
    too_large = workload.limit_gib < least_gib < float("inf")
    if too_large:
        message = f"Does not fit: every plan needs at least about {gib(least_gib)} {usable}."
    elif least_gib <= workload.limit_gib:
        message = f"Fits: plans begin at about {gib(least_gib)} {usable}."
    else:
        message = f"{scenario.training.framework} accepts no plan for these devices and this batch."
    if scenario.plan is None:
        return too_large, message
    prediction = predict([scenario])[0]
    unfit = "" if prediction.fits else ", which does not fit"
    cost = f"{seconds(prediction.step_time_s)} per step and {gib(prediction.peak_memory_gib)} per device"
    return too_large, f"{message} Today's plan is predicted to take {cost}{unfit}."


def _problem(error: InputError | ConflictError) -> tuple[str, str]:
    """The field of the form that an error is about, and what is wrong."""
    field = form_field(error.path or "config", FORM_FIELDS)
    if isinstance(error, ConflictError):
        return field, str(error)
    given = "" if error.given is None else f"got {str(error.given)[:MAX_SHOWN]}; "
    return field, f"{given}{error.rule}"


def _form(page: Page, values: FormFields, error: InputError | ConflictError | None = None) -> Response:
    return page(
        "new_session",
        422 if error else 200,
        values=values,
        wrong=_problem(error) if error else None,
        kinds=KINDS,
        presets=tuple(preset_models()),
        devices=device_names(),
        precisions=[precision for precision in PRECISIONS if precision != "tf32"],
        frameworks=framework_names(),
        recomputes=RECOMPUTES,
        plan_numbers=PLAN_NUMBERS,
        key=new_id(),
    )
