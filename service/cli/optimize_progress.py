"""What somebody who waits for `asap optimize` sees: who works, and how far the search is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

Event = dict[str, Any]
AGENTS = {
    "coordinator": "coordinator: deciding what comes next",
    "analyzer": "analyzer: finding what limits the plan",
    "proposal": "proposal agent: searching every legal plan",
    "verify": "verification: computing every number again",
    "approve": "the policy: what may be measured",
    "trial": "trial: measuring a plan on the cluster",
    "learn": "keeping the outcome",
    "report": "writing the report",
}


@dataclass(frozen=True)
class Watch:
    """Told while a session runs."""

    progress: Callable[[float], None] | None = None
    """The share of the search that is done."""
    event: Callable[[Event], None] | None = None


@contextmanager
def watching(stream: TextIO) -> Iterator[Watch]:
    """A line on a terminal, nothing elsewhere."""
    if not stream.isatty():
        yield Watch()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show_event(event: Event) -> None:
            if event["kind"] == "started":
                bar.update(
                    task, description=AGENTS.get(event["node"], event["node"]), total=None, completed=0
                )
            elif event.get("tool") == "search_plans":
                bar.update(task, description="proposal agent: looking for more plans", total=None)

        yield Watch(lambda share: bar.update(task, completed=share, total=1.0), show_event)
