"""Python configurations of torchtitan 0.3 and recipes of Megatron-Bridge as settings: parsed, never run.

A configuration function returns a container of sections (`TrainingConfig(seq_len=8192)`) or changes what
another function returns (`config.training.seq_len = 4096`).
"""

import ast
from collections.abc import Iterator

from pydantic import JsonValue

from tools.errors import InputError
from tools.frameworks.reading import JsonObject, check_length

SECTIONS = {
    "TrainingConfig": "training",
    "ParallelismConfig": "parallelism",
    "ActivationCheckpointConfig": "activation_checkpoint",
    "SelectiveAC": "activation_checkpoint",
    "FullAC": "activation_checkpoint",
}
ASSIGNED_SECTIONS = {*SECTIONS.values(), "model", "train", "dataset", "ddp", "optimizer"}
"""Of torchtitan and of Megatron-Bridge."""
CONVERTERS = {
    "Float8LinearConverter": "quantize.linear.float8",
    "MXFP8LinearConverter": "quantize.linear.mx",
    "NVFP4LinearConverter": "quantize.linear.nvfp4",
}
MODES = {"SelectiveAC": "selective", "FullAC": "full"}
VARIABLE = "CONFIG"
"""Of --set: which function of the file."""
Sections = dict[str, JsonObject]
MAX_CALLS = 5
"""Functions that call one another, at most."""


def looks_like_python(text: str) -> bool:
    has_call = "ParallelismConfig(" in text or "TrainingConfig(" in text
    has_call = has_call or is_recipe(text)
    return has_call and any(line.startswith(("def ", "from ", "import ")) for line in text.splitlines())


def is_recipe(text: str) -> bool:
    """Whether the functions of a Python text make configurations of Megatron-Bridge."""
    return "ConfigContainer" in text and "def " in text


def parse_python(text: str, chosen: str | None) -> JsonObject:
    """The settings of the only configuration function, or of the chosen one."""
    check_length(text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError("FILE", text.strip()[:40], f"not Python: {str(error)[:80]}") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    known = {name: function for name, function in functions.items() if _sections(function, functions, 0)}
    if chosen is None and len(known) == 1:
        chosen = next(iter(known))
    if chosen not in known:
        names = ", ".join(sorted(known)[:20]) or "none"
        given = "nothing" if chosen is None else chosen
        raise InputError(
            "--set", f"{VARIABLE}={given}", f"give the function, --set {VARIABLE}=NAME, one of {names}"
        )
    return dict(_sections(known[chosen], functions, 0))


def _sections(function: ast.FunctionDef, functions: dict[str, ast.FunctionDef], depth: int) -> Sections:
    """Later statements win; a call of another function of the file begins with what that returns."""
    found: Sections = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        name = _called(node.func)
        if name in functions and name != function.name and depth < MAX_CALLS:
            for section, settings in _sections(functions[name], functions, depth + 1).items():
                found[section] = {**settings, **found.get(section, {})}
        elif stated := _of_call(name, node):
            section, settings = stated
            found[section] = {**found.get(section, {}), **settings}
    for section, name, value in _assignments(function):
        found[section] = {**found.get(section, {}), name: value}
    return found


def _of_call(name: str, node: ast.Call) -> tuple[str, JsonObject] | None:
    """The section that a call describes, and its settings."""
    if name in CONVERTERS:
        return "model", {"converters": [CONVERTERS[name]]}
    if name == "model_registry" and node.args:
        return "model", {"flavor": _constant(node.args[0])}
    if name == "from_hf_pretrained" and node.args:
        return "model", {"pretrained_name": _constant(node.args[0])}
    if name not in SECTIONS:
        return None
    mode: JsonObject = {"mode": MODES[name]} if name in MODES else {}
    return SECTIONS[name], {**{item.arg: _constant(item.value) for item in node.keywords if item.arg}, **mode}


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[str, str, JsonValue]]:
    """`config.training.seq_len = 4096`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            path = ast.unparse(node.targets[0]).split(".")
            if len(path) == 3 and path[1] in ASSIGNED_SECTIONS:
                yield path[1], path[2], _constant(node.value)
            elif len(path) == 2 and path[1] == "mixed_precision":
                yield "model", "mixed_precision", _constant(node.value)


def _called(function: ast.expr) -> str:
    """`TrainingConfig`, or `SelectiveAC` of `SelectiveAC.Config`."""
    if isinstance(function, ast.Attribute) and function.attr == "Config":
        return _called(function.value)
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _product(node: ast.expr) -> int | None:
    """Whole numbers multiplied: `8 * 2048`."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _product(node.left), _product(node.right)
        return left * right if left is not None and right is not None and max(left, right) < 10**9 else None
    return None


def _constant(node: ast.expr) -> JsonValue:
    """A literal, or the source text of anything else."""
    if (number := _product(node)) is not None:
        return number
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ast.unparse(node)
    return value if isinstance(value, str | int | float | bool | list | type(None)) else str(value)
