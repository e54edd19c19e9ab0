"""Copying a job's results: plain files only, because a job may leave a link to anything."""

import os
import shutil
from pathlib import Path

from tools.launch.files import open_plain


def copy_results(source: Path, to: Path) -> list[Path]:
    """Copies every regular file below `source`; links, pipes and devices are left. Gives paths below `to`."""
    copied = []
    for folder, names, files in os.walk(source, followlinks=False):
        names.sort()
        for name in sorted(files):
            path = Path(folder) / name
            relative = path.relative_to(source)
            if _copy(path, to / relative):
                copied.append(relative)
    return copied


def _copy(source: Path, target: Path) -> bool:
    file = open_plain(source)
    if file is None:
        return False
    with file:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{os.getpid()}.part")  # a longer name might be too long
        with beside.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        beside.replace(target)
    return True
