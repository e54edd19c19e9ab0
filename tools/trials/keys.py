"""Names of trials' jobs: the same for the same trial of the same session, so that none is launched twice."""

import hashlib
import re

MOST_CHARACTERS = 37
"""Three fewer than a launcher's key may have: repeats add a suffix."""
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_HEAD, _DIGEST = 14, 12


def trial_key(session_id: str, number: int) -> str:
    """The session's own id where it can stand in a job's name, else its beginning and a digest."""
    key = f"{session_id.replace('.', '-')}-{number}"
    if _PLAIN.fullmatch(key) and len(key) <= MOST_CHARACTERS and "-" not in session_id:
        return key
    head = re.sub(r"[^a-z0-9]+", "-", session_id.lower())[:_HEAD].strip("-") or "trial"
    return f"{head}-{hashlib.sha256(session_id.encode()).hexdigest()[:_DIGEST]}-{number}"


def run_key(key: str, run: int) -> str:
    """The first run has the trial's own key, the second -r2."""
    return key if run == 1 else f"{key}-r{run}"
