"""The report of `asap optimize` in the terminal."""

from collections.abc import Iterator, Sequence
from itertools import cycle

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from graph.report import Advice, CaseReference, RecipeReference, Report
from service.cli.io import safe_text
from service.render.text import EVIDENCE, format_value, plain, seconds, sentence
from service.render.trials import NOTHING
from service.render.view import Planned, RawJson, View, view_of
from tools.cost.predict import Prediction
from tools.cost.terms import STEP_TERMS
from tools.recommend.notes import describe
from tools.recommend.report import Notes, RejectedPlan

Row = tuple[str, RenderableType]
NAMES_WIDTH = 10
TAG_WIDTH = 10
BAR_WIDTH = 46
MAX_CASES = 3
MAX_REJECTED = 3
WORTH_SAYING = 1.02
"""A lever beyond the contract that gives less is not worth a line here."""
_PALETTE = (
    "green", "cyan", "red", "bright_red", "magenta",
    "yellow", "bright_yellow", "blue", "bright_black", "white",
)  # fmt: skip
COLOURS = dict(zip(STEP_TERMS, cycle(_PALETTE), strict=False))


def print_report(request: RawJson, report: Report) -> None:
    console, view = Console(highlight=False), view_of(request, report)
    console.print(safe_text(view.title, "bold"))
    console.print(Text(view.contract, style="dim"))
    for rows in (
        _head(view),
        _trials(view),
        _plans(view),
        _next(report),
        _advice(report.advice),
        [*_cases(view), *_recipes(report.recipes)],
        _rejected(report.rejected),
        _notes(report.notes),
        _calibrated_by(report),
        [("question", safe_text(asked.text)) for asked in report.questions],
        [
            ("incident", safe_text(f"{incident.node}, {incident.kind}: {incident.says}"))
            for incident in report.incidents
        ],
        _footer(report),
    ):
        _print_rows(console, list(rows))


def _calibrated_by(report: Report) -> Iterator[Row]:
    if used := report.calibrated_by:
        version = f", version {used.version}" if used.version else ""
        first = report.proposals[0].prediction.step_time_s if report.proposals else used.proposal_without_s
        says = (
            f"predicted with {used.says} of {used.cluster or 'this cluster'}{version}; the first proposal: "
            f"{seconds(first)} with them, {seconds(used.proposal_without_s)} without"
        )
        yield "calibrated", safe_text(says)


def _print_rows(console: Console, rows: Sequence[Row]) -> None:
    """A name is printed where it changes, so that what belongs together reads as one."""
    if not rows:
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=NAMES_WIDTH, style="dim", no_wrap=True)
    grid.add_column()
    before = ""
    for name, content in rows:
        grid.add_row("" if name == before else name, content)
        before = name
    console.print()
    console.print(grid)


def _head(view: View) -> Iterator[Row]:
    diagnosis = view.report.diagnosis
    yield "verdict", safe_text(view.report.verdict, style="bold")
    if view.tie:
        yield "verdict", safe_text(view.tie)
    yield "", ""
    weighed = f" {sentence(diagnosis.weighed)}" if diagnosis.weighed else ""
    yield "diagnosis", safe_text(f"Limited by {diagnosis.bottleneck}.{weighed}")
    for evidence in diagnosis.evidence:
        yield "diagnosis", _with_tag(EVIDENCE[evidence.kind], evidence.says)


def _trials(view: View) -> Iterator[Row]:
    for row in view.trials:
        yield "trials", safe_text(f"{row.name}: {row.plan}", style="bold")
        gain = f", {row.gain} the baseline's speed" if row.gain != NOTHING else ""
        yield (
            "trials",
            safe_text(f"{row.outcome}: {row.measured}{gain}; predicted before {row.predicted}, {row.off}"),
        )
        for line in row.evidence:
            yield "trials", safe_text(f"evidence: {line}", style="dim")
    stopping = view.report.stopping
    if stopping:
        yield "trials", safe_text(f"ended because {stopping.says}")


