"""What an administrator registers: which command may run, where, and within which limits.

A request chooses a template by name and fills its fixed placeholders. It brings no command, no image and no
variable that the template does not name. Reading the file: `template_file`.
"""

from typing import Annotated, Literal

from pydantic import Field

from tools.scenario.fields import Record

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
