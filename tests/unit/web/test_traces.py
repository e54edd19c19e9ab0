"""What figures take from traces: kept with an upload, cut to what can be drawn, kernel names as text."""

import gzip
import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.db.models import COMPLETED
from service.render.trace_figures import MOST_COLUMNS, drawing_of, lateness
from tests.unit.service_api.served import SCENARIO, Served
from tools.trace.collectives import AlignedCollectives
from tools.trace.folder import profile_folder

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "traces" / "ddp-gloo-straggler"
FIGURES = ("ranks", "timeline", "lateness", "measured-collectives")


def aligned(starts_us: list[list[float]]) -> AlignedCollectives:
    starts = (np.array(starts_us) * 1000).astype(np.int64)
    ends = np.broadcast_to(starts.max(axis=0) + 5_000, starts.shape)
    ranks = list(range(len(starts)))
    return AlignedCollectives("all_reduce", "g", ranks, len(ranks), [], starts, ends)


def test_lateness_is_what_a_rank_comes_after_the_first() -> None:
    found = lateness([aligned([[0, 100, 200], [7, 100, 230]])])
    assert found == {"ranks": [0, 1], "late_us": [[0, 0, 0], [7, 0, 30]]}


def test_many_collectives_are_drawn_as_means_of_neighbours() -> None:
    many = [[float(10 * i) for i in range(1000)], [10.0 * i + 4 for i in range(1000)]]
    found = lateness([aligned(many)])
    assert found
    assert len(found["late_us"][0]) == MOST_COLUMNS
    assert set(found["late_us"][1]) == {4.0}


def test_a_rank_outside_a_group_has_no_lateness_there() -> None:
    group = aligned([[0, 50], [3, 50]])
    other = AlignedCollectives("all_reduce", "h", [5, 6], 2, [], group.start_ns + 10**9, group.end_ns + 10**9)
    found = lateness([group, other])
    assert found
    assert found["ranks"] == [0, 1, 5, 6]
    assert found["late_us"][0] == [0.0, 0.0, None, None]


def test_nothing_synchronised_has_no_lateness() -> None:
    assert lateness([]) is None


def test_a_drawing_is_plain_data_with_a_strip_a_rank() -> None:
    drawing = drawing_of(profile_folder(EXAMPLE))
    assert json.loads(json.dumps(drawing)) == drawing
    assert [strip["rank"] for strip in drawing["strips"]] == [0, 1]
    assert drawing["lateness"]["ranks"] == [0, 1]


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
        assert answer.json()["data"]
        assert "<img" not in answer.text
    page = served.client.get(f"/sessions/{uploaded}", headers={"Accept": "text/html"}).text
    assert "Measured: who comes late" in page
    assert "<img" not in page


def test_the_api_tells_of_an_analysis_without_what_figures_need(served: Served, uploaded: str) -> None:
    figure(served, f"/sessions/{uploaded}/figures/ranks")
    request = served.client.get(f"/v1/sessions/{uploaded}").json()["request"]
    trace = served.client.get(f"/v1/traces/{request['traces'].removeprefix('trace:')}").json()
    assert trace["analysis"]["ranks"]
    assert "drawing" not in trace["analysis"]


def test_a_folder_of_the_server_is_drawn_too(served: Served, report: dict[str, Any]) -> None:
    id = served.submit({**SCENARIO, "traces": str(EXAMPLE)})
    served.end(id, COMPLETED, report=report, verdict="v")
    assert figure(served, f"/sessions/{id}/figures/timeline").status_code == 200


def test_a_folder_that_was_written_anew_is_drawn_anew(
    served: Served, report: dict[str, Any], tmp_path: Path
) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "traces")
    id = served.submit({**SCENARIO, "traces": str(folder)})
    served.end(id, COMPLETED, report=report, verdict="v")
    before = figure(served, f"/sessions/{id}/figures/ranks").json()["data"]
    min(folder.glob("*.json.gz")).unlink()
    assert figure(served, f"/sessions/{id}/figures/ranks").json()["data"] != before
