"""Python configurations of torchtitan 0.3 and recipes of Megatron-Bridge as settings: parsed, never run.

A configuration function returns a container of sections (`TrainingConfig(seq_len=8192)`) or changes what
another function returns (`config.training.seq_len = 4096`).
"""

import ast
import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from tools.errors import InputError
from tools.frameworks.reading import check_length
from tools.scenario.fields import JsonObject

SECTIONS = {
    "TrainingConfig": "training",
    "ParallelismConfig": "parallelism",
    "ActivationCheckpointConfig": "activation_checkpoint",
    "SelectiveAC": "activation_checkpoint",
    "FullAC": "activation_checkpoint",
}
ASSIGNED_SECTIONS = {
    *SECTIONS.values(), "model", "train", "dataset", "ddp", "optimizer", "peft", "comm_overlap",
    "mixed_precision",
}  # fmt: skip
"""Sections of torchtitan and Megatron-Bridge."""
NO_DEGREES = ("peft", "comm_overlap", "mixed_precision")
"""Sections without degrees and batches: what makes them is not asked for."""
PRECISION_BY_NAME = "get_mixed_precision_config"
"""Megatron-Bridge's registry of precisions: its argument says all."""
FLEXIBLE_DISPATCH = "apply_flex_dispatcher_backend"
"""What turns Megatron-Bridge's flexible dispatcher on; without it a backend that is named means nothing."""
CONVERTERS = {
    "Float8LinearConverter": "quantize.linear.float8",
    "MXFP8LinearConverter": "quantize.linear.mx",
    "NVFP4LinearConverter": "quantize.linear.nvfp4",
}
MODEL_CALLS = {"model_registry": "flavor", "from_hf_pretrained": "pretrained_name"}
MODES = {"SelectiveAC": "selective", "FullAC": "full"}
RECOMPUTATION = "activation_checkpoint"
VARIABLE = "CONFIG"
"""The variable that says which function of the file."""
Sections = dict[str, JsonObject]
Variables = dict[str, JsonValue]
FindModule = Callable[[str], str | None]
"""The source of a module by its dotted name (leading dots as in Python), or of a file by its path in a
checkout, if it is at hand."""
MAX_CALLS = 5
"""Functions that call one another, at most."""
MAX_MODULES = 100
MAX_MODULE_BYTES = 2**20
MAX_PARENTS = 8
"""Folders above a Python file in which the packages that it imports may begin."""
CONFIG_NAMES = ("cfg", "config")
ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
CHOICES: dict[str, Callable[[Iterable[int]], int]] = {"max": max, "min": min}
COMPARISONS: dict[type, Callable[[object, object], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, several: isinstance(several, list | dict | str) and one in several,
}  # fmt: skip
TYPES = {"str": str, "int": int, "bool": bool, "dict": dict, "list": list}
"""Of a value that is known; whatever it is, it is of no class beside these."""


def looks_like_python(text: str) -> bool:
    has_call = "ParallelismConfig(" in text or "TrainingConfig(" in text or is_recipe(text)
    return has_call and any(line.startswith(("def ", "from ", "import ")) for line in text.splitlines())


def is_recipe(text: str) -> bool:
    """Whether the functions of a Python text make configurations of Megatron-Bridge."""
    return "ConfigContainer" in text and "def " in text


def no_module(name: str) -> str | None:
    """For a text by itself: nothing that it imports is at hand."""
    return None


def module_finder(source: str | Path, below: Path | None = None) -> FindModule:
    """Modules beside a file and in the packages around it by their names, other files by their path there.

    With `below`, nothing outside of that folder is read.
    """
    here = Path(source).resolve().parent

    def find(name: str) -> str | None:
        roots: Sequence[Path] = here.parents[:MAX_PARENTS]
        if "/" not in name:
            level = len(name) - len(name.lstrip("."))
            roots = [here, *here.parents][level - 1 : level] if level else [here, *roots]
            name = name.lstrip(".").replace(".", "/") + ".py"
        for file in (root / name for root in roots):
            is_open = below is None or file.resolve().is_relative_to(below)
            if is_open and file.is_file() and file.stat().st_size <= MAX_MODULE_BYTES:
                return file.read_text(encoding="utf-8", errors="replace")
        return None

    return find


def parse_python(text: str, chosen: str | None, find_module: FindModule = no_module) -> "PythonConfig":
    """The settings of the only configuration function, or of the chosen one.

    Functions that it calls are followed through the modules that `find_module` has the source of.
    """
    module = _Module(text, find_module)
    known = {name: function for name, function in module.functions.items() if not name.startswith("_")}
    if chosen not in known:  # a function by its name needs no reading of the others
        known = {name: each for name, each in known.items() if _Reading(module).run(each).sections}
    if chosen is None and len(known) == 1:
        chosen = next(iter(known))
    found = _Reading(module).run(known[chosen]) if chosen in known else None
    if found is None or not found.sections:
        names = ", ".join(sorted(known)[:20]) or "none"
        given = "nothing" if chosen is None else chosen
        raise InputError(
            "variables", f"{VARIABLE}={given}", f"give the function, {VARIABLE}=NAME, one of {names}"
        )
    return found


class PythonConfig(NamedTuple):
    sections: Sections
    unread: tuple[str, ...]
    """Functions that make or change the configuration and whose source is not at hand."""


class _Module:
    """A Python text, with the functions and constants that it defines or imports."""

    def __init__(
        self, text: str, find_module: FindModule, package: str = "", known: "dict[str, _Module] | None" = None
    ) -> None:
        """`known`: the modules that were read on the way here, by name."""
        check_length(text)
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError("text", text.strip()[:40], f"not Python: {str(error)[:80]}") from None
        self.find_module, self.known = find_module, {} if known is None else known
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.constants: Variables = {}
        self.imports: dict[str, tuple[str, str]] = {}
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and node.value:
                self.constants[target.id] = _constant(node.value, self.constants)
            if not isinstance(node, ast.ImportFrom):
                continue
            name = "." * node.level + (node.module or "")
            if node.level and package:  # relative to the module that was found, not to the first file
                name = ".".join([*package.split(".")[: -node.level], node.module or ""])
            for alias in node.names:
                known_as = alias.asname or alias.name
                self.imports[known_as] = (name, alias.name)
                if alias.name.isupper() and (other := self._module(name)) and alias.name in other.constants:
                    self.constants[known_as] = other.constants[alias.name]

    def find(self, name: str) -> "tuple[_Module, ast.FunctionDef] | None":
        """The function of that name, here or where it is imported from, which is read only now."""
        if name in self.functions:
            return self, self.functions[name]
        module, inner = self.imports.pop(name, ("", ""))  # at most once: modules may import each other
        other = self._module(module) if module else None
        found = other.find(inner) if other else None
        if module:
            self.imports[name] = (module, inner)
        return found

    def _module(self, name: str) -> "_Module | None":
        if name not in self.known and len(self.known) < MAX_MODULES and (source := self.find_module(name)):
            self.known[name] = _Module("", self.find_module)  # while it is read, it is empty
            self.known[name] = _Module(source, self.find_module, name, self.known)
        return self.known.get(name)


class _Reading:
    """One function read from top to bottom: later statements win."""

    def __init__(self, module: _Module, depth: int = 0, section: str = "") -> None:
        """`section` is what the function returns, if that is not a whole configuration."""
        self.module, self.depth, self.section = module, depth, section
        self.found: Sections = {}
        self.variables: Variables = dict(module.constants)
        self.unread: list[str] = []
        self.made: dict[str, ast.Call] = {}
        """Sections that were made under a name of their own: `train = TrainingConfig(...)`."""
        self.changed: dict[str, JsonObject] = {}
        """What was assigned to those since: `model.seq_length = 4096`."""
        self.aliases: dict[str, str] = {}
        """Names of sections of the configuration: `adapter` after `config.peft = adapter`."""

    def run(self, function: ast.FunctionDef, given: Variables | None = None) -> PythonConfig:
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args]
        defaults = dict(zip([arg.arg for arg in named][::-1], arguments.defaults[::-1], strict=False))
        defaults |= {
            arg.arg: value
            for arg, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value is not None
        }
        self.variables |= {name: _constant(value, self.variables) for name, value in defaults.items()}
        self.variables |= given or {}
        if arguments.kwarg:
            own = {arg.arg for arg in (*named, *arguments.kwonlyargs)}
            rest = {name: value for name, value in (given or {}).items() if name not in own}
            self.variables[arguments.kwarg.arg] = rest
        self._read(function.body)
        return PythonConfig(self.found, tuple(dict.fromkeys(self.unread)))

    def _read(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                continue
            if isinstance(statement, ast.If):
                self._branch(statement)
                continue
            for inner in ("body", "orelse", "finalbody"):
                self._read(getattr(statement, inner, []))
            section = _replaced_section(statement)
            if section:
                self.found.pop(section, None)
            for node in ast.walk(statement) if not hasattr(statement, "body") else ():
                if isinstance(node, ast.Call):
                    is_whole = isinstance(statement, ast.Assign | ast.Return) and statement.value is node
                    self._call(node, is_whole, section if is_whole else "")
            made = section or self.section
            value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
            if made and isinstance(value, ast.Call):
                self._state(made, value)
            elif made and isinstance(value, ast.Name):
                self._state_named(made, value.id)
                self.aliases[value.id] = made
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    self._assign(target, statement.value)
            elif isinstance(statement, ast.AugAssign):
                changed = ast.BinOp(statement.target, statement.op, statement.value)
                self._assign(statement.target, changed)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self._change(statement.value)

    def _change(self, node: ast.Call) -> None:
        """`setattr(config.model, "seq_length", 4096)` and `settings.update(...)`."""
        if called(node.func) == FLEXIBLE_DISPATCH and isinstance(_value(node.args[-1], self._known()), str):
            self.found.setdefault("model", {})["moe_token_dispatcher_type"] = "flex"
        elif called(node.func) == "setattr" and len(node.args) == 3:
            name = _value(node.args[1], self.variables)
            if isinstance(name, str) and name.isidentifier():
                self._assign(ast.Attribute(node.args[0], name), node.args[2])
            else:
                self.unread.append("setattr")
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            before = _value(node.func.value, self.variables)
            if isinstance(before, dict) and isinstance(node.func.value, ast.Name):
                given = [(None, node.func.value), *((None, arg) for arg in node.args)]
                merged = _merged([*given, *_named(node)], self._known())
                self.variables[node.func.value.id] = "" if isinstance(merged, _Unknown) else merged

    def _branch(self, statement: ast.If) -> None:
        """The branch that runs, if its condition is known; else neither, and what they set is not read."""
        test = _value(statement.test, self._known())
        if not isinstance(test, _Unknown):
            self._read(statement.body if test else statement.orelse)
            return
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, ast.Name(id="?"))

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.variables[target.id] = _constant(value, self._known())
            for known in (self.changed, self.made, self.aliases):
                known.pop(target.id, None)
            if isinstance(value, ast.Call):
                self.made[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call):
            for item, stated_there in zip(target.elts, self._several(value), strict=False):
                if isinstance(item, ast.Name):
                    self.changed[item.id] = stated_there
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            settings, key = self.variables.get(target.value.id), _constant(target.slice, self._known())
            if isinstance(settings, dict):
                changed = {**settings, str(key): _constant(value, self._known())}
                self.variables[target.value.id] = changed
        elif isinstance(target, ast.Attribute):  # `config.training.seq_len = 4096`
            path = ast.unparse(target).split(".")
            stated = _constant(value, self._known())
            if len(path) == 3 and path[1] in ASSIGNED_SECTIONS:
                self.found.setdefault(path[1], {})[path[2]] = stated
            elif len(path) == 2 and (section := self.aliases.get(path[0], self.section)):
                self.found.setdefault(section, {})[path[1]] = stated
            elif len(path) == 2 and path[1] == "mixed_precision":
                self.found.setdefault("mixed_precision", {})["name"] = stated
            elif len(path) == 2:
                self.changed.setdefault(path[0], {})[path[1]] = stated

    def _known(self) -> Variables:
        """Variables, and the fields of the configuration as they are now: `cfg.train.micro_batch_size`."""
        known = dict(self.variables)
        for name in CONFIG_NAMES:
            for section, settings in self.found.items():
                known |= {f"{name}.{section}": settings}
                known |= {f"{name}.{section}.{key}": value for key, value in settings.items()}
        return known

    def _call(self, node: ast.Call, is_made: bool, section: str) -> None:
        name = called(node.func)
        if (known := self.module.find(name)) and self.depth < MAX_CALLS:
            self._follow(node, *known, section)
            return
        # What makes the whole configuration, or is handed it, decides settings that are not in the file.
        is_handed = any(isinstance(arg, ast.Name) and arg.id in CONFIG_NAMES for arg in node.args)
        is_part = section in NO_DEGREES or "mixed_precision" in name or "peft" in name
        makes = is_made and not is_part and (section or name.endswith(("_common", "_config")))
        if (is_handed or makes) and isinstance(node.func, ast.Name) and not name[0].isupper():
            self.unread.append(name)
        if any(item.arg == RECOMPUTATION and _constant(item.value) is None for item in node.keywords):
            self.found[RECOMPUTATION] = {"mode": "none"}
        for item in node.keywords:  # `ConfigContainer(train=TrainingConfig(...))`
            if item.arg in ASSIGNED_SECTIONS and isinstance(item.value, ast.Call):
                self._state(item.arg, item.value)
            elif item.arg in ASSIGNED_SECTIONS and isinstance(item.value, ast.Name):
                self._state_named(item.arg, item.value.id)
            elif item.arg == "mixed_precision" and name == "ConfigContainer":
                self.found["mixed_precision"] = {"name": _constant(item.value, self.variables)}
        if name in CONVERTERS:
            self.found.setdefault("model", {})["converters"] = [CONVERTERS[name]]
        elif name in MODEL_CALLS and node.args:
            model = _constant(node.args[0], self.variables)
            self.found.setdefault("model", {})[MODEL_CALLS[name]] = model
        elif name in SECTIONS:
            self._state(SECTIONS[name], node)
            self.found[SECTIONS[name]] |= {"mode": MODES[name]} if name in MODES else {}

    def _state(self, section: str, node: ast.Call) -> None:
        """What the call that makes a section states of it."""
        stated, open_arguments = self._arguments(node)
        self.unread += open_arguments
        kind: JsonObject = {"kind": called(node.func)} if section == "peft" else {}
        self.found[section] = {**kind, **self.found.get(section, {}), **stated}

    def _state_named(self, section: str, name: str) -> None:
        """The same of a section that was made under a name of its own, and what was changed of it since."""
        before = self.found.get(section, {})
        if made := self.made.get(name):
            if (
                section == "peft"
                and (known := self.module.find(called(made.func)))
                and self.depth < MAX_CALLS
            ):
                self._follow(made, *known, section)
            self._state(section, made)
        # Inside of what makes the section, changes were taken for the section's own.
        later = before if self.section else {}
        self.found[section] = {**self.found.get(section, {}), **later, **self.changed.get(name, {})}

    def _arguments(self, node: ast.Call) -> tuple[JsonObject, list[str]]:
        """The arguments that a call gives by name, and those that only running the program would tell."""
        known, stated, unread = self._known(), JsonObject(), list[str]()
        for item in node.keywords:
            value = _constant(item.value, known)
            if item.arg:
                stated[item.arg] = value
            elif isinstance(value, dict):
                stated |= value
            else:
                unread.append(f"**{ast.unparse(item.value)[:40]}")
        return stated, unread + ["*" for arg in node.args if isinstance(arg, ast.Starred)]

    def _several(self, node: ast.Call) -> list[Variables]:
        """The settings of each configuration that a function returns: `optimizer, scheduler = adam(...)`."""
        known = self.module.find(called(node.func))
        last = known[1].body[-1] if known and self.depth < MAX_CALLS else None
        if known is None or not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
            return []
        reading = _Reading(known[0], self.depth + 1)
        reading.run(known[1], self._arguments(node)[0])
        names = [item.id if isinstance(item, ast.Name) else "" for item in last.value.elts]
        made = [(reading.made.get(name), reading.changed.get(name, {})) for name in names]
        return [{**(reading._arguments(call)[0] if call else {}), **changed} for call, changed in made]

    def _follow(self, node: ast.Call, module: _Module, function: ast.FunctionDef, section: str) -> None:
        """What another function makes is the start; one that is handed the configuration changes it."""
        names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        known = self._known()
        given = {key: _constant(arg, known) for key, arg in zip(names, node.args, strict=False)}
        stated, open_arguments = self._arguments(node)
        reading = _Reading(module, self.depth + 1, section)
        is_handed = any(isinstance(arg, ast.Name) and arg.id in CONFIG_NAMES for arg in node.args) or any(
            item.arg in CONFIG_NAMES for item in node.keywords
        )
        if is_handed:
            reading.found = self.found
        made = reading.run(function, given | stated)
        self.unread += made.unread
        if made.sections:
            self.unread += open_arguments
        if not is_handed:
            for section, settings in made.sections.items():
                self.found[section] = {**settings, **self.found.get(section, {})}


