"""`asap kb` as it is typed."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.kb.samples import own_case
from tests.unit.service.cli.commands import Asap

pytestmark = pytest.mark.usefixtures("data_dir")


def answers(asap: Asap, *words: object) -> list[dict[str, Any]]:
    result = asap("kb", *words, "--json")
    assert result.status == 0, result.err
    return result.lines


def test_reading_makes_no_folder(asap: Asap, tmp_path: Path) -> None:
    found = answers(asap, "search", "pipeline bubble", "--bottleneck", "pipeline", "--limit", "3")
    shown = answers(asap, "show", found[0]["id"])
    listed = answers(asap, "list", "--kind", "case", "--status", "refuted")
    assert len(found) == 3
    keys = {"id", "kind", "title", "status", "facets", "warning", "score", "matched", "body"}
    assert keys <= found[0].keys()
    assert shown[0]["body"]["sources"]
    assert {entry["status"] for entry in listed} == {"refuted"}
    assert list(tmp_path.iterdir()) == []


def test_a_case_is_added_found_marked_and_shown(asap: Asap, tmp_path: Path) -> None:
    case, folder = own_case(title="Zirconium pipeline"), ("--data-dir", "kept")
    added = answers(asap, "add", case, "--by", "anna", *folder)
    assert (added[0]["id"], added[0]["status"]) == ("ours-1", "hypothesis")
    assert answers(asap, "add", case, "--by", "bob", *folder) == added
    assert answers(asap, "search", "zirconium", *folder)[0]["id"] == "ours-1"
    mark = ("mark", "ours-1", "--status", "refuted", "--by", "bob", "--reason", "slower", *folder)
    assert answers(asap, *mark)[0]["status"] == "refuted"
    shown = answers(asap, "show", "ours-1", *folder)[0]
    assert [entry["by"] for entry in shown["body"]["history"]] == ["anna", "bob"]
    assert answers(asap, "search", "zirconium", *folder)[0]["warning"] is True
    assert answers(asap, "reindex", *folder)[0]["vectors"] == 0
    assert (tmp_path / "kept" / "knowledge").is_dir()


def test_what_is_printed_is_text_and_never_markup(asap: Asap) -> None:
    case = own_case(title="[bold]Zirconium[/bold] [/]", story="a [red]b[/red]")
    commands = (("add", case), ("search", "zirconium"), ("list", "--status", "hypothesis"))
    results = [asap("kb", *words) for words in commands]
    assert [result.status for result in results] == [0, 0, 0]
    assert all("[bold]Zirconium[/bold] [/]" in result.out for result in results)
    assert "a [red]b[/red]" in results[1].out + results[0].out
    assert "not by meaning" in results[1].err


def test_a_folder_that_cannot_be_used_gives_no_traceback(asap: Asap) -> None:
    Path("taken").write_text("a file")
    result = asap("kb", "add", own_case(), "--data-dir", "taken")
    assert result.status == 1
    assert "cannot open the knowledge base in taken" in result.err
