"""Everything at once: is a session or a night lost, doubled or late?

    python -m tests.integration.service.chaos [--minutes 30] [--write docs/security.md]

Two APIs and two workers on a PostgreSQL with a synchronous standby. Two tenants submit sessions through the
API, as clients do who try again under the same idempotency key, and have a night every minute. Meanwhile
crowds without a key hold connections of each kind, one tenant asks for everything its limits allow, another
submits bombs, the language model is an evil endpoint, and processes, disks, clocks and the database fail.
Times are those of this program, whose clock nobody sets. Exits with 1 if the bar is missed.
"""

import argparse
import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from shutil import copyfile
from typing import Any

import httpx
import sqlalchemy as sa

from benchmarks import connections, fairness
from service.access.credentials import new_key
from service.access.store import add_key
from service.db.engine import Database
from service.schedules.model import night_runs
from service.schedules.store import list_nights
from service.sessions.model import sessions
from tests.integration.llm.test_evil_endpoint import Send, serving
from tests.integration.service.api_process import REPO, ApiProcess, environment
from tests.integration.service.at_work import TINY, Desk, assert_whole, opened, settings_for
from tests.integration.service.fleet import Fleet
from tests.integration.service.test_chaos import with_trials
from tests.integration.service.test_chaos_mixed import MIXED, fill_for_a_while, hung_jobs, small_disk
from tests.integration.service.test_evil_model import ALL as BEHAVIOURS
from tests.integration.service.test_evil_model import REFUSED
from tests.servers import PostgresPair
from tests.unit.service.nightly.builders import add_night, workload
from tests.unit.trace.bombs import BOMBS

CLOCK_SOURCE = Path(__file__).with_name("chaos_clock.c")
SESSIONS_PER_MINUTE = 10
TUNE_EVERY = 10
"""Sessions that measure plans, one in so many."""
TENANTS = ("blue", "green")
FIRST_KEY_S = 2.0
LEASE_S = 5.0
LATE_S = 60.0
END_S = 180.0
"""For what is under way when the faults end."""
CROWD = 2_500
"""Connections of each kind at a time."""
CROWD_PER_S = 100
ROUND_S = 45.0
"""Of the crowds and of the tenant at its limits, after which each turns to the other API."""
BOMBS_AT_ONCE = 3
FAULT_EVERY_S = (4.0, 10.0)
JUMPS_S = (600, -600, 3600, 0, -3600, 90, 0)
READS_PER_S = 5
TRY_S = 10.0
SECTION = "## Everything at once"
NEEDED = (
    "kills of workers", "pauses of workers", "kills of apis", "pauses of apis", "failovers", "full disks",
    "upload 507", "clock jumps proven", "restarts of the database", "bombs failed",
)  # fmt: skip
"""Without these nothing was shown."""


@dataclass
class Client:
    """Of one tenant: asks one API, then the other, until one answers."""

    apis: list[ApiProcess]
    key: str
    address: str

    def __post_init__(self) -> None:
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(local_address=self.address),
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=TRY_S,
        )

    def put(self, path: str, content: bytes) -> int:
        return self._http.put(self.apis[0].address + path, content=content).status_code

    def ask(
        self,
        method: str,
        path: str,
        within_s: float = LATE_S,
        **request: Any,  # noqa: ANN401 - httpx's own
    ) -> httpx.Response | None:
        """None: no API answered in time with anything but a server's error."""
        ends_at = time.monotonic() + within_s
        for turn in itertools.count(random.randrange(2)):
            with suppress(httpx.HTTPError):
                answer = self._http.request(method, self.apis[turn % 2].address + path, **request)
                if answer.status_code < 500 and answer.status_code != 429:
                    return answer
            if time.monotonic() > ends_at:
                return None
            time.sleep(0.1)
        raise AssertionError


