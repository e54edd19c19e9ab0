"""What the product imports, pyproject.toml names: no package is there by luck, as a dependency of another."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
ROOMS = ("asap", "service", "graph", "tools", "kb_seed")
OURS = {*ROOMS, "asap_client", "research", "testbed"}
CLIENT = tomllib.loads((REPO / "asap_client" / "pyproject.toml").read_text())["project"]
COMPANIONS = {
    "anyio": "starlette",
    "httpx2": "openai",
    "langchain-core": "langgraph",
    "markupsafe": "jinja2",
    "mcp-types": "mcp",
    "opentelemetry-api": "opentelemetry-sdk",
    "psycopg-pool": "langgraph-checkpoint-postgres",
    "pydantic-core": "pydantic",
    "starlette": "fastapi",
    "urllib3": "kubernetes",
}
"""Part of what another package gives its callers: that one brings it as long as we need it."""
OF_THE_TRAINER = {"lightning", "pytorch_lightning", "torch", "torchtitan", "transformers"}
"""What the training environment has if it uses our callbacks."""


def imported(*rooms: str) -> set[str]:
    """The top-level modules that these packages import, anywhere in a file."""
    trees = [ast.parse(file.read_text()) for room in rooms for file in (REPO / room).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    from_ones = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in plain + from_ones} - sys.stdlib_module_names - OURS


def normal(name: str) -> str:
    """As PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """Without the packages of development, which an installation does not have."""
    extras = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name != "dev"}
    lines = [*PROJECT["dependencies"], *(line for extra in extras.values() for line in extra)]
    return {normal(re.split(r"[\[<>=]", line)[0]) for line in lines}


def test_every_imported_package_is_declared() -> None:
    known = declared() | COMPANIONS.keys()
    packages = packages_distributions()
    missing = {
        module
        for module in imported(*ROOMS)
        if not {normal(name) for name in packages.get(module, [module])} & known
    }
    assert missing == set()


def test_a_companion_belongs_to_a_package_that_is_declared() -> None:
    assert set(COMPANIONS.values()) - COMPANIONS.keys() <= declared()


def test_the_client_needs_httpx_only() -> None:
    """anyio comes with httpx, whose asynchronous client is built on it."""
    assert CLIENT["dependencies"] == ["httpx>=0.28,<1"]
    assert imported("asap_client") == {"anyio", "httpx"} | OF_THE_TRAINER


def test_every_locked_package_has_its_digest_and_the_version_of_the_constraints() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (REPO / "constraints.txt").read_text(), re.M))
    pins = {normal(name): version for name, version in pins.items()}
    for lock in ("dev", "image"):
        text = (REPO / "locks" / f"{lock}.txt").read_text()
        locked = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.M)
        assert len(locked) == text.count("==")
        versions = {normal(name): version for name, version, _ in locked}
        assert {name: pins.get(name) for name in versions} == versions
        assert "torch" not in versions
    named = {normal(re.split(r"[\[<>=]", line)[0]) for line in PROJECT["dependencies"]}
    assert named - {"asap-client"} <= versions.keys()
