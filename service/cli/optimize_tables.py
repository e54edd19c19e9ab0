"""The report of `asap optimize` for people: proposals with a bar of the step, reasons, and why not others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tools.recommend.words import short
from tools.scenario import Plan, Scenario

BAR_WIDTH = 46
COLOURS = {
    "compute": "green",
    "memory_bound_ops": "cyan",
    "tp_comm_exposed": "red",
    "cp_comm_exposed": "bright_red",
    "ep_comm_exposed": "magenta",
    "dp_comm_exposed": "yellow",
    "pp_comm_exposed": "bright_yellow",
    "pipeline_bubble": "blue",
    "optimizer": "bright_black",
    "host_and_other": "white",
}


@contextmanager
def shown_progress(stream: TextIO) -> Iterator[Callable[[float], None]]:
    """A progress line on a terminal, nothing elsewhere."""
    console = Console(file=stream, stderr=False)
    columns = (TextColumn("searching every legal plan"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not stream.isatty()) as bar:
        task = bar.add_task("search", total=1.0)
        yield lambda share: bar.update(task, completed=share)


def print_report(scenario: Scenario, report: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    s = scenario
    console.print(
        f"[bold]{escape(s.model.name) or 'model'}[/] on {s.cluster.num_devices} x {s.cluster.device}, "
        f"{s.training.framework}, {s.training.precision}, batch {s.training.global_batch_size}, "
        f"sequence {s.training.seq_len}"
    )
    searched = report["searched"]
    console.print(f"{searched['plans']:,} legal plans decided in {searched['seconds']:.1f} s\n")
    slowest = _slowest(report)
    if report["baseline"]:
        console.print(_today(scenario, report["baseline"], slowest))
    for proposal in report["proposals"]:
        console.print(_proposal(proposal, slowest))
    console.print(_legend())
    if report["diagnosis"]["lever"]:
        console.print(f"\n[bold]{report['diagnosis']['lever']}[/]")
    _print_rejected(console, report["rejected"])
    _print_rows(console, "If the cluster were", [(one["if"], one["says"]) for one in report["sensitivity"]])
    levers = [(one["lever"], one["says"]) for one in report["beyond_contract"]]
    _print_rows(console, "Beyond the contract", levers)


def _slowest(report: Mapping[str, Any]) -> float:
    times = [p["prediction"]["step_time_s"] for p in report["proposals"]]
    return float(max([*times, report["baseline"]["step_time_s"] if report["baseline"] else 0.0]))


def _today(scenario: Scenario, baseline: Mapping[str, Any], slowest: float) -> Panel:
    plan = short(scenario.plan) if scenario.plan else ""
    return Panel(
        Group(Text(plan), _bar(baseline, slowest), Text(_figures(baseline))),
        title="today",
        title_align="left",
    )


def _proposal(proposal: Mapping[str, Any], slowest: float) -> Panel:
    prediction = proposal["prediction"]
    lines: list[Text] = [
        Text(short(Plan.model_validate(proposal["plan"]))),
        _bar(prediction, slowest),
        Text(_figures(prediction)),
        Text(proposal["rationale"], style="italic"),
        *(Text(f"risk: {risk}", style="dim") for risk in proposal["risks"]),
    ]
    return Panel(Group(*lines), title=f"{proposal['rank']}{_speedup(proposal)}", title_align="left")


def _speedup(proposal: Mapping[str, Any]) -> str:
    if proposal["speedup"] is None:
        return ""
    low, high = proposal["speedup_low"], proposal["speedup_high"]
    return f"   {proposal['speedup']:.2f}x (80% interval {low:.2f} to {high:.2f})"


def _figures(p: Mapping[str, Any]) -> str:
    fit = "" if p["fits"] else ", DOES NOT FIT"
    interval = f"{p['step_time_low_s']:.3g} to {p['step_time_high_s']:.3g}"
    return f"{p['step_time_s']:.3g} s ({interval}), MFU {p['mfu']:.1%}, {p['peak_memory_gib']:.1f} GiB{fit}"


def _bar(prediction: Mapping[str, Any], slowest: float) -> Text:
    bar, drawn = Text(), 0.0
    for term, colour in COLOURS.items():
        end = drawn + prediction["breakdown_s"][term] / slowest * BAR_WIDTH
        bar.append("█" * (round(end) - round(drawn)), style=colour)
        drawn = end
    return bar


def _legend() -> Text:
    legend = Text()
    for term, colour in COLOURS.items():
        legend.append("█ ", style=colour)
        legend.append(f"{term.removesuffix('_exposed')}  ")
    return legend


def _print_rejected(console: Console, rejected: Sequence[Mapping[str, Any]]) -> None:
    _print_rows(console, "Why not", [(one["binding"], one["why"]) for one in rejected])


def _print_rows(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    if not rows:
        return
    console.print(f"\n[bold]{title}[/]")
    table = Table(box=None, show_header=False, padding=(0, 1))
    for name, text in rows:
        table.add_row(Text(name, style="dim"), Text(text))
    console.print(table)
