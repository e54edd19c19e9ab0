"""Every error that ASAP raises on purpose, as one tree.

    AsapError
    ├── InputError       the caller's input is wrong: names the field, what was given, what is allowed
    ├── InfeasibleError  the input is right, and nothing satisfies it
    └── DataError        a file that belongs to ASAP (catalogue, calibration) is missing or broken

The command line turns InputError into exit status 2, InfeasibleError into 3 and any other into 1.
"""


class AsapError(Exception):
    """Base of all errors whose message is meant for the user."""


class InputError(AsapError):
    """The caller's mistake, in one line."""

    def __init__(self, field: str, given: object, allowed: str) -> None:
        self.field = _one_line(field)
        self.given = given
        self.allowed = allowed
        super().__init__(f"{self.field}: got {_shorten(given)}; {allowed}")


class InfeasibleError(AsapError):
    """Nothing satisfies the request; the message says what would."""


class DataError(AsapError):
    """A data file of ASAP itself cannot be used."""


def _one_line(field: str) -> str:
    """Callers make up names of fields: control characters are not printed, endless names cut."""
    return "".join(letter if letter.isprintable() else "?" for letter in _cut(field, 200))


def _shorten(value: object) -> str:
    return _cut(repr(value), 80)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
