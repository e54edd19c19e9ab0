"""The catalogue entry of the accelerator that a trace names (`NVIDIA A100-SXM4-80GB` is `a100-sxm-80gb`)."""

import re

from tools.errors import InputError
from tools.hardware import Device, get_device

_PATTERNS = (
    (r"A100-SXM.*80", "a100-sxm-80gb"),
    (r"A100-SXM\d?-40GB|A100-PG509", "a100-sxm-40gb"),
    (r"A800-SXM", "a800-sxm-80gb"),
    (r"H100 80GB HBM3|H100-SXM|H100 SXM", "h100-sxm-80gb"),
    (r"H100 PCIe", "h100-pcie-80gb"),
    (r"\bH200", "h200-sxm-141gb"),
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"B300", "b300"),
    (r"B200", "b200"),
    (r"V100-SXM\d?", "v100-sxm-32gb"),
    (r"MI250", "mi250x-gcd"),
    (r"MI300X", "mi300x"),
    (r"MI325X", "mi325x"),
    (r"MI355X", "mi355x"),
    (r"TPU ?v4", "tpu-v4"),
    (r"TPU ?v5 ?(e|lite)", "tpu-v5e"),
    (r"TPU ?v5 ?p?", "tpu-v5p"),
    (r"TPU ?v6 ?(e|lite)", "tpu-v6e"),
    (r"TPU ?(v?7x)", "tpu7x"),
)


def find_device(name: str | None) -> Device | None:
    """None when the trace names no device or one that the catalogue lacks."""
    if not name:
        return None
    known = next((ours for pattern, ours in _PATTERNS if re.search(pattern, name, re.IGNORECASE)), name)
    try:
        return get_device(known)
    except InputError:
        return None