@dataclass
class Sessions:
    """What one tenant submitted: when, under which key, and when it was seen to have ended."""

    client: Client
    tenant: str
    submitted_at: dict[str, float] = field(default_factory=dict)
    """By idempotency key."""
    ids: dict[str, str] = field(default_factory=dict)
    ended: dict[str, tuple[str, float]] = field(default_factory=dict)
    """State and seconds, by idempotency key."""

    def submit(self, number: int) -> None:
        key, mode = f"{self.tenant}-{number}", "tune" if number % TUNE_EVERY == 5 else "advise"
        self.submitted_at[key] = time.monotonic()
        body = {**TINY, "mode": mode, "name": key}
        answer = self.client.ask("POST", "/v1/sessions", END_S, json=body, headers={"Idempotency-Key": key})
        assert answer is None or answer.status_code in (200, 202), answer.text
        if answer:
            self.ids[key] = answer.json()["id"]

    def look(self) -> None:
        for key, id in list(self.ids.items()):
            if key not in self.ended and (answer := self.client.ask("GET", f"/v1/sessions/{id}", 1)):
                state = answer.json()["state"]
                if state in ("completed", "failed", "cancelled"):
                    if state != "completed":
                        print(f"session {key}: {answer.text}", file=sys.stderr)
                    self.ended[key] = state, time.monotonic() - self.submitted_at[key]


@dataclass
class Nights:
    """One night a minute of one tenant; each has a new file of metrics to record."""

    client: Client
    tenant: str
    folder: Path
    first_at: float = 0.0
    ended: dict[float, tuple[str, float]] = field(default_factory=dict)
    """State and seconds, by the minute."""
    files: int = 0

    def begin(self) -> None:
        self.add_file()
        job = workload(self.tenant, metrics=str(self.folder / "*.json"))
        spec = {"name": self.tenant, "cron": "* * * * *", "workloads": [job]}
        answer = self.client.ask("POST", "/v1/schedules", json=spec)
        assert answer
        assert answer.status_code in (201, 409), answer.text  # 409: taken before, and nobody was told
        self.first_at = time.time() // 60 * 60 + 60

    def add_file(self) -> None:
        add_night(self.folder, self.files)
        self.files += 1

    def look(self) -> None:
        answer = self.client.ask("GET", f"/v1/schedules/{self.tenant}/runs?limit=10", 1)
        if answer and answer.status_code == 200:
            for run in answer.json()["items"]:
                planned_at = datetime.fromisoformat(run["planned_at"]).timestamp()
                if run["finished_at"] and planned_at not in self.ended:
                    self.ended[planned_at] = run["state"], time.time() - planned_at


