"""The answer inside a reply: a JSON object, perhaps in a code fence, after thoughts or between words."""

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from pydantic import ValidationError

from graph.reasoner.question import A

MOST_TRIED = 40
MOST_ERRORS = 5
_OPENED = re.compile(r"\s*(```\w*\s*)?\{")
_THOUGHTS = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.S | re.I)


class UnusableError(ValueError):
    """No valid answer in a reply; the message says what is wrong with it, for the model to mend."""

    def __init__(self, says: str, is_json: bool) -> None:
        self.is_json = is_json
        super().__init__(says)


def read_answer(text: str, answer: type[A]) -> A:
    """The first object of the text that is an answer."""
    plain = _THOUGHTS.sub("", text)
    first: UnusableError | None = None
    for found in _objects(plain):
        try:
            return check_answer(found, answer)
        except UnusableError as error:
            first = first or error
    raise first or UnusableError("there is no complete JSON object in it", bool(_OPENED.match(plain)))


def check_answer(data: Any, answer: type[A]) -> A:  # noqa: ANN401 - JSON of any shape
    """The answer, also where it stands in a wrapper of one field such as `{"answer": {...}}`."""
    try:
        return answer.model_validate(data)
    except ValidationError as error:
        inner = next(iter(data.values())) if isinstance(data, dict) and len(data) == 1 else None
        if isinstance(inner, dict):
            try:
                return answer.model_validate(inner)
            except ValidationError:
                pass  # the outer error says more
        raise UnusableError(_told(error), is_json=True) from None


def _objects(text: str) -> Iterator[object]:
    decoder = json.JSONDecoder(parse_constant=_refuse)
    start, tried = text.find("{"), 0
    while start >= 0 and tried < MOST_TRIED:
        tried += 1
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        yield found
        start = text.find("{", end)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _told(error: ValidationError) -> str:
    """Which fields are wrong and why; their values are left out, they may be long."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{'.'.join(str(part) for part in one['loc']) or 'the object'}: {one['msg']}" for one in errors]
    return "; ".join(told[:MOST_ERRORS])[:1000]
