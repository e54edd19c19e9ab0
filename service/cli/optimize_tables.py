"""The report of `asap optimize` in the terminal."""

from collections.abc import Iterator
from itertools import cycle, pairwise

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from graph.report import Advice, CaseReference, Report
from service.cli.io import safe_text
from service.render.text import EVIDENCE, format_value, plain, seconds, sentence
from service.render.trials import NOTHING
from service.render.view import ReportView
from tools.physics.terms import STEP_TERMS
from tools.recommend.notes import describe

TableRow = tuple[str, RenderableType]
NAMES_WIDTH = 10
TAG_WIDTH = 10
BAR_WIDTH = 46
MAX_CASES = 3
MAX_REJECTED = 3
WORTH_SAYING = 1.02
"""A lever beyond the contract that gives less is not worth a line here."""
PALETTE = (
    "green", "cyan", "red", "bright_red", "magenta",
    "yellow", "bright_yellow", "blue", "bright_black", "white",
)  # fmt: skip
COLOURS = dict(zip(STEP_TERMS, cycle(PALETTE), strict=False))


def print_tables(view: ReportView) -> None:
    console, report = Console(highlight=False), view.report
    console.print(safe_text(view.title, "bold"))
    console.print(Text(view.contract, style="dim"))
    for block in (
        _findings(report),
        _verdict(view),
        _trials(view),
        _plans(view),
        _next_steps(report),
        [("advice", Text.assemble(plain(book.title), _aside(book.id, book))) for book in report.advice],
        _precedents(view),
        [("why not", _with_tag(plan.binding, plan.why)) for plan in report.rejected[:MAX_REJECTED]],
        _notes(report),
        [("calibrated", safe_text(view.calibrated_by))] if view.calibrated_by else [],
        [("question", safe_text(question.text)) for question in report.questions],
        [
            ("incident", safe_text(f"{incident.node}, {incident.kind}: {incident.summary}"))
            for incident in report.incidents
        ],
        [("", safe_text(_footer(report), style="dim"))],
    ):
        rows = list(block)
        if not rows:
            continue
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=NAMES_WIDTH, style="dim", no_wrap=True)
        grid.add_column()
        for (before, _), (name, content) in pairwise([("", ""), *rows]):
            # A name is printed where it changes, so that what belongs together reads as one.
            grid.add_row("" if name == before else name, content)
        console.print()
        console.print(grid)


def _findings(report: Report) -> Iterator[TableRow]:
    """What is odd about the cluster's runs stands before what was made of them."""
    for finding in report.calibrated_by.findings if report.calibrated_by else ():
        yield "cluster", safe_text(finding.message, style="bold")
        yield "cluster", safe_text(f"measure: {finding.measure}")


def _verdict(view: ReportView) -> Iterator[TableRow]:
    diagnosis = view.report.diagnosis
    yield "verdict", safe_text(view.headline.text, style="bold")
    for more in (view.tie, view.report.explanation):
        if more:
            yield "verdict", safe_text(more)
    yield "", ""
    weighed = f" {sentence(diagnosis.weighed)}" if diagnosis.weighed else ""
    yield "diagnosis", safe_text(f"{view.headline.limit.in_words}.{weighed}")
    for evidence in diagnosis.evidence:
        yield "diagnosis", _with_tag(EVIDENCE[evidence.kind], evidence.says)


def _trials(view: ReportView) -> Iterator[TableRow]:
    for row in view.trials:
        yield "trials", safe_text(f"{row.name}: {row.plan}", style="bold")
        gain = f", {row.gain} the baseline's speed" if row.gain != NOTHING else ""
        line = f"{row.outcome}: {row.measured}{gain}; predicted before {row.predicted}, {row.off}"
        yield "trials", safe_text(line)
        for evidence in row.evidence:
            yield "trials", safe_text(f"evidence: {evidence}", style="dim")
    if stopping := view.report.stopping:
        yield "trials", safe_text(f"ended because {stopping.reason}")


