"""/v1/measurements over HTTP: runs reported for a cluster are kept, shown, learned from, undone."""

from typing import Any

import pytest

from service.measurements import calibration_of
from tests.unit.service.served import SCENARIO, Served
from tools.cost.predict import predict
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


def test_a_session_of_the_cluster_is_predicted_with_them_and_of_another_tenant_is_not(
    served: Served,
) -> None:
    served.client.post(URL, json=[run(1.3), run(1.31), run(1.29)])
    scenario = parse_scenario(NAMED)
    with served.app.database.read() as conn:
        own, other = calibration_of(conn, "", "alpha"), calibration_of(conn, "other", "alpha")
    assert other is None
    assert own is not None
    usual = predict([scenario])[0].step_time_s
    assert predict([scenario], own)[0].step_time_s == pytest.approx(1.3 * usual, rel=0.03)


def test_wrong_rows_are_named_and_change_nothing(served: Served) -> None:
    answer = served.client.post(URL, json=[run(1000.0)]).json()["items"][0]
    assert answer["runs"] == 0
    assert "seconds per step" in answer["left_out"][0]["why"]
    with served.app.database.read() as conn:
        assert calibration_of(conn, "", "alpha") is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([run(measured={"step_time_s": 0})], "runs[0].measured.step_time_s"),
        ([run(scenario=SCENARIO)], "runs[0].scenario.cluster.name"),
        ({"runs": []}, "runs"),
        ({"runs": [5]}, "runs[0]"),
    ],
)
def test_a_run_that_cannot_be_read_is_a_problem_that_names_the_field(
    served: Served,
    body: Any,  # noqa: ANN401 - any JSON
    field: str,
) -> None:
    answer = served.client.post(URL, json=body)
    assert answer.status_code == 422
    assert answer.json()["field"] == field


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
    assert {"without its runs", "with its other runs"} <= {trace["name"] for trace in figure["data"]}
    assert client.get("/clusters/alpha/probes").json()["data"][0]["text"] == ["0.55"]
    assert client.get("/clusters/none").status_code == 404
