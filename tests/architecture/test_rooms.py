"""The rooms of the house: each is this repo's own, and imports go downward only."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
CONTRACTS = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
WITHIN = {
    "": [
        layer
        for contract in CONTRACTS
        if "containers" not in contract
        for layer in contract.get("layers", [])
    ],
    **{
        f"{feature}.": contract["layers"]
        for contract in CONTRACTS
        for feature in contract.get("containers", [])
    },
}
ROOMS = [
    "asap_client",
    *(
        f"{place}{room}"
        for place, layers in WITHIN.items()
        for room in re.findall(r"[\w.]+", " ".join(layers))
    ),
]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = "from importlinter.cli import lint_imports_command as run; run()"
    command = [sys.executable, "-c", program, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "room", ["asap", "service", "graph", "tools", "kb_seed", "asap_client", "research", "testbed"]
)
def test_each_room_is_imported_from_this_repo(room: str) -> None:
    module = import_module(room)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == REPO / room / "__init__.py"


def test_the_import_contracts_hold() -> None:
    result = lint_imports(REPO)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Empty rooms under this repo's contracts."""
    (tmp_path / "pyproject.toml").write_text((REPO / "pyproject.toml").read_text())
    for room in ROOMS:
        (folder := tmp_path / room.replace(".", "/")).mkdir(parents=True)
        for package in (folder, folder.parent):
            if package != tmp_path:
                (package / "__init__.py").touch()
    return tmp_path


def test_rooms_that_keep_to_the_contracts_pass(house: Path) -> None:
    (house / "tools/physics/step.py").write_text("import tools.hardware\nimport numpy\n")
    result = lint_imports(house)
    assert result.returncode == 0, result.stdout + result.stderr


BREACHES = {
    "service/upward.py": ("import asap", "rooms"),
    "tools/upward_graph.py": ("import graph", "rooms"),
    "tools/upward_service.py": ("import service", "rooms"),
    "graph/upward.py": ("import service", "rooms"),
    "kb_seed/upward.py": ("import tools", "rooms"),
    "tools/hardware/upward.py": ("import tools.physics", "tools"),
    "tools/errors/upward.py": ("import tools.hardware", "tools"),
    "service/db/upward.py": ("import service.mcp", "service"),
    "service/traces/store/upward.py": ("import service.traces.usecases", "features"),
    "tools/physics/learned.py": ("import tools.model", "tools"),
    "tools/web.py": ("import fastapi", "pure-tools"),
    "tools/agent.py": ("from langchain.agents import create_agent", "pure-tools"),
    "tools/graph_agent.py": ("import langgraph.graph", "pure-tools"),
    "tools/queue.py": ("def late() -> None:\n    import dbos", "pure-tools"),
    "graph/web.py": ("import fastapi", "graph-without-http"),
    "asap_client/server.py": ("import tools.errors", "client-alone"),
}
"""By file: an import that is against a contract, and the contract's id."""


def test_every_import_against_the_contracts_is_found_and_each_contract_can_break(house: Path) -> None:
    for file, (line, _) in BREACHES.items():
        (house / file).write_text(line + "\n")
    result = lint_imports(house)
    assert result.returncode == 1, result.stdout + result.stderr
    broken = result.stdout[result.stdout.index("Broken contracts") :]
    assert [file for file in BREACHES if file.removesuffix(".py").replace("/", ".") not in broken] == []
    names = {contract["id"]: contract["name"] for contract in CONTRACTS}
    output = " ".join(result.stdout.split())
    assert [id for id in {id for _, id in BREACHES.values()} if f"{names[id]} BROKEN" not in output] == []
