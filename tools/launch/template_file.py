"""Reads launch templates from TOML: `[[template]]` tables, every field checked, unknown ones refused.

[[template]]
name = "reference"
launcher = "local"
command = ["torchrun", "--nproc-per-node", "{nproc}", "train.py", "{scenario}", "--out", "{out}"]
limits = { wall_s = 600, devices = 4 }
"""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.errors import InputError
from tools.launch.command import RENDEZVOUS, check_command, placeholder_of
from tools.launch.environment import check_allowed_names, check_names, check_values
from tools.launch.template import KubernetesSettings, Limits, SlurmSettings, Template
from tools.scenario.fields import NOTHING, Record, build, get_object, refuse_unknown, shown

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_OPTION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:,&|*\[\]()-]*")
_LISTS = ("command", "environment_allowed", "environment_inherited")
_TABLES: dict[str, type[Record]] = {
    "limits": Limits,
    "slurm": SlurmSettings,
    "kubernetes": KubernetesSettings,
}


def read_templates(path: Path) -> dict[str, Template]:
    """By name; raises InputError for the first thing wrong in the file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError("launch templates", str(path), f"must be a readable TOML file: {error}") from None
    return parse_templates(content)


def parse_templates(content: dict[str, Any]) -> dict[str, Template]:
    refuse_unknown(content, {"template"}, "")
    tables = content.get("template", [])
    if not isinstance(tables, list):
        raise InputError("template", shown(tables), "must be [[template]] tables")
    templates: dict[str, Template] = {}
    for index, table in enumerate(tables):
        template = _parse(table, f"template[{index}]")
        if template.name in templates:
            raise InputError(f"template[{index}].name", template.name, "another template has this name")
        templates[template.name] = template
    return templates


def _parse(table: object, place: str) -> Template:
    given = dict(get_object(table, place))
    refuse_unknown(given, set(Template.model_fields), f"{place}.")
    for name in _LISTS:
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    for name, cls in _TABLES.items():
        if name in given:
            part = get_object(given[name], f"{place}.{name}")
            refuse_unknown(part, set(cls.model_fields), f"{place}.{name}.")
            given[name] = build(cls, part, f"{place}.{name}.")
    template = build(Template, given, f"{place}.")
    _check(template, place)
    return template


def _check(template: Template, place: str) -> None:
    if not _NAME.fullmatch(template.name):
        raise InputError(
            f"{place}.name", template.name, "must be lower-case letters, digits, '.', '_' or '-'"
        )
    check_command(template.command, f"{place}.command")
    check_values(template.environment, f"{place}.environment")
    for field in ("environment_allowed", "environment_inherited"):
        check_names(getattr(template, field), f"{place}.{field}")
    check_allowed_names(template.environment_allowed, f"{place}.environment_allowed")
    _check_workdir(template, place)
    _CHECKS[template.launcher](template, place)


def _check_workdir(template: Template, place: str) -> None:
    if template.workdir is not None and not Path(template.workdir).is_absolute():
        raise InputError(f"{place}.workdir", template.workdir, "must be an absolute path")


def _refuse(template: Template, place: str, *fields: str) -> None:
    for field in fields:
        value = getattr(template, field)
        if value:
            allowed = f"has no meaning for the launcher {template.launcher}; leave it out"
            raise InputError(f"{place}.{field}", shown(value), allowed)


def _check_local(template: Template, place: str) -> None:
    _refuse(template, place, "image", "slurm", "kubernetes")
    if template.limits.nodes > 1:
        raise InputError(
            f"{place}.limits.nodes", template.limits.nodes, "a local job has one node; must be 1"
        )


def _check_slurm(template: Template, place: str) -> None:
    _refuse(template, place, "image", "kubernetes", "environment_inherited")
    options = template.slurm.model_dump() if template.slurm else {}
    for name, value in options.items():
        if isinstance(value, str) and not _OPTION.fullmatch(value):
            raise InputError(f"{place}.slurm.{name}", value, f"must be a name as sbatch's --{name} takes it")


def _check_kubernetes(template: Template, place: str) -> None:
    _refuse(template, place, "slurm", "environment_inherited", "workdir")
    if template.kubernetes is None:
        raise InputError(f"{place}.kubernetes", NOTHING, "must have at least a namespace and a claim")
    if not template.image:
        raise InputError(f"{place}.image", NOTHING, "must name the container image to run")
    if not template.kubernetes.mount_path.startswith("/"):
        path = template.kubernetes.mount_path
        raise InputError(f"{place}.kubernetes.mount_path", path, "must be an absolute path")
    reserved = [name for name in template.environment if name.startswith("PET_")]
    if reserved:
        raise InputError(
            f"{place}.environment", reserved[0], "the torch runtime sets it itself; leave it out"
        )
    if RENDEZVOUS in map(placeholder_of, template.command):
        allowed = "a TrainJob gives torchrun its meeting point as PET_MASTER_ADDR; leave it out"
        raise InputError(f"{place}.command", f"{{{RENDEZVOUS}}}", allowed)


_CHECKS: dict[str, Callable[[Template, str], None]] = {
    "local": _check_local,
    "slurm": _check_slurm,
    "kubernetes": _check_kubernetes,
}
