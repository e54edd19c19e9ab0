"""What figures take from traces: kept with an upload, cut to what can be drawn, kernel names as text."""

import gzip
import hashlib
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from service.jobs.model import COMPLETED
from tests.unit.service.served import SCENARIO, Served

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "traces" / "ddp-gloo-straggler"
FIGURES = ("ranks", "timeline", "lateness", "measured-collectives")


def upload(served: Served, folder: dict[str, bytes]) -> str:
    id = str(served.client.post("/v1/traces", json={"name": "t"}).json()["id"])
    for name, data in folder.items():
        assert served.client.put(f"/v1/traces/{id}/files/{name}", content=data).status_code == 200
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in folder.items()}
    assert served.client.post(f"/v1/traces/{id}/complete", json={"files": digests}).status_code == 200
    return id


def figure(served: Served, path: str) -> Any:  # noqa: ANN401 - an answer
    """Asked again while the traces are being analysed, as the page's script does."""
    for _ in range(200):
        answer = served.client.get(path)
        if answer.status_code != 503:
            return answer
        assert answer.headers["retry-after"]
        time.sleep(0.1)
    raise TimeoutError(path)


@pytest.fixture
def uploaded(served: Served, report: dict[str, Any]) -> str:
    """A session with traces whose kernels have evil names."""
    files = {}
    for file in sorted(EXAMPLE.glob("*.json.gz")):
        text = gzip.decompress(file.read_bytes()).decode()
        assert "aten::mm" in text
        files[file.name] = gzip.compress(text.replace("aten::mm", "<img src=x onerror=alert(1)>").encode())
    id = served.submit({**SCENARIO, "traces": f"trace:{upload(served, files)}"})
    served.end(id, COMPLETED, report=report, verdict="v")
    return id


def test_an_uploads_figures_are_drawn_and_its_kernels_stay_text(served: Served, uploaded: str) -> None:
    for name in FIGURES:
        answer = figure(served, f"/sessions/{uploaded}/figures/{name}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["layers"]
        assert "<img" not in answer.text
    request = served.client.get(f"/v1/sessions/{uploaded}").json()["request"]
    analysed = served.client.get(f"/v1/traces/{request['traces'].removeprefix('trace:')}").text
    assert "<img src=x onerror=alert(1)>" in analysed  # the names were read
    page = served.client.get(f"/sessions/{uploaded}/figures", headers={"Accept": "text/html"}).text
    assert "Measured: late ranks" in page
    assert "<img" not in page


def test_a_folder_that_was_written_anew_is_drawn_anew(
    served: Served, report: dict[str, Any], tmp_path: Path
) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "traces")
    id = served.submit({**SCENARIO, "traces": str(folder)})
    served.end(id, COMPLETED, report=report, verdict="v")
    before = figure(served, f"/sessions/{id}/figures/ranks").json()["layers"]
    min(folder.glob("*.json.gz")).unlink()
    assert figure(served, f"/sessions/{id}/figures/ranks").json()["layers"] != before
