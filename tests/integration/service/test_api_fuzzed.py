"""Whatever is sent, by either of two tenants: an answer that is described, never a failure, never anything
of the other tenant. Operations by their schema (schemathesis), pages by their routes.

Driven by hypothesis directly: schemathesis' own pytest plugin does not go with this pytest.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from service.app import PAGE_ROUTERS
from service.db.engine import open_database
from service.jobs.engine import prepare
from service.settings import Settings
from tests.integration.service.api_process import ApiProcess, environment, running
from tests.integration.service.tenants import (
    FIGURE,
    FILE,
    Answer,
    Tenant,
    add_tenant,
    fill,
    hostile_bodies,
    predicted_step_s,
    read_night_of,
    snapshot,
)

EXAMPLES = 1
"""For each operation and mode: what `make test` has time for."""
MANY_EXAMPLES = 75
MIN_REQUESTS = 10_000
MIN_OPERATIONS = 50
MIN_PAGES = 40
NOBODYS = frozenset(
    {
        "GET /healthz", "GET /readyz", "GET /metrics", "GET /v1/hardware", "GET /v1/hardware/{name}",
        "POST /v1/predict", "POST /v1/predict/batch", "POST /v1/plans/search", "POST /v1/plans/explain",
        "POST /v1/plans/against", "POST /v1/plans/where",
    }
)  # fmt: skip
"""Operations that read nothing of a tenant; the metrics are the operator's."""
CREATING = frozenset(
    {
        "POST /v1/sessions",
        "POST /v1/sessions/{id}/fork",
        "POST /v1/traces",
        "POST /v1/knowledge",
        "POST /v1/measurements",
        "POST /v1/schedules",
    }
)
"""They answer with what was just sent; a body that names another's things is refused (`hostile_bodies`)."""
NOBODYS_PAGES = (
    "/login", "/docs", "/accuracy", "/accuracy/figure", "/web/validate", "/sessions", "/sessions/new",
    "/schedules/new", "/accuracy/benchmark",
)  # fmt: skip
NOBODYS_FOLDERS = ("/static", "/hardware")
UNREACHED_PAGES = ("/sessions/{id}/fork", "/sessions/{id}/trials/{key}/{name}", "/trace/overview")
"""They need a step, a trial or a trace's map that these tenants do not have."""
FORM = {
    "name": "renamed", "status": "refuted", "reason": "because", "question": "why not tp 8?",
    "action": "approve", "proposal": "1", "notes": "none",
}  # fmt: skip
ODD = ("", "-1", "0", "1", "x" * 300, "../../etc/passwd", "\u202e", "%00", "1e999", "null", "[]", "<b>")


@dataclass
class Installation:
    """Its data, both tenants, and what was counted."""

    data: Path
    tenants: tuple[Tenant, Tenant]
    sent: Counter[str] = field(default_factory=Counter)
    leaks: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.tenants[0].address

    def judge(self, label: str, victim: Tenant, answer: Answer, aimed: bool) -> None:
        self.sent[label] += 1
        assert answer.status_code < 500, f"{label}: {answer.status_code} {answer.text[:500]}"
        if victim.leaked(answer, aimed):
            self.leaks.append(f"{label}: {answer.status_code} {answer.text[:300]}")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One tenant is the default one. Filled by a server with a worker, then served without."""
    folder = tmp_path_factory.mktemp("fuzzed")
    env = environment(
        folder, requests_per_minute=10_000_000, request_s=120, worker_sessions=2, compute_processes=1
    )
    with closing(open_database(Settings(data_dir=folder / "data", _env_file=None).database)) as database:
        prepare(Settings(data_dir=folder / "data", _env_file=None), database)
        server = ApiProcess(folder, ["serve"], env).start()
        try:
            first = add_tenant(database, "", "kestrel", server.address)
            second = add_tenant(database, "other", "plover", server.address)
            for tenant in (first, second):
                fill(tenant)
            for me, victim in ((first, second), (second, first)):
                assert victim.secret not in read_night_of(me, victim)
                theirs = victim.things["measurements.name"]
                assert predicted_step_s(me, theirs) == predicted_step_s(me, "nobody"), "by runs of the other"
                assert predicted_step_s(victim, theirs) != predicted_step_s(victim, "nobody")
        finally:
            server.stop()
    server.words = ["serve", "--role", "api"]
    with running(server):
        yield Installation(folder / "data", (first, second))


def operations_of(installation: Installation) -> list[APIOperation[Any, Any, Any, Any]]:
    schema = schemathesis.openapi.from_url(f"{installation.address}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) >= MIN_OPERATIONS
    return operations


def pages() -> list[tuple[str, str]]:
    """All but signing out, which would end the caller's own visit."""
    routes = [route for router in PAGE_ROUTERS for route in router.routes if route.path != "/logout"]  # type: ignore[attr-defined]
    assert len(routes) >= MIN_PAGES
    return [(method, str(route.path)) for route in routes for method in sorted(route.methods)]  # type: ignore[attr-defined]


