"""The graph as LangGraph's own tools open it (`langgraph.json`).

Its input is `{"request": {...}}` with a scenario, and optionally `mode` and `approval`.
"""

from typing import Any

from langgraph.graph.state import CompiledStateGraph

from graph.build import build
from service.runtime import open_context
from service.settings import load_settings


def make_graph() -> CompiledStateGraph[Any, Any, Any, Any]:
    """Without a checkpointer: the tools bring their own."""
    return build(open_context(load_settings(), saves_cases=False)).compile()
