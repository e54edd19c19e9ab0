"""Data only: devices, framework rules, calibration; and the one function that finds them."""

from importlib.resources import files
from importlib.resources.abc import Traversable


def folder(name: str) -> Traversable:
    """The data folder `name`, wherever the package is installed."""
    return files("kb_seed").joinpath(name)
