"""The benchmark of cost models on the open runs: scores JSONL files of predictions, each by the same rows.

    python benchmarks/plans.py [SUBMISSION...] [--rows DIR] [--beside NAME] [--write]

This file needs nothing but Python. A submission has a line per run, `{"id": "mbridge-001", "step_time_s":
9.8, "peak_memory_gib": 61.2, "fits": true}`, with null for what the model cannot say; a run that it cannot
represent has nulls or no line. A line without an id describes the submission (name, commit, settings).
Without a SUBMISSION, those in benchmarks/submissions are scored. docs/benchmark.md explains the tasks.
"""

import argparse
import gzip
import hashlib
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
ROWS = REPO / "runs"
SPLITS = Path(__file__).with_name("splits.json")
SUBMISSIONS = Path(__file__).with_name("submissions")
PAGE = REPO / "docs" / "benchmark.md"
PICTURE = PAGE.with_suffix(".svg")
README = REPO / "README.md"
DATA = REPO / "kb_seed" / "benchmark.json"
"""The errors, for the service's page."""
MARKS = ("<!-- scores -->\n", "<!-- /scores -->\n")
TASKS = {"step time": "step_time_s", "peak memory": "peak_memory_gib"}
"""Those that have an error of one field; the picture has a panel for each."""

CLEARLY_FASTER = 1.05
"""Two runs are compared if one took so many times as long as the other: repeats differ by up to 4%."""
MIN_SWEEP = 3
"""Plans tried, of which two or more ran."""
SHOTS = (1, 3, 8)
DRAWS = 3
MIN_CLUSTER = 12
MAX_JUDGED = 40
"""Of a cluster, so that one large sweep does not make the files large."""
CHOICES = {
    "dispatcher": ("training.moe_dispatcher", "training.moe_transport"),
    "recomputation": ("plan.recompute", "plan.recompute_modules", "plan.recompute_layers"),
}
"""What the two runs of a pair may differ in; the first is stated by both."""
NAMES, PANEL, FIGURES, TOP, ROW = 165, 200, 130, 76, 30
"""Pixels: width of the names, of a panel, of the figures beside its bars; height of the head, of a row."""
STYLE = """\
text{fill:#1f2937} .soft{fill:#6b7280} .page{fill:#fff} .grid{stroke:#e5e7eb} .bar{fill:#94a3b8}
.own{fill:#2563eb} .beside{fill:#ea580c}
@media (prefers-color-scheme: dark) { text{fill:#e5e7eb} .soft{fill:#9ca3af} .page{fill:#0d1117}
.grid{stroke:#30363d} .bar{fill:#64748b} .own{fill:#60a5fa} .beside{fill:#fb923c} }"""


@dataclass(frozen=True)
class Run:
    id: str
    source: str
    split: str
    cluster: str
    workload: str
    settings: Mapping[str, str]
    """The scenario, flat: `plan.tp` and so on, each value as JSON; what is null is left out."""
    tokens: int
    step_time_s: float | None
    """None if the plan crashed."""
    peak_memory_gib: float | None


@dataclass(frozen=True)
class Prediction:
    step_time_s: float | None
    peak_memory_gib: float | None
    fits: bool | None


@dataclass(frozen=True)
class Submission:
    name: str
    ranks_only: bool
    """Its times say which plan is preferred, and nothing in seconds."""
    predictions: Mapping[str, Prediction]
    calibrated: Mapping[tuple[int, int], Mapping[str, float]]
    """By number of runs given and draw: the step times of the runs to judge."""

    def time_s(self, run: Run) -> float | None:
        found = self.predictions.get(run.id)
        return found.step_time_s if found else None

    def time_per_token(self, run: Run) -> float | None:
        time_s = self.time_s(run)
        return None if time_s is None else time_s / run.tokens


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make bench NAME=plans",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("submissions", type=Path, nargs="*", metavar="SUBMISSION", help="JSONL, or JSONL.gz")
    parser.add_argument(
        "--rows", type=Path, default=ROWS, metavar="DIR", help="of the runs, a JSONL per source"
    )
    parser.add_argument(
        "--beside",
        default="asap-left-out",
        metavar="NAME",
        help="recorded submission to print on the same rows",
    )
    parser.add_argument("--write", action="store_true", help="renew the tables and the picture in the docs")
    options = parser.parse_args(arguments)
    try:
        runs = read_runs(options.rows)
        files = options.submissions or sorted(SUBMISSIONS.glob("*.jsonl.gz"))
        submissions = [read_submission(file) for file in files]
        beside = read_submission(SUBMISSIONS / f"{options.beside}.jsonl.gz")
    except (OSError, ValueError) as error:
        print(f"plans: error: {error}", file=sys.stderr)
        return 2
    text = report(runs, submissions, beside)
    print(text, end="")
    if options.write:
        step_times = text.split("\n\n")[2] + "\n"
        for page, shown in ((PAGE, text), (README, step_times)):
            before, rest = page.read_text().split(MARKS[0])
            page.write_text(before + MARKS[0] + shown + MARKS[1] + rest.split(MARKS[1])[1])
        scores = task_scores(runs, submissions, beside)
        PICTURE.write_text(picture(scores, beside.name))
        lines = ",\n".join(json.dumps(score._asdict()) for score in scores)
        DATA.write_text(f'{{"beside": {json.dumps(beside.name)}, "scores": [\n{lines}\n]}}\n')
    return 0


