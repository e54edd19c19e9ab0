"""What was seen of plans rules what is advised: through `asap serve` and its worker, as a user reports it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.integration.service.api_process import api_process
from tests.integration.service.at_work import MAX_WAIT_S, TINY

TIMEOUT_S = 120
JOB: dict[str, Any] = {**TINY, "cluster": {**TINY["cluster"], "name": "alpha"}}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("evidence")
    with api_process(folder) as server:
        yield server.address


def completed(address: str, **request: Any) -> str:  # noqa: ANN401 - JSON
    """Where a session is, brought to its end."""
    made = requests.post(f"{address}/v1/sessions", json={**JOB, **request}, timeout=TIMEOUT_S)
    assert made.status_code == 202, made.text
    url, deadline = f"{address}/v1/sessions/{made.json()['id']}", time.monotonic() + MAX_WAIT_S
    while (state := requests.get(url, timeout=TIMEOUT_S).json()["state"]) in ("queued", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert state == "completed"
    return url


def advise(address: str, **request: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON
    url = completed(address, **request)
    proposals: list[dict[str, Any]] = requests.get(f"{url}/report", timeout=TIMEOUT_S).json()["proposals"]
    return proposals


def run_of(proposal: dict[str, Any], **outcome: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    training = {**JOB["training"], **proposal["settings"]}
    return {"scenario": {**JOB, "training": training, "plan": proposal["plan"]}, **outcome}


def test_a_crash_takes_the_first_place_away_and_a_run_is_believed_of_its_own_plan(address: str) -> None:
    first, second, *_ = advise(address)
    took_s = second["prediction"]["step_time_s"] * 0.8
    rows = [
        run_of(first, crashed=True, id="run-1"),
        run_of(second, measured={"step_time_s": took_s}, id="run-2"),
    ]
    answer = requests.post(f"{address}/v1/measurements", json={"runs": rows}, timeout=TIMEOUT_S)
    assert answer.status_code == 201, answer.text
    proposals = advise(address)
    assert first["plan"] not in [proposal["plan"] for proposal in proposals]
    (ran,) = [proposal for proposal in proposals if proposal["plan"] == second["plan"]]
    assert ran["prediction"]["step_time_s"] == pytest.approx(took_s)
    assert ran["prediction"]["fit_probability"] > 0.95
    assert [entry["ref"] for entry in ran["evidence"] if entry["kind"] == "trial"] == ["run:run-2"]
    assert proposals[0]["plan"] == second["plan"]


def test_a_refuted_case_of_the_same_job_is_not_advised_again(address: str) -> None:
    another = {**JOB, "cluster": {**JOB["cluster"], "name": "beta"}}
    first = advise(address, **another)[0]
    case = {
        "id": "out-of-memory", "title": "tried last week", "story": "Out of memory.", "status": "refuted",
        "model": JOB["model"]["name"], "device": JOB["cluster"]["device"],
        "num_devices": JOB["cluster"]["num_devices"], "framework": JOB["training"]["framework"],
        "after": {name: value for name, value in first["plan"].items() if value is not None},
    }  # fmt: skip
    answer = requests.post(f"{address}/v1/knowledge", json=case, timeout=TIMEOUT_S)
    assert answer.status_code == 201, answer.text
    assert advise(address, **another)[0]["plan"] != first["plan"]


def test_a_run_told_in_the_notes_changes_what_comes_first_and_is_cited(address: str) -> None:
    another = {**JOB, "cluster": {**JOB["cluster"], "name": "gamma"}}
    today, first = JOB["plan"], advise(address, **another)[0]
    took_s = first["prediction"]["step_time_s"] / 2
    plan = {"tp": 2, "pp": 1, "dp": today["tp"] * today["pp"] * today["dp"] // 2}
    notes = f"tp 2 pp 1 ran at {took_s * 1000:.6f} ms per step"
    proposals = advise(address, **another, notes=notes)
    assert {name: proposals[0]["plan"][name] for name in plan} == plan
    assert proposals[0]["evidence"][0]["ref"] == "notes:tp 2 pp 1"
    assert proposals[0]["prediction"]["step_time_s"] < first["prediction"]["step_time_s"]


def test_a_question_is_answered_by_the_model_that_the_report_was_calibrated_with(address: str) -> None:
    plain = advise(address)[0]["prediction"]["step_time_s"]
    took_s = 3 * plain
    url = completed(address, notes=f"A step takes {took_s:.4f} s.")
    report = requests.get(f"{url}/report", timeout=TIMEOUT_S).json()
    first = report["proposals"][report["chosen"] - 1 if report["chosen"] else 0]
    assert report["diagnosis"]["recalibrated"] is not None
    question = {"question": f"what if tp {first['plan']['tp']}?"}
    told = requests.post(f"{url}/ask", json=question, timeout=TIMEOUT_S).json()["answer"]
    assert f"{first['prediction']['step_time_s']:#.3g} s per step" in told
