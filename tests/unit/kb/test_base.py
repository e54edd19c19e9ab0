"""The memory of cases: adding, marking, history and who sees what (the integration tests do it in Chroma);
and what opening the seed loads.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kb.samples import Clock, MemoryStore, own_case, small_seed
from tools.errors import InputError
from tools.kb import KnowledgeBase
from tools.kb.ledger import ASAP, MAX_ADVICE

REPO = Path(__file__).resolve().parents[3]
# pydantic, and NumPy by way of the scenario's records, are what `asap optimize` needs anyway.
HEAVY = {"scipy", "chromadb", "httpx", "torch", "tokenizers", "safetensors", "rich"}


def opened(store: MemoryStore | None = None, *, cases: Sequence[dict[str, Any]] = ()) -> KnowledgeBase:
    knowledge = KnowledgeBase(small_seed(), store or MemoryStore(), clock=Clock())
    for case in cases:
        knowledge.add(case, by="anna")
    return knowledge


def test_a_case_is_kept_as_a_hypothesis_with_who_and_when() -> None:
    entry = opened().add(own_case(), by="anna")
    assert (entry.kind, entry.status, entry.tenant) == ("case", "hypothesis", None)
    added = {"at": "2026-11-01T12:01:00.000000+00:00", "by": "anna", "reason": "added"}
    assert entry.json_body()["history"] == [added | {"from": None, "to": "hypothesis"}]
    assert entry.json_body()["after"] == {"vpp": 4}


def test_another_case_under_an_id_in_use_is_refused() -> None:
    knowledge = opened(cases=[own_case()])
    with pytest.raises(InputError, match="another case"):
        knowledge.add(own_case(story="Something else."), by="anna")
    assert knowledge.get("ours-1").json_body()["story"] == own_case()["story"]
    with pytest.raises(InputError, match="comes with ASAP"):
        knowledge.add(own_case(id="tp-inside-node"), by="anna")


def test_a_mark_changes_the_status_and_keeps_the_history() -> None:
    knowledge = opened(cases=[own_case()])
    knowledge.mark("ours-1", "confirmed", by="bob", reason="1.2x over 500 steps")
    knowledge.mark("ours-1", "confirmed", by="carl", reason="measured too")
    entry = knowledge.mark(
        "ours-1", "refuted", by="eve", reason="not on our network", measured={"speedup": 0.9}
    )
    assert entry.status == entry.json_body()["status"] == "refuted"
    assert [(change.by, change.from_, change.to) for change in entry.history] == [
        ("anna", None, "hypothesis"),
        ("bob", "hypothesis", "confirmed"),
        ("carl", "confirmed", "confirmed"),
        ("eve", "confirmed", "refuted"),
    ]
    assert entry.json_body()["measured"] == {"speedup": 0.9}
    assert entry.json_body()["story"] == own_case()["story"]
    assert {hit.entry.id: hit.warning for hit in knowledge.search("interleaving our pipeline")}["ours-1"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"status": "wrong"}, "status"),
        ({"reason": ""}, "reason"),
        *(({"by": name}, "by") for name in ("", "x" * 201, "a\x1b[0m")),
        ({"id": "ours-2"}, "id"),
        ({"measured": {"x": float("inf")}}, "measured.x"),
        ({"measured": {str(number): "x" * 3000 for number in range(30)}}, "measured"),
        *(({"tenant": name}, "tenant") for name in ("", "a/b", "A", "x" * 101, "a b")),
    ],
)
def test_a_wrong_mark_names_the_field(changes: dict[str, Any], field: str) -> None:
    wanted: dict[str, Any] = {"id": "ours-1", "status": "confirmed", "by": "bob", "reason": "measured"}
    with pytest.raises(InputError) as error:
        opened(cases=[own_case()]).mark(**(wanted | changes))
    assert error.value.path == field
    if field in ("by", "tenant"):
        with pytest.raises(InputError, match=field):
            opened().add(own_case(), **({"by": "anna"} | changes))


def test_a_tenant_sees_the_seed_and_its_own_only() -> None:
    """The default tenant is one as others are: its cases were everybody's once."""
    knowledge = opened(cases=[own_case(id="default-1", title="Default remedy")])
    knowledge.add(own_case(id="red-1", title="Scarlet remedy"), by="anna", tenant="red")
    knowledge.add(own_case(id="blue-1", title="Azure remedy"), by="anna", tenant="blue")
    seed = {entry.id for entry in small_seed().entries}
    for tenant, own in ((None, {"default-1"}), ("red", {"red-1"}), ("blue", {"blue-1"}), ("green", set())):
        assert {entry.id for entry in knowledge.entries(tenant=tenant)} - seed == own
    assert knowledge.search("default", tenant="red") == []
    assert knowledge.search("scarlet", tenant="blue") == []
    assert knowledge.search("scarlet", tenant="red")[0].entry.id == "red-1"
    for tenant in (None, "blue"):
        with pytest.raises(InputError, match="is not an entry") as error:
            knowledge.get("red-1", tenant)
        assert "red-1 or" not in error.value.rule
        assert "mean red" not in error.value.rule


