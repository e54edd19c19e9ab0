"""The validation report as Markdown."""

from collections.abc import Mapping, Sequence

from tools.validate.score import MemoryScore, Score

HEADER = (
    "| {} | rows | MAPE | median | bias | within 10% | 80% interval holds |\n" + "|---" + "|---:" * 6 + "|\n"
)


def score_table(title: str, scores: Mapping[str, Score]) -> str:
    return HEADER.format(title) + "".join(f"{_line(name, s)}\n" for name, s in scores.items())


def _line(name: str, s: Score) -> str:
    figures = f"{s.mape:.1%} | {s.median:.1%} | {s.bias:+.1%} | {s.within_10:.0%} | {s.coverage:.0%}"
    return f"| {name} | {s.rows} | {figures} |"


def report(sections: Sequence[tuple[str, str]], memory: Mapping[str, MemoryScore], plot: str) -> str:
    lines = ["# Validation of the cost model", "", "Made by `make validate`; do not edit.", ""]
    lines += [f"![predicted against measured]({plot})", ""]
    for title, body in sections:
        lines += [f"## {title}", "", body]
    lines += [
        "## Memory",
        "",
        "| rows | with a published peak | MAPE | said to fit (all ran) |",
        "|---|---:|---:|---:|",
    ]
    lines += [f"| {name} | {m.rows} | {m.mape:.1%} | {m.fits_share:.1%} |" for name, m in memory.items()]
    return "\n".join(lines) + "\n"
