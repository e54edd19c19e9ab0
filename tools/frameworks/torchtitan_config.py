"""torchtitan 0.3's Python configuration as settings by section: parsed, never run.

A configuration function returns a container of sections (`TrainingConfig(seq_len=8192)`) or changes what
another function returns (`config.training.seq_len = 4096`).
"""

import ast

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
MODES = {"SelectiveAC": "selective", "FullAC": "full"}
VARIABLE = "CONFIG"
"""Of --set: which function of the file."""
Sections = dict[str, JsonObject]


def looks_like_python(text: str) -> bool:
    return "ParallelismConfig(" in text or ("def " in text and "TrainingConfig(" in text)


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
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in functions and name != function.name and depth < 5:
            for section, settings in _sections(functions[name], functions, depth + 1).items():
                found[section] = {**settings, **found.get(section, {})}
        elif name in SECTIONS:
            values = {item.arg: _constant(item.value) for item in node.keywords if item.arg}
            if name in MODES:
                values["mode"] = MODES[name]
            found[SECTIONS[name]] = {**found.get(SECTIONS[name], {}), **values}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            path = ast.unparse(node.targets[0]).split(".")
            if len(path) == 3 and path[1] in SECTIONS.values():
                found[path[1]] = {**found.get(path[1], {}), path[2]: _constant(node.value)}
    return found


def _constant(node: ast.expr) -> JsonValue:
    """A literal, or the source text of anything else."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ast.unparse(node)
    return value if isinstance(value, str | int | float | bool | list | type(None)) else str(value)
