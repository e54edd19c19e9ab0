"""What stands beside the events: rank, world size, process groups, device name."""

import re
from typing import Any

from tools.trace.record import DistributedInfo

_MAX_RANK = 10_000_000
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBER_IN_NAME = re.compile(r"(?:^|[._-])(\d{1,7})(?=[._-]|$)")


def read_distributed_info(metadata: dict[str, Any]) -> DistributedInfo:
    """From `distributedInfo`; strange values count as absent."""
    info = metadata.get("distributedInfo")
    if not isinstance(info, dict):
        return DistributedInfo()
    groups, descriptions = _read_groups(info.get("pg_config"))
    return DistributedInfo(
        rank=_small_number(info.get("rank")),
        world_size=_small_number(info.get("world_size")),
        groups=groups,
        group_descriptions=descriptions,
    )


def _read_groups(config: object) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    groups: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    for group in config if isinstance(config, list) else []:
        if not isinstance(group, dict) or not isinstance(group.get("pg_name"), str):
            continue
        ranks = group.get("ranks")
        if isinstance(ranks, list) and ranks and all(_small_number(one) is not None for one in ranks):
            groups[group["pg_name"]] = tuple(ranks)
        descriptions[group["pg_name"]] = str(group.get("pg_desc", ""))
    return groups, descriptions


def find_device_name(metadata: dict[str, Any]) -> str | None:
    """The first accelerator's name."""
    properties = metadata.get("deviceProperties")
    if isinstance(properties, list) and properties and isinstance(properties[0], dict):
        name = properties[0].get("name")
        return name if isinstance(name, str) and name else None
    return None


def find_rank_in_name(file_name: str) -> int | None:
    """`rank12`, `rank_12`, else the only number of the name (`trace.12.json`)."""
    match = _RANK_IN_NAME.search(file_name)
    if match:
        return int(match.group(1))
    numbers = _NUMBER_IN_NAME.findall(file_name)
    return int(numbers[0]) if len(numbers) == 1 else None


def _small_number(value: object) -> int | None:
    """Booleans and absurd numbers are no ranks."""
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_RANK else None
    )
