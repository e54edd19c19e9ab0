"""Reading JSON and JSONL from files and standard input, writing JSON lines."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.io import JsonRecord, read_bytes, read_object, read_records, write_json_line
from tools.errors import InputError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "input.json"


def contents(path: Path) -> list[object]:
    return [record.content for record in read_records(str(path))]


def test_json_lines_come_in_order_with_their_line_numbers(file: Path) -> None:
    file.write_text('{"id": 1}\n\n{"id": 2}\r\n   \n{"id": 3}')
    assert list(read_records(str(file))) == [
        JsonRecord(1, {"id": 1}),
        JsonRecord(3, {"id": 2}),
        JsonRecord(5, {"id": 3}),
    ]


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
    assert error.field == f"{file} line {position + 1}"
    assert found == [{"id": i} for i in range(3) if i != position]


def test_a_broken_document_over_several_lines_is_one_error_with_the_line(file: Path) -> None:
    file.write_text('{\n  "plan": {\n    "tp": 4,,\n    "pp": 2\n  }\n}\n')
    (error,) = contents(file)
    assert isinstance(error, InputError)
    assert error.field == f"{file} line 3"


@pytest.mark.parametrize("text", ["", "\n \n\t"])
def test_an_empty_source_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(InputError, match="JSON object"):
        next(read_records(str(file)))


def test_standard_input_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 7}\n{"id": }\n')))
    first, second = read_records("-")
    assert first.content == {"id": 7}
    assert isinstance(second.content, InputError)
    assert second.content.field == "standard input line 2"


@pytest.mark.parametrize(("name", "says"), [("absent.json", "No such file"), ("", "directory")])
def test_a_file_that_is_not_there_or_is_a_folder_is_named(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read_bytes(str(tmp_path / name))
    assert caught.value.given == str(tmp_path / name)


def test_a_text_of_the_greatest_size_is_read_and_a_longer_one_refused(file: Path) -> None:
    file.write_bytes(b"x" * 100)
    assert len(read_bytes(str(file), max_bytes=100)) == 100
    with pytest.raises(InputError, match="at most 99 bytes"):
        read_bytes(str(file), max_bytes=99)


@pytest.mark.parametrize(("text", "says"), [('{"id": 1}\n{"id": 2}\n', "line 2"), ('{"id": NaN}', "finite")])
def test_read_object_takes_exactly_one_and_says_what_is_wrong_with_it(
    file: Path, text: str, says: str
) -> None:
    file.write_text('{"id": 1}\n')
    assert read_object(str(file)) == {"id": 1}
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_object(str(file))


def test_a_value_is_written_as_one_ascii_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_json_line({"name": "a\nb", "unit": "µs\ud800"})
    line = capsys.readouterr().out
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert line.isascii()
    assert json.loads(line) == {"name": "a\nb", "unit": "µs\ud800"}


def test_a_number_that_json_cannot_hold_is_never_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json_line({"step_time_s": float("nan")})
    assert capsys.readouterr().out == ""
