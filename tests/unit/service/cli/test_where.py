"""`asap where`, and the whole run in `asap predict` and `asap optimize`."""

import json
from pathlib import Path

import pytest

from tests.unit.service.cli.commands import Asap
from tests.unit.service.cli.test_optimize_config import CONFIG

EXAMPLE = Path(__file__).resolve().parents[4] / "examples/llama-3.1-70b-64xh100.json"
CLUSTERS = """devices,price_per_device_hour,name
64 x H100,2.5,today
2 nodes of 8 B200,5,small
v5p-128,2.1,
16 x RTX 4090,0.4,desk
64 x H100,9,dear
8 x V100,1,old
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "clusters.csv").write_text(CLUSTERS)
    return str(tmp_path / "config.json"), str(tmp_path / "clusters.csv")


def test_each_cluster_has_its_best_plan_and_what_nothing_beats_is_marked(
    asap: Asap, files: tuple[str, str]
) -> None:
    model, clusters = files
    words = ("where", model, "--tokens", "1T", "--clusters", clusters, "--global-batch-size", "512")
    result = asap(*words, "--json")
    assert result.status == 0
    places = [json.loads(line) for line in result.out.splitlines()]
    by_name = {place["name"]: place for place in places}
    runs = {name: place["prediction"]["run"] for name, place in by_name.items() if place["prediction"]}
    days = [run["days"] for run in runs.values()]
    assert days == sorted(days)
    assert by_name["v5p-128"]["framework"] == "maxtext"
    assert runs["dear"]["days"] == runs["today"]["days"]
    assert runs["dear"]["cost"] == pytest.approx(runs["today"]["cost"] * 9 / 2.5)
    assert places[0]["is_on_front"]
    assert not by_name["dear"]["is_on_front"]
    front = [run["cost"] for name, run in runs.items() if by_name[name]["is_on_front"]]
    assert front == sorted(front, reverse=True)
    assert "bf16" in by_name["old"]["reason"] or "precision" in by_name["old"]["reason"]
    table = asap(*words).out
    assert "today" in table
    assert "old: training.precision" in table


def test_a_price_and_tokens_give_days_device_hours_and_cost(asap: Asap) -> None:
    scenario = json.loads(EXAMPLE.read_text())
    prediction = asap("predict", scenario, "--tokens", "1T", "--price", "2.5", "--json").answer
    run, tokens = prediction["run"], 128 * 8192
    assert run["steps"] == -(-(10**12) // tokens)
    assert run["days"] == pytest.approx(run["steps"] * prediction["step_time_s"] / 86_400)
    assert run["device_hours"] == pytest.approx(run["days"] * 24 * 64)
    assert run["cost"] == pytest.approx(2.5 * run["device_hours"])
    assert run["one_percent_cost"] == pytest.approx(run["cost"] / 100)
    scenario["run"] = {"tokens": 10**12, "device_hours_between_failures": 50_000}
    failing = asap("predict", scenario, "--json").answer["run"]
    assert failing["days"] == pytest.approx(run["days"] / failing["goodput"])
    assert 0.9 < failing["goodput"] < 1
    assert asap("predict", scenario | {"run": None}, "--json").answer["run"] is None
    words = ("--tokens", "1T", "--failures", "50000", "--checkpoint-s", "30")
    flagged = asap("predict", scenario | {"run": None}, *words)
    minutes = failing["checkpoint_interval_s"] / 60
    assert f"with a checkpoint every {minutes:.3g} minutes" in flagged.out
    assert "to 1T tokens" in asap("optimize", scenario).out


def test_clusters_of_which_some_have_no_price_are_compared_in_device_hours(
    asap: Asap, files: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mixed.csv").write_text("devices,price_per_device_hour\n64 x H100,\n64 x B200,5\n")
    words = ("where", files[0], "--tokens", "1T", "--clusters", str(tmp_path / "mixed.csv"))
    fast, slow = (json.loads(line) for line in asap(*words, "--json").out.splitlines())
    assert slow["prediction"]["run"]["device_hours"] > fast["prediction"]["run"]["device_hours"]
    assert (fast["is_on_front"], slow["is_on_front"]) == (True, False)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("devices,cost\n8 x H100,2\n", "cost: got '2'; unknown field"),
        ("name\nours\n", "devices"),
        ('[{"devices": "8 x H100", "price_per_device_hour": -1}]', "price_per_device_hour"),
        ("[{", "is not JSON"),
    ],
)
def test_a_wrong_file_of_clusters_is_refused_by_field(
    asap: Asap, files: tuple[str, str], tmp_path: Path, text: str, named: str
) -> None:
    (tmp_path / "wrong").write_text(text)
    result = asap("where", files[0], "--tokens", "1T", "--clusters", str(tmp_path / "wrong"))
    assert result.status == 2
    assert named in result.err