def read_runs(folder: Path, splits: Path = SPLITS) -> list[Run]:
    """The benchmark's rows, in its order; rows that were added to the folder later are not judged."""
    rows = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            rows[row["id"]] = row
    runs = []
    for split, sources in json.loads(splits.read_text()).items():
        for source, ids in sources.items():
            for name in ids.split():
                if name not in rows:
                    raise ValueError(f"{folder}: no run {name}, which {splits.name} names")
                runs.append(_run(rows[name], source, split))
    return runs


def _run(row: Mapping, source: str, split: str) -> Run:  # type: ignore[type-arg]
    scenario, measured = row["scenario"], row.get("measured") or {}
    settings = {
        f"{part}.{name}": json.dumps(value, sort_keys=True)
        for part in ("model", "cluster", "training", "plan")
        for name, value in scenario[part].items()
        if value is not None
    }
    workload = [f"{name}={value}" for name, value in sorted(settings.items()) if not name.startswith("plan.")]
    training = scenario["training"]
    return Run(
        id=row["id"],
        source=source,
        split=split,
        cluster=f"{source} {scenario['cluster']['device']}",
        workload=row.get("workload") or " ".join([source, *workload]),
        settings=settings,
        tokens=training["global_batch_size"] * training["seq_len"],
        step_time_s=None if row.get("crashed") else measured["step_time_s"],
        peak_memory_gib=measured.get("peak_memory_gib"),
    )


def read_submission(path: Path) -> Submission:
    """ValueError names the file and the line at fault."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    name, ranks_only = path.name.split(".")[0], False
    predictions: dict[str, Prediction] = {}
    calibrated: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            entry = json.loads(line)
            if "id" not in entry:
                name, ranks_only = entry.get("name", name), entry.get("ranks_only", False)
            elif "given" in entry:
                calibrated[entry["given"], entry["draw"]][entry["id"]] = _positive(entry["step_time_s"])
            else:
                time_s, memory_gib, fits = (
                    entry.get(key) for key in ("step_time_s", "peak_memory_gib", "fits")
                )
                predictions[entry["id"]] = Prediction(
                    None if time_s is None else _positive(time_s),
                    None if memory_gib is None else _positive(memory_gib),
                    None if fits is None else bool(fits),
                )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {type(error).__name__}: {error}") from error
    return Submission(name, ranks_only, predictions, calibrated)


def _positive(value: float) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"got {value}; must be above 0")
    return float(value)


def report(runs: Sequence[Run], submissions: Sequence[Submission], beside: Submission) -> str:
    test = [run for run in runs if run.split == "test"]
    return "\n".join([
        "### Step time",
        "",
        "Mean over sources of the mean absolute error of a source's runs; runs answered of all.",
        "",
        *_table(
            ["submission", "all sources", "runs", f"{beside.name} on them", "test sources", "runs"],
            (
                [
                    s.name,
                    *_cells(task_score(s, runs, beside, "step time")),
                    *_cells(task_score(s, test, beside, "step time"))[:2],
                ]
                for s in submissions
                if not s.ranks_only
            ),
        ),
        "### Memory and crashes",
        "",
        "Error where a peak is published; crashed plans said to fit; plans that ran and were refused.",
        "",
        *_table(
            ["submission", "error", "runs", f"{beside.name} on them", "crashed passed", "good refused"],
            (
                [s.name, *_cells(task_score(s, runs, beside, "peak memory")), *_crashes(s, runs)]
                for s in submissions
                if not s.ranks_only
            ),
        ),
        "### Which of two plans is faster",
        "",
        "Pairs of one workload whose measured times differ by more than 5%: share ordered rightly, mean over",
        "workloads; pairs answered of all.",
        "",
        *_table(
            ["submission", "all sources", "pairs", f"{beside.name} on them", "test sources", "pairs"],
            (
                [s.name, *_faster(s, faster_pairs(runs), beside), *_faster(s, faster_pairs(test), None)]
                for s in submissions
            ),
        ),
        "### Best of a sweep",
        "",
        "The plan with the least predicted time among those said to fit, against the best that was measured.",
        "",
        *_table(
            ["submission", "slower, median", "mean", "within 5%", "crashed", "sweeps"],
            ([s.name, *_sweeps(s, runs)] for s in submissions),
        ),
        "### Choice of dispatcher and of recomputation",
        "",
        "Pairs of runs that differ in nothing else, times more than 5% apart: right of those answered (all).",
        "",
        *_table(
            ["submission", *CHOICES],
            ([s.name, *(_choice(s, runs, name) for name in CHOICES)] for s in submissions),
        ),
        "### Calibration with own runs",
        "",
        "Error of step time on a cluster's other runs when some of its runs were given, mean over clusters.",
        "",
        *_table(
            ["submission", "none given", *(f"{shots} given" for shots in SHOTS), "clusters"],
            (line for s in submissions if not s.ranks_only for line in _calibrations(s, runs)),
        ),
    ])  # fmt: skip


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        "|---" + "|---:" * (len(header) - 1) + "|",
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
    ]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


def mean_over(groups: Iterable[tuple[str, float]]) -> float | None:
    """Of the groups' means, so that a group counts the same however large it is."""
    values = defaultdict(list)
    for name, value in groups:
        values[name].append(value)
    return _mean(statistics.fmean(group) for group in values.values())


