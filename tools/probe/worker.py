"""What runs on every rank of a probe; rank 0 writes `probe.json`.

torchrun --nproc-per-node 8 -m tools.probe.worker SETTINGS.json --out DIR

Products, copies and launches of each rank by itself, so that a slow one shows; collectives of all groups of a
kind at once, as in training; point-to-point messages between neighbours of a node and between all pairs of
nodes, in rounds in which every node meets one other (the circle method of round-robin tournaments).
"""

import json
import socket
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist

from tools.probe.measured import KINDS, RESULT, Collective, Link, Probe, ProbeSettings, Product, RankFacts

SHARES = {"products": 0.35, "collectives": 0.35, "links": 0.2}
"""Shares of the probe's time; copies and launches take the rest."""
MIN_REPEATS, MAX_REPEATS = 5, 50
SMALL_BYTES, FIRST_BYTES, GROWTH = 1024, 4096, 16
LINK_S = 0.5
"""A message must take this long before its rate is believed: start-up and bursts are over by then."""
MAX_ROUNDS = 63
"""Rounds of pairs of nodes: all pairs up to 64 nodes."""
IDLE_S = 1.0
"""How long a node is watched before anything is measured."""
BUSY_CPU, BUSY_GPU, BUSY_MEMORY = 0.2, 0.05, 0.1
"""Shares of a node's cores, of a GPU's time and of its memory in use: above, the node is not idle."""
LAUNCHES = 2000
WINDOWS = 5
"""Times at which a rank's products are measured: a rank is slow only if it is at all of them."""
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class _Rank:
    """This rank, its device and its groups."""

    def __init__(self) -> None:
        on_gpu = torch.cuda.is_available()
        dist.init_process_group("nccl" if on_gpu else "gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        hosts = [""] * self.world
        dist.all_gather_object(hosts, socket.gethostname())
        self.local_world = hosts.count(hosts[0])
        self.nodes = self.world // self.local_world
        if any(hosts[i] != hosts[i - i % self.local_world] for i in range(self.world)):
            raise ValueError("every node needs as many ranks as the first, and ranks in the order of nodes")
        self.node, self.local = divmod(self.rank, self.local_world)
        self.device = torch.device("cuda", self.local) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(1)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def slowest(self, seconds: float) -> float:
        """The longest of all ranks."""
        longest = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        return float(longest)

    def timed(self, work: Callable[[], object], seconds: float, together: bool) -> float:
        """The median; with `together` all ranks begin at once and the slowest counts."""
        first_s = self._once(work)
        first_s = min(first_s, self._once(work))
        if together:
            first_s = self.slowest(first_s)
        repeats = max(MIN_REPEATS, min(MAX_REPEATS, int(seconds / max(first_s, 1e-7))))
        times = []
        for _ in range(repeats):
            if together:
                dist.barrier()
            times.append(self._once(work))
        middle = statistics.median(times)
        return self.slowest(middle) if together else middle

    def _once(self, work: Callable[[], object]) -> float:
        self.synchronize()
        start_s = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - start_s


def probe(settings: ProbeSettings) -> Probe | None:
    """On rank 0 what all ranks measured, on others None."""
    start_s, here = time.perf_counter(), _Rank()
    busy = _busy(here)
    if busy and not settings.anyway:
        took_s = time.perf_counter() - start_s
        idle = Probe(settings, here.local_world, dist.get_backend(), (), (), (), (), took_s, busy=busy)
        return None if here.rank else idle
    unavailable: list[str] = []
    products = list(_products(here, settings, unavailable))
    facts = _facts(here, settings)
    collectives = list(_collectives(here, settings, unavailable))
    links = list(_links(here, settings))
    mine = (facts, products, links, unavailable)
    everyone: list[tuple[RankFacts, list[Product], list[Link], list[str]]] = [mine] * here.world
    dist.all_gather_object(everyone, mine)
    if here.rank:
        return None
    return Probe(
        settings=settings,
        devices_per_node=here.local_world,
        backend=dist.get_backend(),
        ranks=tuple(item[0] for item in everyone),
        products=tuple(product for item in everyone for product in item[1]),
        collectives=tuple(collectives),
        links=_merge_links([link for item in everyone for link in item[2]], here.local_world),
        took_s=time.perf_counter() - start_s,
        unavailable=tuple(dict.fromkeys(reason for item in everyone for reason in item[3])),
        busy=busy,
    )


def _busy(here: _Rank) -> tuple[str, ...]:
    """What else runs: of each node the share of its cores, of each GPU its use and the memory others hold.
    All ranks sleep meanwhile, so that none of it is theirs."""
    found, host = [], socket.gethostname()
    dist.barrier()
    first = _cpu_ticks()
    time.sleep(IDLE_S)
    idle, total = (after - before for before, after in zip(first, _cpu_ticks(), strict=True))
    if here.local == 0 and total - idle > BUSY_CPU * total:
        found.append(f"{host} has {1 - idle / total:.0%} of its cores in use")
    if here.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(here.device)
        if free < (1 - BUSY_MEMORY) * total:
            held = (total - free) / 2**30
            found.append(f"{host}, GPU {here.local}: {held:.0f} GiB of its memory are taken")
        with suppress(RuntimeError, ModuleNotFoundError):  # without nvidia-ml-py nobody can say
            if (used_percent := torch.cuda.utilization(here.device)) > 100 * BUSY_GPU:
                found.append(f"{host}, GPU {here.local}: {used_percent}% in use")
    everyone: list[list[str]] = [found] * here.world
    dist.all_gather_object(everyone, found)
    return tuple(reason for reasons in everyone for reason in reasons)


def _cpu_ticks() -> tuple[int, int]:
    """(idle, all) of the machine since it started; none where there is no /proc."""
    with suppress(OSError, ValueError):
        ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)
    return 0, 0


