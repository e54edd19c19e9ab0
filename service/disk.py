"""Room on the disks that the service writes to."""

import errno
import shutil

from service.settings import Settings

MIN_FREE_BYTES = 64 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where there is none."""


def free_bytes(settings: Settings) -> int:
    """On the fullest of the disks of sessions, uploads and trials."""
    folders = (settings.data_dir, settings.traces_dir, settings.jobs_dir)
    free = [shutil.disk_usage(folder).free for folder in folders if folder and folder.exists()]
    return min(free, default=MIN_FREE_BYTES)
