"""Launch templates that an administrator registers in TOML: command, placeholders, environment, limits.

A request chooses a template by name and fills fixed placeholders with whole words; it brings no command
of its own.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tools.errors import InputError
from tools.names import did_you_mean
from tools.scenario.fields import NOTHING, FromList, JsonObject, StrictModel, build, shown

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
_MEANINGLESS = {
    "local": ("image", "slurm", "kubernetes"),
    "slurm": ("image", "kubernetes", "environment_inherited"),
    "kubernetes": ("slurm", "environment_inherited", "workdir"),
}
"""Fields that a template of each launcher must leave out."""
LauncherName = Literal["local", "slurm", "kubernetes"]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
ShortText = Annotated[str, Field(max_length=253)]
Words = Annotated[tuple[str, ...], FromList]


class JobLimits(StrictModel):
    """The most a job may take; the engine ends a job at `wall_s` (Slurm in whole minutes, rounded up)."""

    wall_s: Annotated[int, Field(ge=1, le=2_592_000)]
    devices: Count = 1
    nodes: Count = 1


class SlurmSettings(StrictModel):
    """Options of sbatch; None leaves the choice to the cluster."""

    partition: ShortText | None = None
    account: ShortText | None = None
    qos: ShortText | None = None
    reservation: ShortText | None = None
    constraint: ShortText | None = None
    gres: ShortText | None = None
    """The devices' name, `gpu` or `gpu:h100`: a job asks for `nproc` of it on each node."""
    cpus_per_node: Count | None = None
    memory_mib_per_node: Count | None = None
    exclusive: bool = False


class KubernetesSettings(StrictModel):
    """Where TrainJobs go. Queues, gangs and network come with the runtime (JobSet, Volcano, Kueue)."""

    namespace: ShortText
    claim: ShortText
    """A volume claim that the service mounts at its folder for jobs: inputs and results pass there."""
    mount_path: ShortText = "/asap"
    runtime: ShortText = "torch-distributed"
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"
    device_resource: ShortText | None = None
    """`nvidia.com/gpu` or the like: a job asks for `nproc` of it on each node."""
    cpu: ShortText | None = None
    memory: ShortText | None = None


class Template(StrictModel):
    """One registered way to run a job."""

    name: ShortText
    launcher: LauncherName
    command: Words
    limits: JobLimits
    description: Annotated[str, Field(max_length=1000)] = ""
    image: Annotated[str, Field(max_length=500)] | None = None
    workdir: Annotated[str, Field(max_length=4096)] | None = None
    """Where the command runs; None is the job's own folder."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Set for every job, whatever the request says."""
    environment_allowed: Words = ()
    """What a request may set."""
    environment_inherited: Words = ()
    """What a local job takes over from the service."""
    slurm: SlurmSettings | None = None
    kubernetes: KubernetesSettings | None = None


class _TemplateFile(StrictModel):
    template: Annotated[tuple[Template, ...], FromList] = ()