def _plans(view: View) -> Iterator[Row]:
    slowest = max(planned.prediction.step_time_s for planned in view.plans)
    for planned in view.plans:
        role = f"{planned.proposal.role}: " if planned.proposal else ""
        yield planned.name, Text.assemble((role, "dim"), (planned.summary, "bold"))
        yield planned.name, _bar(planned.prediction, slowest)
        yield planned.name, Text(_figures(planned))
        if planned.proposal and planned.proposal.settings:
            settings = ", ".join(
                f"{name} {format_value(value)}" for name, value in planned.proposal.settings.items()
            )
            yield planned.name, safe_text(f"settings: {settings}")
        if planned.proposal:
            yield planned.name, safe_text(planned.proposal.rationale)
        for risk in planned.risks:
            yield planned.name, safe_text(f"risk: {risk}", style="dim")
        yield "", ""
    yield "", _legend(view)


def _next(report: Report) -> Iterator[Row]:
    yield "try first", safe_text(report.first_step, style="bold")
    yield "", ""
    yield "what if", safe_text(report.would_change)
    for option in report.beyond_contract:
        if option.throughput_ratio >= WORTH_SAYING:
            yield "what if", safe_text(option.says, style="dim")


def _advice(books: Sequence[Advice]) -> Iterator[Row]:
    """A playbook's title says what to do; how and why is a command away."""
    for book in books:
        yield "advice", Text.assemble(plain(book.title), _aside(book.id, book))


def _cases(view: View) -> Iterator[Row]:
    for case in view.warnings:
        warning = ("refuted by measurement: ", "bold red"), plain(case.title), ". ", plain(case.lesson)
        yield "warning", Text.assemble(*warning, _aside(case.id, case))
    for case in view.precedents[:MAX_CASES]:
        yield "past cases", Text.assemble(plain(case.title), _aside(case.status, case))


def _recipes(recipes: Sequence[RecipeReference]) -> Iterator[Row]:
    """What was published for this model, and which proposal runs alike."""
    for recipe in recipes:
        like = f" (as proposal {recipe.proposal})" if recipe.proposal else ""
        yield "published", safe_text(f"{recipe.title}{like}: {recipe.says}")


def _aside(what: str, entry: Advice | CaseReference) -> tuple[str, str]:
    return f" ({plain(what)}; {plain(entry.sources[0].title)})", "dim"


def _rejected(rejected: Sequence[RejectedPlan]) -> Iterator[Row]:
    for plan in rejected[:MAX_REJECTED]:
        yield "why not", _with_tag(plan.binding, plan.why)


def _notes(notes: Notes | None) -> Iterator[Row]:
    if notes is None:
        return
    for statement in notes.accepted:
        yield "notes", safe_text(f'{describe(statement)}, from "{statement.quote}"')
    for statement in notes.refused:
        yield "notes", safe_text(f"not applied: {describe(statement)}: {statement.reason}", style="dim")
    if notes.says:
        yield "notes", safe_text(notes.says)


def _footer(report: Report) -> Iterator[Row]:
    searched, usage = report.searched, report.usage
    made = f"{searched.plans:,} legal plans searched in {searched.seconds:.1f} s, by {report.reasoner}"
    spent = f", {usage.tokens:,.0f} tokens, {usage.cost:.2f} spent" if usage.tokens else ""
    spent += f", {usage.fell_back:.0f} answers by the expert rules instead" if usage.fell_back else ""
    kept = f"; saved as case {report.case}" if report.case else ""
    yield "", safe_text(f"{made}{spent}{kept}. More with --format markdown, html or json.", style="dim")


def _figures(planned: Planned) -> str:
    p = planned.prediction
    fit = "" if p.fits else ", DOES NOT FIT"
    gain = f", {planned.gain} today's speed" if planned.gain else ""
    pace = f"{seconds(p.step_time_s)} ({planned.interval}){gain}"
    return f"{pace}, MFU {p.mfu:.1%}, {p.peak_memory_gib:.1f} GiB{fit}"


def _bar(prediction: Prediction, slowest: float) -> Text:
    bar, drawn = Text(), 0.0
    for term, colour in COLOURS.items():
        end = drawn + prediction.breakdown_s[term] / slowest * BAR_WIDTH
        bar.append("█" * (round(end) - round(drawn)), style=colour)
        drawn = end
    return bar


def _legend(view: View) -> Text:
    legend = Text()
    for term in view.step_terms:
        legend.append("█ ", style=COLOURS[term])
        legend.append(f"{STEP_TERMS[term].short}  ", style="dim")
    return legend


def _with_tag(tag: str, words: object) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=TAG_WIDTH, style="dim")
    grid.add_column()
    grid.add_row(plain(tag), safe_text(words))
    return grid
