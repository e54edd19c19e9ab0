"""Charts of traces and of their predictions, for `asap diagnose --html` and the web pages."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from service.render.charts import (
    PALETTE,
    Chart,
    Dash,
    Layer,
    axis,
    boxes,
    chart,
    label,
    line,
    log_axis,
    points,
    rows_axis,
    rows_height,
)
from service.render.text import MEASURED, bytes_of, seconds
from tools.hardware import Device
from tools.trace.alignment import CollectiveSummary
from tools.trace.rank_profile import RankReport
from tools.trace.report import MAX_DRAWN_RANKS, Strip
from tools.trace.roofline import RoofReport
from tools.trace.waits import Lateness

MAX_BARS = 12
TERA, GIGA = 1e12, 1e9
KINDS = tuple(MEASURED.values())
COLOURS = ("--compute", "--tp_comm_exposed", "--memory_bound_ops", "--rule")
SHAPES = ("circle", "square", "diamond", "up", "down")
ONE_CLOCK_SPANS = 2
"""Ranks whose traces start further apart than this many traces last have clocks of their own."""


def terms_chart(ranks: Sequence[RankReport]) -> Chart:
    """The four terms of every rank, stacked."""
    shown = ranks[:MAX_DRAWN_RANKS]
    names = [f"rank {rank.rank}" for rank in shown]
    bars = {name: [getattr(rank, key) / 1000 for rank in shown] for key, name in MEASURED.items()}
    return _stacked_bars(names, bars, COLOURS, "ms")


def waiting_chart(collectives: Sequence[CollectiveSummary]) -> Chart | None:
    """Transfer and waiting of the longest collectives; None if waiting is not known."""
    shown = [collective for collective in collectives if collective.waiting_us is not None][:MAX_BARS]
    sizes = [
        "of unknown size" if collective.message_bytes is None else bytes_of(collective.message_bytes)
        for collective in shown
    ]
    rows = [f"{label(collective.kind)} {size}" for collective, size in zip(shown, sizes, strict=True)]
    bars = {
        "transfer": [collective.transfer_us / 1000 for collective in shown],
        "waiting": [(collective.waiting_us or 0.0) / 1000 for collective in shown],
    }
    return _stacked_bars(rows, bars, COLOURS[:2], "ms, mean over ranks") if shown else None


def _stacked_bars(rows: list[str], bars: dict[str, list[float]], colours: Sequence[str], unit: str) -> Chart:
    layers, ends = list[Layer](), [0.0] * len(rows)
    for (name, lengths), colour in zip(bars.items(), colours, strict=True):
        texts = [f"{row}: {name} {length:.4g} ms" for row, length in zip(rows, lengths, strict=True)]
        starts, ends = ends, [end + length for end, length in zip(ends, lengths, strict=True)]
        layers.append(boxes(name, starts, ends, list(range(len(rows))), texts) | {"colour": colour})
    return chart(axis(unit, ends, from_zero=True), rows_axis(rows), rows_height(len(rows)), layers)


def timeline_chart(strips: Sequence[Strip]) -> Chart:
    """One strip per rank; each stretch has the colour of what filled most of it."""
    starts_ms = [strip.start_ms for strip in strips]
    longest_ms = max(strip.end_ms - strip.start_ms for strip in strips)
    has_one_clock = max(starts_ms) - min(starts_ms) < ONE_CLOCK_SPANS * longest_ms
    layers = []
    for row, strip in enumerate(strips):
        shares = [
            (*stretch, max(0, 1000 - sum(stretch)))
            for stretch in zip(strip.compute, strip.exposed_communication, strip.memory, strict=True)
        ]
        width_ms = (strip.end_ms - strip.start_ms) / max(len(shares), 1)
        first_ms = strip.start_ms - (min(starts_ms) if has_one_clock else strip.start_ms)
        left = [round(first_ms + index * width_ms, 6) for index in range(len(shares))]
        texts = [
            f"rank {strip.rank}, {start:.4g} ms\n"
            + "\n".join(f"{kind} {share / 10:.0f}%" for kind, share in zip(KINDS, stretch, strict=True))
            for start, stretch in zip(left, shares, strict=True)
        ]
        stretches = boxes("", left, [round(x + width_ms, 6) for x in left], [row] * len(left), texts)
        stretches["colours"] = [
            COLOURS[max(range(len(KINDS)), key=stretch.__getitem__)] for stretch in shares
        ]
        layers.append(stretches)
    title = "ms" if has_one_clock else "ms since each rank's first event"
    ends = [end for layer in layers for end in (*layer["x"], *layer["x1"])]
    rows = rows_axis([f"rank {strip.rank}" for strip in strips])
    return chart(axis(title, ends), rows, rows_height(len(strips)), layers)


def lateness_chart(lateness: Lateness) -> Chart:
    """A row per rank, a column per stretch of collectives in order; dark if others wait for the rank."""
    longest_us = max((us for row in lateness.late_us for us in row if us is not None), default=0.0)
    unit, factor = ("ms", 1e-3) if longest_us >= 1000 else ("µs", 1.0)
    cells = [
        (row, column, us)
        for row, late in enumerate(lateness.late_us)
        for column, us in enumerate(late)
        if us is not None
    ]
    texts = [
        f"rank {lateness.ranks[row]} came {us * factor:.3g} {unit} after the first" for row, _, us in cells
    ]
    columns = [column for _, column, _ in cells]
    heat = boxes("", columns, [column + 1 for column in columns], [row for row, _, _ in cells], texts)
    heat |= {"colour": "--tp_comm_exposed", "strength": [us / (longest_us or 1.0) for _, _, us in cells]}
    title = f"collectives, in order; the darkest came {longest_us * factor:.3g} {unit} late"
    rows = rows_axis([f"rank {rank}" for rank in lateness.ranks])
    x = axis(title, [], "count") | {"low": 0.0, "high": max(columns, default=0) + 1.0}
    return chart(x, rows, rows_height(len(lateness.ranks)), [heat])


def allocated_memory_chart(ranks: Sequence[RankReport]) -> Chart | None:
    """Allocated memory over time; None if the profiler did not record it."""
    layers = list[Layer]()
    for number, rank in enumerate(ranks[:MAX_DRAWN_RANKS]):
        if rank.memory is not None:
            ms, gib = [us / 1000 for us in rank.memory.timeline_us], rank.memory.timeline_allocated_gib
            texts = [
                f"rank {rank.rank}: {held:.4g} GiB at {at:.4g} ms" for at, held in zip(ms, gib, strict=True)
            ]
            drawn = line(f"rank {rank.rank}", ms, gib, "solid", PALETTE[number % len(PALETTE)])
            layers.append(drawn | {"texts": texts, "is_stepped": True})
    x, y = ([value for layer in layers for value in layer[key]] for key in ("x", "y"))
    return chart(axis("ms", x), axis("allocated, GiB", y, from_zero=True), 360, layers) if layers else None


class RooflinePoint(NamedTuple):
    name: str
    intensity: float
    """FLOPs per byte."""
    flops_per_s: float
    seconds: float
    label: str


def roofline_chart(
    operations: Sequence[RooflinePoint], device: Device | None, precisions: Sequence[str]
) -> Chart:
    """Without a roof if `device` is None: traces may not name it."""
    layers, total_s = list[Layer](), defaultdict[str, float](float)
    for precision in precisions:
        if device is not None and precision in device.peak_flops:
            peak, bandwidth = device.peak_flops[precision], device.memory_bandwidth_bytes_per_s
            ridge = peak / bandwidth
            left = min([ridge / 30, *(operation.intensity / 2 for operation in operations)])
            right = max([ridge * 10, *(operation.intensity * 2 for operation in operations)])
            heights = [bandwidth * left / TERA, peak / TERA, peak / TERA]
            layers.append(line(f"{device.name}, {precision}", [left, ridge, right], heights, "solid"))
    # The operations that take longest by name, each with a shape: colours mean parts of a step.
    for operation in operations:
        total_s[operation.name] += operation.seconds
    longest = sorted(total_s, key=lambda name: -total_s[name])[: len(SHAPES)]
    longest_s = max((operation.seconds for operation in operations), default=1.0) or 1.0
    groups = [
        (name, shape, [operation for operation in operations if operation.name == name])
        for name, shape in zip(longest, SHAPES, strict=False)
    ]
    groups.append(("others", "ring", [rest for rest in operations if rest.name not in longest]))
    for name, shape, group in groups:
        if group:
            x, y = [op.intensity for op in group], [op.flops_per_s / TERA for op in group]
            texts = [
                f"{label(op.name)}\n{label(op.label)}\n{seconds(op.seconds)}, "
                f"{op.flops_per_s / TERA:.3g} TFLOP/s at {op.intensity:.3g} FLOP/byte"
                for op in group
            ]
            dots = points(label(name), x, y, texts, "--compute") | {"shape": shape, "opacity": 0.8}
            dots["sizes"] = [8 + 22 * (op.seconds / longest_s) ** 0.5 for op in group]
            layers.append(dots)
    x_axis = log_axis("FLOPs per byte moved", [x for layer in layers for x in layer["x"]])
    return chart(x_axis, log_axis("TFLOP/s", [y for layer in layers for y in layer["y"]]), 440, layers)


def measured_roofline_chart(ops: Sequence[RoofReport], device: Device | None) -> Chart | None:
    """None if the traces have no shapes."""
    measured = [
        RooflinePoint(op.op, op.intensity_flops_per_byte, op.achieved_tflops * TERA, op.time_us / 1e6, words)
        for op in ops
        for words in [f"{op.shape}, {op.precision}, {op.count} calls"]
    ]
    return roofline_chart(measured, device, sorted({op.precision for op in ops})) if measured else None


class Transfer(NamedTuple):
    group: str
    """What has one colour: the kind of a measured collective, the degree of a predicted one."""
    message_bytes: float
    bus_bytes_per_s: float
    label: str
    colour: str = ""
    """Empty: the next one of the palette."""


def collectives_chart(transfers: Sequence[Transfer], links: Sequence[tuple[str, float]]) -> Chart:
    """`links` by name, in bytes per second."""
    layers = list[Layer]()
    for index, name in enumerate(sorted({transfer.group for transfer in transfers})):
        group = [transfer for transfer in transfers if transfer.group == name]
        sizes, rates = [t.message_bytes for t in group], [t.bus_bytes_per_s / GIGA for t in group]
        texts = [
            f"{label(t.label)}\n{bytes_of(t.message_bytes)} at {t.bus_bytes_per_s / GIGA:.3g} GB/s"
            for t in group
        ]
        colour = group[0].colour or PALETTE[index % len(PALETTE)]
        layers.append(points(label(name), sizes, rates, texts, colour, 12))
    every = [transfer.message_bytes for transfer in transfers]
    span = [min(every) / 5, max(every) * 5] if every else [1.0, 1e9]
    dashes: Sequence[Dash] = ("solid", "dash", "dot")
    for (name, rate), dash in zip(links, dashes, strict=False):
        layers.append(line(f"{name}, {rate / GIGA:.3g} GB/s", span, [rate / GIGA] * 2, dash))
    x = log_axis("message size", every, "bytes")
    return chart(x, log_axis("bus bandwidth, GB/s", [y for layer in layers for y in layer["y"]]), 400, layers)


def measured_collectives_chart(collectives: Sequence[CollectiveSummary]) -> Chart | None:
    """Achieved bus bandwidth over message size; None if no collective has a size."""
    transfers = []
    for collective in collectives:
        if collective.message_bytes and collective.bus_bandwidth_gbytes_per_s:
            words = f"{collective.count} × {collective.kind}, {collective.time_us / 1000:.3g} ms in total"
            if collective.waiting_us is not None:
                words += f", {collective.waiting_us / 1000:.3g} ms of it waiting"
            rate = collective.bus_bandwidth_gbytes_per_s * GIGA
            transfers.append(Transfer(collective.kind, collective.message_bytes, rate, words))
    links = [collective.link_gbytes_per_s for collective in collectives if collective.link_gbytes_per_s]
    return collectives_chart(transfers, [("link", link * GIGA) for link in links[:1]]) if transfers else None
