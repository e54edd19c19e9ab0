"""Seconds from a scenario to its report without a language model, and what the graph itself takes of them.

    python -m benchmarks.session [--rounds N] [--cpu] [--record]

Llama 3.1 70B on 1,024 H100, a cold start, in this process (packages are imported before the clock starts),
with the checkpoint in SQLite and without. The graph's own share is the session's time less that of its tools.
The best round counts: a busy machine only adds. With --cpu the processor's seconds are counted, for a machine
that does much else.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import graph.services
from benchmarks.results import compare
from graph.context import Context
from graph.events import SessionEvent, ToolCalled
from graph.request import parse_request
from graph.session import Session
from service.checkpoints import open_checkpoints
from service.cli.parser import positive_number
from service.settings import Settings
from tools.kb import open_seed

REPO = Path(__file__).resolve().parents[1]
DEVICES = 1024
EXAMPLE = REPO / "examples" / "llama-3.1-70b-64xh100.json"


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--rounds", type=positive_number, default=3, metavar="N", help="repetitions of each (3)"
    )
    arguments.add_argument("--cpu", action="store_true", help="count the processor's seconds")
    arguments.add_argument("--record", action="store_true", help="write the slower one into results.json")
    options = arguments.parse_args()
    rounds, clock = options.rounds, time.process_time if options.cpu else time.perf_counter
    setattr(graph.services, "time", SimpleNamespace(perf_counter=clock))  # noqa: B010 - tools count by it too
    print(f"{'checkpoint':12}{'seconds':>9}{'search':>9}{'other tools':>13}{'the graph':>11}")
    slowest_s = 0.0
    for name, opened in (("none", _nothing), ("SQLite", _sqlite)):
        best = min((_round(opened, number, clock) for number in range(rounds)), key=sum)
        search_s, tools_s, graph_s = best
        print(f"{name:12}{sum(best):>9.2f}{search_s:>9.2f}{tools_s:>13.2f}{graph_s:>11.3f}")
        slowest_s = max(slowest_s, sum(best))
    compare({"session_s": slowest_s}, options.record)


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


@contextmanager
def _sqlite() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder, open_checkpoints(Settings(data_dir=Path(folder))) as store:
        yield store


def _round(
    opened: Any,  # noqa: ANN401 - one of the two above
    number: int,
    clock: Callable[[], float],
) -> tuple[float, float, float]:
    """Seconds in the search, in other tools, and in the graph itself."""
    events: list[SessionEvent] = []
    with opened() as store:
        start = clock()
        Session(f"round-{number}", Context(open_seed()), store).run(parse_request(_scenario()), events.append)
        seconds = clock() - start
    tools = [(event.tool, event.seconds) for event in events if isinstance(event, ToolCalled)]
    search_s = sum(took for tool, took in tools if tool == "search_plans")
    tools_s = sum(took for _, took in tools) - search_s
    return search_s, tools_s, seconds - search_s - tools_s


def _scenario() -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(EXAMPLE.read_text())
    del raw["plan"]
    raw["cluster"]["num_devices"] = DEVICES
    raw["training"]["global_batch_size"] = DEVICES
    return raw


if __name__ == "__main__":
    main()