@dataclass
class Chaos:
    """The installation, what is done to it, and what was counted."""

    folder: Path
    minutes: float
    pair: PostgresPair
    desk: Desk
    apis: list[ApiProcess]
    fleet: Fleet
    disk: Path | None
    chance: random.Random = field(default_factory=lambda: random.Random(3))
    counted: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    crowds: Counter[str] = field(default_factory=Counter)
    read_s: list[float] = field(default_factory=list)
    unread: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)

    def client(self, tenant: str, number: int, *scopes: str) -> Client:
        key = new_key()
        with self.desk.database.begin() as conn:
            add_key(conn, key.id, key.digest, tenant, scopes or ("admin", "operator"), tenant, None)
        return Client(self.apis, key.text, f"127.0.0.{number}")

    @contextmanager
    def alongside(self, *works: Callable[[], None]) -> Iterator[None]:
        """Each again and again in a thread until the block ends; a defect of this program ends it all."""

        def repeat(work: Callable[[], None]) -> None:
            while not self.stop.is_set():
                try:
                    work()
                except BaseException as error:  # noqa: BLE001 - raised by `run`
                    self.errors.append(error)
                    self.stop.set()

        threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()

    # What is done to it.

    def crowd(self, number: int, kind: str) -> Callable[[], None]:
        def run() -> None:
            self.counted["rounds"] += 1
            api = self.apis[(self.counted["rounds"] + number) % 2]
            words = ["--attack", api.address, "--kind", kind, "--seconds", str(ROUND_S)]
            words += ["--connections", str(CROWD), "--per-second", str(CROWD_PER_S)]
            did = self.attacker("benchmarks.connections", *words)
            self.crowds[kind] += int(did["begun"])

        return run

    def greedy(self, key: str) -> Callable[[], None]:
        kinds = itertools.cycle(fairness.KINDS)

        def run() -> None:
            api = self.chance.choice(self.apis)
            words = ["--attack", api.address, key, "--kind", next(kinds), "--seconds", str(ROUND_S)]
            self.told.update(self.attacker("benchmarks.fairness", *words))

        return run

    def attacker(self, module: str, *words: str) -> dict[str, int]:
        """What it says it did; nothing if it was ended early."""
        command = [sys.executable, "-m", module, *words]
        with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
            while process.poll() is None and not self.stop.wait(0.5):
                pass
            if process.poll() is None:
                process.kill()
                return Counter()
            assert process.stdout
            did: dict[str, int] = json.loads(process.stdout.read())
            return did

    def bombs(self, client: Client) -> Callable[[], None]:
        numbers, under_way = itertools.count(), set[str]()

        def run() -> None:
            while len(under_way) < BOMBS_AT_ONCE:
                number = next(numbers)
                folder = self.folder / f"bomb{number}"
                folder.mkdir()
                copyfile(BOMBS[MIXED[number % len(MIXED)]](folder), folder / "rank1.sqlite")
                answer = client.ask("POST", "/v1/sessions", json={**TINY, "traces": str(folder)})
                if answer is None:
                    break
                assert answer.status_code == 202, answer.text
                under_way.add(answer.json()["id"])
            for id in list(under_way):
                answer = client.ask("GET", f"/v1/sessions/{id}", 1)
                if answer and (state := answer.json()["state"]) in ("completed", "failed"):
                    under_way.remove(id)
                    self.counted[f"bombs {state}"] += 1
            self.stop.wait(1)

        return run

    def read(self, client: Client) -> Callable[[], None]:
        def run() -> None:
            begun = time.monotonic()
            answer = client.ask("GET", "/v1/sessions?limit=5", TRY_S)
            self.read_s.append(time.monotonic() - begun)
            self.unread += answer is None
            self.stop.wait(max(0.0, 1 / READS_PER_S - self.read_s[-1]))

        return run

    def disturb(self) -> None:
        """One fault after the other, each until it is over; those of workers meet one that runs a session."""
        faults = [
            self.kills_of_workers, self.pauses_of_workers, self.clock_jumps, self.kills_of_workers,
            self.kills_of_apis, self.full_disks, self.failovers, self.pauses_of_apis, self.kills_of_workers,
            self.clock_jumps, self.restarts_of_the_database,
        ]  # fmt: skip
        for fault in faults:
            if self.stop.wait(self.chance.uniform(*FAULT_EVERY_S)):
                return
            self.fleet.revive()
            fault()
            self.counted[fault.__name__.replace("_", " ")] += 1

    def at_work(self) -> int:
        """A worker that runs a session, or any after a while."""
        for _ in range(40):
            with suppress(sa.exc.SQLAlchemyError):
                if numbers := self.fleet.at_work(self.desk.database):
                    self.counted["workers hit at work"] += 1
                    return self.chance.choice(numbers)
            time.sleep(0.05)
        return self.chance.randrange(len(self.fleet.processes))

    def kills_of_workers(self) -> None:
        self.fleet.kill(self.at_work())

    def pauses_of_workers(self) -> None:
        process = self.fleet.processes[self.at_work()]
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * LEASE_S)
        process.send_signal(signal.SIGCONT)

    def kills_of_apis(self) -> None:
        api = self.chance.choice(self.apis)
        assert api.kill() == -signal.SIGKILL, api.log.read_text()[-2000:]
        api.start()

    def pauses_of_apis(self) -> None:
        api = self.chance.choice(self.apis)
        api.signal(signal.SIGSTOP)
        time.sleep(LEASE_S)
        api.signal(signal.SIGCONT)

    def full_disks(self) -> None:
        """The first worker's and that of the traces; one that is uploaded meanwhile is refused."""
        assert self.disk
        client = self.client("full", 7)
        trace = client.ask("POST", "/v1/traces", json={"name": "profile"})
        assert trace
        filling = threading.Thread(target=fill_for_a_while, args=(self.disk,))
        filling.start()
        while filling.is_alive():
            path = f"/v1/traces/{trace.json()['id']}/files/rank0.json"
            with suppress(httpx.HTTPError):
                self.counted[f"upload {client.put(path, bytes(1 << 20))}"] += 1
            time.sleep(0.2)
        filling.join()

    def clock_jumps(self) -> None:
        number = self.counted["clock jumps"]
        set_clock(self.folder, JUMPS_S[number % len(JUMPS_S)])
        if number % len(JUMPS_S) == 0:  # the first of each round: ten minutes ahead, told by the API itself
            time.sleep(2)
            with suppress(httpx.HTTPError):
                date = httpx.get(f"{self.apis[0].address}/healthz", timeout=TRY_S).headers["Date"]
                told_at = datetime.strptime(date, "%a, %d %b %Y %H:%M:%S %Z").replace(tzinfo=UTC)
                self.counted["clock jumps proven"] += told_at.timestamp() - time.time() > 300

    def failovers(self) -> None:
        self.pair.fail_over()

    def restarts_of_the_database(self) -> None:
        self.pair.restart()


