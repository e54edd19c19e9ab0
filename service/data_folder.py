"""The folder in which an installation without servers keeps all it knows."""

import os
from pathlib import Path

from tools.errors import InputError


def make_data_folder(folder: Path) -> Path:
    """The same folder, which is then there and can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(folder, error.strerror or str(error)) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refused(folder, "Permission denied")
    return folder


def _refused(folder: Path, reason: str) -> InputError:
    return InputError("ASAP_DATA_DIR", str(folder), f"must be a folder that this user may write ({reason})")
