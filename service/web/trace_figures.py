"""Figures of traces: everything here is measured."""

from service.errors import NotFoundError
from service.web.asked import Asked, Data
from service.web.figures.canvas import Figure
from service.web.figures.collectives import Transfer, collectives_figure
from service.web.figures.ranks import lateness_figure, terms_figure, timeline_figure
from service.web.figures.roofline import Point, roofline_figure
from service.web.traces import DRAWING
from tools.trace.devices import find_device


def roofline(asked: Asked) -> Figure:
    points = [
        Point(
            one["op"],
            one["intensity_flops_per_byte"],
            one["achieved_tflops"] * 1e12,
            one["time_us"] / 1e6,
            f"{one['shape']}, {one['precision']}, {one['count']} calls",
        )
        for one in _drawing(asked)["points"]
    ]
    if not points:
        raise NotFoundError("operation with shapes in traces of session", asked.shown.row.id)
    names = [one["device"] for one in asked.analysis["ranks"] if one["device"]]
    precisions = sorted({one["precision"] for one in _drawing(asked)["points"]})
    return roofline_figure(points, find_device(names[0]) if names else None, precisions)


def collectives(asked: Asked) -> Figure:
    found = [one for one in asked.analysis["collectives"] if one["bus_bandwidth_gbytes_per_s"]]
    transfers = [
        Transfer(
            one["kind"],
            one["message_bytes"],
            one["bus_bandwidth_gbytes_per_s"] * 1e9,
            f"{one['count']} × {one['kind']}, {one['time_us'] / 1000:.3g} ms in all",
        )
        for one in found
        if one["message_bytes"]
    ]
    if not transfers:
        raise NotFoundError("collective with a size in traces of session", asked.shown.row.id)
    link = next((one["link_gbytes_per_s"] for one in found if one["link_gbytes_per_s"]), None)
    return collectives_figure(transfers, [("link", link * 1e9)] if link else [])


def ranks(asked: Asked) -> Figure:
    return terms_figure(asked.analysis["ranks"])


def timeline(asked: Asked) -> Figure:
    strips = _drawing(asked)["strips"]
    if not strips:
        raise NotFoundError("timeline in traces of session", asked.shown.row.id)
    return timeline_figure(strips)


def lateness(asked: Asked) -> Figure:
    found = _drawing(asked)["lateness"]
    if not found:
        raise NotFoundError("collective that two ranks share in traces of session", asked.shown.row.id)
    return lateness_figure(found["ranks"], found["late_us"])


def _drawing(asked: Asked) -> Data:
    """Analyses made before there were figures have none."""
    empty: Data = {"strips": [], "points": [], "lateness": None}
    found: Data = asked.analysis.get(DRAWING) or empty
    return found
