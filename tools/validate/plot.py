"""Predicted against measured step time, as an SVG drawn by ourselves: no browser is needed to export it."""

from collections.abc import Sequence

import numpy as np

from tools.cost.inputs import Array

SIZE, MARGIN = 640, 60
COLOURS = {"dense": "#2563eb", "moe": "#ea580c", "small": "#9ca3af"}
LABELS = {"dense": "dense", "moe": "mixture of experts", "small": "very small models (apart)"}


def scatter_svg(measured_s: Array, predicted_s: Array, kinds: Sequence[str]) -> str:
    low = 10.0 ** np.floor(np.log10(min(measured_s.min(), predicted_s.min())))
    high = 10.0 ** np.ceil(np.log10(max(measured_s.max(), predicted_s.max())))
    scale = _Scale(low, high)
    parts = [
        _frame(),
        *_band(scale),
        *_ticks(scale),
        *_dots(scale, measured_s, predicted_s, kinds),
        *_legend(),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" font-family="sans-serif" '
        f'font-size="13">\n<rect width="{SIZE}" height="{SIZE}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


class _Scale:
    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = float(np.log10(low)), float(np.log10(high))

    def x(self, value: float) -> float:
        share = (float(np.log10(value)) - self.low) / (self.high - self.low)
        return MARGIN + share * (SIZE - 2 * MARGIN)

    def y(self, value: float) -> float:
        return SIZE - self.x(value)


def _frame() -> str:
    inner = SIZE - 2 * MARGIN
    middle = SIZE / 2
    return (
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{inner}" height="{inner}" fill="none" stroke="#374151"/>'
        f'<text x="{middle}" y="{SIZE - 15}" text-anchor="middle">measured step time, seconds</text>'
        f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">'
        "predicted with the row's group left out, seconds</text>"
    )


def _band(scale: _Scale) -> list[str]:
    low, high = 10**scale.low, 10**scale.high
    lines = []
    for factor, style in ((1.0, 'stroke="#111827"'), (1.1, 'stroke="#9ca3af" stroke-dasharray="4"')):
        for f in {factor, 1.0 / factor}:
            x1, x2 = max(low, low / f), min(high, high / f)
            start = f'x1="{scale.x(x1):.1f}" y1="{scale.y(x1 * f):.1f}"'
            end = f'x2="{scale.x(x2):.1f}" y2="{scale.y(x2 * f):.1f}"'
            lines.append(f"<line {start} {end} {style}/>")
    return lines


def _ticks(scale: _Scale) -> list[str]:
    marks = []
    for power in range(round(scale.low), round(scale.high) + 1):
        value = 10.0**power
        marks.append(
            f'<text x="{scale.x(value):.1f}" y="{SIZE - MARGIN + 18}" text-anchor="middle">{value:g}</text>'
        )
        marks.append(
            f'<text x="{MARGIN - 6}" y="{scale.y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    return marks


def _dots(scale: _Scale, measured_s: Array, predicted_s: Array, kinds: Sequence[str]) -> list[str]:
    return [
        f'<circle cx="{scale.x(m):.1f}" cy="{scale.y(p):.1f}" r="3" fill="{COLOURS[kind]}" opacity="0.55"/>'
        for m, p, kind in zip(measured_s, predicted_s, kinds, strict=True)
    ]


def _legend() -> list[str]:
    rows = []
    for number, (kind, label) in enumerate(LABELS.items()):
        y = MARGIN + 20 + 18 * number
        rows.append(f'<circle cx="{MARGIN + 16}" cy="{y - 4}" r="4" fill="{COLOURS[kind]}"/>')
        rows.append(f'<text x="{MARGIN + 28}" y="{y}">{label}</text>')
    rows.append(f'<text x="{MARGIN + 10}" y="{MARGIN + 80}" fill="#6b7280">dashed: 10% off</text>')
    return rows
