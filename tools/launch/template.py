"""Launch templates that an administrator registers in TOML: command, placeholders, environment, limits.

A request chooses a template by name and fills fixed placeholders with whole words; it brings no command
of its own.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tools.errors import InputError
from tools.names import did_you_mean
from tools.scenario.fields import NOTHING, build, get_object, refuse_unknown, shown
from tools.scenario.model import Record

RENDEZVOUS = "rendezvous"
PLACEHOLDERS = {
    "scenario": "path of the scenario, as JSON",
    "config": "path of the exported plan in the framework's own format",
    "out": "folder for results",
    "steps": "measured steps",
    "warmup": "steps before them",
    "profile_steps": "profiled steps after them",
    "seed": "of weights and data",
    "nnodes": "nodes",
    "nproc": "processes on each node",
    "key": "the trial's key, for --rdzv-id",
    RENDEZVOUS: "host:port where torchrun's nodes meet",
}
_WHOLE = re.compile(r"\{([A-Za-z_]\w*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_VALUE_LENGTH = 4096
# Each of these makes a program load or run a file of the value's choosing.
_LOADS_CODE = re.compile(
    r"PATH|HOME|ENV|IFS|SHELL|PS4|PROMPT_COMMAND|LD_\w+|DYLD_\w+|PYTHON\w+|BASH_\w+|PERL\w+|RUBY\w+|NODE_OPTIONS"
    r"|GCONV_PATH|OPENSSL_CONF|\w*INJECTION\w*|\w*PRELOAD\w*|\w*PLUGIN\w*|\w*_LIBRARY(_PATH)?|CC|CXX|CUDA_HOME|TRITON_\w+|TORCHINDUCTOR_\w+|PET_\w+"
    r"|SLURM_\w+|SBATCH_\w+|SRUN_\w+|ASAP_\w+",
    re.IGNORECASE,
)
_TEMPLATE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_OPTION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:,&|*\[\]()-]*")
_LISTS = ("command", "environment_allowed", "environment_inherited")
TomlTable = dict[str, Any]
LauncherName = Literal["local", "slurm", "kubernetes"]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Word = Annotated[str, Field(max_length=253)]


class Limits(Record):
    """The most a job may take; the engine ends a job at `wall_s` (Slurm in whole minutes, rounded up)."""

    wall_s: Annotated[int, Field(ge=1, le=2_592_000)]
    devices: Count = 1
    nodes: Count = 1


class SlurmSettings(Record):
    """Options of sbatch; None leaves the choice to the cluster."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    reservation: Word | None = None
    constraint: Word | None = None
    gres: Word | None = None
    """The devices' name, `gpu` or `gpu:h100`: a job asks for `nproc` of it on each node."""
    cpus_per_node: Count | None = None
    memory_mib_per_node: Count | None = None
    exclusive: bool = False


class KubernetesSettings(Record):
    """Where TrainJobs go. Queues, gangs and network come with the runtime (JobSet, Volcano, Kueue)."""

    namespace: Word
    claim: Word
    """A volume claim that the service mounts at its folder for jobs: inputs and results pass there."""
    mount_path: Word = "/asap"
    runtime: Word = "torch-distributed"
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"
    device_resource: Word | None = None
    """`nvidia.com/gpu` or the like: a job asks for `nproc` of it on each node."""
    cpu: Word | None = None
    memory: Word | None = None


class Template(Record):
    """One registered way to run a job."""

    name: Word
    launcher: LauncherName
    command: tuple[str, ...]
    limits: Limits
    description: Annotated[str, Field(max_length=1000)] = ""
    image: Annotated[str, Field(max_length=500)] | None = None
    workdir: Annotated[str, Field(max_length=4096)] | None = None
    """Where the command runs; None is the job's own folder."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Set for every job, whatever the request says."""
    environment_allowed: tuple[str, ...] = ()
    """What a request may set."""
    environment_inherited: tuple[str, ...] = ()
    """What a local job takes over from the service."""
    slurm: SlurmSettings | None = None
    kubernetes: KubernetesSettings | None = None


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


def parse_templates(content: TomlTable) -> dict[str, Template]:
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
    fields = get_object(table, place)
    refuse_unknown(fields, set(Template.model_fields), f"{place}.")
    tuples = {name: tuple(value) for name in _LISTS if isinstance(value := fields.get(name), list)}
    parts = {}
    for name, cls in _TABLES.items():
        if name in fields:
            part = get_object(fields[name], f"{place}.{name}")
            refuse_unknown(part, set(cls.model_fields), f"{place}.{name}.")
            parts[name] = build(cls, part, f"{place}.{name}.")
    template = build(Template, {**fields, **tuples, **parts}, f"{place}.")
    _check(template, place)
    return template


def _check(template: Template, place: str) -> None:
    if not _TEMPLATE_NAME.fullmatch(template.name):
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


def placeholder_of(word: str) -> str | None:
    """The name, if the word is nothing but a placeholder."""
    match = _WHOLE.fullmatch(word)
    return match[1] if match else None


def check_command(command: Sequence[str], field: str) -> None:
    """Raises InputError for an empty command, an unknown placeholder or one inside a longer word."""
    if not command or not command[0] or placeholder_of(command[0]):
        raise InputError(field, list(command)[:1], "must begin with the program to run")
    for word in command:
        _check_word(word, field)


def _check_word(word: str, field: str) -> None:
    if "\0" in word:
        raise InputError(field, word, "a word of a command cannot contain a zero byte")
    name = placeholder_of(word)
    if name is not None and name not in PLACEHOLDERS:
        raise InputError(field, word, f"unknown placeholder, {did_you_mean(name, PLACEHOLDERS)}")
    inside = _WHOLE.search(word)
    if name is None and inside:
        raise InputError(field, word, f"the placeholder {inside[0]} must be a word of its own")


def fill(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The words to run; raises InputError if the job has no value for a placeholder."""
    return [_fill_word(word, values) for word in command]


def _fill_word(word: str, values: Mapping[str, str]) -> str:
    name = placeholder_of(word)
    if name is None:
        return word
    if name not in values:
        raise InputError(name, None, f"the template's command needs a {name}: {PLACEHOLDERS[name]}")
    return values[name]


def check_names(names: Iterable[str], field: str) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise InputError(field, name, "must be names of environment variables")


def check_allowed_names(names: Iterable[str], field: str) -> None:
    """Checks an allow-list: a request that may set `LD_PRELOAD` may run any code."""
    for name in names:
        if _LOADS_CODE.fullmatch(name):
            allowed = "a request cannot be allowed to set it, because it decides what code runs; "
            raise InputError(field, name, allowed + "set it in the template's environment instead")


def check_values(environment: Mapping[str, object], field: str) -> None:
    check_names(environment, field)
    for name, value in environment.items():
        if not isinstance(value, str) or "\0" in value or len(value) > _VALUE_LENGTH:
            allowed = f"must be a text of at most {_VALUE_LENGTH} characters without zero bytes"
            raise InputError(f"{field}.{name}", value, allowed)


def check_request(environment: Mapping[str, object], allowed: Iterable[str], field: str) -> None:
    known = tuple(allowed)
    for name in environment:
        if name not in known:
            reason = did_you_mean(name, known) if known else "the template allows none"
            raise InputError(f"{field}.{str(name)[:60]}", environment[name], reason)
    check_values(environment, field)