def errors(submission: Submission, runs: Iterable[Run], field: str) -> dict[str, tuple[str, float]]:
    """By run that the submission answers: its source, and the relative error of the field."""
    found = {}
    for run in runs:
        answer = submission.predictions.get(run.id)
        predicted, measured = getattr(answer, field, None), getattr(run, field)
        if predicted is not None and measured is not None and run.split != "apart":
            found[run.id] = run.source, abs(predicted / measured - 1)
    return found


class TaskScore(NamedTuple):
    """The error of a submission in one of TASKS, over the runs that it answers."""

    name: str
    task: str
    error: float | None
    answered: int
    runs: int
    beside: float | None
    """The error of the submission that is printed beside, on the runs that are answered."""


def task_score(s: Submission, runs: Sequence[Run], beside: Submission, task: str) -> TaskScore:
    field = TASKS[task]
    found = errors(s, runs, field)
    all_runs = [run for run in runs if getattr(run, field) is not None and run.split != "apart"]
    both = errors(beside, (run for run in all_runs if run.id in found), field)
    means = mean_over(found.values()), mean_over(both.values())
    return TaskScore(s.name, task, means[0], len(found), len(all_runs), means[1])


def task_scores(
    runs: Sequence[Run], submissions: Sequence[Submission], beside: Submission
) -> list[TaskScore]:
    return [task_score(s, runs, beside, task) for s in submissions if not s.ranks_only for task in TASKS]


def _cells(score: TaskScore) -> list[str]:
    return [_percent(score.error), f"{score.answered} of {score.runs}", _percent(score.beside)]


def _crashes(s: Submission, runs: Sequence[Run]) -> list[str]:
    cells = []
    for crashed, wrong in ((True, True), (False, False)):
        tried = [run for run in runs if (run.step_time_s is None) == crashed and run.split != "apart"]
        answers = [s.predictions[run.id].fits for run in tried if run.id in s.predictions]
        known = [fits for fits in answers if fits is not None]
        share = _percent(_mean(float(fits == wrong) for fits in known))
        cells.append(f"{share} of {len(known)} ({len(tried)})")
    return cells


Pair = tuple[Run, Run]
"""The faster run first."""


def faster_pairs(runs: Iterable[Run]) -> list[Pair]:
    return [pair for tried in workloads(runs).values() for pair in _clear(combinations(tried, 2))]


