"""Ids: 32 hexadecimal digits that sort by time (UUIDv7)."""

import re
import secrets
import time

RANDOM_BITS = 74
PATTERN = re.compile(r"[0-9a-f]{32}")


def new_id(now_s: float | None = None) -> str:
    """48 bits of milliseconds, the version, 12 random bits, the variant, 62 random bits."""
    milliseconds = int((time.time() if now_s is None else now_s) * 1000)
    noise = secrets.randbits(RANDOM_BITS)
    high, low = noise >> 62, noise & (2**62 - 1)
    return f"{milliseconds << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low:032x}"


def is_id(text: str) -> bool:
    return PATTERN.fullmatch(text) is not None
