"""Every error that ASAP raises on purpose, as one tree.

    AsapError
    ├── InputError       the caller's input is wrong: where, what was given, which rule it breaks
    ├── InfeasibleError  the input is right, and nothing satisfies it
    └── DataError        a file that belongs to ASAP (catalogue, calibration) is missing or broken

The command line turns InputError into exit status 2, InfeasibleError into 3 and any other into 1.
"""


class AsapError(Exception):
    """Base of all errors whose message is meant for the user."""


class InputError(AsapError):
    """The caller's mistake: where it is, what was given, and the rule that it breaks.

    `path` is a path of the domain ("cluster.num_devices"); each front end knows what it calls that.
    """

    def __init__(self, path: str, given: object, rule: str) -> None:
        # Callers make up names of fields: control characters are not printed, endless names cut.
        self.path = "".join(letter if letter.isprintable() else "?" for letter in _cut(path, 200))
        self.given = given
        self.rule = rule
        super().__init__(f"{self.path}: got {_cut(repr(given), 80)}; {rule}")

    def at(self, path: str) -> "InputError":
        """The same mistake under the name that the caller knows."""
        return InputError(path, self.given, self.rule)


class InfeasibleError(AsapError):
    """Nothing satisfies the request; the message says what would."""


class DataError(AsapError):
    """A data file of ASAP itself cannot be used."""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