def _products(here: _Rank, settings: ProbeSettings, unavailable: list[str]) -> Iterator[Product]:
    cases = [(precision, shape) for precision in settings.precisions for shape in settings.products]
    each_s = settings.seconds * SHARES["products"] / max(len(cases), 1) / WINDOWS
    times: dict[tuple[str, tuple[int, int, int]], list[float]] = {}
    for _ in range(WINDOWS):
        for precision, shape in cases:
            try:
                work = _product(precision, *shape, here.device)
                times.setdefault((precision, shape), []).append(here.timed(work, each_s, together=False))
            except (RuntimeError, ValueError) as error:
                unavailable.append(f"products in {precision}: {str(error).splitlines()[0][:120]}")
    for (precision, (m, n, k)), seconds in times.items():
        yield Product(here.rank, precision, m, n, k, statistics.median(seconds))


def _product(precision: str, m: int, n: int, k: int, device: torch.device) -> Callable[[], Tensor]:
    if precision in DTYPES:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        left = torch.randn(m, k, device=device, dtype=DTYPES[precision])
        right = torch.randn(k, n, device=device, dtype=DTYPES[precision])
        return lambda: left @ right
    if precision != "fp8":
        raise ValueError("PyTorch has no plain product in it")
    left = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
    right = torch.randn(n, k, device=device).to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device=device)
    return lambda: torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)


