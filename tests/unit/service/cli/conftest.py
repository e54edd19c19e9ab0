"""A fixture that runs `asap` in this process."""

import io
import json
from pathlib import Path

import pytest

from service.cli.main import main
from tests.unit.service.cli.commands import Asap, Result


@pytest.fixture
def asap(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Asap:
    def call(*words: object, stdin: bytes = b"") -> Result:
        written = []
        for number, word in enumerate(words):
            if not isinstance(word, str | Path):
                path = tmp_path / f"input-{number}.json"
                path.write_bytes(word if isinstance(word, bytes) else json.dumps(word).encode())
                word = path
            written.append(str(word))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        return Result(main(written), *capsys.readouterr())

    return call
