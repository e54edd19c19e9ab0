"""The names that docs/python.md promises: they are there, say what they do and are typed."""

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tools.model.predict import Prediction
from tools.recommend.report import Recommendation

REPO = Path(__file__).resolve().parents[3]
PAGE = (REPO / "docs/python.md").read_text()
ROW = re.compile(r"^\| `([\w.]+)` \| (.+) \|$", re.MULTILINE)
NAMES = [(module, name) for module, names in ROW.findall(PAGE) for name in re.findall(r"`(\w+)`", names)]


def untyped(function: Any) -> list[str]:  # noqa: ANN401 - anything callable
    """Its parameters and what it returns, where nothing is said about them."""
    signature = inspect.signature(function)
    missing = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is inspect.Parameter.empty and parameter.name not in ("self", "cls")
    ]
    return missing + (["return"] if signature.return_annotation is inspect.Signature.empty else [])


def public_methods(kind: type) -> list[Any]:
    own = vars(kind).items()
    return [member for name, member in own if inspect.isfunction(member) and not name.startswith("_")]


def test_the_page_lists_names() -> None:
    assert len(NAMES) > 30


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_promised_name_is_there_documented_and_typed(module: str, name: str) -> None:
    found = getattr(import_module(module), name)
    if not callable(found):
        return
    assert (found.__doc__ or "").strip(), "has no docstring"
    functions = public_methods(found) if inspect.isclass(found) else [found]
    assert {function.__name__: untyped(function) for function in functions if untyped(function)} == {}


MYPY = f"""
[mypy]
strict = True
plugins = pydantic.mypy
mypy_path = {REPO}
explicit_package_bases = True
[mypy-chromadb.*,opentelemetry.*,scipy.*,torch.*]
follow_imports = skip
"""
"""Our own types are followed, and not the thousands of modules behind them that no signature shows."""
WRONG = "from asap import predict\n\npredict(3)\n"


@pytest.mark.slow  # twenty seconds of one core: mypy follows our own types
def test_the_pages_examples_pass_a_strict_type_checker_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    """As in a reader's own project."""
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)):
        (tmp_path / f"example_{number}.py").write_text(example)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "mypy.ini").write_text(MYPY)
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, str(tmp_path)]
    checked = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    # of the reader's files: our own are checked by `make check`, with our settings
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    (error,) = [line for line in errors if line.startswith(str(tmp_path))]
    assert "wrong.py:3" in error
    assert "arg-type" in error or "list-item" in error


@pytest.mark.parametrize("result", [Prediction, Recommendation])
def test_help_teaches_what_a_result_holds(result: type[BaseModel]) -> None:
    documented = result.__doc__ or ""
    assert [name for name in result.model_fields if f"`{name}`" not in documented] == []
