"""The tools of a question, as a model sees and calls them: checked arguments in, bounded JSON out."""

import json
from typing import Any

from pydantic import BaseModel, ValidationError

from graph.events import brief
from graph.reasoner.client import Call
from graph.reasoner.fence import fenced
from graph.reasoner.figures import rounded
from graph.reasoner.question import Tools
from graph.reasoner.schema import arguments_model, lax_schema
from tools.errors import DataError, InfeasibleError, InputError
from tools.kb import KnowledgeError

MOST_RESULT_CHARACTERS = 8000
Spec = dict[str, Any]
_FAILURES = (
    InputError, InfeasibleError, DataError, KnowledgeError,
    ValueError, TypeError, LookupError, ArithmeticError,
)  # fmt: skip
"""Of tools; not every AsapError: what stops the whole session must pass."""


class Bench:
    """Runs what the model calls. A call that cannot be run is told to the model, not raised."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._arguments: dict[str, type[BaseModel]] = {
            name: arguments_model(name, function) for name, function in tools.items()
        }

    def specs(self) -> list[Spec]:
        return [
            spec_of(name, (function.__doc__ or name).strip(), self._arguments[name])
            for name, function in self._tools.items()
        ]

    def run(self, call: Call) -> str:
        return fenced(bounded(self._result(call)))

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
        except _FAILURES as error:
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
