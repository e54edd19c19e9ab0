"""Reading the seed: what is right is an entry, what is wrong names its file, id and field."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli

from kb_seed import folder
from tests.unit.kb.samples import case, playbook
from tools.errors import DataError
from tools.hardware import device_names, get_device
from tools.hardware.catalogue import find_vendor
from tools.kb import Playbook, matching
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
    "framework": [{"framework": "megatron"}],
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id = ", "not TOML"),
        ("[case]\nid = 1", "case: only [[playbook]] belongs in this folder"),
        ("[playbook]\nid = 1", "playbook: must be written [[playbook]]"),
        ("playbook = [1]", "the entry"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError) as error:
        seed_of(tmp_path, text)
    assert "kb_seed/playbooks/topic.toml: " in str(error.value)
    assert says in str(error.value)


def test_an_id_may_occur_only_once_over_playbooks_and_cases(tmp_path: Path) -> None:
    twice = toml("case", [case(id="tp-inside-node")])
    with pytest.raises(DataError, match=r"cases/topic\.toml: tp-inside-node: id: another entry has it too"):
        seed_of(tmp_path, toml("playbook", [playbook()]), twice)


def test_the_version_changes_with_any_text_and_not_without(tmp_path: Path) -> None:
    seeds = []
    for name, why in (("a", "One reason."), ("b", "One reason."), ("c", "Another reason.")):
        (tmp_path / name).mkdir()
        seeds.append(seed_of(tmp_path / name, toml("playbook", [playbook(why=why)])))
    assert seeds[0].version == seeds[1].version
    assert seeds[0].version != seeds[2].version


def test_the_seed_that_comes_with_asap_is_whole() -> None:
    # Loading skips the validation that reading does, so both must agree to the last field.
    seed = load_seed()
    assert seed == read_seed(folder("playbooks"), folder("cases"))
    kinds = [entry.kind for entry in seed.entries]
    assert kinds.count("playbook") >= 60
    assert kinds.count("case") >= 60
    assert {entry.status for entry in seed.entries} == {"confirmed", "refuted"}
    assert all(entry.body.sources for entry in seed.entries)


def test_the_seed_uses_only_facts_that_some_situation_can_have() -> None:
    # A playbook with a contradiction in it would never be found; each must hold for the facts it asks for.
    for entry in load_seed().entries:
        if isinstance(entry.body, Playbook):
            rows = [row.model_dump(by_alias=True, exclude_unset=True) for row in entry.body.when]
            assert matching(_facts_for(rows), [entry]), entry.id


def _facts_for(conditions: list[dict[str, Any]]) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name in {row["fact"] for row in conditions}:
        bounds = {key: row[key] for row in conditions if row["fact"] == name for key in row if key != "fact"}
        if "is" in bounds or "one_of" in bounds:
            facts[name] = bounds.get("is", bounds.get("one_of", [None])[0])
            continue
        lows = [bounds[key] + edge for key, edge in (("at_least", 0), ("above", 1e-9)) if key in bounds]
        highs = [bounds[key] - edge for key, edge in (("at_most", 0), ("below", 1e-9)) if key in bounds]
        facts[name] = (lows + highs)[0]
    return facts


@pytest.mark.parametrize("name", device_names())
def test_the_maker_of_every_device_is_known_from_its_name(name: str) -> None:
    assert find_vendor(name) == get_device(name).vendor


def test_the_compiled_reader_reads_the_seed_as_the_standard_one() -> None:
    files = [file for name in ("playbooks", "cases") for file in folder(name).iterdir()]
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert tomli.loads(text) == tomllib.loads(text)
