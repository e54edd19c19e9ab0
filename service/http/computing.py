"""Requests that compute are answered by processes of low priority, each tenant's within a budget of CPU time:
reads never wait for them, and no tenant for another's.

A request is forwarded as it came, with its caller; the process (service/computer.py) answers it with the same
application. Without processes (tests, and those processes themselves) requests are answered in place.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from threading import Condition, Thread
from typing import Any

from fastapi import Request, Response

from service.access.auth import Caller
from service.db.engine import Database
from service.http.budget import CpuBudget
from service.http.problems import ApiError
from service.jobs.loop import Loop
from service.logs import request_id
from service.settings import Settings, process_environment

COMPUTING = frozenset((
    "POST /v1/predict", "POST /v1/predict/batch", "POST /v1/plans/search", "POST /v1/plans/explain",
    "POST /v1/plans/where", "POST /v1/plans/against", "POST /v1/measurements", "GET /v1/measurements",
    "GET /v1/measurements/{name}", "DELETE /v1/measurements/{name}", "GET /v1/knowledge/search",
    "GET /v1/sessions/{id}/report",
    "GET /what-if", "GET /compare", "GET /topology", "GET /knowledge",
    "GET /sessions/{id}", "GET /sessions/{id}/workbench", "GET /sessions/{id}/near",
    "GET /sessions/{id}/report.md", "GET /sessions/{id}/figures", "GET /sessions/{id}/trials",
    "GET /sessions/{id}/trials/{key}/{name}", "GET /sessions/{id}/trail", "GET /sessions/{id}/fork",
    "GET /sessions/{id}/plans", "GET /sessions/{id}/plans/{number}",
    "GET /sessions/{id}/plans/{number}/export",
    "GET /sessions/{id}/schedule", "GET /sessions/{id}/schedule/{key}",
    "GET /sessions/{id}/fit", "POST /sessions/{id}/fit",
    "GET /clusters", "GET /clusters/{name}", "GET /clusters/{name}/figure", "GET /clusters/{name}/probes",
))  # fmt: skip
"""The endpoints that take more than a moment of CPU time: predictions, searches, fits and what draws them."""
KEPT_AS_JSON = frozenset({"GET /v1/sessions/{id}/report"})
"""Those of them whose JSON is stored: it is only read."""
ASKING = frozenset(("POST /v1/sessions/{id}/ask", "POST /sessions/{id}/ask"))
"""Those that wait for a language model, if the tenant has one, and else compute."""
WAITING = ASKING | {"GET /trace/events"}
"""Those that wait for somebody else, and take no turn of their tenant's meanwhile."""
CHANGING = frozenset({"POST /v1/knowledge", "POST /v1/knowledge/{id}/mark", "POST /knowledge/{id}/mark"})
"""Those that change what this process holds: no other may answer them."""
MAX_WAITING = 16
"""Requests of a tenant that wait for a process; a thousand scenarios fit into one."""
WAIT_S = 5
SHARE_EVERY_S = 1.0
"""How long a budget may be late to know what other API processes spent."""
GRACE_S = 5.0
"""Beyond the time of a search, which ends by itself, before a process is killed."""
NICENESS = 10
"""Below the server, above the sessions, which nobody waits for at a page."""
MODULE = "service.computer"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""More threads than cores make small matrix products ten times as slow."""
FORWARDED = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path",
             "headers", "client", "server")  # fmt: skip


@dataclass(frozen=True)
class ComputingRequest:
    scope: dict[str, Any]
    """The part of the ASGI scope that is plain data."""
    body: bytes
    caller: Caller
    request_id: str | None


@dataclass(frozen=True)
class ComputedResponse:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    cpu_s: float


@dataclass
class _Job:
    request: ComputingRequest
    answered: Future[ComputedResponse] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Computing:
    def __init__(self, settings: Settings, host: str, database: Database) -> None:
        self._settings, self._host = settings, host
        self._budget = CpuBudget(database, settings.tenant_cpu_s)
        self._sharing = Loop("CPU budget", SHARE_EVERY_S, self._budget.share)
        self._is_alone = database.is_sqlite  # no other API process has it
        self._changed = Condition()
        self._waiting: dict[str, deque[_Job]] = {}
        """By tenant; the one at the front is next."""
        self._working: Counter[str] = Counter()
        self._computers: list[_Computer] = []
        self._is_closed = False
        self._most_of_one = max(1, settings.compute_processes - 1)  # others find one that is free

    def start(self) -> None:
        """The first process starts now, the others when they are needed."""
        if not self._is_alone:
            self._sharing.start()
        for number in range(self._settings.compute_processes):
            computer = _Computer(self._host)
            self._computers.append(computer)
            Thread(target=self._run, args=(computer, number == 0), name="computing", daemon=True).start()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._sharing.stop()
        for computer in self._computers:
            computer.kill()

    async def answer(self, request: Request, caller: Caller) -> Response:
        self.check(caller)  # before a body is read: who is refused may send megabytes again and again
        body = await request.body()
        scope = {name: request.scope[name] for name in FORWARDED if name in request.scope}
        job = _Job(ComputingRequest(scope, body, caller, request_id.get()))
        self._add(job)
        answer = await asyncio.wrap_future(job.answered)
        response = Response(answer.body, answer.status)
        response.raw_headers = answer.headers
        return response

    def check(self, caller: Caller) -> None:
        """Raises ApiError (429) for a tenant that has computed or waits enough."""
        wait_s = 0 if caller.is_local else self._budget.wait_s(caller.tenant)
        if wait_s:
            budget = f"{self._settings.tenant_cpu_s:g} CPU seconds per minute"
            raise _come_back(f"this tenant has computed its {budget} (ASAP_TENANT_CPU_S)", wait_s)
        if len(self._waiting.get(caller.tenant, ())) >= MAX_WAITING and not caller.is_local:
            raise _come_back(f"{MAX_WAITING} requests of this tenant wait to be computed", WAIT_S)

    def pay(self, tenant: str, cpu_s: float) -> None:
        self._budget.pay(tenant, cpu_s)

    def _add(self, job: _Job) -> None:
        self.check(job.request.caller)
        with self._changed:
            self._waiting.setdefault(job.request.caller.tenant, deque()).append(job)
            self._changed.notify()

    def _run(self, computer: "_Computer", at_once: bool) -> None:
        """The thread of one process."""
        if at_once:
            computer.start()
        while (job := self._next()) is not None:
            tenant = job.request.caller.tenant
            try:
                if job.answered.set_running_or_notify_cancel():
                    self._compute(computer, job)
            finally:
                with self._changed:
                    self._working[tenant] -= 1
                    self._changed.notify_all()

    def _next(self) -> _Job | None:
        """The next job of the tenant whose turn it is; None when the server stops."""
        with self._changed:
            while not self._is_closed:
                for tenant, jobs in self._waiting.items():
                    if self._working[tenant] < self._most_of_one:
                        job = jobs.popleft()
                        del self._waiting[tenant]
                        if jobs:  # behind the other tenants
                            self._waiting[tenant] = jobs
                        self._working[tenant] += 1
                        return job
                self._changed.wait()
        return None

    def _compute(self, computer: "_Computer", job: _Job) -> None:
        caller, most_s = job.request.caller, self._settings.request_s
        waited_s = time.monotonic() - job.since
        if waited_s > most_s:
            job.answered.set_exception(_come_back(f"no process was free for {waited_s:.0f} s", WAIT_S))
            return
        begun = time.monotonic()
        try:
            answer = computer.ask(job.request, most_s + GRACE_S)
        except TimeoutError:
            self.pay(caller.tenant, time.monotonic() - begun)
            job.answered.set_exception(ApiError("out-of-time", f"not done after {most_s:g} s"))
        except Exception as error:  # noqa: BLE001 - that process has ended, or logged why it failed
            job.answered.set_exception(error)
        else:
            self.pay(caller.tenant, answer.cpu_s)
            job.answered.set_result(answer)


class _Computer:
    """One process, which is started again after it ended."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def start(self) -> Connection:
        if self._connection is None or self._process is None or self._process.poll() is not None:
            self.kill()
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", MODULE, str(theirs.fileno()), self._host],
                    pass_fds=[theirs.fileno()],
                    env=process_environment() | ONE_THREAD,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)  # before it imports anything
            self._connection = Connection(ours.detach())
        return self._connection

    def ask(self, request: ComputingRequest, most_s: float) -> ComputedResponse:
        connection = self.start()
        try:
            connection.send(request)
            if not connection.poll(most_s):
                raise TimeoutError
            answer: ComputedResponse | None = connection.recv()
        except (OSError, EOFError, TimeoutError):
            self.kill()
            raise
        if answer is None:
            raise RuntimeError("a request failed in the process that computes it, which logged why")
        return answer

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _come_back(detail: str, wait_s: int) -> ApiError:
    return ApiError("quota", f"{detail}; come back in {wait_s} s", headers={"Retry-After": str(wait_s)})