def _facts(here: _Rank, settings: ProbeSettings) -> RankFacts:
    size = settings.max_bytes
    # Ones: the kernel keeps pages of zeros once for all of them, and reading those is no traffic.
    source, target = torch.ones(size, device=here.device), torch.empty(size, device=here.device)
    copy_s = here.timed(lambda: target.copy_(source), settings.seconds * 0.03, together=False)
    small = torch.zeros(8, device=here.device)
    here.synchronize()
    rounds = []
    for _ in range(WINDOWS):
        start_s = time.perf_counter()
        for _ in range(LAUNCHES // WINDOWS):
            small.add_(1.0)
        # before the device has caught up
        rounds.append((time.perf_counter() - start_s) / (LAUNCHES // WINDOWS))
        here.synchronize()
    on_gpu = here.device.type == "cuda"
    title = torch.cuda.get_device_name(here.device) if on_gpu else "CPU, one thread"
    moved_bytes, launch_s = 2.0 * source.nbytes, statistics.median(rounds)
    return RankFacts(here.rank, socket.gethostname(), title, moved_bytes / copy_s, launch_s)


def _groups(here: _Rank) -> Iterator[tuple[str, int, dist.ProcessGroup | None]]:
    """Name, size and this rank's own group of each kind; every rank makes all groups."""
    wide, nodes = here.local_world, here.nodes
    kinds: list[tuple[str, list[list[int]]]] = []
    for size in (2, 4, 8):
        if size < wide and wide % size == 0:
            starts = range(0, here.world, size)
            kinds.append(("tp", [list(range(start, start + size)) for start in starts]))
    if wide > 1:
        kinds.append(("node", [list(range(node * wide, (node + 1) * wide)) for node in range(nodes)]))
    if nodes > 1:
        kinds.append(("network", [list(range(local, here.world, wide)) for local in range(wide)]))
        if wide > 1:
            kinds.append(("all", [list(range(here.world))]))
    for name, members in kinds:
        groups = [dist.new_group(ranks) for ranks in members]
        mine = next(i for i, ranks in enumerate(members) if here.rank in ranks)
        yield name, len(members[0]), groups[mine]


def _collectives(here: _Rank, settings: ProbeSettings, unavailable: list[str]) -> Iterator[Collective]:
    groups = list(_groups(here))
    sizes = [FIRST_BYTES]
    while sizes[-1] * GROWTH <= settings.max_bytes:
        sizes.append(sizes[-1] * GROWTH)
    limit_s = settings.seconds * SHARES["collectives"] / max(len(groups) * len(KINDS), 1)
    for name, size, group in groups:
        for kind in KINDS:
            left_s, smallest_s = limit_s, 0.0
            for number, message_bytes in enumerate(sizes):
                try:
                    work = _collective(kind, message_bytes, size, group, here.device)
                    seconds = here.timed(work, left_s / (len(sizes) - number), together=True)
                except (RuntimeError, ValueError, NotImplementedError) as error:
                    unavailable.append(f"{kind} over {name}: {str(error).splitlines()[0][:120]}")
                    break
                yield Collective(name, size, kind, message_bytes, seconds)
                left_s -= seconds * (MIN_REPEATS + 2)
                smallest_s = smallest_s or seconds
                next_s = seconds + (GROWTH - 1) * (seconds - smallest_s)
                if left_s < next_s * (MIN_REPEATS + 2) and number > 1:  # the next would not end in time
                    break


def _collective(
    kind: str, message_bytes: int, size: int, group: dist.ProcessGroup | None, device: torch.device
) -> Callable[[], object]:
    part = message_bytes // 4 // size
    whole = torch.zeros(part * size, device=device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all_gather":
        piece, parts = torch.zeros(part, device=device), list(whole.chunk(size))
        return lambda: dist.all_gather(parts, piece, group=group)
    if kind == "reduce_scatter":
        piece = torch.zeros(part, device=device)
        newest = getattr(dist, "reduce_scatter_single", None)  # PyTorch 2.13's name of reduce_scatter_tensor
        scatter: Callable[..., object] = newest or dist.reduce_scatter_tensor
        return lambda: scatter(piece, whole, group=group)
    received = torch.zeros_like(whole)
    return lambda: dist.all_to_all_single(received, whole, group=group)


def _links(here: _Rank, settings: ProbeSettings) -> Iterator[Link]:
    """From the lower rank of each pair."""
    for crosses, partner in _rounds(here):
        latency_s, transfer_s, message_bytes = _ping_pong(here, partner, settings, LINK_S)
        if partner is not None and here.rank < partner:
            yield Link(here.rank, partner, crosses, latency_s, message_bytes / max(transfer_s, 1e-9))


def _rounds(here: _Rank) -> Iterator[tuple[bool, int | None]]:
    """Whether a round crosses nodes, and this rank's partner in it."""
    wide = here.local_world
    for offset in range(min(2, wide - 1)):  # neighbours: even with odd, then odd with even
        local = here.local - offset
        other = (local + 1 if local % 2 == 0 else local - 1) + offset
        yield False, here.node * wide + other if local >= 0 and 0 <= other < wide else None
    places = here.nodes + here.nodes % 2
    for number in range(min(places - 1, MAX_ROUNDS) if here.nodes > 1 else 0):
        # The circle method: the first node stays, the others rotate, and opposite ones meet.
        circle = [0, *((i + number) % (places - 1) + 1 for i in range(places - 1))]
        other = circle[-1 - circle.index(here.node)]
        yield True, other * wide + here.local if other < here.nodes else None


def _ping_pong(
    here: _Rank, partner: int | None, settings: ProbeSettings, enough_s: float
) -> tuple[float, float, int]:
    """One way: seconds of a small message, seconds that more bytes take longer, and how many more. Every rank
    calls it, with a partner or without. An idle connection starts slowly (TCP), which the difference of two
    large messages leaves out."""
    small_s = _exchange(here, partner, SMALL_BYTES, 20)
    message_bytes, whole_s = 2**20, 0.0
    while True:
        whole_s = here.slowest(_exchange(here, partner, message_bytes, 1))
        if whole_s >= enough_s or message_bytes * 2 > settings.max_bytes:
            break
        message_bytes *= 2
    half_s, large_s = (_exchange(here, partner, size, 4) for size in (message_bytes // 2, message_bytes))
    return small_s, large_s - half_s, message_bytes - message_bytes // 2


def _exchange(here: _Rank, partner: int | None, message_bytes: int, repeats: int) -> float:
    """The shortest half of a round trip: what else runs on the hosts only adds."""
    message, times = torch.zeros(message_bytes // 4, device=here.device), []
    dist.barrier()
    for _ in range(repeats + 1 if partner is not None else 0):
        assert partner is not None
        first = here.rank < partner
        here.synchronize()
        start_s = time.perf_counter()
        for sends in (first, not first):
            if sends:
                dist.send(message, partner)
            else:
                dist.recv(message, partner)
        here.synchronize()
        times.append((time.perf_counter() - start_s) / 2)
    return min(times, default=0.0)


def _merge_links(links: Sequence[Link], wide: int) -> tuple[Link, ...]:
    """Links between the same two nodes as one: the ranks' rates add up, as they ran at once."""
    merged = [link for link in links if not link.crosses]
    between: dict[tuple[int, int], list[Link]] = {}
    for link in links:
        if link.crosses:
            between.setdefault((link.first // wide, link.second // wide), []).append(link)
    for (first, second), own in sorted(between.items()):
        latency_s, rate = min(link.latency_s for link in own), min(link.bytes_per_s for link in own)
        merged.append(Link(first * wide, second * wide, True, latency_s, len(own) * rate))
    return tuple(merged)


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="torchrun ... -m tools.probe.worker", description=__doc__)
    parser.add_argument("settings", type=Path, help="what to measure, as JSON")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {RESULT}")
    args = parser.parse_args(argv)
    data = json.loads(args.settings.read_text(encoding="utf-8"))
    settings = ProbeSettings(
        **{**data, "precisions": tuple(data["precisions"]), "products": tuple(map(tuple, data["products"]))}
    )
    measured = probe(settings)
    if measured is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / RESULT).write_text(json.dumps(asdict(measured)) + "\n", encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