def test_two_tenants_may_use_one_id_without_learning_of_it() -> None:
    knowledge = opened()
    knowledge.add(own_case(story="Red story."), by="anna", tenant="red")
    knowledge.add(own_case(story="Blue story."), by="bob", tenant="blue")
    assert knowledge.get("ours-1", "red").json_body()["story"] == "Red story."
    assert knowledge.get("ours-1", "blue").json_body()["story"] == "Blue story."


SECRETS: dict[str, Any] = {
    "id": "secret-id", "title": "secret title", "story": "secret story", "lesson": "secret lesson",
    "model": "secret model", "author": "secret author", "facts": {"secret fact": "secret value"},
    "scenario": {"model": {"name": "secret name"}}, "predicted": {"secret": "secret"},
    "measured": {"step_time_s": 4.5, "secret": "secret", "metric": "secret"},
    "sources": [{"title": "secret", "where": "secret"}],
    "device": "h100-sxm-80gb", "num_devices": 64, "after": {"tp": 4}, "status": "confirmed",
}  # fmt: skip


def test_sharing_shows_facts_and_measured_figures_and_no_word_of_the_owner() -> None:
    store = MemoryStore()
    opened(store).add(SECRETS, by="secret person", tenant="red")
    opened(store).add({**SECRETS, "id": "secret-2", "measured": {"note": "secret"}}, by="x", tenant="red")
    sharing = KnowledgeBase(small_seed(), store, clock=Clock(), shares=True)
    seed = {entry.id for entry in small_seed().entries}
    (shared,) = [entry for entry in sharing.entries(tenant="blue") if entry.id not in seed]
    body = shared.json_body()
    assert "secret" not in str(shared)
    assert (body["measured"], body["after"], body["status"]) == ({"step_time_s": 4.5}, {"tp": 4}, "confirmed")
    assert not shared.is_own
    assert sharing.get("secret-id", "red").is_own
    assert {entry.id for entry in opened(store).entries(tenant="blue")} == seed


def test_an_index_that_grew_finds_what_one_read_anew_finds() -> None:
    store = MemoryStore()
    grown = opened(store)
    for number in range(6):
        grown.add(own_case(id=f"ours-{number}", title=f"Interleaving, try {number}"), by="ann")
        grown.search("pipeline bubble")
        if number == 3:
            grown.mark("ours-1", "refuted", by="ann", reason="measured")
    anew = opened(store)
    assert grown.entries() == anew.entries()
    assert grown.search("interleaving the bubble") == anew.search("interleaving the bubble")


def test_of_advice_that_nobody_measured_the_newest_is_searched_and_all_can_be_read() -> None:
    base = opened(MemoryStore())
    before = len(base.entries())
    for number in range(MAX_ADVICE + 5):
        base.add(own_case(id=f"advice-{number}"), by=ASAP)
        if number == 0:
            base.mark("advice-0", "confirmed", by="ann", reason="measured")
    base.add(own_case(id="a-persons"), by="ann")
    kept = [entry.id for entry in base.entries()[before:]]
    assert len(kept) == MAX_ADVICE + 2
    assert {"advice-0", "a-persons", f"advice-{MAX_ADVICE + 4}"} <= {*kept}
    assert "advice-1" not in kept
    assert base.get("advice-1").id == "advice-1"
    assert base.add(own_case(id="advice-1"), by=ASAP).id == "advice-1"
    assert base.find("advice-1", "other") is None
    assert [entry.id for entry in base.entries()[before:]] == kept


def test_searching_the_seed_loads_nothing_heavy() -> None:
    script = (
        "import json, sys; from tools.kb import open_seed; "
        "assert open_seed().search('pipeline bubble', {'bottleneck': 'pipeline'}); "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert set(json.loads(result.stdout)) & HEAVY == set()
