"""What a tenant may be called: the same words as in the knowledge base, which keeps cases under them."""

import re

from tools.errors import InputError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


def is_tenant(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_tenant(name: str, field: str) -> str:
    """Empty is the default tenant."""
    if name and not is_tenant(name):
        allowed = "must be up to 100 of a-z, 0-9, '.', '_' and '-', and start with a-z or 0-9"
        raise InputError(field, name, allowed)
    return name