def set_clock(folder: Path, ahead_s: int) -> None:
    """Of every process of the service, while it runs; what measures durations in them is not faked."""
    with (folder / "clock").open("r+" if (folder / "clock").exists() else "w") as file:  # they have it mapped
        file.write(f"{ahead_s:<15}\n")


@contextmanager
def evil_model() -> Iterator[tuple[dict[str, object], Counter[str]]]:
    """Settings of processes whose model behaves in each evil way in turn, and how often it did.

    Every third question is refused at once: an endpoint that fails each time is soon left alone."""
    turns, ways, asked, lock = (
        itertools.count(),
        itertools.cycle(BEHAVIOURS),
        Counter[str](),
        threading.Lock(),
    )

    def behave(send: Send) -> None:
        with lock:
            way = None if next(turns) % 3 else next(ways)
            asked.update([way] if way else [])
        if way:
            BEHAVIOURS[way](send)
        else:
            send(REFUSED)

    with serving(behave) as evil:
        settings = {"llm_base_url": evil.url, "llm_model": "evil", "llm_timeout_s": 0.5, "llm_deadline_s": 1}
        yield settings, asked


@contextmanager
def installed(folder: Path, minutes: float, model: dict[str, object]) -> Iterator[Chaos]:
    set_clock(folder, 0)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "clock.so", CLOCK_SOURCE, "-ldl"], check=True)
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asap-pg-")))
        pair = PostgresPair(base)
        stack.callback(pair.stop)
        disk = stack.enter_context(small_disk(folder / "worker0"))
        trials, _ = with_trials(folder, hangs=True)
        settings = {
            **model,
            "database_url": pair.url, "trace_roots": json.dumps([str(folder)]), "lease_s": LEASE_S,
            "session_trials": 2, "checkpoint_secret": "c" * 40, "cookie_secret": "k" * 40,
            "traces_dir": folder / "worker0/traces", "compute_processes": 2,
        }  # fmt: skip
        faked = {"LD_PRELOAD": str(folder / "clock.so"), "CHAOS_CLOCK": str(folder / "clock")}
        desk = stack.enter_context(opened(settings_for(folder / "desk", pair.url)))
        plain = {
            name: value for name, value in environment(folder, **settings).items() if "DATA_DIR" not in name
        }
        worker_environment = {**plain, **trials, **faked, "ASAP_LOG_LEVEL": "warning"}
        fleet = Fleet(folder, 2, pair.url, LEASE_S, worker_environment)
        stack.callback(fleet.end)
        apis = []
        for number in range(2):
            home = folder / f"api{number}"
            home.mkdir()
            data = {"ASAP_DATA_DIR": str(home / "data")}
            api = ApiProcess(home, ["serve", "--role", "api"], {**worker_environment, **data})
            stack.callback(api.kill)
            apis.append(api.start())
        yield Chaos(folder, minutes, pair, desk, apis, fleet, disk)


