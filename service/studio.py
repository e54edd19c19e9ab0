"""The graph as LangGraph's own tools open it (`langgraph.json`): `langgraph dev` draws and runs it.

Its input is `{"request": {...}}` with a scenario of the contract, and `mode` and `approval` where wanted.
"""

from typing import Any

from langgraph.graph.state import CompiledStateGraph

from graph.build import build
from service.context import open_context
from service.settings import load_settings


def make_graph() -> CompiledStateGraph[Any, Any, Any, Any]:
    """Without a checkpointer: the tools bring their own."""
    return build(open_context(load_settings(), learns=False), opens=True).compile()