def test_no_request_fails_the_server_or_reads_another_tenant(installation: Installation) -> None:
    fuzz(installation, EXAMPLES)


@pytest.mark.slow
def test_ten_thousand_requests_neither_fail_the_server_nor_read_another_tenant(
    installation: Installation,
) -> None:
    assert fuzz(installation, MANY_EXAMPLES) >= MIN_REQUESTS


def fuzz(installation: Installation, examples: int) -> int:
    installation.sent.clear()
    before = [snapshot(tenant) for tenant in installation.tenants]
    turns = itertools.cycle([*itertools.permutations(installation.tenants)])
    failures = [
        f"{operation.label}, {mode.value}: {failure}"
        for operation in operations_of(installation)
        for mode in GenerationMode
        if (failure := find_failure(installation, operation, mode, examples, turns))
    ]
    send_hostile_bodies(installation)
    fuzz_pages(installation, examples)
    total = installation.sent.total()
    print(f"{total} requests, {len(failures)} failures, {len(installation.leaks)} leaks")  # with -s
    assert not failures, "\n\n".join(failures)
    asked = {operation.label for operation in operations_of(installation)}
    asked |= {f"{method} {path}" for method, path in pages()}
    assert asked - set(installation.sent) == set(), "nobody asked for these"
    assert not installation.leaks, "\n\n".join(installation.leaks)
    for tenant, whole in zip(installation.tenants, before, strict=True):
        after = snapshot(tenant)
        assert after[-3:] == whole[-3:]
        assert all(thing in "".join(after) for thing in tenant.things.values() if thing not in (FILE, FIGURE))
    return total


Turns = Iterator[tuple[Tenant, ...]]


def find_failure(
    installation: Installation,
    operation: APIOperation[Any, Any, Any, Any],
    mode: GenerationMode,
    examples: int,
    turns: Turns,
) -> str | None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Case[Any]) -> None:
        me, victim = next(turns)
        if mode is GenerationMode.POSITIVE:
            search_for(case, victim)
        aimed = aim(case, victim, operation.path)
        answer = case.call(session=me.api, timeout=120)
        installation.judge(operation.label, victim, answer, aimed)
        # A body may fit its schema and still be no workload: only the tools can tell.
        case.validate_response(answer, excluded_checks=[positive_data_acceptance, ignored_auth])

    try:
        call()
    except Unsatisfiable:  # nothing of it can be wrong
        return None
    except AssertionError as failed:
        return str(failed)
    except FailureGroup as failed:
        return "\n".join(f"{failure.title}: {failure.message}" for failure in failed.exceptions)
    return None


def search_for(case: Case[Any], victim: Tenant) -> None:
    """Puts the other tenant's names into what is searched for."""
    for name in ("text", "q", "model", "label", "target"):
        if name in (case.query or {}):
            case.query[name] = victim.prefix
    if "cursor" in (case.query or {}):
        case.query["cursor"] = victim.things["sessions.id"]


def aim(case: Case[Any], victim: Tenant, path: str) -> bool:
    """Puts the other tenant's things into the path."""
    found = victim.find(path)
    if found:
        case.path_parameters = {**(case.path_parameters or {}), **found}
    return bool(found)


def send_hostile_bodies(installation: Installation) -> None:
    for me, victim in itertools.permutations(installation.tenants):
        for label, bodies in hostile_bodies(me, victim, installation.data).items():
            method, path = label.split()
            for body in bodies:
                installation.judge(label, victim, me.call(method, path, body), aimed=True)


