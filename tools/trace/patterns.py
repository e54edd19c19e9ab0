"""Which names are communication, of which kind, and which are data loading, from the lists in
kb_seed/patterns/communication.json.

The stream and the process group of a kernel decide as well; that is in `classify.py`.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

import msgspec

from kb_seed import folder
from tools.errors import DataError, InputError


class _PatternFile(msgspec.Struct):
    device_kernels: list[str]
    user_kernels: list[str]
    suspect_kernels: list[str]
    host_spans: list[str]
    data_loading: list[str]
    compute_kernels: list[str]
    matrix_kernels: list[str]
    kinds: list[tuple[str, str]]


@dataclass(frozen=True)
class CommunicationPatterns:
    """Compiled patterns; every lookup is by one name."""

    device_kernel: re.Pattern[str]
    suspect_kernel: re.Pattern[str]
    """May communicate, perhaps among computing: counted as compute, and said so."""
    host_span: re.Pattern[str]
    data_loading: re.Pattern[str]
    compute_kernel: re.Pattern[str]
    matrix_kernel: re.Pattern[str]
    """Matrix products, convolutions, attention: what a compute-bound step should consist of."""
    kinds: tuple[tuple[str, re.Pattern[str]], ...]

    def find_kind(self, name: str) -> str:
        """`all_reduce`, `all_gather`, ...; `other` when the name does not tell."""
        return next((kind for kind, pattern in self.kinds if pattern.search(name)), "other")


@cache
def load_patterns() -> CommunicationPatterns:
    """The patterns shipped with ASAP."""
    source = folder("patterns").joinpath("communication.json")
    try:
        data = msgspec.json.decode(source.read_bytes(), type=_PatternFile)
        return _compile(data)
    except (OSError, msgspec.DecodeError, re.error) as error:
        raise DataError(f"kb_seed/patterns/communication.json: {error}") from error


def _compile(data: _PatternFile) -> CommunicationPatterns:
    """One pattern per list."""
    return CommunicationPatterns(
        device_kernel=_any_of(data.device_kernels + data.user_kernels),
        suspect_kernel=_any_of(data.suspect_kernels),
        host_span=_any_of(data.host_spans),
        data_loading=_any_of(data.data_loading),
        compute_kernel=_any_of(data.compute_kernels),
        matrix_kernel=_any_of(data.matrix_kernels),
        kinds=tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in data.kinds),
    )


def with_user_kernels(patterns: CommunicationPatterns, more: list[str]) -> CommunicationPatterns:
    """The same patterns with further device kernels of the user's own."""
    try:
        return replace(patterns, device_kernel=_any_of([patterns.device_kernel.pattern, *more]))
    except re.error as error:
        raise InputError("communication pattern", more, f"must be regular expressions ({error})") from error


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)", re.IGNORECASE)