def _plans(view: ReportView) -> Iterator[TableRow]:
    """Each plan with its bar of terms, on the scale of the slowest, and what they mean below."""
    slowest_s = max(planned.prediction.step_time_s for planned in view.plans)
    for planned in view.plans:
        prediction, proposal, bar, drawn = planned.prediction, planned.proposal, Text(), 0.0
        for term, colour in COLOURS.items():
            end = drawn + prediction.breakdown_s[term] / slowest_s * BAR_WIDTH
            bar.append("█" * (round(end) - round(drawn)), style=colour)
            drawn = end
        role = f"{view.role_of(planned)}: " if proposal else ""
        fit = "" if prediction.fits else ", DOES NOT FIT"
        gain = f", {planned.gain} today's speed" if planned.gain else ""
        pace = f"{seconds(prediction.step_time_s)} ({planned.interval}){gain}"
        yield planned.name, Text.assemble((role, "dim"), (planned.summary, "bold"))
        yield planned.name, bar
        memory = f"{prediction.peak_memory_gib:.1f} GiB{fit}"
        yield planned.name, Text(f"{pace}, MFU {prediction.mfu:.1%}, {memory}")
        if prediction.run:
            yield planned.name, safe_text(prediction.run.summary)
        if proposal and proposal.settings:
            settings = (f"{name} {format_value(value)}" for name, value in proposal.settings.items())
            yield planned.name, safe_text(f"settings: {', '.join(settings)}")
        if proposal:
            yield planned.name, safe_text(proposal.why)
            yield planned.name, safe_text(proposal.rationale)
        if planned.robustness:
            told = ", ".join(f"{name} {value}" for name, value in planned.robustness)
            yield planned.name, safe_text(f"robustness: {told}", style="dim")
        if planned.checkpoint:
            yield planned.name, safe_text(planned.checkpoint, style="dim")
        for risk in planned.risks:
            yield planned.name, safe_text(f"risk: {risk}", style="dim")
        yield "", ""
    legend = Text()
    for term in view.step_terms:
        legend.append("█ ", style=COLOURS[term]).append(f"{STEP_TERMS[term].short}  ", style="dim")
    yield "", legend


def _next_steps(report: Report) -> Iterator[TableRow]:
    yield "try first", safe_text(report.first_step, style="bold")
    chosen = report.proposals[report.chosen - 1] if report.chosen and report.proposals else None
    if chosen and chosen.changes and (runs := chosen.two_runs):
        steps = f"{runs.warmup_steps} steps to warm up, {runs.steps} to measure"
        yield "two runs", safe_text(f"{steps} each; {runs.meaning}")
        for command in runs.commands:
            yield "two runs", safe_text(command, style="dim")
    yield "", ""
    yield "what if", safe_text(report.would_change)
    for option in report.beyond_contract:
        if option.throughput_ratio >= WORTH_SAYING:
            yield "what if", safe_text(option.summary, style="dim")


def _precedents(view: ReportView) -> Iterator[TableRow]:
    """Past cases, and what was published for this model."""
    for case in view.warnings:
        warning = ("refuted by measurement: ", "bold red"), plain(case.title), ". ", plain(case.lesson)
        yield "warning", Text.assemble(*warning, _aside(case.id, case))
    for case in view.precedents[:MAX_CASES]:
        yield "past cases", Text.assemble(plain(case.title), _aside(case.status, case))
    for recipe in view.report.recipes:
        like = f" (as proposal {recipe.proposal})" if recipe.proposal else ""
        yield "published", safe_text(f"{recipe.title}{like}: {recipe.summary}")


def _notes(report: Report) -> Iterator[TableRow]:
    """What was understood of the engineer's notes."""
    if (notes := report.notes) is None:
        return
    for statement in notes.accepted:
        yield "notes", safe_text(f'{describe(statement)}, from "{statement.quote}"')
    for statement in notes.refused:
        yield "notes", safe_text(f"not applied: {describe(statement)}: {statement.reason}", style="dim")
    if notes.message:
        yield "notes", safe_text(notes.message)


def _footer(report: Report) -> str:
    searched, usage = report.searched, report.usage
    made = f"{searched.plans:,} legal plans searched in {searched.seconds:.1f} s, by {report.reasoner}"
    spent = f", {usage.tokens:,.0f} tokens, {usage.cost:.2f} spent" if usage.tokens else ""
    spent += f", {usage.fell_back:.0f} answers by the expert rules instead" if usage.fell_back else ""
    saved = f"; saved as case {report.case}" if report.case else ""
    return f"{made}{spent}{saved}. More with --format markdown, html or json."


def _aside(what: str, entry: Advice | CaseReference) -> tuple[str, str]:
    return f" ({plain(what)}; {plain(entry.sources[0].title)})", "dim"


def _with_tag(tag: str, words: str) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=TAG_WIDTH, style="dim")
    grid.add_column()
    grid.add_row(plain(tag), safe_text(words))
    return grid