def fuzz_pages(installation: Installation, examples: int) -> None:
    chance = random.Random(22)
    for method, path in pages():
        for number in range(examples):
            me, victim = chance.sample(installation.tenants, 2)
            query = (
                {name: chance.choice(ODD) for name in chance.sample([*queries(victim)], 3)} if number else {}
            )
            answer = ask_page(me, method, path, victim, query)
            is_theirs = bool(victim.find(path)) and answer.url.startswith(installation.address)
            installation.judge(f"{method} {path}", victim, answer, is_theirs)


def queries(victim: Tenant) -> dict[str, str]:
    session, upload = victim.things["sessions.id"], f"trace:{victim.things['traces.id']}"
    by_session = dict.fromkeys(("session", "s", "b"), session)
    return {**by_session, "of": upload, "a": session, "file": FILE, "q": victim.prefix, "format": "megatron"}


def ask_page(me: Tenant, method: str, path: str, victim: Tenant, odd: dict[str, str]) -> requests.Response:
    """All that a page may be asked with names the other's things, but for what is odd."""
    browser, token = me.browser
    place = path
    for name, value in {**victim.find(path), "rank": "1", "seq": "1", "number": "0", "key": "1"}.items():
        place = place.replace(f"{{{name}}}", value)
    asked = {**queries(victim), **odd}
    if path.startswith("/trace") and "a" not in odd:
        asked["a"] = asked["of"]
    form = {"csrf": token, **FORM, **asked} if method == "POST" else None
    url = f"{me.address}{place}"
    return browser.request(method, url, params=asked, data=form, timeout=120, allow_redirects=False)


def test_every_detector_sees_what_would_leak(installation: Installation) -> None:
    """The planted leak is the worst there is: the caller is taken for the other tenant. Every path that has
    anything of a tenant must then be reported, so that silence of the fuzzer means something."""
    victim, _ = installation.tenants
    blind = []
    for operation in sorted(operations_of(installation), key=_destroys):
        if operation.label in NOBODYS | CREATING:
            continue
        answer = as_owner(victim, operation.method.upper(), operation.path)
        if not victim.leaked(answer, bool(victim.find(operation.path))):
            blind.append(f"{operation.label}: {answer.status_code} {answer.text[-200:]}")
    assert not blind, "\n\n".join(blind)


def _destroys(operation: APIOperation[Any, Any, Any, Any]) -> int:
    return {"get": 0, "delete": 2}.get(operation.method, 1)


BODIES: dict[str, Any] = {
    "/v1/sessions/{id}": {"remark": "seen"},
    "/decision": {"action": "reject", "proposal": 1},
    "/ask": {"question": "why not tp 8?"},
    "/mark": {"status": "refuted", "reason": "because"},
    "/complete": {"files": {FILE: "0" * 64}},
}


def as_owner(tenant: Tenant, method: str, path: str) -> requests.Response:
    place = path
    for name, value in {"rank": "1", **tenant.find(path)}.items():
        place = place.replace(f"{{{name}}}", value)
    query = {"/v1/knowledge/search": f"?q={tenant.prefix}", "/v1/knowledge": "?limit=500"}.get(path, "")
    if path.endswith("/export"):
        query = "?format=megatron"
    has_body = method in ("POST", "PATCH")
    body = next((body for end, body in BODIES.items() if has_body and path.endswith(end)), None)
    return tenant.call(method, place + query, body, b"x" if method == "PUT" else None)


def test_every_page_s_detector_sees_what_would_leak(installation: Installation) -> None:
    victim = installation.tenants[1]
    blind = []
    for method, path in sorted(pages(), key=lambda page: page[1].endswith(("/delete", "/remove"))):
        if path not in NOBODYS_PAGES + UNREACHED_PAGES and not path.startswith(NOBODYS_FOLDERS):
            answer = ask_page(victim, method, path, victim, {})
            if not victim.leaked(answer, bool(victim.find(path))):
                blind.append(f"{method} {path}: {answer.status_code} {answer.text[-200:]}")
    assert not blind, "\n\n".join(blind)
