"""Structured agreement between what is asked and what an entry is about: device, architecture, scale ...

Facets weigh and never exclude: a case from another device may still teach, it only comes later.
"""

from collections.abc import Mapping, Sequence

from tools.errors import InputError
from tools.kb.entry import ARCHITECTURES, BOTTLENECKS, VENDORS, Facets

FACETS = ("device", "architecture", "scale", "bottleneck", "topic", "framework", "vendor")
_ALLOWED = {"architecture": ARCHITECTURES, "bottleneck": BOTTLENECKS, "vendor": VENDORS}
_SCALES = ((8, "8"), (64, "64"), (512, "512"), (4096, "4096"))
_LARGEST = "more"
# The catalogue's names begin with the family; a test holds this against the catalogue.
_FAMILIES = (("tpu", "google"), ("mi", "amd"), ("trainium", "aws"), ("cpu", "cpu"))
_NVIDIA = ("v100", "a100", "a800", "h100", "h200", "h800", "h20", "b200", "b300", "gb200", "gb300")


def scale_of(num_devices: int) -> str:
    """The size class of a job by its devices: up to 8, 64, 512, 4096, or more."""
    return next((name for most, name in _SCALES if num_devices <= most), _LARGEST)


def vendor_of(device: str) -> str | None:
    """Who makes a device of the catalogue; None for a name of no known family."""
    if device.startswith(_NVIDIA):
        return "nvidia"
    return next((vendor for prefix, vendor in _FAMILIES if device.startswith(prefix)), None)


def read_facets(given: Mapping[str, str | int | Sequence[str]] | None) -> Facets:
    """What a caller asks for, checked; `num_devices` may be given in place of a scale."""
    asked: dict[str, tuple[str, ...]] = {}
    for name, value in (given or {}).items():
        if name == "num_devices":
            asked["scale"] = (_scale(value),)
        elif name in FACETS:
            asked[name] = _values(name, value)
        else:
            raise InputError(f"facets.{name}", value, f"must be one of {', '.join((*FACETS, 'num_devices'))}")
    if "device" in asked and "vendor" not in asked:
        vendors = [vendor for device in asked["device"] if (vendor := vendor_of(device))]
        asked |= {"vendor": tuple(vendors)} if vendors else {}
    return asked


def agreement(asked: Facets, entry: Facets) -> float:
    """From -1 (every facet contradicts) over 0 (nothing to compare) to 1 (every facet agrees).

    The mean over the facets that both name: an entry for every device is not behind one for this device.
    """
    judged = [bool(set(values) & set(entry[name])) for name, values in asked.items() if name in entry]
    return sum(1 if agrees else -1 for agrees in judged) / len(judged) if judged else 0.0


def _scale(value: object) -> str:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError("facets.num_devices", value, "must be a whole number of at least 1")
    return scale_of(value)


def _values(name: str, value: object) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str) else value
    if not isinstance(values, Sequence) or not all(isinstance(item, str) for item in values):
        raise InputError(f"facets.{name}", value, "must be a text or a list of texts")
    allowed = _ALLOWED.get(name)
    for item in values:
        if allowed and item not in allowed:
            raise InputError(f"facets.{name}", item, f"must be one of {', '.join(allowed)}")
    return tuple(values)
