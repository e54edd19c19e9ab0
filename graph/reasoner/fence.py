"""Data in a prompt: compact JSON between two marker lines that the data itself cannot forge.

The markers carry a code made from the data, so text would have to contain its own hash to end them. Besides,
nothing in the data can pass for a control token of a chat template, and no character in it is invisible.
"""

import hashlib
import json
import re

CODE_CHARACTERS = 16
_TEMPLATE_TOKENS = re.compile(r"<|\[(?=/?INST)")
"""Chat templates mark turns by `<|im_start|>`, `<start_of_turn>`, `</s>`, `[INST]` and the like."""
_UNSEEN = re.compile(
    "[\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def fenced(data: object) -> str:
    text = plain_json(data)
    code = _code(text)
    return f"<data {code}>\n{text}\n</data {code}>"


def plain_json(data: object) -> str:
    """JSON that means the same as any other of this data; the characters above are written as escapes."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    return _UNSEEN.sub(_escaped, _TEMPLATE_TOKENS.sub(_escaped, text))


def _code(text: str) -> str:
    code = hashlib.sha256(text.encode("utf-8")).hexdigest()[:CODE_CHARACTERS]
    return _code(text + code) if code in text else code


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _utf16_units(match.group()))


def _utf16_units(text: str) -> list[int]:
    """JSON escapes count in UTF-16."""
    raw = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[place : place + 2], "big") for place in range(0, len(raw), 2)]