def _replaced_section(statement: ast.stmt) -> str:
    """`dataset` of `config.dataset = ...`."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Attribute):
        return ""
    path = ast.unparse(statement.targets[0]).split(".")
    return path[1] if len(path) == 2 and path[1] in ASSIGNED_SECTIONS else ""


def called(function: ast.expr) -> str:
    """`TrainingConfig`, or `SelectiveAC` of `SelectiveAC.Config`."""
    if isinstance(function, ast.Attribute) and function.attr == "Config":
        return called(function.value)
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


class _Unknown:
    """What only running the program would tell."""


def _value(node: ast.expr, variables: Variables) -> "JsonValue | _Unknown":
    """A literal, a known name, or arithmetic and choices of those."""
    if isinstance(node, ast.Name | ast.Attribute) and (name := ast.unparse(node)) in variables:
        return variables[name]
    if isinstance(node, ast.IfExp | ast.BoolOp | ast.Compare):
        return _decided(node, variables)
    if isinstance(node, ast.Dict):
        return _merged(zip(node.keys, node.values, strict=True), variables)
    if isinstance(node, ast.Subscript | ast.Call):
        return _looked_up(node, variables)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        negated = _value(node.operand, variables)
        return negated if isinstance(negated, _Unknown) else not negated
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _merged([(None, node.left), (None, node.right)], variables)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        one, other = _value(node.left, variables), _value(node.right, variables)
        if type(one) is int and type(other) is int and abs(one) < 10**9 and 0 < abs(other) < 10**9:
            return ARITHMETIC[type(node.op)](one, other)
        return _Unknown()
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _Unknown()
    return value if isinstance(value, str | int | float | bool | list | dict | type(None)) else str(value)


def _decided(node: ast.IfExp | ast.BoolOp | ast.Compare, variables: Variables) -> "JsonValue | _Unknown":
    if isinstance(node, ast.IfExp):
        test = _value(node.test, variables)
        if isinstance(test, _Unknown):
            return test
        return _value(node.body if test else node.orelse, variables)
    if isinstance(node, ast.BoolOp):
        found: JsonValue | _Unknown = _Unknown()
        for part in node.values:
            found = _value(part, variables)
            if isinstance(found, _Unknown) or bool(found) == isinstance(node.op, ast.Or):
                return found
        return found
    left, right = _value(node.left, variables), _value(node.comparators[0], variables)
    compare = COMPARISONS.get(type(node.ops[0])) if len(node.ops) == 1 else None
    if compare is None or isinstance(left, _Unknown) or isinstance(right, _Unknown):
        return _Unknown()
    return compare(left, right)


def _merged(
    items: Iterable[tuple[ast.expr | None, ast.expr]], variables: Variables
) -> "JsonObject | _Unknown":
    """`{"a": 1, **others}`; a key that is None stands for all of a dictionary."""
    found: JsonObject = {}
    for key, item in items:
        value = _value(item, variables)
        if key is not None:
            found[str(_constant(key, variables))] = _constant(item, variables)
        elif isinstance(value, dict):
            found |= value
        else:
            return _Unknown()
    return found


def _named(node: ast.Call) -> list[tuple[ast.expr | None, ast.expr]]:
    """The arguments that a call gives by name, and `**others`."""
    return [(ast.Constant(item.arg) if item.arg else None, item.value) for item in node.keywords]


def _looked_up(node: ast.Subscript | ast.Call, variables: Variables) -> "JsonValue | _Unknown":
    """`settings["tp"]`, `settings.get("tp", 1)`, `settings.copy()`, `dict(tp=1)`, `max(1, n)`."""
    if isinstance(node, ast.Subscript):
        settings, key, default = _value(node.value, variables), node.slice, None
    elif isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "copy") and not node.keywords:
        settings = _value(node.func.value, variables)
        if not node.args:
            return settings if node.func.attr == "copy" and isinstance(settings, dict) else _Unknown()
        key, default = node.args[0], node.args[1] if node.args[1:] else ast.Constant(None)
    elif isinstance(node.func, ast.Name) and node.func.id == "dict":
        return _merged([*((None, arg) for arg in node.args), *_named(node)], variables)
    elif called(node.func) == PRECISION_BY_NAME and len(node.args) == 1:
        return _value(node.args[0], variables)
    elif called(node.func) == "isinstance" and len(node.args) == 2:
        value, named = _value(node.args[0], variables), TYPES.get(ast.unparse(node.args[1]))
        return value if isinstance(value, _Unknown) else named is not None and isinstance(value, named)
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "lower" and not node.args:
        word = _value(node.func.value, variables)
        return word.lower() if isinstance(word, str) else _Unknown()
    elif isinstance(node.func, ast.Name) and node.func.id in CHOICES and not node.keywords:
        values = [_value(arg, variables) for arg in node.args]
        numbers = [value for value in values if type(value) is int]
        return CHOICES[node.func.id](numbers) if 1 < len(numbers) == len(values) else _Unknown()
    else:
        return _Unknown()
    name = _value(key, variables)
    if not isinstance(settings, dict) or not isinstance(name, str):
        return _Unknown()
    if name in settings:
        return settings[name]
    return _Unknown() if default is None else _value(default, variables)


def _constant(node: ast.expr, variables: Variables | None = None) -> JsonValue:
    """Its value, or the source text of what is not known."""
    value = _value(node, variables or {})
    return ast.unparse(node) if isinstance(value, _Unknown) else value