def run(chaos: Chaos) -> tuple[list[Sessions], list[Nights]]:
    chaos.client("first", 2, "read")
    time.sleep(
        FIRST_KEY_S
    )  # until the first key is known an API takes every caller of this host for its owner
    load = [Sessions(chaos.client(tenant, 3 + number), tenant) for number, tenant in enumerate(TENANTS)]
    nights = [Nights(each.client, each.tenant, chaos.folder / f"nights-{each.tenant}") for each in load]
    for night in nights:
        night.begin()
    greedy, bomber = chaos.client("greedy", 1, "read", "submit"), chaos.client("bomber", 6)
    attacks = [chaos.crowd(number, kind) for number, kind in enumerate(connections.KINDS)]
    attacks += [chaos.greedy(greedy.key), chaos.bombs(bomber), chaos.read(chaos.client("reader", 2, "read"))]
    begun, submitting = time.monotonic(), list[threading.Thread]()

    looked_at: tuple[Sessions | Nights, ...] = (*load, *nights)

    def look() -> None:
        for each in looked_at:
            each.look()
        time.sleep(0.5)

    with chaos.alongside(*attacks, chaos.disturb, look):
        for number in range(round(chaos.minutes * SESSIONS_PER_MINUTE)):
            if chaos.stop.wait(max(0.0, begun + number * 60 / SESSIONS_PER_MINUTE - time.monotonic())):
                break
            if number % SESSIONS_PER_MINUTE == 0:
                for night in nights:
                    night.add_file()
            submitting.append(threading.Thread(target=load[number % len(load)].submit, args=(number,)))
            submitting[-1].start()
            print(f"\r{time.monotonic() - begun:5.0f} s {dict(chaos.counted)}", end="", file=sys.stderr)
        chaos.stop.wait(max(0.0, begun + 60 * chaos.minutes - time.monotonic()))
        last_night = time.time() // 60 * 60
    if chaos.errors:
        raise chaos.errors[0]
    set_clock(chaos.folder, 0)
    ends_at = time.monotonic() + END_S
    while time.monotonic() < ends_at and (
        any(len(each.ended) < len(each.submitted_at) for each in load)
        or any(last_night not in each.ended for each in nights)
    ):
        chaos.fleet.revive()
        look()
    for thread in submitting:
        thread.join()
    for night in nights:
        night.ended = {at: end for at, end in night.ended.items() if night.first_at <= at <= last_night}
        for at in range(int(night.first_at), int(last_night) + 1, 60):
            night.ended.setdefault(float(at), ("lost", float("inf")))
    return load, nights


def count_doubled_sessions(database: Database, desk: Desk, load: list[Sessions]) -> int:
    """Two sessions of one submission, or one that tells an event or its end twice."""
    doubled = 0
    for each in load:
        with database.read() as conn:
            mine = sa.select(sessions.c.name).where(sessions.c.tenant == each.tenant)
            names = Counter(name for name in conn.scalars(mine) if name in each.submitted_at)
        doubled += sum(count - 1 for count in names.values())
        for id in each.ids.values():
            try:
                assert_whole(desk.events(id))
            except AssertionError:
                doubled += 1
    return doubled


