"""The tools of a question, as a model sees and calls them: checked arguments in, bounded JSON out."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from graph.events import brief
from graph.reasoner.client import Call
from graph.reasoner.fence import fenced
from graph.reasoner.figures import rounded
from graph.reasoner.question import Tools
from graph.reasoner.schema import arguments_model, lax_schema
from tools.errors import AsapError

MOST_RESULT_CHARACTERS = 8000
Spec = dict[str, Any]


@dataclass(frozen=True)
class ToolUse:
    """One call as it happened; `result` is what the model was given, a failure included."""

    tool: str
    arguments: Mapping[str, Any]
    result: object
    seconds: float


class Bench:
    """Runs what the model calls. A call that cannot be run is told to the model, never raised."""

    def __init__(self, tools: Tools, on_tool: Callable[[ToolUse], None] | None = None) -> None:
        self._tools, self._on_tool = tools, on_tool
        self._arguments: dict[str, type[BaseModel]] = {
            name: arguments_model(name, function) for name, function in tools.items()
        }

    def specs(self) -> list[Spec]:
        return [
            spec_of(name, (function.__doc__ or name).strip(), self._arguments[name])
            for name, function in self._tools.items()
        ]

    def run(self, call: Call) -> str:
        start = time.perf_counter()
        result = self._result(call)
        if self._on_tool:
            seconds = time.perf_counter() - start
            self._on_tool(ToolUse(call.name, call.arguments or {}, result, seconds))
        return fenced(bounded(result))

    def _result(self, call: Call) -> object:
        if call.name not in self._tools:
            return {"error": f"there is no such tool; there are: {', '.join(self._tools)}"}
        if call.arguments is None:
            return {"error": "the arguments are not a JSON object"}
        try:
            checked = self._arguments[call.name].model_validate(call.arguments)
            return self._tools[call.name](
                **{name: getattr(checked, name) for name in type(checked).model_fields}
            )
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False, include_context=False)
            return {"error": [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in wrong[:5]]}
        except (AsapError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def spec_of(name: str, description: str, arguments: type[BaseModel]) -> Spec:
    parameters = {key: part for key, part in lax_schema(arguments).items() if key != "description"}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def bounded(result: object) -> object:
    """The result, shortened where it is long."""
    short = brief(rounded(result))
    text = json.dumps(short, default=str)
    return short if len(text) <= MOST_RESULT_CHARACTERS else {"cut_off": text[:MOST_RESULT_CHARACTERS]}
