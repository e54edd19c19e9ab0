"""A playbook, a case and a seed that are right, for tests to make one thing wrong; and a store in memory."""

import copy
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tools.kb.ledger import AnyRecord
from tools.kb.seed import Seed, parse_playbook, parse_seed_case

_PLAYBOOK: dict[str, Any] = {
    "id": "tp-inside-node",
    "title": "Keep tensor parallelism inside the node",
    "when": [{"fact": "tp_spans_nodes", "is": True}, {"fact": "share.tp_comm_exposed", "at_least": 0.1}],
    "symptoms": "Exposed tensor-parallel communication, tp larger than the node.",
    "do": "Lower `--tensor-model-parallel-size` to the devices of a node.",
    "moves": [{"tp": "devices_per_node", "pp": "x2"}],
    "why": "The all-reduce of every layer runs at network speed.",
    "effect": "Three to ten times less exposed communication.",
    "risks": ["More memory a device."],
    "facets": {"bottleneck": ["communication"]},
    "sources": [{"title": "Megatron-LM", "where": "arXiv 2104.04473"}],
}
_CASE: dict[str, Any] = {
    "id": "case-70b-tp4",
    "title": "Halving tp made a 70B model a fifth faster",
    "status": "confirmed",
    "model": "Llama 3.1 70B",
    "architecture": "dense",
    "device": "h100-sxm-80gb",
    "num_devices": 64,
    "framework": "megatron-core",
    "bottleneck": "communication",
    "before": {"tp": 8, "pp": 2},
    "after": {"tp": 4, "pp": 2},
    "measured": {"metric": "step time, s", "before": 9.8, "after": 8.1, "speedup": 1.21},
    "story": "Exposed tensor-parallel communication took a fifth of the step; tp was halved.",
    "lesson": "The smallest tp that fits is the fastest.",
    "sources": [{"title": "A report", "where": "https://example.org/report"}],
}
_OWN: dict[str, Any] = {
    "id": "ours-1",
    "title": "Interleaving our pipeline",
    "story": "Bubble of 30 percent; vpp from 1 to 4 brought it to 9.",
    "device": "h100-sxm-80gb",
    "num_devices": 64,
    "before": {"vpp": 1, "recompute": None},
    "after": {"vpp": 4},
}


def playbook(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value, wrong ones too
    return copy.deepcopy(_PLAYBOOK) | changes


def case(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    return copy.deepcopy(_CASE) | changes


def own_case(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    return copy.deepcopy(_OWN) | changes


def small_seed(version: str = "v1") -> Seed:
    books = [
        playbook(),
        playbook(id="pp-interleave", title="Interleave chunks to shrink the pipeline bubble", when=[],
                 symptoms="A pipeline bubble of ten percent or more.", do="Raise vpp.",
                 why="The bubble is (pp-1)/(vpp m).", facets={"bottleneck": ["pipeline"]}),
        playbook(id="ep-inside-node", title="Keep the expert all-to-all inside the node", when=[],
                 symptoms="Exposed all-to-all of the experts.", do="Lower ep.", why="Tokens cross nodes.",
                 facets={"bottleneck": ["communication"], "architecture": ["moe"]}),
    ]  # fmt: skip
    refuted = case(
        id="case-tp-node", title="tp of the whole node was slower than half of it", status="refuted"
    )
    entries = [parse_playbook("tp", book) for book in books]
    return Seed((*entries, parse_seed_case(case()), parse_seed_case(refuted)), version)


class Clock:
    """A clock that moves a minute at every look."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(minutes=1)
        return self.now


class MemoryStore:
    """A `CaseStore` without Chroma, for what does not depend on where records are kept."""

    def __init__(self) -> None:
        self.records: dict[str, AnyRecord] = {}

    def size(self) -> int:
        return len(self.records)

    def read(self, tenants: Sequence[str | None] | None, skip: int = 0) -> list[AnyRecord]:
        kept = [record for record in self.records.values() if tenants is None or record.tenant in tenants]
        return kept[skip:]

    def find(self, key: str) -> AnyRecord | None:
        return self.records.get(key)

    def append(self, record: AnyRecord) -> AnyRecord:
        return self.records.setdefault(record.key, record)

    def close(self) -> None:
        self.records.clear()
