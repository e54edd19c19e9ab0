"""`python -m service.worker` as somebody starts it by hand."""

import os
import subprocess
import sys


def test_a_wrong_setting_is_one_line_without_a_traceback() -> None:
    wrong = {**os.environ, "ASAP_LEASE_S": "soon"}
    done = subprocess.run(
        [sys.executable, "-m", "service.worker"], env=wrong, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("service.worker: ASAP_LEASE_S: got 'soon'; ")
    assert len(done.stderr.splitlines()) == 1
