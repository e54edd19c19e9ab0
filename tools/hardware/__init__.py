"""The hardware catalogue: which accelerators ASAP knows, and their figures in base units.

Covers loading, aliases, overrides and the way back to the units of the data files. The figures
themselves are data in `kb_seed/hardware/`; how fast a kernel or a collective runs on them is
`tools.physics`'s business.
"""

from tools.hardware.catalogue import describe, device_names, get_device
from tools.hardware.device import PRECISIONS, Device

__all__ = ["PRECISIONS", "Device", "describe", "device_names", "get_device"]