def workloads(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.split != "apart":
            found[run.workload].append(run)
    return found


def _clear(pairs: Iterable[Pair]) -> Iterator[Pair]:
    for one, other in pairs:
        if one.step_time_s and other.step_time_s and one.settings != other.settings:
            ratio = one.step_time_s / one.tokens / (other.step_time_s / other.tokens)
            if max(ratio, 1 / ratio) > CLEARLY_FASTER:
                yield (one, other) if ratio < 1 else (other, one)


def _ordered(s: Submission, pairs: Iterable[Pair]) -> dict[tuple[str, str], tuple[str, float]]:
    """By pair that is answered: its workload, and 1 if the faster run is said to be so; a tie is half."""
    found = {}
    for fast, slow in pairs:
        first, second = s.time_per_token(fast), s.time_per_token(slow)
        if first is not None and second is not None:
            right = 0.5 if math.isclose(first, second, rel_tol=1e-9) else float(first < second)
            found[fast.id, slow.id] = fast.workload, right
    return found


def _faster(s: Submission, pairs: Sequence[Pair], beside: Submission | None) -> list[str]:
    found = _ordered(s, pairs)
    cells = [_percent(mean_over(found.values())), f"{len(found)} of {len(pairs)}"]
    if beside:
        both = _ordered(beside, (pair for pair in pairs if (pair[0].id, pair[1].id) in found))
        cells.append(_percent(mean_over(both.values())))
    return cells


def _sweeps(s: Submission, runs: Sequence[Run]) -> list[str]:
    swept = [
        tried
        for tried in workloads(runs).values()
        if len(tried) >= MIN_SWEEP and sum(run.step_time_s is not None for run in tried) > 1
    ]
    picks = [pick for tried in swept if (pick := picked(s, tried)) is not None]
    slower = [pick.slower for pick in picks if pick.slower is not None]
    return [
        _percent(statistics.median(slower) if slower else None),
        _percent(_mean(slower)),
        _percent(_mean(pick.near for pick in picks)),
        f"{sum(pick.crashed for pick in picks):.1f}",
        f"{len(picks)} of {len(swept)}",
    ]


@dataclass(frozen=True)
class Pick:
    """What is expected of the plan picked from a sweep; plans with the same prediction are equally likely."""

    crashed: float
    near: float
    """Chance that it ran and is within 5% of the best."""
    slower: float | None
    """Than the best that was measured, if it ran; None if every such plan crashed."""


def picked(s: Submission, tried: Sequence[Run]) -> Pick | None:
    """None if fewer than two plans are answered or none is said to fit."""
    times = {run.id: time for run in tried if (time := s.time_per_token(run)) is not None}
    offered = [run for run in tried if run.id in times and s.predictions[run.id].fits is not False]
    if len(times) < 2 or not offered:
        return None
    least = min(times[run.id] for run in offered)
    equal = [run for run in offered if math.isclose(times[run.id], least, rel_tol=1e-9)]
    best = min(run.step_time_s / run.tokens for run in tried if run.step_time_s is not None)
    slower = [run.step_time_s / run.tokens / best - 1 for run in equal if run.step_time_s is not None]
    near = sum(each <= CLEARLY_FASTER - 1 for each in slower)
    return Pick(1 - len(slower) / len(equal), near / len(equal), _mean(slower))


def _choice(s: Submission, runs: Sequence[Run], choice: str) -> str:
    pairs = choice_pairs(runs, choice)
    found = _ordered(s, pairs)
    return f"{sum(right for _, right in found.values()):g} of {len(found)} ({len(pairs)})"


def choice_pairs(runs: Iterable[Run], choice: str) -> list[Pair]:
    free = CHOICES[choice]
    alike = defaultdict(list)
    for run in runs:
        kept = sorted((name, value) for name, value in run.settings.items() if name not in free)
        if free[0] in run.settings and run.split != "apart":
            alike[run.source, *kept].append(run)
    return [pair for group in alike.values() for pair in _clear(combinations(group, 2))]


@dataclass(frozen=True)
class Draw:
    cluster: str
    shots: int
    number: int
    given: Sequence[Run]
    judged: Sequence[Run]


def draws(runs: Iterable[Run]) -> list[Draw]:
    """The same on every machine: runs in the order of a digest of draw and id, the first ones given."""
    clusters = defaultdict(list)
    for run in runs:
        if run.step_time_s is not None and run.split != "apart":
            clusters[run.cluster].append(run)
    found = []
    for cluster, own in clusters.items():
        for number in range(DRAWS if len(own) >= MIN_CLUSTER else 0):
            order = sorted(own, key=lambda run: hashlib.sha256(f"{number} {run.id}".encode()).digest())
            judged = order[max(SHOTS) :][:MAX_JUDGED]
            found += [Draw(cluster, shots, number, order[:shots], judged) for shots in SHOTS]
    return found


def _calibrations(s: Submission, runs: Sequence[Run]) -> Iterator[list[str]]:
    drawn = draws(runs)
    plain = [
        (draw, {run.id: s.time_s(run) for run in draw.judged}) for draw in drawn if draw.shots == SHOTS[0]
    ]
    yield _calibration(f"{s.name}, scaled", plain, [(draw, scaled(s, draw)) for draw in drawn])
    if s.calibrated:
        own = [(draw, s.calibrated.get((draw.shots, draw.number), {})) for draw in drawn]
        yield _calibration(f"{s.name}, own calibration", plain, own)


def scaled(s: Submission, draw: Draw) -> dict[str, float]:
    """The predictions times the median of measured over predicted of the runs that are given."""
    times = {run.id: time_s for run in (*draw.given, *draw.judged) if (time_s := s.time_s(run)) is not None}
    ratios = [run.step_time_s / times[run.id] for run in draw.given if run.step_time_s and run.id in times]
    if not ratios:
        return {}
    factor = statistics.median(ratios)
    return {name: factor * time_s for name, time_s in times.items()}


Answers = Sequence[tuple[Draw, Mapping[str, float | None]]]


def _calibration(name: str, plain: Answers, answers: Answers) -> list[str]:
    def judged(found: Answers) -> list[tuple[str, float]]:
        return [
            (draw.cluster, abs(time_s / run.step_time_s - 1))
            for draw, times in found
            for run in draw.judged
            if run.step_time_s and (time_s := times.get(run.id)) is not None
        ]

    by_shots = [judged([answer for answer in answers if answer[0].shots == shots]) for shots in SHOTS]
    answered, clusters = {cluster for cluster, _ in by_shots[-1]}, {draw.cluster for draw, _ in answers}
    cells = [_percent(mean_over(each)) for each in (judged(plain), *by_shots)]
    return [name, *cells, f"{len(answered)} of {len(clusters)}"]


def picture(scores: Sequence[TaskScore], beside: str) -> str:
    """An SVG, light or dark as its reader: a bar is a submission's error, the mark on it that of `beside`."""
    names = list(dict.fromkeys(score.name for score in scores))
    widest = max(score.error or 0.0 for score in scores)
    ticks = [tick / 5 for tick in range(math.ceil(widest * 5) + 1)]
    width, height = NAMES + len(TASKS) * (PANEL + FIGURES), TOP + ROW * len(names) + 30
    parts = [
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<path class="beside" d="{_diamond(NAMES + 6, 20)}"/>',
        f'<text x="{NAMES + 16}" y="24">{escape(beside)}, on the runs that the submission answers</text>',
        *(
            f'<text x="{NAMES - 10}" y="{TOP + ROW * number + 19}" text-anchor="end">{escape(name)}</text>'
            for number, name in enumerate(names)
        ),
    ]
    for panel, task in enumerate(TASKS):
        left, scale = NAMES + panel * (PANEL + FIGURES), PANEL / ticks[-1]
        parts.append(f'<text x="{left}" y="52" font-weight="bold">Error of {task}</text>')
        for tick in ticks:
            x = left + tick * scale
            parts.append(
                f'<line class="grid" x1="{x:.0f}" x2="{x:.0f}" y1="{TOP - 12}" y2="{height - 28}"/>'
                f'<text class="soft" x="{x:.0f}" y="{height - 12}" text-anchor="middle">{tick:.0%}</text>'
            )
        for score in (score for score in scores if score.task == task):
            y = TOP + ROW * names.index(score.name)
            if score.error is None or score.beside is None:
                parts.append(f'<text class="soft" x="{left + 6}" y="{y + 19}">no answers</text>')
                continue
            bar, mark = score.error * scale, left + score.beside * scale
            own = "own" if score.name == beside else "bar"
            end = max(left + bar, mark) + 8
            parts.append(
                f'<rect class="{own}" x="{left}" y="{y + 5}" width="{bar:.1f}" height="20"/>'
                f'<path class="beside" d="{_diamond(mark, y + 15)}"/>'
                f'<text x="{end:.0f}" y="{y + 19}">{score.error:.1%}'
                f'<tspan class="soft">, {score.answered} runs</tspan></text>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="13">\n<style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _diamond(x: float, y: float) -> str:
    return f"M{x:.1f} {y - 7}l5 7l-5 7l-5 -7z"


if __name__ == "__main__":
    raise SystemExit(main())
