"""docs/security.md promises nothing without a test that is there."""

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PROOF = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (?!---|promise |who |setting ).*\|$", re.M)


def test_every_promise_names_a_test_that_exists() -> None:
    page = (REPO / "docs/security.md").read_text()
    promises = page.split("## Promises")[1].split("## Settings")[0]
    rows, proofs = ROW.findall(promises), PROOF.findall(promises)
    assert rows
    assert len(rows) == len(proofs)
    for file, name in proofs:
        assert f"def {name}(" in (REPO / file).read_text(), f"{file}::{name}"


def test_every_setting_it_names_is_one() -> None:
    from service.settings import PREFIX, Settings

    named = set(re.findall(r"ASAP_\w+", (REPO / "docs/security.md").read_text()))
    assert named <= {PREFIX + name.upper() for name in Settings.model_fields}
