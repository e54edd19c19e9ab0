"""Two tenants of one installation, each with something of every kind, and what must not pass between them."""

import hashlib
import itertools
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import requests

from service.access.credentials import new_key
from service.access.store import add_key
from service.db.engine import Database
from tests.unit.graph.cases import small
from tests.workloads import SMALL
from tools.model.predict import predict
from tools.scenario import parse_scenario

REFUSED = frozenset({400, 401, 403, 404, 405, 406, 413, 415, 422, 428})
"""How a thing is answered for whose owner is another tenant: as if it were not there, or earlier."""
FILE = "rank0.json"
FIGURE = "space"
WAIT_S = 120.0


class Answer(Protocol):
    """Of requests and of schemathesis alike."""

    status_code: int

    @property
    def content(self) -> bytes | Any: ...  # noqa: ANN401 - requests says so

    @property
    def text(self) -> str: ...

    @property
    def headers(self) -> Any: ...  # noqa: ANN401 - each has a mapping of its own


@dataclass
class Tenant:
    """Every text that it writes holds its secret, which is never in a request of the other tenant."""

    name: str
    secret: str
    prefix: str
    """Of the names of its things: these the other tenant may guess."""
    address: str
    key: str
    things: dict[str, str] = field(default_factory=dict)
    """What a path's parameter may be, by the segment before it and its name."""

    @cached_property
    def api(self) -> requests.Session:
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {self.key}"
        return session

    @cached_property
    def browser(self) -> tuple[requests.Session, str]:
        """Signed in, with the token of its forms."""
        session = requests.Session()
        session.headers.update({"Accept": "text/html", "Origin": self.address})

        def token(path: str) -> str:
            page = session.get(f"{self.address}{path}", timeout=60).text
            return str(re.findall(r'name="csrf" value="(\w+)"', page)[0])

        session.post(f"{self.address}/login", data={"csrf": token("/login"), "key": self.key}, timeout=60)
        return session, token("/sessions/new")

    @property
    def text(self) -> str:
        """What it writes everywhere: found by the prefix, known by the secret."""
        return f"{self.prefix} {self.secret}"

    @property
    def scenario(self) -> dict[str, Any]:
        """Small, named by the secret, on a cluster of its own."""
        return small(
            model={**SMALL["model"], "name": self.text, "num_hidden_layers": 2},
            cluster={**SMALL["cluster"], "name": self.things["measurements.name"]},
        )

    def call(self, method: str, path: str, body: Any = None, data: bytes | None = None) -> requests.Response:  # noqa: ANN401
        return self.api.request(method, f"{self.address}{path}", json=body, data=data, timeout=120)

    def make(self, path: str, body: Any, status: int = 201) -> Any:  # noqa: ANN401 - JSON
        answer = self.call("POST", path, body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def leaked(self, answer: Answer, names_its_things: bool) -> bool:
        """Whether an answer to the other tenant has anything of this one."""
        told = answer.content + json.dumps(dict(answer.headers)).encode()
        return self.secret.encode() in told or (names_its_things and answer.status_code not in REFUSED)

    def find(self, path: str) -> dict[str, str]:
        """Its things for the parameters of a path; none where a parameter is nobody's."""
        segments, found = path.split("/"), {}
        for before, segment in itertools.pairwise(segments):
            name = segment.strip("{}")
            if segment != name and f"{before}.{name}" in self.things:
                found[name] = self.things[f"{before}.{name}"]
        return found


def add_tenant(database: Database, name: str, word: str, address: str) -> Tenant:
    key = new_key()
    with database.begin() as conn:
        add_key(conn, key.id, key.digest, f"admin of {word}secret", ("admin",), name, None)
    return Tenant(name, f"{word}secret", word, address, key.text)


def fill(tenant: Tenant) -> None:
    """Something of every kind, through the API; the nights and sessions are run by a worker."""
    word, things = tenant.prefix, tenant.things
    things |= {
        "measurements.name": f"{word}-cluster",
        "workloads.name": f"{word}-job",
        "files.name": FILE,
        "figures.name": FIGURE,
    }
    things["fleet.name"] = things["workloads.name"]
    things["clusters.name"] = things["measurements.name"]
    add_trace(tenant)
    add_knowledge_and_runs(tenant)
    request = {**tenant.scenario, "notes": tenant.text, "labels": {"team": tenant.text}, "name": tenant.text}
    done = tenant.make("/v1/sessions", {**request, "traces": f"trace:{things['traces.id']}"}, 202)["id"]
    waiting = tenant.make("/v1/sessions", {**request, "approval": "person"}, 202)["id"]
    things |= {"sessions.id": done, "waiting": waiting}
    add_schedule(tenant)
    wait_for(lambda: tenant.call("GET", f"/v1/sessions/{done}").json()["state"] == "completed")
    wait_for(lambda: tenant.call("GET", f"/v1/sessions/{waiting}").json()["state"] == "waiting_approval")


def add_trace(tenant: Tenant) -> None:
    content = json.dumps({"traceEvents": list(_steps(f"gemm_{tenant.secret}"))}).encode()
    id = tenant.make("/v1/traces", {"name": f"{tenant.prefix}-profile {tenant.secret}"})["id"]
    assert tenant.call("PUT", f"/v1/traces/{id}/files/{FILE}", data=content).ok
    digests = {"files": {FILE: hashlib.sha256(content).hexdigest()}}
    tenant.make(f"/v1/traces/{id}/complete", digests, 200)
    wait_for(lambda: tenant.call("GET", f"/v1/traces/{id}").json()["analysis"])
    tenant.things["traces.id"] = id


def _steps(kernel: str) -> Any:  # noqa: ANN401 - events of a trace
    for step in range(4):
        mark = {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
        yield {"ph": "X", "ts": 1000 + 500 * step, "dur": 500, **mark}
        yield {
            "ph": "X",
            "ts": 1000 + 500 * step,
            "dur": 450,
            "cat": "kernel",
            "name": kernel,
            "pid": 0,
            "tid": 7,
        }


def add_knowledge_and_runs(tenant: Tenant) -> None:
    case = {
        "id": f"{tenant.prefix}-case", "title": f"{tenant.text} in the racks", "status": "hypothesis",
        "model": tenant.text, "architecture": "dense", "device": "h100-sxm-80gb", "num_devices": 8,
        "framework": "megatron-core", "bottleneck": "communication", "before": {"tp": 8}, "after": {"tp": 4},
        "story": f"It was {tenant.secret}.", "lesson": f"Keep {tenant.secret} inside.",
        "sources": [{"title": tenant.secret, "where": "run 4711"}],
    }  # fmt: skip
    tenant.make("/v1/knowledge", case)
    tenant.things["knowledge.id"] = f"{tenant.prefix}-case"
    step_s = predict([parse_scenario(tenant.scenario)])[0].step_time_s
    runs = [
        {
            "id": f"{tenant.secret}-{number}",
            "scenario": tenant.scenario,
            "measured": {"step_time_s": step_s * factor, "constants": {"gemm_efficiency": 0.6}},
        }
        for number, factor in enumerate((1.3, 1.31, 1.29))
    ]
    tenant.make("/v1/measurements", runs)


def add_schedule(tenant: Tenant) -> None:
    jobs = [
        {"name": name, "scenario": tenant.scenario, "uploads": f"{tenant.prefix}-profile*"}
        for name in (tenant.things["workloads.name"], tenant.secret)
    ]
    spec = {"name": f"nights-{tenant.secret}", "cron": "30 5 * * *", "workloads": jobs}
    id = tenant.make("/v1/schedules", spec)["id"]
    run = tenant.make(f"/v1/schedules/{id}/run", None, 202)["id"]
    wait_for(lambda: tenant.call("GET", f"/v1/schedules/{id}/runs/{run}").json()["finished_at"])
    tenant.things |= {"schedules.id": id, "runs.run_id": run}


def read_night_of(tenant: Tenant, other: Tenant) -> str:
    """The report of a schedule over uploads that are named like the other tenant's."""
    job = {"name": "reader", "scenario": tenant.scenario, "uploads": f"{other.prefix}-profile*"}
    id = tenant.make("/v1/schedules", {"name": "reader", "cron": "30 5 * * *", "workloads": [job]})["id"]
    run = tenant.make(f"/v1/schedules/{id}/run", None, 202)["id"]
    wait_for(lambda: tenant.call("GET", f"/v1/schedules/{id}/runs/{run}").json()["finished_at"])
    report = tenant.call("GET", f"/v1/schedules/{id}/runs/{run}/report")
    assert report.ok, report.text
    assert "reader" in report.text
    return report.text


def predicted_step_s(tenant: Tenant, cluster: str) -> float:
    """Of today's plan, by a session on a cluster of this name: the tenant's own runs calibrate it."""
    scenario = tenant.scenario
    request = {**scenario, "cluster": {**scenario["cluster"], "name": cluster}}
    id = tenant.make("/v1/sessions", request, 202)["id"]
    wait_for(lambda: tenant.call("GET", f"/v1/sessions/{id}").json()["state"] == "completed")
    return float(tenant.call("GET", f"/v1/sessions/{id}/report").json()["baseline"]["step_time_s"])


def wait_for(look: Any) -> None:  # noqa: ANN401 - anything true
    ends_at = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < ends_at
        time.sleep(0.1)


def hostile_bodies(me: Tenant, other: Tenant, data: Path) -> Mapping[str, list[dict[str, Any]]]:
    """By operation: what names the other's things in a body, as an upload, a folder or a pattern."""
    own = me.scenario
    upload, folder = f"trace:{other.things['traces.id']}", str(data / "traces" / other.things["traces.id"])
    sessions = [{**own, "traces": place} for place in (upload, folder, str(data), "../../traces", "/")]
    schedules = [
        {"name": "thief", "cron": "0 5 * * *", "workloads": [{"name": "job", "scenario": own, source: place}]}
        for source in ("traces", "metrics")
        for place in (f"{data}/traces/*", f"{folder}*", "/etc/*", "../**")
    ]
    return {"POST /v1/sessions": sessions, "POST /v1/schedules": schedules}


def snapshot(tenant: Tenant) -> list[str]:
    """What the tenant has, to be the same afterwards: nothing was changed from outside either."""
    paths = ["/v1/sessions", "/v1/traces", "/v1/schedules", "/v1/workloads", "/v1/measurements"]
    paths += [f"/v1/sessions/{tenant.things[name]}" for name in ("sessions.id", "waiting")]
    paths += [f"/v1/knowledge/{tenant.things['knowledge.id']}"]
    return [tenant.call("GET", path).text for path in paths]
