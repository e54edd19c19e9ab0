"""The figures of each release, one line per release in results.json, beside which a benchmark prints its own.

    python -m benchmarks.results

prints the last release's figures with their bars. A benchmark writes its figures into the line of the version
in hand with --record; do so on a quiet machine only.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from service import __version__

FILE = Path(__file__).with_name("results.json")


class Row(NamedTuple):
    """One figure: what it is, in which unit, and the bar; `more` of a rate is better, less of the rest."""

    title: str
    unit: str
    bar: float
    more: bool = False


ROWS = {
    "practice_70b_ms": Row("whole practice space of a 70B on 1,024 devices, warm process", "ms", 60),
    "search_1t_s": Row("whole space, 1T dense on 4,096 devices", "s", 0.7),
    "search_671b_s": Row("whole space, 671B MoE on 16,384 devices", "s", 3),
    "search_peak_gib": Row("memory of either", "GiB", 1),
    "session_s": Row("session without a model, 1,024 devices, scenario to report", "s", 0.5),
    "predict_cold_s": Row("`asap predict FILE`, cold process", "s", 0.25),
    "predict_warm_ms": Row("one prediction in a warm process", "ms", 0.3),
    "what_if_ms": Row("what-if on the page, round trip at the server, median", "ms", 10),
    "trace_mb_per_s": Row("gzip trace to breakdown, JSON per CPU second", "MB", 350, more=True),
    "trace_all_mb_per_s": Row("gzip trace, all analyses", "MB", 300, more=True),
    "ranks_64_s": Row("traces of 64 ranks to a diagnosis, two cores", "s", 25),
    "ranks_64_gib": Row("memory of that", "GiB", 1.5),
    "sessions_1_worker_per_s": Row("sessions per second, one worker", "/s", 5, more=True),
    "sessions_2_workers_per_s": Row("sessions per second, two workers on PostgreSQL", "/s", 9, more=True),
    "worker_growth_mib": Row("worker's memory over 1,000 distinct sessions, growth", "MiB", 10),
    "reads_p99_ms": Row("p99 of reads at 200 per second beside running sessions", "ms", 20),
    "predictions_per_s": Row("predictions per CPU second, GPT-3 175B", "/s", 1_000_000, more=True),
}


class Release(NamedTuple):
    version: str
    date: str
    figures: dict[str, float]


def releases() -> list[Release]:
    """Oldest first."""
    return [Release(**entry) for entry in json.loads(FILE.read_text())] if FILE.is_file() else []


def compare(figures: Mapping[str, float], record: bool = False) -> None:
    """Prints the figures, each beside its bar and the last one recorded, and records them if asked to."""
    past = releases()
    width = max(len(ROWS[name].title) for name in figures)
    print(f"\n{'':<{width}}  {'now':>12}  {'bar':>12}  last recorded")
    for name, value in figures.items():
        row = ROWS[name]
        met = value >= row.bar if row.more else value <= row.bar
        last = next((r for r in reversed(past) if name in r.figures), None)
        before = f"{_text(last.figures[name], row)} ({last.version})" if last else "-"
        print(
            f"{row.title:<{width}}  {_text(value, row):>12}  {_text(row.bar, row):>12}  {before}"
            f"{'' if met else '   missed'}"
        )
    if record:
        _record(past, figures)


def _record(past: Sequence[Release], figures: Mapping[str, float]) -> None:
    """Into the line of the version in hand."""
    others = [release for release in past if release.version != __version__]
    known = next((release.figures for release in past if release.version == __version__), {})
    kept = {name: float(f"{value:.3g}") for name, value in figures.items()}
    now = Release(__version__, datetime.now(UTC).date().isoformat(), known | kept)
    lines = ",\n".join(json.dumps(release._asdict()) for release in [*others, now])
    FILE.write_text(f"[\n{lines}\n]\n")


def _text(value: float, row: Row) -> str:
    return f"{value:,.0f} {row.unit}" if value >= 1000 else f"{value:.3g} {row.unit}"


def main() -> None:
    past = releases()
    if not past:
        print("no release is recorded")
        return
    print(f"{past[-1].version}, {past[-1].date}")
    compare(past[-1].figures)


if __name__ == "__main__":
    main()
