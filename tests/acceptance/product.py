"""The product as its user has it: the console script `asap`, as processes with settings of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

REPO = Path(__file__).resolve().parents[2]
ASAP = str(Path(sys.executable).with_name("asap"))
WORKLOAD: Mapping[str, Any] = {
    "model": {
        "name": "small", "num_hidden_layers": 4, "hidden_size": 2048, "intermediate_size": 8192,
        "num_attention_heads": 16, "vocab_size": 32000,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 8},
    "training": {
        "seq_len": 2048, "global_batch_size": 16, "precision": "bf16", "framework": "megatron-core",
    },
    "plan": {
        "tp": 8, "pp": 1, "cp": 1, "ep": 1, "dp": 1, "dp_shard": 1, "zero_stage": 0, "micro_batch_size": 1,
        "recompute": "full",
    },
}  # fmt: skip
"""A workload that is searched in a moment, with a poor plan."""
ENDED = ("completed", "failed", "cancelled", "waiting_approval")
STOP_S = 30.0
T = TypeVar("T")


def settings_of(folder: Path, **settings: object) -> dict[str, str]:
    """The environment of a process: nothing of the tester's own settings."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ASAP_")}
    own = {f"ASAP_{name.upper()}": str(value) for name, value in settings.items()}
    return {**plain, "ASAP_DATA_DIR": str(folder / "data"), "ASAP_EMBEDDING": "none", **own}


def asap(folder: Path, *words: str, given: str = "", **settings: object) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        [ASAP, *words], cwd=folder, env=settings_of(folder, **settings), input=given, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


@dataclass
class Server:
    """One `asap serve`, spoken to by HTTP."""

    address: str
    process: "subprocess.Popen[str]" = field(repr=False)

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=60.0)

    def submit(self, **body: Any) -> str:  # noqa: ANN401 - any JSON
        with self.http as http:
            answer = http.post("/v1/sessions", json={**WORKLOAD, **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def session(self, id: str) -> dict[str, Any]:
        with self.http as http:
            return dict(http.get(f"/v1/sessions/{id}").json())

    def wait(self, id: str) -> dict[str, Any]:
        """The session when it has ended, or waits for a person."""
        return self.wait_at(f"/v1/sessions/{id}", lambda row: row["state"] in ENDED)

    def wait_at(self, path: str, is_done: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """What is there as soon as it is done."""
        with self.http as http:
            return wait_for(lambda: row if is_done(row := http.get(path).json()) else None)

    def report(self, id: str) -> dict[str, Any]:
        """Of a session that is completed."""
        session = self.wait(id)
        assert session["state"] == "completed", session
        with self.http as http:
            return dict(http.get(f"/v1/sessions/{id}/report").json())

    def metric(self, name: str) -> float:
        """The sum of its series."""
        with self.http as http:
            lines = http.get("/metrics").text.splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} "))
        )

    def kill(self) -> None:
        """As the kernel does it: without a chance to say goodbye."""
        self.process.kill()
        self.process.wait(STOP_S)


@contextmanager
def serving(folder: Path, *words: str, **settings: object) -> Iterator[Server]:
    """Listening when it is yielded."""
    with (folder / "serve.log").open("a") as log:
        process = subprocess.Popen(
            [ASAP, "serve", *words, "--port", "0", "--json"], cwd=folder, env=settings_of(folder, **settings),
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (folder / "serve.log").read_text()[-2000:]
        yield Server(json.loads(line)["address"], process)
    finally:
        process.terminate()  # nothing happens if it was killed
        process.wait(STOP_S)
        process.stdout.close()


def wait_for(look: Callable[[], T | None], longest_s: float = 120.0) -> T:
    """Looks until there is something; a busy machine may take its time."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise TimeoutError(f"nothing within {longest_s} s")