@dataclass(frozen=True)
class Verdict:
    """Of one kind of work."""

    name: str
    count: int
    lost: int
    doubled: int
    took_s: list[float]

    @property
    def late(self) -> int:
        return sum(took_s > LATE_S for took_s in self.took_s)

    @property
    def is_kept(self) -> bool:
        return self.count > 0 and not self.lost + self.doubled + self.late

    @property
    def row(self) -> str:
        median, slowest = sorted(self.took_s)[len(self.took_s) // 2], max(self.took_s)
        times = f"{median:.0f} s, {slowest:.0f} s" if slowest else ""
        return f"| {self.name} | {self.count} | {self.lost} | {self.doubled} | {self.late} | {times} |"


def judge(chaos: Chaos, load: list[Sessions], nights: list[Nights]) -> list[Verdict]:
    """A night is doubled if its figures are recorded twice, a trial if it was launched twice."""
    launched = (chaos.folder / "launched").read_text().split()
    with chaos.desk.database.read() as conn:
        recorded = [len(list_nights(conn, each.tenant, each.tenant, limit=1000)) for each in nights]
    doubled = sum(max(0, kept - each.files) for kept, each in zip(recorded, nights, strict=True))
    made = []
    for name, count, ends, twice in (
        (
            "sessions",
            sum(len(each.submitted_at) for each in load),
            [end for each in load for end in each.ended.values()],
            count_doubled_sessions(chaos.desk.database, chaos.desk, load),
        ),
        ("nights", 0, [end for each in nights for end in each.ended.values()], doubled),
        ("trials", 0, [("completed", 0.0)] * len(launched), len(launched) - len(set(launched))),
    ):
        lost = (count or len(ends)) - sum(state == "completed" for state, _ in ends)
        made.append(Verdict(name, count or len(ends), lost, twice, [took_s for _, took_s in ends]))
    return made


def describe(chaos: Chaos, asked: Counter[str]) -> dict[str, str]:
    """What was done, and how often."""
    counted, read_s = chaos.counted, sorted(chaos.read_s)
    p50, p99 = (1e3 * read_s[int(share * len(read_s))] for share in (0.5, 0.99))
    with chaos.desk.database.read() as conn:
        claims = sum(
            int(conn.scalar(sa.select(sa.func.sum(t.c.claims))) or 0) for t in (sessions, night_runs)
        )
    return {
        "connections without a key opened": told(chaos.crowds),
        "the tenant at its limits was answered": told(chaos.told),
        "bombs": f"{counted['bombs failed']} refused with their session, {counted['bombs completed']} beside "
        "a file that was read",
        "the evil endpoint was asked": f"{asked.total()} times, in {len(asked)} of {len(BEHAVIOURS)} ways",
        "workers": f"{counted['kills of workers']} killed, {counted['pauses of workers']} paused beyond the "
        f"lease; {counted['workers hit at work']} of these ran a session; {claims:,} claims in all",
        "APIs": f"{counted['kills of apis']} killed, {counted['pauses of apis']} paused for {LEASE_S:g} s",
        "PostgreSQL": f"{counted['failovers']} failovers to its standby, "
        f"{counted['restarts of the database']} restarts",
        "disks": f"full {counted['full disks']} times; {counted['upload 507']} uploads refused for it",
        "clocks": f"set {counted['clock jumps']} times, by up to an hour",
        "training programs that hung and were ended": str(hung_jobs(chaos.folder)),
        "another tenant's reads": f"{len(read_s):,}, {1 - chaos.unread / len(read_s):.2%} answered, "
        f"p50 {p50:.0f} ms, p99 {p99:.0f} ms",
    }


def told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def table(verdicts: list[Verdict], facts: dict[str, str]) -> str:
    head = ["| | number | lost | doubled | later than 60 s | median, slowest |", f"|{' --- |' * 6}"]
    done = ["", "| what was done meanwhile | how often |", "| --- | --- |"]
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join([*head, *(verdict.row for verdict in verdicts), *done, *rows])


def write(page: Path, minutes: float, text: str) -> None:
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False).stdout.strip()
    intro = (
        f"`make chaos MINUTES={minutes:g}` on {os.cpu_count()} cores, {datetime.now(UTC):%d %B %Y}, "
        f"commit {commit or 'unknown'}: two APIs and two\nworkers with a lease of {LEASE_S:g} s on a "
        "PostgreSQL with a synchronous standby. The time of a session counts from the\nfirst "
        "attempt to submit it, that of a night from its minute."
    )
    pattern = rf"{re.escape(SECTION)}\n.*?(?=\n## |\Z)"
    new, count = re.subn(
        pattern, lambda _: f"{SECTION}\n\n{intro}\n\n{text}\n", page.read_text(), count=1, flags=re.DOTALL
    )
    assert count == 1, f"{page} has no section {SECTION}"
    page.write_text(new)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--write", type=Path, help="the page whose section gets the table")
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        tempfile.TemporaryDirectory(prefix="asap-chaos-", ignore_cleanup_errors=True) as folder,
        evil_model() as (model, asked),
        installed(Path(folder), args.minutes, model) as chaos,
    ):
        verdicts = judge(chaos, *run(chaos))
        text = table(verdicts, describe(chaos, asked))
        missing = [name for name in NEEDED if not chaos.counted[name]]
        missing += [kind for kind in connections.KINDS if not chaos.crowds[kind]]
    print(text)
    if missing:
        sys.exit(f"did not happen: {', '.join(missing)}")
    if args.write:
        write(args.write, args.minutes, text)
    sys.exit(0 if all(verdict.is_kept for verdict in verdicts) else 1)


if __name__ == "__main__":
    main()
