"""The notebook of the examples runs from its first cell to its last, without a kernel."""

import json
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
NOTEBOOK = REPO / "examples" / "first-steps.ipynb"
MIN_CELLS = 5
END_OF_CELL = "== cell"


def run_cells(sources: list[str]) -> subprocess.CompletedProcess[str]:
    """Each in the names that the earlier ones made."""
    program = f"\nprint({END_OF_CELL!r})\n".join([*sources, ""])
    command = [sys.executable, "-c", program]
    environment = {"PYTHONPATH": str(REPO), "ASAP_EMBEDDING": "none"}
    return subprocess.run(
        command, cwd=NOTEBOOK.parent, env=environment, capture_output=True, text=True, check=False
    )


def test_every_cell_runs_and_a_wrong_one_would_be_found() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells), (
        "clear the outputs"
    )
    sources = ["".join(cell["source"]) for cell in cells]
    done = run_cells(sources)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count(END_OF_CELL) == len(sources) >= MIN_CELLS
    assert "rank 1 arrives last" in done.stdout
    assert run_cells([*sources[:1], "job.absent"]).returncode != 0
