"""Every setting with its default and meaning, as `asap serve --help` prints it."""

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from service.settings import PREFIX, Settings

COLUMN = 34


def settings_table() -> str:
    """From the definitions themselves, so that nothing is missing."""
    lines = ["settings, from the environment or a file .env:"]
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, PydanticUndefined) else str(field.default)
        shown = "(set)" if isinstance(field.default, SecretStr) else default
        variable = f"{PREFIX}{name.upper()}" + (f"={shown}" if shown else "")
        lines.append(f"  {variable:<{COLUMN}} {field.description or ''}".rstrip())
    return "\n".join(lines)
