"""langgraph.json as LangGraph's own tools read it: its graph takes a bare request and draws itself."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from graph.build import WORKERS
from tests.unit.graph.cases import small

REPO = Path(__file__).resolve().parents[3]


def test_the_langgraph_command_takes_it() -> None:
    langgraph = Path(sys.executable).with_name("langgraph")
    done = subprocess.run([langgraph, "validate"], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 graph found" in done.stdout


def test_the_graph_that_langgraph_json_names_runs_a_bare_request() -> None:
    """As `langgraph dev` does it: the file by its path, the function by its name, without arguments."""
    file, _, name = json.loads((REPO / "langgraph.json").read_text())["graphs"]["asap"].rpartition(":")
    spec = importlib.util.spec_from_file_location("studio", REPO / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    graph = getattr(module, name)()
    report = graph.invoke({"request": small()})["report"].model_dump(mode="json")
    assert len(report["proposals"]) >= 1
    drawn = graph.get_graph().draw_mermaid()
    assert all(node in drawn for node in (*WORKERS, "coordinator", "report"))
