"""What opening costs: the seed loads only what `asap optimize`, which always does it, needs anyway.

pydantic, and NumPy by way of the scenario's records, are among that: playbooks and cases are such records.
"""

import json
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
HEAVY = {"scipy", "chromadb", "httpx", "torch", "tokenizers", "safetensors", "rich"}


def test_searching_the_seed_loads_nothing_heavy() -> None:
    script = (
        "import json, sys; from tools.kb import open_seed; "
        "assert open_seed().search('pipeline bubble', {'bottleneck': 'pipeline'}); "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert set(json.loads(result.stdout)) & HEAVY == set()
