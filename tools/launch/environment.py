"""Environment variables of a job: which names a template may let a request set."""

import re
from collections.abc import Iterable, Mapping

from tools.errors import InputError
from tools.scenario.names import did_you_mean

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_VALUE_LENGTH = 4096
# Each of these makes a program load or run a file of the value's choosing.
_LOADS_CODE = re.compile(
    r"PATH|HOME|ENV|IFS|SHELL|PS4|PROMPT_COMMAND|LD_\w+|DYLD_\w+|PYTHON\w+|BASH_\w+|PERL\w+|RUBY\w+|NODE_OPTIONS"
    r"|GCONV_PATH|OPENSSL_CONF|\w*INJECTION\w*|\w*PRELOAD\w*|\w*PLUGIN\w*|\w*_LIBRARY(_PATH)?|CC|CXX|CUDA_HOME|TRITON_\w+|TORCHINDUCTOR_\w+|PET_\w+"
    r"|SLURM_\w+|SBATCH_\w+|SRUN_\w+|ASAP_\w+",
    re.IGNORECASE,
)


def check_names(names: Iterable[str], field: str) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise InputError(field, name, "must be names of environment variables")


def check_allowed_names(names: Iterable[str], field: str) -> None:
    """Of an allow-list: a request that may set `LD_PRELOAD` may run any code."""
    for name in names:
        if _LOADS_CODE.fullmatch(name):
            allowed = "a request cannot be allowed to set it, because it decides what code runs; "
            raise InputError(field, name, allowed + "set it in the template's environment instead")


def check_values(given: Mapping[str, object], field: str) -> None:
    check_names(given, field)
    for name, value in given.items():
        if not isinstance(value, str) or "\0" in value or len(value) > _VALUE_LENGTH:
            allowed = f"must be a text of at most {_VALUE_LENGTH} characters without zero bytes"
            raise InputError(f"{field}.{name}", value, allowed)


def check_request(given: Mapping[str, object], allowed: Iterable[str], field: str) -> None:
    known = tuple(allowed)
    for name in given:
        if name not in known:
            reason = did_you_mean(name, known) if known else "the template allows none"
            raise InputError(f"{field}.{str(name)[:60]}", given[name], reason)
    check_values(given, field)
