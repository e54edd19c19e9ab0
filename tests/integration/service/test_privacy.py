"""What reaches the model's endpoint: what the page lists, less what a tenant hides, or nothing."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from graph import questions
from graph.answers import Asked
from tests.integration.llm.scripted_server import ScriptedServer
from tests.integration.llm.test_sessions import playing
from tests.integration.service.api_process import REPO, ApiProcess, api_process, asap
from tests.integration.service.museum.make import wait

SCENARIO = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
SECRET = "atlas-17"
BODY = {**SCENARIO, "notes": f"Project {SECRET} pays. tp must be at most 4.", "id": SECRET}


@pytest.fixture
def model() -> Iterator[ScriptedServer]:
    with ScriptedServer(then=playing(answer_question={"text": "See the report."})) as server:
        yield server


@contextmanager
def serving(
    folder: Path, model: ScriptedServer, **settings: object
) -> Iterator[tuple[ApiProcess, dict[str, str]]]:
    """With a key of each tenant."""
    keys = {}
    for tenant in ("open", "careful", "silent"):
        made = asap(folder, "keys", "add", tenant, "--tenant", tenant, "--scope", "admin")
        assert made.returncode == 0, made.stderr
        keys[tenant] = made.stdout.split()[0]
    named = {"llm_base_url": model.base_url, "llm_model": "scripted", **settings}
    with api_process(folder, **named) as server:  # type: ignore[arg-type]
        yield server, keys


def used(address: str, key: str) -> str:
    """The name of who answered a session of this tenant, and then a question about it."""
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        id = http.post("/v1/sessions", json=BODY).json()["id"]
        assert wait(http, id)["state"] == "completed"
        asked = http.post(f"/v1/sessions/{id}/ask", json={"question": f"what of {SECRET}?"})
        assert asked.status_code == 200, asked.text
        return str(http.get(f"/v1/sessions/{id}/report").json()["reasoner"])


def test_a_tenant_tells_the_model_all_less_or_nothing(tmp_path: Path, model: ScriptedServer) -> None:
    settings = {"llm_off": json.dumps(["silent"]), "llm_redact": json.dumps([["careful", "atlas-[0-9]+"]])}
    with serving(tmp_path, model, **settings) as (server, keys):
        assert used(server.address, keys["silent"]) == "expert-rules"
        assert model.seen == []
        assert used(server.address, keys["careful"]) == "scripted"
        sent = "".join(json.dumps(seen.body) for seen in model.seen)
        assert {"read_notes", "explain", "answer_question"} <= set(model.asked)
        assert SECRET not in sent
        assert "[redacted]" in sent
        assert used(server.address, keys["open"]) == "scripted"
        assert SECRET in json.dumps(model.seen[-1].body)


def test_a_pattern_that_is_none_is_named_at_the_start(tmp_path: Path) -> None:
    refused = asap(tmp_path, "serve", llm_redact='[["", "atlas-["]]')
    assert refused.returncode == 2
    assert "ASAP_LLM_REDACT" in refused.stderr


def test_the_page_lists_every_field_of_every_question() -> None:
    page = (REPO / "docs/language-model.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    sent = {
        kind.name: set(kind.model_fields)
        for kind in Asked.__subclasses__()
        if kind.__module__ == questions.__name__
    }
    assert {name: set(re.findall(r"`(\w+)`", listed.get(name, ""))) for name in sent} == sent
