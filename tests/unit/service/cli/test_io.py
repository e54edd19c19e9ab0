"""Reading JSON and JSONL from files and standard input, writing JSON lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.io import read_records, write_json
from tools.errors import InputError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "input.json"


def contents(path: Path) -> list[object]:
    return [record.content for record in read_records(str(path))]


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text(), max_size=3), min_size=1, max_size=30))
def test_what_is_written_a_line_each_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, objects: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.jsonl"
    path.write_text(
        "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in objects), encoding="utf-8"
    )
    assert contents(path) == objects


STAGES: Any = {"plan": {"tp": 4}, "stages": [{"layers": 40}, {"layers": 40}]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param(json.dumps(STAGES, indent=2), STAGES, id="several lines"),
        pytest.param('{"a": [\n{"b": 4},\n{"b": 5}\n]}', {"a": [{"b": 4}, {"b": 5}]}, id="inner objects"),
        pytest.param('\ufeff{"id": 1}', {"id": 1}, id="byte order mark"),
    ],
)
def test_one_object_is_one_record_however_it_is_written(file: Path, text: str, value: object) -> None:
    file.write_text(text, encoding="utf-8")
    assert contents(file) == [value]


@pytest.mark.parametrize("bad", ['{"id": ', '{"id": NaN}', "[1]", "nonsense", '{"id": "\\ud8'])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_bad_line_yields_its_error_in_its_place(file: Path, bad: str, position: int) -> None:
    lines = ['{"id": 0}', '{"id": 1}', '{"id": 2}']
    lines[position] = bad
    file.write_text("\n".join(lines))
    found = contents(file)
    error = found.pop(position)
    assert isinstance(error, InputError)
    assert error.path == f"{file} line {position + 1}"
    assert found == [{"id": i} for i in range(3) if i != position]


def test_a_broken_document_over_several_lines_is_one_error_with_the_line(file: Path) -> None:
    file.write_text('{\n  "plan": {\n    "tp": 4,,\n    "pp": 2\n  }\n}\n')
    (error,) = contents(file)
    assert isinstance(error, InputError)
    assert error.path == f"{file} line 3"


def test_a_number_that_json_cannot_hold_is_never_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json({"step_time_s": float("nan")})
    assert capsys.readouterr().out == ""
