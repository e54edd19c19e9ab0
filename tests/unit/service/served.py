"""An API over a real database and queue, without a worker: tests say themselves what a worker would do."""

from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa
from starlette.testclient import TestClient

from service.access.credentials import new_key
from service.access.store import add_key
from service.http.state import AppState
from service.sessions.dispatch import SESSIONS
from service.sessions.lifecycle import set_state
from service.sessions.model import sessions
from service.sessions.store import keep_search
from tests.unit.graph.cases import small
from tests.workloads import SMALL
from tools.scenario import parse_scenario
from tools.search.constraints import Constraints
from tools.search.ranked import pack
from tools.search.search import Search

LOOPBACK = ("127.0.0.1", 50_000)
BASE = "http://127.0.0.1"
SCENARIO: dict[str, Any] = small(
    model={
        "name": "tiny", "num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 4096,
        "num_attention_heads": 16, "vocab_size": 32000,
    },
    training=SMALL["training"] | {"global_batch_size": 64},
    plan=SMALL["plan"] | {"recompute": "none"},
)  # fmt: skip


@dataclass
class Served:
    """A running app and what it stands on."""

    client: TestClient
    app: AppState

    def key(
        self, *scopes: str, tenant: str = "", name: str = "somebody", expires_at: float | None = None
    ) -> dict[str, str]:
        """The header of a new key."""
        made = new_key()
        with self.app.database.begin() as conn:
            add_key(conn, made.id, made.digest, name, scopes, tenant, expires_at)
        self.app.authenticator._looked_at = float("-inf")  # a server finds the first key after a second
        return {"Authorization": f"Bearer {made.text}"}

    def submit(self, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None) -> str:
        answer = self.client.post("/v1/sessions", json=body or SCENARIO, headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def end(self, id: str, state: str, **columns: Any) -> None:  # noqa: ANN401 - any JSON
        """What a worker would do: take the session and end it."""
        with self.app.database.begin() as conn:
            held = SESSIONS.claim(conn, id, "test", _dispatch_no(self.app, id))
            assert held
            set_state(conn, id, state, held.fence, **columns)

    def keep_plans(self, id: str) -> int:
        """What a worker would keep of the search; how many plans."""
        found = Search(parse_scenario(SCENARIO), Constraints()).run()
        with self.app.database.begin() as conn:
            keep_search(conn, id, pack(found.every))
        return len(found.every.step_time_s)

    def state(self, id: str) -> str:
        with self.app.database.read() as conn:
            return str(conn.scalar(sa.select(sessions.c.state).where(sessions.c.id == id)))

    def wait_for_approval(self, ranks: int = 1) -> str:
        """A session whose proposals somebody must decide upon."""
        id = self.submit(SCENARIO | {"approval": "person"})
        plan = parse_scenario(SCENARIO).plan
        assert plan is not None
        proposals = [{"rank": rank, "plan": plan.model_dump()} for rank in range(1, ranks + 1)]
        self.end(id, "waiting_approval", waiting_for={"proposals": proposals})
        return id


def _dispatch_no(app: AppState, id: str) -> int:
    with app.database.read() as conn:
        return int(conn.scalar(sa.select(sessions.c.dispatch_no).where(sessions.c.id == id)) or 0)


class Serve(Protocol):
    """Makes an API with these settings; several calls give several replicas over one database."""

    def __call__(
        self,
        *,
        host: str = "127.0.0.1",
        address: tuple[str, int] = LOOPBACK,
        base: str = BASE,
        **settings: object,
    ) -> Served: ...
