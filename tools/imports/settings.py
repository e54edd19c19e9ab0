"""The settings of a foreign file, read by dotted name and type; remembers which nobody asked for."""

from collections.abc import Iterator, Mapping
from typing import Any

from tools.errors import InputError
from tools.scenario.fields import shown

MAX_DEPTH = 6


class Settings:
    """A nested mapping under flat names: `parallelism.tensor_parallel_degree`.

    A value that is null or "auto" (Hugging Face's word in DeepSpeed files) counts as absent.
    """

    def __init__(self, values: Mapping[str, Any], source: str, *, bare_flags: bool = False) -> None:
        self._values = dict(_flattened(values, "", MAX_DEPTH))
        self._source = source
        self._asked: set[str] = set()
        # In argument text a flag has no value, and the word behind it is something else.
        self._bare_flags = bare_flags

    def integer(self, name: str, least: int = 1) -> int | None:
        """The whole number under the name; -1 and the like only where `least` allows them."""
        value = self._get(name)
        if value is None:
            return None
        number = _whole(value)
        if number is None or number < least or number > 10**9:
            raise self._wrong(name, value, f"allowed: an integer from {least} to 1,000,000,000")
        return number

    def number(self, name: str) -> float | None:
        value = self._get(name)
        if value is None:
            return None
        number = _real(value)
        if number is None or not 0 < number <= 1e9:
            raise self._wrong(name, value, "allowed: a number above 0 and up to 1,000,000,000")
        return number

    def flag(self, name: str) -> bool | None:
        value = self._get(name)
        if value is None or isinstance(value, bool):
            return value
        if self._bare_flags or str(value).lower() in ("true", "false"):
            return str(value).lower() != "false"
        raise self._wrong(name, value, "allowed: true or false")

    def word(self, name: str, allowed: Mapping[str, Any] | tuple[str, ...] | None = None) -> str | None:
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, str) or (allowed is not None and value not in allowed):
            choices = f"allowed: {', '.join(allowed)}" if allowed is not None else "allowed: a name"
            raise self._wrong(name, value, choices)
        return value

    def words(self, name: str) -> list[str]:
        value = self._get(name)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def unread(self) -> list[str]:
        """Settings that have no place in a scenario."""
        return sorted(name for name in self._values if name not in self._asked)

    def _get(self, name: str) -> object:
        self._asked.add(name)
        value = self._values.get(name)
        return None if value == "auto" else value

    def _wrong(self, name: str, value: object, allowed: str) -> InputError:
        return InputError(f"{self._source}: {name}", shown(value), allowed)


def _flattened(values: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"[:200]
        if isinstance(value, dict) and depth > 1:
            yield from _flattened(value, f"{name}.", depth - 1)
        else:
            yield name, value


def _whole(value: object) -> int | None:
    number = _real(value)
    return int(number) if number is not None and number.is_integer() else None


def _real(value: object) -> float | None:
    """Numbers, and the text of one: argument files have no types."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e18 else None
