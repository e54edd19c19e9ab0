"""The links that a collective uses, counted once for diagnosis and calibration, and which of them is slow.

Bus bandwidth is that of nccl-tests (doc/PERFORMANCE.md). A group that leaves its scale-up domain sends
through the network cards of all its members side by side; an exchange sends each member's bytes through its
own card.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tools.hardware import Device
from tools.physics.encode import scenario_device
from tools.scenario.limits import scale_up_size
from tools.scenario.spec import ClusterSpec

LinkLevel = Literal["fast links", "card", "rail", "node", "node pair", "switch", "network"]
INSIDE_SHARE = 0.8
"""A ring inside a domain reaches this share of its links: 235 of 300 GB/s on A100, 365.6 of 450 on H200
(Bekman, Machine Learning Engineering@744d01e1, network/README.md)."""
ACROSS_SHARE = {2: 0.82, 4: 0.83, 8: 0.73, 16: 0.66, 32: 0.66}
"""By domains, of the cards: all_gather_perf of 2 GiB on p5.48xlarge, 328.58 to 262.77 of 400 GB/s
(crazyguitar/aws-gpu-communication-benchmark@fd167f97, data/nccl_all_gather.csv)."""
RAIL_SHARE = 0.85
"""One device per domain reaches this share of a card (NVIDIA/nccl-tests issue 232)."""
EXCHANGE_SHARE = 0.82
"""An all-to-all reaches this share of a card: alltoall_perf of the same benchmark, 16 to 256 ranks."""
HALF_RATE_BYTES = 3e6
"""A ring reaches half of a card's rate at this size: 18.5 of 50 GB/s at 2 MiB, 36 at 8 (issue 232)."""
EXCHANGE_HALF_RATE_BYTES = 0.3e6
"""The same for what an exchange sends to one peer (nccl_alltoall.csv, 32 MiB against 2 GiB)."""


class Placement(NamedTuple):
    """How a group lies over the scale-up domains."""

    size: int
    domains: int
    inside: int
    """Members in the fullest domain."""

    def card_share(self, kind: str, is_flat: bool = False) -> float:
        """Bytes through one network card over the bytes on the bus; 0 inside a domain.

        A hierarchical ring sends (d-1)/d of the message between d domains, a flat one (n-1)/n (as
        `tools.physics.collectives` does), in both cases over the cards of all members of a domain.
        """
        if self.domains < 2:
            return 0.0
        if kind == "all_to_all":
            return (self.size - self.inside) / (self.size - 1)
        ring = self.size if is_flat else self.domains
        return (ring - 1) / ring * self.size / (self.size - 1) / self.inside


