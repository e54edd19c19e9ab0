"""Reading the seed: what is right is an entry, what is wrong names its file, id and field."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kb.samples import case, playbook
from tools.errors import DataError
from tools.kb.seed import Seed, load_seed, read_seed


def toml(table: str, entries: list[dict[str, Any]]) -> str:
    return "\n".join(f"[[{table}]]\n" + "\n".join(f"{k} = {value(v)}" for k, v in e.items()) for e in entries)


def value(item: object) -> str:
    if isinstance(item, dict):
        return "{" + ", ".join(f"{key} = {value(part)}" for key, part in item.items()) + "}"
    if isinstance(item, list):
        return "[" + ", ".join(map(value, item)) + "]"
    return json.dumps(item)


def seed_of(tmp_path: Path, playbooks: str = "", cases: str = "") -> Seed:
    for name, text in (("playbooks", playbooks), ("cases", cases)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "topic.toml").write_text(text)
    return read_seed(tmp_path / "playbooks", tmp_path / "cases")


def test_a_playbook_and_a_case_become_entries_and_absent_folders_hold_nothing(tmp_path: Path) -> None:
    assert read_seed(tmp_path / "none", tmp_path / "neither").entries == ()
    seed = seed_of(tmp_path, toml("playbook", [playbook()]), toml("case", [case()]))
    book, past = seed.entries
    assert (book.id, book.kind, book.status, book.tenant) == ("tp-inside-node", "playbook", "confirmed", None)
    assert book.facets == {"bottleneck": ("communication",), "topic": ("topic",)}
    assert (book.json_body(), past.json_body()) == (playbook(), case())
    assert (past.id, past.kind, past.status) == ("case-70b-tp4", "case", "confirmed")
    assert past.facets == {
        "device": ("h100-sxm-80gb",), "vendor": ("nvidia",), "architecture": ("dense",),
        "bottleneck": ("communication",), "framework": ("megatron-core",), "scale": ("64",),
    }  # fmt: skip
    assert "tp 8 to 4" in past.text
    assert "pp" not in past.text.split()


WRONG_PLAYBOOKS: dict[str, list[dict[str, Any]]] = {
    "id": [{"id": "Not A Slug"}, {"id": None}],
    "title": [{"title": ""}, {"title": "x" * 201}],
    "when": [{"when": "always"}],
    "when[0].fact": [{"when": [{"fact": "tpp", "above": 8}]}],
    "moves": [{"moves": []}],
    "moves[0]": [{"moves": [{}]}],
    "moves[0].dp": [{"moves": [{"dp": 8}]}],
    "moves[0].tp": [{"moves": [{"tp": "double"}]}, {"moves": [{"tp": -1}]}],
    "moves[0].recompute": [{"moves": [{"recompute": "x2"}]}],
    "moves[0].sequence_parallel": [{"moves": [{"sequence_parallel": 1}]}],
    "risks": [{"risks": []}],
    "risks[1]": [{"risks": ["fine", ""]}],
    "sources": [{"sources": []}],
    "sources[0].where": [{"sources": [{"title": "no place"}]}],
    "facets.bottleneck[0]": [{"facets": {"bottleneck": ["network"]}}],
    "facets.colour": [{"facets": {"colour": ["red"]}}],
    "surprise": [{"surprise": 1}],
    "why": [{"why": "escape \x1b[31m"}],
}
WRONG_CASES: dict[str, list[dict[str, Any]]] = {
    "status": [{"status": "hypothesis"}],
    "num_devices": [{"num_devices": 0}, {"num_devices": 8.0}],
    "device": [{"device": "h1000"}],
    "framework": [{"framework": "megatorn"}],
    "architecture": [{"architecture": "sparse"}],
    "before.gpus": [{"before": {"gpus": 8}}],
    "after.tp": [{"after": {"tp": "x2"}}],
    "measured.metric": [{"measured": {"after": 8.1}}],
    "measured.after": [{"measured": {"metric": "MFU", "after": "half"}}],
    "story": [{"story": None}],
    "sources": [{"sources": []}],
}


@pytest.mark.parametrize(
    ("kind", "field", "changes"),
    [
        *(("playbook", field, changes) for field, rows in WRONG_PLAYBOOKS.items() for changes in rows),
        *(("case", field, changes) for field, rows in WRONG_CASES.items() for changes in rows),
    ],
)
def test_what_is_wrong_with_an_entry_names_file_id_and_field(
    tmp_path: Path, kind: str, field: str, changes: dict[str, Any]
) -> None:
    whole = {"playbook": playbook, "case": case}[kind](**changes)
    entry = {key: item for key, item in whole.items() if item is not None}
    with pytest.raises(DataError) as error:
        seed_of(tmp_path, **{f"{kind}s": toml(kind, [entry])})
    label = entry.get("id", f"{kind} 1")
    assert str(error.value).startswith(f"kb_seed/{kind}s/topic.toml: {label}: {field}: ")


def test_an_id_may_occur_only_once_over_playbooks_and_cases(tmp_path: Path) -> None:
    twice = toml("case", [case(id="tp-inside-node")])
    with pytest.raises(DataError, match=r"cases/topic\.toml: tp-inside-node: id: another entry has it too"):
        seed_of(tmp_path, toml("playbook", [playbook()]), twice)


def test_the_seed_that_comes_with_asap_is_whole() -> None:
    seed = load_seed()
    kinds = [entry.kind for entry in seed.entries]
    assert kinds.count("playbook") >= 60
    assert kinds.count("case") >= 60
    assert {entry.status for entry in seed.entries} == {"confirmed", "refuted"}
    assert all(entry.body.sources for entry in seed.entries)
