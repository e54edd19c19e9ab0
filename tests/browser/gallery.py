"""An installation worth looking at: sessions in every state, traces, nights, trials. What was measured in it
is invented, but for the traces."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.browser.installation import Installation
from tests.integration.service.api_process import REPO, asap

EXAMPLES = REPO / "examples"
LLAMA: dict[str, Any] = json.loads((EXAMPLES / "llama-3.1-70b-64xh100.json").read_text())
TRACED: dict[str, Any] = json.loads((EXAMPLES / "traces/gpt-ddp-gloo/base.json").read_text())
TRACES = EXAMPLES / "traces/ddp-gloo-straggler"
OWN_TRACES = EXAMPLES / "traces/gpt-ddp-gloo/round1/base"
"""Of the job that TRACED describes."""
MIXTRAL: dict[str, Any] = {
    "model": {
        "name": "Mixtral-8x7B", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 128, "devices_per_node": 8},
    "training": {
        "seq_len": 4096, "global_batch_size": 512, "precision": "bf16", "framework": "megatron-core",
    },
    "plan": {
        "tp": 4, "pp": 4, "cp": 1, "ep": 2, "dp": 8, "dp_shard": 8, "zero_stage": 1, "micro_batch_size": 1,
        "recompute": "full",
    },
}  # fmt: skip
TOO_SMALL = {"device": "h100-sxm-80gb", "num_devices": 8}
NOTES = "The switch between the racks is old. Keep tp inside a node; I suspect the pipeline bubble."
TRIALS = ((9.81, 10.30, "confirmed"), (4.02, 3.86, "confirmed"), (0.62, 0.71, "hypothesis"))


def write_nights(data: Path) -> None:
    """Five weeks of a job that got slower, reviewed as a server would; before the server begins."""
    folder = data / "nights"
    words = [sys.executable, str(EXAMPLES / "nightly_history.py"), str(folder)]
    subprocess.run(words, check=True, capture_output=True)
    run = ["nightly", "run", "--config", str(folder / "nightly.yaml"), "--no-deliver"]
    done = asap(data, *run, data_dir=data)
    assert "got slower" in done.stderr, done.stderr


def fill(installation: Installation) -> dict[str, str]:
    """Session by what it shows."""
    traces = upload(installation, OWN_TRACES)
    shown = {
        "traced": installation.submit({**TRACED, "traces": traces, "labels": {"cluster": "laptop"}}),
        "waits": installation.submit({**MIXTRAL, "approval": "person", "notes": NOTES}),
        "cold": installation.submit({**MIXTRAL, "plan": None}),
        "failed": installation.submit({**LLAMA, "plan": None, "cluster": TOO_SMALL}),
        "done": installation.submit({**LLAMA, "notes": NOTES, "labels": {"team": "pretraining"}}),
    }
    for id in shown.values():
        installation.wait(id, "completed", "failed", "waiting_approval")
    for number, (predicted_s, measured_s, status) in enumerate(TRIALS):
        add_trial(installation, number, predicted_s, measured_s, status)
    return shown


def add_trial(
    installation: Installation, number: int, predicted_s: float, measured_s: float, status: str
) -> None:
    case = {
        "id": f"example-trial-{number}", "title": f"Example of a trial, {number + 1}", "status": status,
        "model": "Llama-3.1-70B", "architecture": "dense", "device": "h100-sxm-80gb", "num_devices": 64,
        "framework": "megatron-core", "bottleneck": "communication", "before": {"tp": 8}, "after": {"tp": 4},
        "predicted": {"step_time_s": predicted_s}, "measured": {"step_time_s": measured_s},
        "story": "Invented for the pictures: tensor parallelism was halved and the step measured again.",
        "lesson": "Half the tensor parallelism leaves half of its communication.",
        "sources": [],
    }  # fmt: skip
    with installation.api as client:
        answer = client.post("/v1/knowledge", json=case)
    assert answer.status_code == 201, answer.text


def upload(installation: Installation, folder: Path) -> str:
    with installation.api as client:
        made = client.post("/v1/traces", json={"name": folder.name}).json()
        digests = {}
        for file in sorted(folder.glob("*.json.gz")):
            client.put(f"/v1/traces/{made['id']}/files/{file.name}?offset=0", content=file.read_bytes())
            digests[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
        path = f"/v1/traces/{made['id']}/complete"
        done = client.post(path, json={"files": digests}, timeout=600)  # it reads every file again
    assert done.status_code < 300, done.text
    return str(made["reference"])
