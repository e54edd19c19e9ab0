"""`make runs-table`: writes what is made from runs/: its SOURCES.md, and the table that the wheel carries."""

import gzip
import json
import sys
from collections import Counter

from research.published import RUNS, PublishedSource, read_runs, read_sources
from tools.errors import AsapError, InputError
from tools.model.row_checks import what_ran
from tools.model.runs import Run
from tools.names import did_you_mean
from tools.scenario.fields import JsonObject

SOURCES_MD = RUNS / "SOURCES.md"
TABLE = RUNS.parent / "kb_seed" / "runs" / "published.jsonl.gz"
LEFT_OUT = ("path", "release", "context", "note", "checked")
"""Fields that stay in runs/."""
MEASURED = ("step_time_s", "peak_memory_gib", "peak_memory_kind", "peak_memory_of")
VARIANT = "variant"
"""In a row's context: what tells it from another row of its scenario, "repeat 2" or "uccl"."""
HEADER = """\
# Sources of the published runs

Made from sources.toml by `make runs-table`; do not edit. CONTRIBUTING.md says how a run is added.
"""


def sources_page(sources: dict[str, PublishedSource], runs: list[Run]) -> str:
    ran = Counter(run.source for run in runs if not run.crashed)
    crashed = Counter(run.source for run in runs if run.crashed)
    lines = [
        HEADER,
        f"{ran.total()} measured and {crashed.total()} crashed runs of {len(sources)} sources.",
        "",
    ]
    lines += ["| source | measured | crashed | licence |", "|---|---:|---:|---|"]
    lines += [
        f"| [{key}](#{key}) | {ran[key]} | {crashed[key]} | {source.licence} |"
        for key, source in sources.items()
    ]
    for key, source in sources.items():
        lines += ["", f"## {key}", "", f"{source.title}.", "", f"- Address: {_address(source)}"]
        if source.release:
            lines.append(f"- Release: {source.release}")
        lines += [
            f"- Licence: {source.licence}",
            f"- Read: {source.read}",
            f"- Uncertain: {source.uncertain}",
        ]
        if source.labels:
            lines.append("- Labelled after reading:")
        lines += [
            f"  - `{label.field}` {json.dumps(label.value)} in {label.rows} rows: {label.why}"
            for label in source.labels
        ]
    return "\n".join(lines) + "\n"


def _address(source: PublishedSource) -> str:
    if source.path.startswith("https://"):
        return f"<{source.path}>"
    repo = source.repo and f"<https://github.com/{source.repo}>"
    return (
        ", ".join(part for part in (repo, source.path and f"`{source.path}`") if part) or "stands in each row"
    )


def table_rows() -> str:
    """A line per row: scenario, result and source."""
    lines = []
    for file in sorted(RUNS.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            row: JsonObject = json.loads(line)
            kept: JsonObject = {name: value for name, value in row.items() if name not in LEFT_OUT}
            if isinstance(measured := row.get("measured"), dict):
                kept["measured"] = {name: measured[name] for name in MEASURED if name in measured}
            lines.append(json.dumps(kept, separators=(",", ":"), ensure_ascii=False) + "\n")
    return "".join(lines)


def check_sources(sources: dict[str, PublishedSource], runs: list[Run]) -> None:
    """Raises InputError for the first row whose source is not described, or whose id another row has, or its
    scenario: a row that was corrected under a new id would count twice; and for a label that the rows do not
    have so often."""
    ids = Counter(run.id for run in runs)
    ran: dict[tuple[str, ...], str] = {}
    for run in runs:
        if run.source not in sources:
            raise InputError(f"{run.id}: source", run.source, did_you_mean(run.source, sources))
        if ids[run.id] > 1:
            raise InputError(f"{run.id}: id", run.id, f"{ids[run.id]} rows have it; each row has its own")
        row = run.source, run.release, what_ran(run), str(run.context.get(VARIANT))
        if (other := ran.setdefault(row, run.id)) != run.id:
            rule = f"{other} has the same, source and release too; a repeat has its own context.{VARIANT}"
            raise InputError(f"{run.id}: scenario", run.scenario.model.name, rule)
    for key, source in sources.items():
        for label in source.labels:
            count = sum(label.is_on(run) for run in runs if run.source == key)
            if count != label.rows:
                rule = f"{count} rows of the source have {label.field} {json.dumps(label.value)}"
                raise InputError(f"{key}.labels: rows", label.rows, rule)


def main() -> int:
    try:
        sources, runs = read_sources(), read_runs()
        check_sources(sources, runs)
        page = sources_page(sources, runs)
    except AsapError as error:
        print(f"runs-table: error: {error}", file=sys.stderr)
        return 2
    SOURCES_MD.write_text(page, "utf-8")
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_bytes(gzip.compress(table_rows().encode(), mtime=0))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
