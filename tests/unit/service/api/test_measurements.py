"""/v1/measurements over HTTP: runs reported for a cluster are kept, shown, learned from, undone."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.service.served import SCENARIO, Served
from tools.model.predict import predict
from tools.model.runs import Run
from tools.model.update import Calibrated, calibrate
from tools.scenario import parse_scenario

URL = "/v1/measurements"
NAMED: dict[str, Any] = {**SCENARIO, "cluster": {**SCENARIO["cluster"], "name": "alpha"}}


def run(factor: float = 1.2, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a run
    predicted_s = predict([parse_scenario(NAMED)])[0].step_time_s
    return {"scenario": NAMED, "measured": {"step_time_s": predicted_s * factor}, **changes}


def test_runs_are_kept_shown_learned_from_and_undone(served: Served) -> None:
    client = served.client
    made = client.post(URL, json={"runs": [run(1.2), run(1.21)]})
    assert made.status_code == 201, made.text
    (cluster,) = made.json()["items"]
    assert (cluster["name"], cluster["version"], cluster["runs"]) == ("alpha", 1, 2)
    assert cluster["error_after"] < cluster["error_before"]
    assert client.post(URL, json=run(1.19)).json()["items"][0]["version"] == 2
    assert client.get(f"{URL}/alpha").json()["runs"] == 3
    assert client.delete(f"{URL}/alpha").json()["runs"] == 2
    assert client.delete(f"{URL}/alpha").json()["version"] == 0
    assert client.delete(f"{URL}/alpha").status_code == 404
    assert client.get(f"{URL}/alpha").status_code == 404


def test_a_run_reported_twice_is_kept_once(served: Served) -> None:
    first = served.client.post(URL, json=[run()]).json()["items"][0]
    again = served.client.post(URL, json=[run()]).json()["items"][0]
    assert (again["version"], again["runs"]) == (first["version"], 1)


def test_three_runs_change_what_is_predicted_for_another_plan_of_their_cluster(served: Served) -> None:
    plan = {**NAMED["plan"], "micro_batch_size": 2 * NAMED["plan"].get("micro_batch_size", 1)}
    other = {**NAMED, "plan": plan}
    (before, _) = served.client.post("/v1/predict/batch", json=[other, SCENARIO]).json()
    served.client.post(URL, json=[run(1.3), run(1.31), run(1.29)])
    after = served.client.post("/v1/predict", json=other).json()
    assert 1.05 < after["step_time_s"] / before["step_time_s"] < 1.31
    assert after["step_time_low_s"] > before["step_time_low_s"]
    batch = served.client.post("/v1/predict/batch", json=[other, {**other, "cluster": SCENARIO["cluster"]}])
    assert [one["step_time_s"] for one in batch.json()] == [after["step_time_s"], before["step_time_s"]]


def test_what_is_odd_about_a_cluster_is_told_with_every_prediction_of_it(served: Served) -> None:
    (cluster,) = served.client.post(URL, json=[run(3.0, id="monday"), run(3.02)]).json()["items"]
    basis = served.client.post("/v1/predict", json=NAMED).json()["basis"]
    assert [finding["kind"] for finding in basis["findings"]] == ["far off"]
    assert basis["findings"] == cluster["findings"]
    assert "run:monday" in [cited["ref"] for cited in basis["runs"]]
    assert f"{cluster['says']} of alpha, version 1" == basis["calibrated_by"]


def probe(efficiency: float) -> dict[str, Any]:
    return {
        "id": "probe",
        "source": "probe",
        "scenario": NAMED,
        "measured": {"constants": {"gemm_efficiency": efficiency}},
    }


def test_the_page_of_a_cluster_shows_runs_constants_and_probes(served: Served) -> None:
    client = served.client
    assert "No runs were reported" in client.get("/clusters").text
    client.post(URL, json=[run(1.3, id="monday"), run(1.31, id="<b>tuesday"), probe(0.55), run(1000.0)])
    listed, shown = client.get("/clusters").text, client.get("/clusters/alpha").text
    assert 'href="/clusters/alpha"' in listed
    for text in ("monday", "&lt;b&gt;tuesday", "gemm_efficiency", "Probes over time", "Left out", "--undo"):
        assert text in shown
    figure = client.get("/clusters/alpha/figure").json()
    assert all(name in json.dumps(figure["layers"]) for name in ("without its runs", "with its other runs"))
    assert "0.55" in json.dumps(client.get("/clusters/alpha/probes").json()["layers"])
    assert client.get("/clusters/none").status_code == 404


def test_a_version_is_fitted_once_for_all_processes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.client.post(URL, json=[run(1.3), run(1.31), run(1.29)])
    first = served.client.get(f"{URL}/alpha").json()
    fits = list[int]()

    def counted(runs: Sequence[Run], **words: Any) -> Calibrated:  # noqa: ANN401 - as it is called
        fits.append(len(runs))
        return calibrate(runs, **words)

    monkeypatch.setattr("service.clusters.usecases.calibrate", counted)
    monkeypatch.setattr("service.clusters.usecases._learned", {})  # as another process has it
    assert served.client.get(f"{URL}/alpha").json() == first
    assert fits == []
    monkeypatch.setattr("service.clusters.usecases._learned", {})
    monkeypatch.setattr("service.clusters.usecases._model", lambda: "another release")
    assert served.client.get(f"{URL}/alpha").json() == first
    assert fits == [3]
