"""A Hugging Face config.json: the model alone. What trains it is given beside it; there is no plan yet."""

from tools.imports.assemble import Draft, Given
from tools.imports.reading import parse_json

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
_USUAL = "bf16"


def read_huggingface(text: str, given: Given) -> Draft:
    """A draft without a plan: `asap optimize` starts cold from it."""
    model = parse_json(text)
    stored = model.get("dtype", model.get("torch_dtype"))
    precision = _PRECISIONS.get(str(stored), _USUAL)
    told = given.precision or str(stored) in _PRECISIONS
    notes = [] if told else [f"precision {_USUAL} is assumed; --precision states another"]
    return Draft(plan=None, training={"precision": precision}, model=model, notes=notes)