def place_ranks(ranks: Sequence[int], group_size: int, domain: int) -> Placement:
    """By the ranks that are known, or by the group's size if they are fewer."""
    if len(ranks) < group_size:
        domains = -(-group_size // domain)
        return Placement(group_size, domains, -(-group_size // domains))
    counts = np.unique([rank // domain for rank in ranks], return_counts=True)[1]
    return Placement(group_size, len(counts), int(counts.max()))


def device_of(cluster: ClusterSpec) -> Device:
    """The cluster's device with the cluster's own links and nodes."""
    device = scenario_device(cluster)
    joined = scale_up_size(cluster, device)
    nodes = {"devices_per_node": cluster.devices_per_node, "fast_domain_devices": joined}
    return device.model_copy(update=nodes)


def domain_of(device: Device) -> int:
    return max(device.devices_per_node, device.fast_domain_devices)


def bus_factor(kind: str, group_size: int) -> float:
    """Bytes on the busiest link over the message's bytes (nccl-tests, PERFORMANCE.md)."""
    if kind == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (group_size - 1) / group_size
    return 1.0


def bus_limit_bytes_per_s(device: Device, kind: str, place: Placement) -> float:
    """What the catalogue's links allow on the bus."""
    share = place.card_share(kind, device.collectives.is_flat)
    card = device.inter_node_bytes_per_s / share if share else np.inf
    return float(min(device.intra_node_bytes_per_s, card))


def usual_s(device: Device, kind: str, place: Placement, size_bytes: float) -> float:
    """How long nccl-tests publish that such a collective takes on such links."""
    bus_bytes, passes = size_bytes * bus_factor(kind, place.size), 2 if kind == "all_reduce" else 1
    hops_s = (place.size - place.domains) * device.intra_node_latency_s
    latency_s = passes * (hops_s + (place.domains - 1) * device.inter_node_latency_s)
    fast_s = bus_bytes / (INSIDE_SHARE * device.intra_node_bytes_per_s)
    if place.domains < 2:
        return fast_s + latency_s
    card = device.inter_node_bytes_per_s
    if kind == "all_to_all":
        sent_bytes = size_bytes * (place.size - place.inside) / place.size
        held_back = EXCHANGE_HALF_RATE_BYTES * (place.size - place.inside)
        slow_s = (sent_bytes + held_back) / (EXCHANGE_SHARE * card)
        return max(fast_s, slow_s) + device.inter_node_latency_s
    share = float(np.interp(place.domains, [*ACROSS_SHARE], [*ACROSS_SHARE.values()]))
    share = RAIL_SHARE if place.inside == 1 else share
    slow_s = (bus_bytes / place.inside + HALF_RATE_BYTES) / (share * card)
    return max(fast_s, slow_s) + latency_s


@dataclass(frozen=True)
class SlowGroup:
    """A group whose transfers take longer than its links allow."""

    ranks: tuple[int, ...]
    place: Placement
    is_slow: bool


@dataclass(frozen=True)
class LinkPlace:
    """The smallest part of the network that all slow groups share."""

    level: LinkLevel
    ranks: list[int]
    """Empty: all alike."""
    name: str


def locate(groups: Sequence[SlowGroup], domain: int) -> LinkPlace:
    """Families of groups cut the job in different directions: what is slow lies where the slow ones of each
    family meet. A family without a slow group says nothing of its ranks, unless its messages cross less; nor
    does one say more if only slow groups of its shape were profiled."""
    slow = [group for group in groups if group.is_slow]
    everyone = {rank for group in groups for rank in group.ranks}
    if all(group.place.domains < 2 for group in slow):
        ranks = sorted({rank for group in slow for rank in group.ranks})
        ranks = [] if set(ranks) == everyone else ranks
        return LinkPlace("fast links", ranks, f"the links inside the node{_listed(ranks)}")
    # A group whose one kind of collective is slow is slow.
    of_slow = {group.ranks for group in slow}
    across = {group.ranks: group.place for group in groups if group.place.domains > 1}
    fast_places = {place for members, place in across.items() if members not in of_slow}
    families: dict[tuple[Placement, int], set[int]] = defaultdict(set)
    for members in of_slow & across.keys():
        stride = members[1] - members[0] if len(members) > 1 else 0
        families[across[members], stride].update(members if across[members] in fast_places else everyone)
    meeting = set.intersection(*families.values()) or min(families.values(), key=len)
    if meeting == everyone:
        if fast_places:
            return LinkPlace(
                "switch", [], "a switch above the nodes: groups of nearer nodes are as fast as usual"
            )
        return LinkPlace("network", [], "the network between the nodes: these groups do not tell which part")
    ranks = sorted(meeting)
    nodes, cards = sorted({rank // domain for rank in ranks}), {rank % domain for rank in ranks}
    if len(ranks) == 1:
        return LinkPlace("card", ranks, f"the network card of rank {ranks[0]} on node {nodes[0]}")
    if len(cards) == 1:
        return LinkPlace("rail", ranks, f"rail {cards.pop()}{_listed(ranks)}: one of its cards or its switch")
    if len(nodes) == 1:
        return LinkPlace("node", ranks, f"the network cards of node {nodes[0]}{_listed(ranks)}")
    if len(nodes) == 2:
        return LinkPlace("node pair", ranks, f"nodes {nodes[0]} and {nodes[1]}{_listed(ranks)}")
    return LinkPlace("network", ranks, f"the network of nodes {', '.join(map(str, nodes))}")


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f", ranks {shown}" if ranks else ""
