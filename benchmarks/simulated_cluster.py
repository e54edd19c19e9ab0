"""A simulated cluster: profiler traces of jobs of 2 to 64 nodes, healthy or with one fault.

Nothing here was recorded. Kernels have the names and median durations of a recorded Megatron-LM step
(`shared/traces/megatron_tp8`, A100). Collectives follow the formulas below, set to published nccl-tests,
with jitter. Hosts launch ahead of their device and wait for it once per step, as trainers do. It imports
nothing of the product, so the product cannot be right by agreeing with itself.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Groups = list[list[int]]
PER_NODE = 8
US, MS = 1.0, 1000.0
"""Times are microseconds, as in the traces."""
FORWARD = (
    ("void cuApplyLayerNorm<c10::Half, float, c10::Half>(c10::Half*, float*, float*, int)", 136, False),
    ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", 522, True),
    ("ampere_fp16_s16816gemm_fp16_64x128_sliced1x2_ldg8_f2f_stages_64x3_nn", 184, True),
    ("void (anonymous namespace)::scaled_upper_triang_masked_softmax_warp_forward<c10::Half>", 426, False),
    ("ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn", 294, True),
    ("triton__0d1d2d3d4de", 113, False),
    ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_kernel", 400, True),
    ("triton__0d1d2d3de", 43, False),
    ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x5_tn_align8>", 363, True),
)  # fmt: skip
"""Name, microseconds, and whether the arithmetic clock limits it; one layer of the recording."""
EXPERTS = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_grouped_f16_128x256_32x5_tn_align8>"
ADAM = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
NCCL = "ncclDevKernel_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNEL_OF = {
    "all_reduce": ("AllReduce_Sum_f16", "allreduce"),
    "all_gather": ("AllGather", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter_Sum_f16", "_reduce_scatter_base"),
    "all_to_all": ("SendRecv", "all_to_allv"),
    "send_recv": ("SendRecv", "send"),
}
INSIDE_SHARE = 0.81
"""Of the link's rate that a ring inside a node reaches: 365.6 of 450 GB/s on H200, 235 of 300 on A100
(Bekman, Machine Learning Engineering@744d01e1, network/README.md)."""
ACROSS_SHARE = ((2, 0.82), (4, 0.83), (8, 0.73), (16, 0.66), (32, 0.66), (64, 0.60))
"""By nodes, of the cards' rate: all_gather_perf of 2 GiB on p5.48xlarge reaches 328.58, 330.92, 293.71,
265.15 and 262.77 of 400 GB/s (crazyguitar/aws-gpu-communication-benchmark@fd167f97,
data/nccl_all_gather.csv); that of 64 nodes is extrapolated."""
RAIL_SHARE = 0.86
"""One device per node: 41.3 to 44 of 50 GB/s for large messages (NVIDIA/nccl-tests issue 232)."""
HALF_RATE_BYTES = 3.2e6
"""Bytes per card that reach half of the rate (the same issue: 2 MiB reach 18.5, 8 MiB 36 of 50 GB/s)."""
EXCHANGE_SHARE = ((2, 0.85), (4, 0.84), (8, 0.87), (16, 0.83), (32, 0.79), (64, 0.76))
"""Of one card, by nodes, for what leaves the node: alltoall_perf of 2 GiB (nccl_alltoall.csv beside it)."""
STEP_LATENCY_US = 1.9
HOP_LATENCY_US = 5.0
MAX_LISTED_RANKS = 32
"""PyTorch abbreviates longer lists of ranks in an event."""

Layout = Literal["fsdp", "tp_dp", "hsdp", "moe", "tp_pp_dp"]
FaultKind = Literal[
    "none", "card", "rail", "switch", "node_cards", "throttled", "late_host", "data_loader", "experts",
    "numa", "retries", "synchronisation", "recompilation", "checkpoint", "garbage_collection", "launch_bound",
]  # fmt: skip


class Machine(NamedTuple):
    reported: str
    speed: float
    """Over the recording's A100."""
    link_bytes_per_us: float
    card_bytes_per_us: float


