"""`asap kb` as it is typed."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.cli.main import main
from service.settings import load_settings
from tests.unit.kb.samples import own_case


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation without settings of its own, and without vectors: those have their own tests."""
    for name in ("ASAP_DATA_DIR", "ASAP_CHROMA_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("service.runtime.embedder_of", lambda settings: None)
    monkeypatch.chdir(tmp_path)
    load_settings.cache_clear()
    yield
    load_settings.cache_clear()


def answers(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> list[dict[str, Any]]:
    assert main(["kb", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_reading_makes_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answers(capsys, ["search", "pipeline bubble", "--bottleneck", "pipeline", "--limit", "3"])
    shown = answers(capsys, ["show", found[0]["id"]])
    listed = answers(capsys, ["list", "--kind", "case", "--status", "refuted"])
    assert len(found) == 3
    assert {"id", "kind", "title", "status", "facets", "warning", "score", "matched", "body"} <= found[
        0
    ].keys()
    assert shown[0]["body"]["sources"]
    assert listed
    assert {one["status"] for one in listed} == {"refuted"}
    assert list(tmp_path.iterdir()) == []


def test_a_case_is_added_found_marked_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("case.json").write_text(json.dumps(own_case(title="Zirconium pipeline")))
    folder = ["--data-dir", "kept"]
    added = answers(capsys, ["add", "case.json", "--by", "anna", *folder])
    assert (added[0]["id"], added[0]["status"]) == ("ours-1", "hypothesis")
    assert answers(capsys, ["add", "case.json", "--by", "bob", *folder]) == added
    assert answers(capsys, ["search", "zirconium", *folder])[0]["id"] == "ours-1"
    mark = ["mark", "ours-1", "--status", "refuted", "--by", "bob", "--reason", "slower", *folder]
    assert answers(capsys, mark)[0]["status"] == "refuted"
    shown = answers(capsys, ["show", "ours-1", *folder])[0]
    assert [one["by"] for one in shown["body"]["history"]] == ["anna", "bob"]
    assert answers(capsys, ["search", "zirconium", *folder])[0]["warning"] is True
    assert answers(capsys, ["reindex", *folder])[0]["vectors"] == 0
    assert (tmp_path / "kept" / "knowledge").is_dir()


def test_the_data_folder_is_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("case.json").write_text(json.dumps(own_case()))
    answers(capsys, ["add", "case.json"])
    assert (tmp_path / ".asap" / "knowledge").is_dir()
    assert answers(capsys, ["show", "ours-1"])[0]["body"]["history"][0]["by"] == "command line"


def test_what_is_printed_is_text_and_never_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Path("case.json").write_text(
        json.dumps(own_case(title="[bold]Zirconium[/bold] [/]", story="a [red]b[/red]"))
    )
    assert main(["kb", "add", "case.json", "--data-dir", "kept"]) == 0
    assert main(["kb", "search", "zirconium", "--data-dir", "kept"]) == 0
    assert main(["kb", "list", "--status", "hypothesis", "--data-dir", "kept"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("[bold]Zirconium[/bold] [/]") == 3
    assert "a [red]b[/red]" in printed.out
    assert "not by meaning" in printed.err


def test_an_entry_is_printed_with_conditions_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    playbook = answers(capsys, ["list", "--kind", "playbook"])[0]["id"]
    assert main(["kb", "show", playbook]) == 0
    printed = capsys.readouterr().out
    for heading in ("when", "symptoms", "do", "why", "effect", "risks", "sources"):
        assert f"\n{heading}\n" in printed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["search", "x", "--device", "h1000"], "--device"),
        (["search", "x", "--limit", "0"], "limit"),
        (["search", "x", "--bottleneck", "network"], "--bottleneck"),
        (["show", "no-such-entry"], "id: got 'no-such-entry'"),
        (["list", "--kind", "story"], "--kind"),
        (["add", "missing.json"], "FILE"),
        (["add", "wrong.json"], "story: got nothing; is missing"),
        (["mark", "x", "--status", "confirmed", "--by", "a"], "--reason"),
        (["mark", "no-such-entry", "--status", "confirmed", "--by", "a", "--reason", "b"], "id:"),
        (["frobnicate"], "ACTION"),
        ([], "ACTION"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("wrong.json").write_text('{"id": "x", "title": "y"}')
    assert main(["kb", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert says in printed.err


def test_help_teaches_by_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for words, example in (
        (["kb", "--help"], "asap kb mark our-70b-tp4"),
        (["kb", "add", "--help"], '"story":'),
    ):
        assert main(words) == 0
        assert example in capsys.readouterr().out


def test_a_folder_that_cannot_be_used_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    Path("case.json").write_text(json.dumps(own_case()))
    Path("taken").write_text("a file")
    assert main(["kb", "add", "case.json", "--data-dir", "taken"]) == 1
    assert "cannot open the knowledge base in taken" in capsys.readouterr().err