def read_templates(path: Path) -> dict[str, Template]:
    """By name; raises InputError for the first thing wrong in the file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError("launch templates", str(path), f"must be a readable TOML file: {error}") from None
    return parse_templates(content)


def parse_templates(content: JsonObject) -> dict[str, Template]:
    templates: dict[str, Template] = {}
    for index, template in enumerate(build(_TemplateFile, content).template):
        place = f"template[{index}]"
        _check(template, place)
        if template.name in templates:
            raise InputError(f"{place}.name", template.name, "another template has this name")
        templates[template.name] = template
    return templates


def _check(template: Template, place: str) -> None:
    """What the types alone do not say."""
    if not _TEMPLATE_NAME.fullmatch(template.name):
        allowed = "must be lower-case letters, digits, '.', '_' or '-'"
        raise InputError(f"{place}.name", template.name, allowed)
    check_command(template.command, f"{place}.command")
    _check_environment(template.environment, f"{place}.environment")
    for field in ("environment_allowed", "environment_inherited"):
        _check_names(getattr(template, field), f"{place}.{field}")
    for name in template.environment_allowed:
        if _LOADS_CODE.fullmatch(name):  # a request that may set `LD_PRELOAD` may run any code
            allowed = "a request cannot be allowed to set it, because it decides what code runs; "
            allowed += "set it in the template's environment instead"
            raise InputError(f"{place}.environment_allowed", name, allowed)
    if template.workdir is not None and not Path(template.workdir).is_absolute():
        raise InputError(f"{place}.workdir", template.workdir, "must be an absolute path")
    for field in _MEANINGLESS[template.launcher]:
        if value := getattr(template, field):
            allowed = f"has no meaning for the launcher {template.launcher}; leave it out"
            raise InputError(f"{place}.{field}", shown(value), allowed)
    if template.launcher == "local" and template.limits.nodes > 1:
        allowed = "a local job has one node; must be 1"
        raise InputError(f"{place}.limits.nodes", template.limits.nodes, allowed)
    for name, value in template.slurm or ():
        if isinstance(value, str) and not _OPTION.fullmatch(value):
            raise InputError(f"{place}.slurm.{name}", value, f"must be a name as sbatch's --{name} takes it")
    if template.launcher == "kubernetes":
        _check_kubernetes(template, place)


def _check_kubernetes(template: Template, place: str) -> None:
    if template.kubernetes is None:
        raise InputError(f"{place}.kubernetes", NOTHING, "must have at least a namespace and a claim")
    if not template.image:
        raise InputError(f"{place}.image", NOTHING, "must name the container image to run")
    if not (path := template.kubernetes.mount_path).startswith("/"):
        raise InputError(f"{place}.kubernetes.mount_path", path, "must be an absolute path")
    if reserved := [name for name in template.environment if name.startswith("PET_")]:
        allowed = "the torch runtime sets it itself; leave it out"
        raise InputError(f"{place}.environment", reserved[0], allowed)
    if RENDEZVOUS in map(placeholder_of, template.command):
        allowed = "a TrainJob gives torchrun its meeting point as PET_MASTER_ADDR; leave it out"
        raise InputError(f"{place}.command", f"{{{RENDEZVOUS}}}", allowed)


def placeholder_of(word: str) -> str | None:
    """The name, if the word is nothing but a placeholder."""
    match = _WHOLE.fullmatch(word)
    return match[1] if match else None


def check_command(command: Sequence[str], field: str) -> None:
    """Raises InputError for an empty command, an unknown placeholder or one inside a longer word."""
    if not command or not command[0] or placeholder_of(command[0]):
        raise InputError(field, list(command)[:1], "must begin with the program to run")
    for word in command:
        if "\0" in word:
            raise InputError(field, word, "a word of a command cannot contain a zero byte")
        name, inside = placeholder_of(word), _WHOLE.search(word)
        if name is not None and name not in PLACEHOLDERS:
            raise InputError(field, word, f"unknown placeholder, {did_you_mean(name, PLACEHOLDERS)}")
        if name is None and inside:
            raise InputError(field, word, f"the placeholder {inside[0]} must be a word of its own")


def fill(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The words to run; raises InputError if the job has no value for a placeholder."""
    names = {word: name for word in command if (name := placeholder_of(word)) is not None}
    for name in names.values():
        if name not in values:
            raise InputError(name, None, f"the template's command needs a {name}: {PLACEHOLDERS[name]}")
    return [values[names[word]] if word in names else word for word in command]


def check_request(environment: Mapping[str, str], allowed: Sequence[str], field: str) -> None:
    """A request sets only the variables that its template allows."""
    for name in environment:
        if name not in allowed:
            reason = did_you_mean(name, allowed) if allowed else "the template allows none"
            raise InputError(f"{field}.{name[:60]}", environment[name], reason)
    _check_environment(environment, field)


def _check_environment(environment: Mapping[str, str], field: str) -> None:
    _check_names(environment, field)
    for name, value in environment.items():
        if "\0" in value or len(value) > _VALUE_LENGTH:
            allowed = f"must be a text of at most {_VALUE_LENGTH} characters without zero bytes"
            raise InputError(f"{field}.{name}", value, allowed)


def _check_names(names: Iterable[str], field: str) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise InputError(field, name, "must be names of environment variables")