MACHINES = {
    "a100": Machine("NVIDIA A100-SXM4-80GB", 1.0, 300e3, 25e3),
    "h100": Machine("NVIDIA H100 80GB HBM3", 2.2, 450e3, 50e3),
}


@dataclass(frozen=True)
class SimulatedJob:
    nodes: int
    layout: Layout
    machine: str = "h100"
    layers: int = 6
    steps: int = 4
    layer_bytes: float = 200e6
    """Weights of a layer in 16 bits, before they are divided."""
    kernel_scale: float = 1.0
    """Small kernels: little work for each device."""
    micro_batches: int = 1
    seed: int = 0


@dataclass(frozen=True)
class ClusterFault:
    """One thing that is wrong."""

    kind: FaultKind = "none"
    ranks: tuple[int, ...] = ()
    """Whose host or device it is; empty: everyone's."""
    speed: float = 1.0
    """What is left of a link's or device's rate."""
    rail: int = 0
    node: int = 0
    delay_ms: float = 0.0
    marked: bool = False
    """Whether the program names what it does in the trace."""


HEALTHY = ClusterFault()


class SimulatedCluster:
    """All ranks run one program; times are arrays over the ranks."""

    def __init__(self, job: SimulatedJob, fault: ClusterFault = HEALTHY, traced: bool = True) -> None:
        self.job, self.fault = job, fault
        self.machine = MACHINES[job.machine]
        self.world = job.nodes * PER_NODE
        self.rng = np.random.default_rng(job.seed)
        self.fault_rng = np.random.default_rng(job.seed + 7919)
        ranks = np.arange(self.world)
        self.node, self.local = ranks // PER_NODE, ranks % PER_NODE
        self.host, self.compute, self.comm = (np.zeros(self.world) for _ in range(3))
        self.lines: list[list[str]] = [[] for _ in range(self.world if traced else 0)]
        """By rank: its events as lines of JSON."""
        self.correlation = 0
        self.step_ends_us: list[float] = []
        self.paused: set[int] = set()
        """Ranks whose host paused by itself."""
        self.clock_us = 1e6 + np.repeat(self.rng.uniform(0, 800, job.nodes), PER_NODE)
        self.fabric = self.rng.uniform(0.94, 1.12)
        """How this fabric compares with the published ones."""
        self.device_pace = self.rng.normal(1.0, 0.006, self.world)
        self.launch_us = np.full(self.world, 4.5)
        self.python_us = np.full(self.world, 14.0)
        self.hit = np.ones(self.world, bool) if not fault.ranks else np.isin(ranks, fault.ranks)
        self.card = np.ones(self.world)
        if fault.kind == "card":
            self.card[self.hit] = fault.speed
        elif fault.kind == "rail":
            self.card[self.local == fault.rail] = fault.speed
        elif fault.kind == "node_cards":
            self.card[self.node == fault.node] = fault.speed
        elif fault.kind == "numa":
            self.launch_us[self.hit] *= 1 / fault.speed
            self.python_us[self.hit] *= 1 / fault.speed
        self.groups: dict[str, tuple[str, Groups]] = {}
        self.step = -1
        self.started_us = np.zeros(self.world)

    # -- the job

    def run(self) -> "SimulatedCluster":
        job, everyone = self.job, list(range(self.world))
        nodes = [everyone[n * PER_NODE : (n + 1) * PER_NODE] for n in range(job.nodes)]
        rails = [everyone[local::PER_NODE] for local in range(PER_NODE)]
        half = self.world // 2
        pair = 2 * PER_NODE
        tensor = "TENSOR_MODEL_PARALLEL_GROUP" if job.layout in ("tp_dp", "tp_pp_dp") else "mesh_shard"
        halves = [part for rail in rails for part in (rail[: len(rail) // 2], rail[len(rail) // 2 :])]
        experts = [everyone[at : at + pair] for at in range(0, self.world, pair)]
        self.groups = {
            "world": ("default_pg", [everyone]),
            "node": (tensor, nodes),
            "rail": ("DATA_PARALLEL_GROUP" if job.layout != "hsdp" else "mesh_replicate", rails),
            "expert": ("EXPERT_MODEL_PARALLEL_GROUP", experts),
            "stage_rail": ("DATA_PARALLEL_GROUP", halves),
            "stages": ("PIPELINE_MODEL_PARALLEL_GROUP", [[rank, rank + half] for rank in range(half)]),
        }
        program = getattr(self, f"_{job.layout}")
        for number in range(job.steps):
            self.step = number
            self.started_us = self.host.copy()
            self._load_data()
            program()
            self._kernel(ADAM, 900 if job.layout == "fsdp" else 400, clocked=False)
            self._checkpoint()
            # The loss is printed: the one place where the host waits for its device.
            self._synchronise("cudaStreamSynchronize")
            self._mark(f"ProfilerStep#{number}", self.started_us, self.host)
            self.step_ends_us.append(float(self.host.max()))
        return self

    def _fsdp(self) -> None:
        size = self.job.layer_bytes
        for is_forward in (True, False):
            ready = self._collective("all_gather", "world", size, waits_for_compute=False)
            for layer in range(self.job.layers):
                mine = ready
                if layer + 1 < self.job.layers:
                    ready = self._collective("all_gather", "world", size, waits_for_compute=False)
                self.compute = np.maximum(self.compute, mine)
                self._layer(layer, is_forward)
                if not is_forward:
                    self._collective("reduce_scatter", "world", size)
        self.compute = np.maximum(self.compute, self.comm)

    def _tp_dp(self, data: str = "rail") -> None:
        shard = self.job.layer_bytes / PER_NODE
        self.compute = np.maximum(self.compute, self._collective("all_gather", data, shard * self.job.layers))
        for micro in range(self.job.micro_batches):
            for is_forward in (True, False):
                if data == "stage_rail":
                    self.compute = np.maximum(
                        self.compute, self._collective("send_recv", "stages", 16e6 * self.job.kernel_scale)
                    )
                for layer in range(self.job.layers):
                    self._layer(layer, is_forward)
                    self.compute = np.maximum(
                        self.compute,
                        self._collective("all_reduce", "node", 33.5e6 * max(self.job.kernel_scale, 0.05)),
                    )
                    if not is_forward and micro + 1 == self.job.micro_batches:
                        self._collective("reduce_scatter", data, shard)
        self.compute = np.maximum(self.compute, self.comm)

    def _tp_pp_dp(self) -> None:
        self._tp_dp("stage_rail")

    def _hsdp(self) -> None:
        size = self.job.layer_bytes
        for is_forward in (True, False):
            for layer in range(self.job.layers):
                self.compute = np.maximum(self.compute, self._collective("all_gather", "node", size, False))
                self._layer(layer, is_forward)
                if not is_forward:
                    self._collective("reduce_scatter", "node", size)
                    self._collective("all_reduce", "rail", size / PER_NODE)
        self.compute = np.maximum(self.compute, self.comm)

    def _moe(self) -> None:
        for is_forward in (True, False):
            for layer in range(self.job.layers):
                self._layer(layer, is_forward)
                self.compute = np.maximum(
                    self.compute, self._collective("all_to_all", "expert", 48e6 * self.job.kernel_scale)
                )
                times = 1 if is_forward else 2
                self._kernel(EXPERTS, 900 * times, self._expert_load())
                self._kernel(EXPERTS.replace("128x256", "256x128"), 500 * times, self._expert_load())
                self.compute = np.maximum(
                    self.compute, self._collective("all_to_all", "expert", 48e6 * self.job.kernel_scale)
                )
                if not is_forward:
                    self._collective("reduce_scatter", "rail", self.job.layer_bytes / PER_NODE)
        self.compute = np.maximum(self.compute, self.comm)

    def _expert_load(self) -> Times:
        load = self.rng.normal(1.0, 0.02, self.world)
        if self.fault.kind == "experts":
            load[self.hit] /= self.fault.speed
        return load

    def _layer(self, layer: int, is_forward: bool) -> None:
        self._stall_host(layer, is_forward)
        for name, us, clocked in FORWARD:
            self._kernel(
                name if is_forward else name.replace("_tn", "_nt"),
                us if is_forward else 2 * us,
                clocked=clocked,
            )

    # -- what devices and hosts do

    def _launch(self, call: str = "cudaLaunchKernel") -> tuple[Times, int]:
        """When each rank's launch ends, and its correlation."""
        self.host += self.python_us * self.rng.lognormal(0, 0.15, self.world)
        start = self.host.copy()
        self.host += self.launch_us * self.rng.lognormal(0, 0.1, self.world)
        self.correlation += 1
        for rank in range(len(self.lines)):
            self._event(
                rank,
                "cuda_runtime",
                call,
                start[rank],
                self.host[rank],
                1,
                f'"correlation": {self.correlation}',
            )
        return self.host, self.correlation

    def _kernel(self, name: str, us: float, load: Times | float = 1.0, clocked: bool = True) -> None:
        launched, link = self._launch()
        took = (
            us
            * self.job.kernel_scale
            / self.machine.speed
            * self.device_pace
            * load
            * self.rng.lognormal(0, 0.012, self.world)
        )
        if self.fault.kind == "throttled" and self.step >= 1:
            took[self.hit] /= self.fault.speed if clocked else 0.98
        start = np.maximum(self.compute, launched + 1.5)
        self.compute = start + took
        for rank in range(len(self.lines)):
            self._event(
                rank, "kernel", name, start[rank], self.compute[rank], 7,
                f'"stream": 7, "correlation": {link}',
            )  # fmt: skip

    def _collective(self, kind: str, group: str, size: float, waits_for_compute: bool = True) -> Times:
        """When each rank has it; the communication stream runs beside the computing one."""
        launched, link = self._launch()
        start = np.maximum(self.comm, launched + 1.5)
        if waits_for_compute:
            start = np.maximum(start, self.compute)
        end = np.empty(self.world)
        for number, members in enumerate(self.groups[group][1]):
            took = self.transfer_us(kind, members, size) * self.rng.lognormal(0, 0.035)
            if self.rng.random() < 0.02:
                took *= self.rng.uniform(1.1, 1.4)  # other traffic
            end[members] = start[members].max() + took + self.rng.uniform(0, 4, len(members))
            self._record(kind, group, number, members, size, start, end, link)
        self.comm = end
        return end

    def transfer_us(self, kind: str, members: Sequence[int], size: float) -> float:
        """By nccl-tests: a ring's share of the links, bytes at half rate, a latency per rank."""
        count = len(members)
        nodes = np.unique(self.node[members])
        inside = count // len(nodes)
        passes = 2.0 if kind == "all_reduce" else 1.0
        moved = passes * size * (count - 1) / count
        latency = passes * ((count - len(nodes)) * STEP_LATENCY_US + (len(nodes) - 1) * HOP_LATENCY_US)
        fast = moved / (INSIDE_SHARE * self.machine.link_bytes_per_us)
        if len(nodes) == 1:
            return fast + latency
        slowest = float(self.card[members].min())
        if self.fault.kind == "switch" and len(set((nodes * 2 // self.job.nodes).tolist())) > 1:
            slowest = min(slowest, self.fault.speed)
        counts, shares = zip(*(EXCHANGE_SHARE if kind == "all_to_all" else ACROSS_SHARE), strict=True)
        share = (
            float(np.interp(len(nodes), counts, shares)) if inside > 1 or kind == "all_to_all" else RAIL_SHARE
        )
        rate = self.machine.card_bytes_per_us * min(share * self.fabric, 0.98) * slowest
        if kind == "all_to_all":
            remote = size * (count - inside) / count
            per_peer = remote / (count - inside)
            hops = HOP_LATENCY_US * float(np.log2(count))
            return max(remote / rate * (1 + 0.3e6 / per_peer), fast) + hops
        if kind == "send_recv":
            return size / rate + HALF_RATE_BYTES / 4 / rate + 10
        per_card = moved / inside
        return max((per_card + HALF_RATE_BYTES) / rate, fast) + latency

    def _synchronise(self, call: str) -> None:
        start = self.host.copy()
        self.host = np.maximum(self.host, np.maximum(self.compute, self.comm)) + 6
        for rank in range(len(self.lines)):
            self._event(rank, "cuda_runtime", call, start[rank], self.host[rank], 1, '"correlation": 0')

    # -- faults of hosts

    def _load_data(self) -> None:
        """Every step reads a batch; a healthy loader has it ready."""
        took = self.rng.uniform(60, 160, self.world)
        if self.fault.kind == "data_loader":
            took[self.hit] += (
                self.fault.delay_ms * MS * self.fault_rng.lognormal(0, 0.25, int(self.hit.sum()))
            )
        start = self.host.copy()
        self.host += took
        self._mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", start, self.host)
        _, link = self._launch("cudaMemcpyAsync")
        slower = np.where(self.hit, 1 / self.fault.speed, 1.0) if self.fault.kind == "numa" else 1.0
        begin = np.maximum(self.compute, self.host)
        self.compute = begin + 25 * slower
        for rank in range(len(self.lines)):
            self._event(
                rank, "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin[rank], self.compute[rank], 7,
                f'"stream": 7, "correlation": {link}, "bytes": 524288',
            )  # fmt: skip

    def _stall_host(self, layer: int, is_forward: bool) -> None:
        kind, delay = self.fault.kind, self.fault.delay_ms * MS
        some = self.fault_rng
        if kind == "late_host":
            # Another process on the same cores: the launching thread loses its turn for a while.
            resumed = np.maximum(self.host, self.compute) + delay * some.lognormal(0, 0.3, self.world)
            self.host = np.where(self.hit, resumed, self.host)
        elif kind == "synchronisation" and is_forward:
            self._synchronise("cudaStreamSynchronize")
            self.host += delay * some.lognormal(0, 0.1, self.world)
        elif kind == "retries" and some.random() < 0.5:
            chosen = self.hit & (some.random(self.world) < 0.6)
            self._block(chosen, ("cudaFree", "cudaMalloc"), delay)
        elif kind == "recompilation" and layer == 1 and is_forward and self.step in (1, 3):
            self._pause(self.hit, delay, "entire_frame_compile (dynamo_timed)" if self.fault.marked else None)
        elif kind == "garbage_collection" and layer == self.step % self.job.layers and is_forward:
            # Each interpreter collects when its own counters say so.
            chosen = np.zeros(self.world, bool)
            chosen[some.choice(self.world, max(1, self.world // 8), replace=False)] = True
            self.paused.update(np.flatnonzero(chosen & self.hit).tolist())
            self._pause(chosen & self.hit, delay, None)

    def _pause(self, who: NDArray[np.bool_], us: float, name: str | None) -> None:
        start = self.host.copy()
        self.host[who] += us * self.fault_rng.lognormal(0, 0.2, int(who.sum()))
        if name:
            self._mark(name, start, self.host, who)

    def _block(self, who: NDArray[np.bool_], calls: Iterable[str], us: float) -> None:
        """Calls that wait for the device, then take their own time."""
        for call in calls:
            start = self.host.copy()
            self.host[who] = np.maximum(self.host, self.compute)[who] + us / 2 * self.fault_rng.lognormal(
                0, 0.2, int(who.sum())
            )
            for rank in np.flatnonzero(who):
                self._event(
                    int(rank), "cuda_runtime", call, start[rank], self.host[rank], 1, '"correlation": 0'
                )

    def _checkpoint(self) -> None:
        if self.fault.kind != "checkpoint" or self.step != 2:
            return
        start = self.host.copy()
        for _ in range(6):
            _, link = self._launch("cudaMemcpyAsync")
            begin = np.maximum(self.compute, self.host)
            self.compute = begin + self.fault.delay_ms * MS / 12
            self.host = self.compute + self.fault.delay_ms * MS / 12  # pickled and written
            for rank in range(len(self.lines)):
                self._event(
                    rank, "gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", begin[rank], self.compute[rank],
                    7, f'"stream": 7, "correlation": {link}, "bytes": 402653184',
                )  # fmt: skip
        if self.fault.marked:
            self._mark("save_checkpoint", start, self.host)

    # -- what is written

    def _mark(self, name: str, start: Times, end: Times, who: NDArray[np.bool_] | None = None) -> None:
        for rank in range(len(self.lines)) if who is None else np.flatnonzero(who).tolist():
            self._event(rank, "user_annotation", name, start[rank], end[rank], 1)

    def _record(
        self, kind: str, group: str, number: int, members: Sequence[int], size: float, start: Times,
        end: Times, link: int,
    ) -> None:  # fmt: skip
        kernel, call = KERNEL_OF[kind]
        count = len(members)
        whole = int(size / 2)
        sent = whole // count if kind == "all_gather" else whole
        received = whole // count if kind == "reduce_scatter" else whole
        listed = (
            str(list(members))
            if count <= MAX_LISTED_RANKS
            else f"[{members[0]}, {members[1]}, ..., {members[-1]}]"
        )
        described = (
            f'"Collective name": "{call}", "In msg nelems": {sent}, "Out msg nelems": {received}, '
            f'"Group size": {count}, '
            f'"dtype": "Half", "Process Group Name": "{group}{number}", "Process Group Ranks": "{listed}"'
        )
        for rank in members if self.lines else ():
            self._event(
                rank, "kernel", NCCL.format(kernel), start[rank], end[rank], 20,
                f'"stream": 20, "correlation": {link}, {described}',
            )  # fmt: skip

    def _event(
        self, rank: int, category: str, name: str, start: float, end: float, thread: int, args: str = ""
    ) -> None:
        if not self.lines:
            return
        self.lines[rank].append(
            f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {rank}, "tid": {thread}, '
            f'"ts": {start + self.clock_us[rank]:.3f}, "dur": {max(end - start, 0.5):.3f}, '
            f'"args": {{{args}}}}}'
        )

    @property
    def step_us(self) -> float:
        """The mean step after the first."""
        return (self.step_ends_us[-1] - self.step_ends_us[0]) / (self.job.steps - 1)

    def write(self, folder: Path) -> None:
        """One file per rank, as kineto writes it."""
        for rank, lines in enumerate(self.lines):
            config = [
                {
                    "pg_name": f"{name}{number}",
                    "pg_desc": described,
                    "pg_size": len(members),
                    "ranks": members,
                }
                for name, (described, groups) in self.groups.items()
                for number, members in enumerate(groups)
                if rank in members
            ]
            head = json.dumps(
                {
                    "schemaVersion": 1,
                    "deviceProperties": [{"id": 0, "name": self.machine.reported}],
                    "distributedInfo": {
                        "backend": "nccl",
                        "rank": rank,
                        "world_size": self.world,
                        "pg_config": config,
                    },
                }
            )
            text = f'{head[:-1]}, "traceEvents": [\n' + ",\n".join(lines) + "\n]}"
            (folder / f"rank{rank}.json").write_text(text)


def step_seconds(job: SimulatedJob, fault: ClusterFault = HEALTHY) -> float:
    """Without traces: what the fault truly costs is the difference of two of these."""
    return SimulatedCluster(job, fault, traced=False).run().step_us / 1e6
