"""`langgraph.json` names a graph that takes a bare request and draws itself."""

import importlib
import json
from pathlib import Path

from graph.build import WORKERS
from tests.unit.graph.cases import small

REPO = Path(__file__).resolve().parents[3]


def test_the_graph_that_langgraph_json_names_runs_a_bare_request() -> None:
    place = json.loads((REPO / "langgraph.json").read_text())["graphs"]["asap"]
    file, _, name = place.partition(":")
    module = importlib.import_module(file.removeprefix("./").removesuffix(".py").replace("/", "."))
    graph = getattr(module, name)()
    report = graph.invoke({"request": small()})["report"].model_dump(mode="json")
    assert len(report["proposals"]) >= 1
    drawn = graph.get_graph().draw_mermaid()
    assert all(node in drawn for node in (*WORKERS, "coordinator", "report"))
