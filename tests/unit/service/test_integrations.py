"""What the callbacks bring into a training environment."""

import json
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
NOT_THERE = {"alembic", "chromadb", "dbos", "fastapi", "jinja2", "langgraph", "plotly", "scipy", "sqlalchemy"}


def test_a_training_environment_need_not_have_the_services_packages() -> None:
    script = (
        "import json, sys; import service.integrations.profile_upload; "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(result.stdout))
    assert "httpx" in loaded
    assert loaded & NOT_THERE == set()
