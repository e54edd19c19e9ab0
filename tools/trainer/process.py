"""Joining the other ranks: device, process group, and what each rank says about itself."""

import platform
import socket
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore

from tools.errors import InputError
from tools.hardware import get_device
from tools.scenario import Scenario


@dataclass(frozen=True)
class RankFacts:
    """What a comparison of two runs must know of each rank."""

    host: str
    device: str
    python: str
    torch: str
    backend: str


def choose_device(scenario: Scenario) -> torch.device:
    """By the scenario, not by what is found: a plan for GPUs must not be timed on a CPU unnoticed."""
    name, precision = scenario.cluster.device, scenario.training.precision
    if get_device(name).vendor == "cpu":
        if precision != "fp32":
            raise InputError("training.precision", precision, "on a CPU the trainer runs fp32 only")
        torch.set_num_threads(1)
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("cluster.device", name, "this machine has no GPU that PyTorch can use; give cpu")
    device = torch.device("cuda", dist.get_node_local_rank(fallback_rank=0))
    torch.cuda.set_device(device)
    return device


def join(scenario: Scenario, device: torch.device) -> None:
    """The process group of torchrun, or of this process alone for one device."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if scenario.cluster.num_devices == 1 and not dist.is_torchelastic_launched():
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    else:
        _join_others(backend, scenario.cluster.num_devices)
    world, wanted = dist.get_world_size(), scenario.cluster.num_devices
    if world != wanted:
        dist.destroy_process_group()
        raise InputError("cluster.num_devices", wanted, f"{world} ranks were started; start as many ranks")


def _join_others(backend: str, wanted: int) -> None:
    try:
        dist.init_process_group(backend)
    except ValueError as error:  # the variables that torchrun sets are not there
        allowed = f"start as many ranks with torchrun ({error})"
        raise InputError("cluster.num_devices", wanted, allowed) from None


def rank_facts(device: torch.device) -> RankFacts:
    on_gpu = device.type == "cuda"
    return RankFacts(
        host=socket.gethostname(),
        device=torch.cuda.get_device_name(device) if on_gpu else _processor(),
        python=platform.python_version(),
        torch=torch.__version__,
        backend=dist.get_backend(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
