"""Trace against trace: 30 changes planted into copies of real traces, and whether each is named first.

    make bench NAME=trace_diff [ARGS="--traces DIR"]

Each copy also has the durations of all kernels shaken by up to 2%, as two nights of one job differ. Nothing
of `tools/` is used to plant: an event list goes in and another one comes out.
"""

import argparse
import gzip
import json
import random
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

from tools.trace.compare import compare
from tools.trace.folder import profile_folder

SHARED = Path("../shared/traces")
KERNELS = ("kernel", "Kernel")
WORK = (*KERNELS, "gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
DEVICE = (*WORK, "gpu_user_annotation")
RUNTIME = ("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime")
SHAKEN = 0.02
GROWTH = 0.08
"""Of the trace's length: what each change costs, about as much as people notice."""
BEHIND = 0.01
"""Microseconds by which a hidden collective starts after the kernel it is hidden under."""
MIN_NAMED = 27
MAX_MISSING = 0.02

Events = list[dict[str, Any]]
"""As the profiler writes them, times in microseconds."""
Plant = Callable[[Events, random.Random, float], str]
"""Changes the events so that they take about so many microseconds longer; the kernel that it changed."""


def shift(events: Events, inserted: list[tuple[float, float]]) -> None:
    """Moves every event behind each (moment, microseconds); what the host did around one lasts longer."""
    inserted = sorted(inserted)
    moments, sums = [moment for moment, _ in inserted], [0.0, *accumulate(delay for _, delay in inserted)]
    for event in events:
        if "ts" not in event:
            continue
        begin, end = event["ts"], event["ts"] + event.get("dur", 0)
        moved = sums[bisect_right(moments, begin)]
        event["ts"] = begin + moved
        if event.get("cat") not in DEVICE and "dur" in event:
            event["dur"] += max(0.0, sums[bisect_left(moments, end)] - moved)


def kernels(events: Events, *, talking: bool = False) -> Events:
    return [
        event
        for event in events
        if event.get("cat") in KERNELS and ("nccl" in event["name"].lower()) == talking and event.get("dur")
    ]


def chosen(events: Events, draw: random.Random, share: int = 6) -> Events:
    """The events of one of the kernels that take most time."""
    time: Counter[str] = Counter()
    for event in kernels(events):
        time[event["name"]] += event["dur"]
    name = draw.choice([name for name, _ in time.most_common(share)])
    return [event for event in kernels(events) if event["name"] == name]


def slower_kernel(events: Events, draw: random.Random, cost: float) -> str:
    victims = chosen(events, draw)
    factor = cost / sum(event["dur"] for event in victims)
    shift(events, [(event["ts"] + event["dur"] * 0.999, event["dur"] * factor) for event in victims])
    for event in victims:
        event["dur"] *= 1 + factor
    return str(victims[0]["name"])


def lost_fusion(events: Events, draw: random.Random, cost: float) -> str:
    """Each event of a kernel becomes three others that read and write memory in between."""
    victims = chosen(events, draw)
    name, extra = str(victims[0]["name"]), cost / len(victims)
    calls = {event["args"].get("correlation"): event for event in events if event.get("cat") in RUNTIME}
    shift(events, [(event["ts"] + event["dur"] * 0.999, extra) for event in victims])
    for number, event in enumerate(victims):
        third = (event["dur"] + extra) / 3
        launch = calls.get(event["args"].get("correlation"))
        for part in range(3):
            link = 900_000_000 + 3 * number + part
            copy = {
                **event,
                "name": f"unfused_elementwise_{part}",
                "ts": event["ts"] + third * part,
                "dur": third,
            }
            events.append({**copy, "args": {**event["args"], "correlation": link}})
            if launch:
                events.append({**launch, "args": {**launch["args"], "correlation": link}})
        event["cat"] = "removed"
    return name


def extra_synchronisation(events: Events, draw: random.Random, cost: float) -> str:
    """The host waits for the device before some launches, and the device then for the host."""
    calls = {event["args"].get("correlation"): event for event in events if event.get("cat") in RUNTIME}
    reached, places = 0.0, []
    for event in sorted(
        (event for event in events if event.get("cat") in WORK), key=lambda event: event["ts"]
    ):
        call = calls.get(event["args"].get("correlation"))
        if call and event["ts"] >= reached > 0 and "aunch" in call["name"]:
            places.append((event, call))
        reached = max(reached, event["ts"] + event.get("dur", 0))
    places = draw.sample(places, min(10, len(places)))
    for event, call in places:
        moment, delay = event["ts"] - 0.001, cost / len(places)
        shift(events, [(moment, delay)])
        wait = {**call, "name": "cudaDeviceSynchronize", "ts": moment - 5, "dur": delay * 0.9 + 5}
        events.append({**wait, "args": {"correlation": -1}})
        call["ts"], call["dur"] = moment + delay * 0.95, delay * 0.04
    return ""


def smaller_messages(events: Events, draw: random.Random, cost: float) -> str:
    """Every collective of a kind is sent in four pieces, each with a start-up time of its own."""
    names = Counter(event["name"] for event in kernels(events, talking=True))
    name = str(draw.choice([name for name, _ in names.most_common(2)]))
    victims = [event for event in kernels(events, talking=True) if event["name"] == name]
    extra, pieces = cost / len(victims), 4
    calls = {event["args"].get("correlation"): event for event in events if event.get("cat") in RUNTIME}
    shift(events, [(event["ts"] + event["dur"] * 0.999, extra) for event in victims])
    for number, event in enumerate(victims):
        length, launch = (event["dur"] + extra) / pieces, calls.get(event["args"].get("correlation"))
        for part in range(pieces):
            link = 910_000_000 + pieces * number + part
            args = {**event["args"], "correlation": link}
            for key in ("In msg nelems", "Out msg nelems"):
                args[key] = args[key] // pieces
            events.append({**event, "ts": event["ts"] + length * part, "dur": length, "args": args})
            if launch:
                events.append({**launch, "args": {**launch["args"], "correlation": link}})
        event["cat"] = "removed"
    return name


def lost_overlap(events: Events, draw: random.Random, cost: float) -> str:
    """Collectives that ran beside compute run before it: the compute starts when they have ended.

    A trace whose collectives hide nothing gets hidden ones in both copies (`hide`).
    """
    victims = [event for event in kernels(events, talking=True) if event.get("hidden")]
    for event in sorted(victims, key=lambda event: -event["ts"]):
        begin = event["ts"] - BEHIND
        shift(events, [(begin - BEHIND, event["dur"])])
        event["ts"] = begin
    return str(victims[0]["name"])


def hide(events: Events, cost: float) -> None:
    """Copies of a collective on a stream of their own, each wholly beside a long compute kernel."""
    talking = kernels(events, talking=True)
    model = talking[0] if talking else {
        **kernels(events)[0], "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
    }  # fmt: skip
    hosts = sorted(kernels(events), key=lambda event: -event["dur"])[:40]
    total = sum(event["dur"] for event in hosts)
    calls = {event["args"].get("correlation"): event for event in events if event.get("cat") in RUNTIME}
    for number, host in enumerate(hosts):
        length = min(host["dur"] * 0.9, cost * host["dur"] / total)
        link = 920_000_000 + number
        if launch := calls.get(host["args"].get("correlation")):
            events.append({**launch, "args": {**launch["args"], "correlation": link}})
        args = {**model["args"], "stream": 777, "correlation": link}
        events.append(
            {**model, "ts": host["ts"] + BEHIND, "dur": length, "tid": 777, "args": args, "hidden": True}
        )


def record_sizes(events: Events) -> None:
    """Older profilers do not say how much a collective sends; both copies say what newer ones would."""
    for event in kernels(events, talking=True):
        sizes = {"Collective name": "allreduce", "In msg nelems": 1 << 22, "Out msg nelems": 1 << 22}
        event["args"] = {
            **sizes,
            "Group size": 8,
            "dtype": "Float",
            "Process Group Name": "0",
            **event["args"],
        }


def shake(events: Events, draw: random.Random) -> None:
    for event in kernels(events):
        event["dur"] *= 1 - draw.uniform(0, SHAKEN)


ALL = ("megatron_tp8", "a100_control", "a100_nccl_data", "v100_ns_resolution", "b200_eager", "a100_test")
TALKING = (
    "megatron_tp8",
    "a100_control",
    "a100_nccl_data",
    "v100_df_index_resolver",
    "b200_eager",
    "a100_test",
)
PLANTS: dict[str, tuple[Plant, str, tuple[str, ...]]] = {
    "kernel slower": (slower_kernel, "kernel_slower", ALL),
    "fusion lost": (lost_fusion, "fusion_lost", ALL),
    "extra synchronisation": (extra_synchronisation, "synchronisation", ALL),
    "smaller messages": (smaller_messages, "smaller_messages", TALKING),
    "overlap lost": (lost_overlap, "overlap_lost", ALL),
}
"""With the cause that must be named first, and the traces."""


def copies(traces: Path, name: str, plant: Plant, seed: int, folder: Path) -> str:
    """Writes before/ and after/, and names the kernel that was changed."""
    sources = sorted((traces / name).glob("*.json.gz")) or [traces / "single" / f"{name}.json.gz"]
    victim = ""
    for source in sources:
        content = json.loads(gzip.decompress(source.read_bytes()))
        for number, side in enumerate(("before", "after")):
            copy = json.loads(json.dumps(content))
            events = copy["traceEvents"] if isinstance(copy, dict) else copy
            zero = min(event["ts"] for event in events if "ts" in event and event.get("cat") in WORK)
            for event in events:
                event.setdefault("args", {})
                if "ts" in event:  # microseconds since 1970 leave a float quarters of one
                    event["ts"] -= zero
            device = [event for event in events if event.get("cat") in WORK]
            cost = GROWTH * (max(e["ts"] + e.get("dur", 0) for e in device) - min(e["ts"] for e in device))
            if plant is lost_overlap:
                hide(events, cost)
            record_sizes(events)
            shake(events, random.Random(f"{seed} {side} {source.name}"))
            if number:
                victim = plant(events, random.Random(seed), cost)
            events[:] = [event for event in events if event.get("cat") != "removed"]
            (folder / side).mkdir(exist_ok=True)
            (folder / side / source.name).write_bytes(gzip.compress(json.dumps(copy).encode(), 1))
    return victim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--traces", type=Path, default=SHARED, help="the shared traces (../shared/traces)")
    args = parser.parse_args()
    named = cases = 0
    worst = 0.0
    for what, (plant, cause, names) in PLANTS.items():
        for seed, name in enumerate(names):
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                victim = copies(args.traces, name, plant, seed, folder)
                before, after = (profile_folder(folder / side, limits=None) for side in ("before", "after"))
                change = compare(before.ranks, after.ranks)
            first, total = change.causes[0], next(term for term in change.terms if term.term == "total")
            missing = abs(sum(part.change_us for part in change.parts) / total.change_us - 1)
            is_named = first.cause == cause
            if plant is slower_kernel:
                is_named &= first.where.startswith(victim[:60])
            cases, named, worst = cases + 1, named + is_named, max(worst, missing)
            mark = "named" if is_named else "MISSED"
            print(f"{what:22} {name:24} {mark:7} {first.summary[:110]}; parts miss {missing:.2%}", flush=True)
    print(f"{named} of {cases} named first (bar {MIN_NAMED})")
    print(f"parts add up to the difference within {worst:.2%} (bar {MAX_MISSING:.0%})")
    if named < MIN_NAMED or worst > MAX_MISSING:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
