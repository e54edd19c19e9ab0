"""Reads what a Python recipe of a snapshot sets, without running it.

Recipes are straight code: a configuration is built by calls of other recipes, and attributes are assigned.
The reader follows assignments, calls inside the repository and conditions that it can decide; what it cannot
decide is passed over, and what was never assigned stays an empty `Part`.
"""

import ast
import operator
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

Value = object
MAX_DEPTH = 30
COMPARE: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda one, many: one in many,  # type: ignore[operator]
    ast.NotIn: lambda one, many: one not in many,  # type: ignore[operator]
    ast.Gt: lambda one, other: one > other,  # type: ignore[operator]
    ast.Is: lambda one, other: one is other,
    ast.IsNot: lambda one, other: one is not other,
}


class NotKnownError(Exception):
    """The value depends on what the reader does not follow."""


@dataclass
class Part:
    """An object of the configuration: what was assigned to it."""

    fields: dict[str, Value] = field(default_factory=dict)
    is_built: bool = False
    """Made by a class of the repository, so certainly not None."""

    def get(self, name: str) -> Value:
        return self.fields.setdefault(name, Part())

    def find(self, path: str) -> Value:
        """The value at a dotted path; None if nothing was assigned there."""
        value: Value = self
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Part) else None
        return None if isinstance(value, Part) and not value.is_built else value


class NoRecipeError(LookupError):
    """A hook has no answer: the snapshot has no such recipe."""


class _ReturnedError(Exception):
    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


@dataclass(frozen=True)
class Snapshot:
    """A tag of a git directory; `roots` are the folders from which its modules are imported."""

    git: Path
    tag: str
    roots: tuple[str, ...]
    hooks: Mapping[str, Callable[..., Value]] = field(default_factory=dict, hash=False)
    """Functions of the snapshot that are answered here, by their name."""

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.git), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout

    @cached_property
    def files(self) -> frozenset[str]:
        return frozenset(self.run("ls-tree", "-r", "--name-only", self.tag).splitlines())

    @property
    def month(self) -> str:
        return self.run("log", "-1", "--format=%cs", self.tag).strip()[:7]

    def show(self, path: str) -> str:
        return self.run("show", f"{self.tag}:{path}")

    def module(self, path: str) -> "Module":
        return _module(self, path)

    def find_module(self, name: str) -> "Module | None":
        stem = name.replace(".", "/")
        for root in self.roots:
            for path in (f"{root}/{stem}.py", f"{root}/{stem}/__init__.py"):
                if path in self.files:
                    return self.module(path)
        return None


@cache
def _module(snapshot: Snapshot, path: str) -> "Module":
    return Module(snapshot, path, ast.parse(snapshot.show(path)))


class Module:
    """The names of a module, each evaluated when it is asked for."""

    def __init__(self, snapshot: Snapshot, path: str, tree: ast.Module) -> None:
        self.snapshot, self.path = snapshot, path
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        self.stars: list[str] = []
        for statement in tree.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.definitions[statement.name] = statement
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.definitions[statement.targets[0].id] = statement
            elif isinstance(statement, ast.ImportFrom):
                self._add_import(statement)

    def _add_import(self, statement: ast.ImportFrom) -> None:
        name = statement.module or ""
        if statement.level:
            root = next(root for root in self.snapshot.roots if self.path.startswith(f"{root}/"))
            package = self.path.removeprefix(f"{root}/").split("/")[: -statement.level]
            name = ".".join([*package, *filter(None, [name])])
        for alias in statement.names:
            if alias.name == "*":
                self.stars.append(name)
            else:
                self.imports[alias.asname or alias.name] = (name, alias.name)

    def lookup(self, name: str) -> Value:
        if name in self.imports:
            module_name, inner = self.imports[name]
            if (module := self.snapshot.find_module(module_name)) is not None:
                submodule = self.snapshot.find_module(f"{module_name}.{inner}")
                return module.lookup(inner) if module.has(inner) else submodule or Part()
            return self.snapshot.find_module(f"{module_name}.{inner}") or Part()
        match self.definitions.get(name):
            case ast.FunctionDef() | ast.ClassDef() as definition:
                return Definition(self, definition)
            case ast.Assign() as statement:
                return Reader(self, {}).value(statement.value)
        for star in self.stars:
            if (module := self.snapshot.find_module(star)) is not None and module.has(name):
                return module.lookup(name)
        return Part()

    def has(self, name: str) -> bool:
        if name in self.definitions or name in self.imports:
            return True
        modules = [self.snapshot.find_module(star) for star in self.stars]
        return any(module is not None and module.has(name) for module in modules)


@dataclass
class Definition:
    """A function or a class of the snapshot."""

    module: Module
    node: ast.FunctionDef | ast.ClassDef

    def call(self, args: list[Value], kwargs: Mapping[str, Value], depth: int = 0) -> Value:
        if isinstance(self.node, ast.ClassDef):
            return Part({**self._class_defaults(), **kwargs}, is_built=True)
        if depth > MAX_DEPTH:
            raise NotKnownError(self.node.name)
        arguments, reader = self.node.args, Reader(self.module, {}, depth)
        names = [argument.arg for argument in arguments.args]
        defaults = dict(zip(reversed(names), reversed(arguments.defaults), strict=False))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            names.append(argument.arg)
            if default is not None:
                defaults[argument.arg] = default
        local: dict[str, Value] = {name: reader.value(node) for name, node in defaults.items()}
        local |= dict(zip(names, args, strict=False))
        local |= {name: value for name, value in kwargs.items() if name in names}
        if arguments.kwarg is not None:
            local[arguments.kwarg.arg] = {k: value for k, value in kwargs.items() if k not in names}
        reader.local = {**{name: Part() for name in names}, **local}
        try:
            reader.run(self.node.body)
        except _ReturnedError as returned:
            return returned.value
        return None

    def _class_defaults(self) -> dict[str, Value]:
        reader, defaults = Reader(self.module, {}), dict[str, Value]()
        for statement in self.node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as node):
                    defaults[name] = reader.known(node)
        return defaults


class Reader:
    """Follows the statements of one function."""

    def __init__(self, module: Module, local: dict[str, Value], depth: int = 0) -> None:
        self.module, self.local, self.depth = module, local, depth

    def run(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            try:
                self._run_one(statement)
            except NotKnownError:
                continue

    def _run_one(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=targets, value=node):
                value = self.known(node)
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as node):
                self._assign(target, self.known(node))
            case ast.Expr(value=ast.Call() as node):
                self.value(node)
            case ast.If(test=test, body=body, orelse=orelse):
                self.run(body if self._truth(test) else orelse)
            case ast.Return(value=node):
                raise _ReturnedError(None if node is None else self.known(node))

    def known(self, node: ast.expr) -> Value:
        """The value, or an empty part: what is assigned to it later is seen."""
        try:
            return self.value(node)
        except NotKnownError:
            return Part()

    def _assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(id=name):
                self.local[name] = value
            case ast.Attribute(value=node, attr=name):
                if isinstance(owner := self.value(node), Part):
                    owner.fields[name] = value
            case ast.Tuple(elts=targets):
                values = value if isinstance(value, tuple) else [Part() for _ in targets]
                for inner, one in zip(targets, values, strict=False):
                    self._assign(inner, one)

    def _truth(self, node: ast.expr) -> bool:
        value = self.value(node)
        if isinstance(value, Part) and not value.is_built:
            raise NotKnownError(ast.unparse(node))
        return bool(value)

    def value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.local[name] if name in self.local else self.module.lookup(name)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return f"torch.{name}"
            case ast.Attribute(value=inner, attr=name):
                owner = self.value(inner)
                if isinstance(owner, Module):
                    return owner.lookup(name)
                if isinstance(owner, Part):
                    return owner.get(name)
                raise NotKnownError(ast.unparse(node))
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                values = [self.value(element) for element in elements]
                return values if isinstance(node, ast.List) else tuple(values)
            case ast.Dict(keys=keys, values=nodes):
                return self._dictionary(keys, nodes)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self._truth(test) else orelse)
            case ast.BoolOp(op=op, values=nodes):
                return self._boolean(op, nodes)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._truth(operand)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARE:
                return self._compare(self.value(left), op, self.value(right))
            case ast.Call():
                return self._call(node)
        raise NotKnownError(ast.unparse(node))

    def _dictionary(self, keys: list[ast.expr | None], nodes: list[ast.expr]) -> Value:
        merged: dict[Value, Value] = {}
        for key, node in zip(keys, nodes, strict=True):
            value = self.known(node)
            if key is not None:
                merged[self.value(key)] = value
            elif isinstance(value, dict):
                merged |= value
        return merged

    def _boolean(self, op: ast.boolop, nodes: list[ast.expr]) -> Value:
        wanted, is_unknown, value = isinstance(op, ast.Or), False, None
        for node in nodes:
            try:
                value = self.value(node)
                if self._truth(node) is wanted:
                    return value
            except NotKnownError:
                is_unknown = True
        if is_unknown:
            raise NotKnownError("condition")
        return value

    def _compare(self, left: Value, op: ast.cmpop, right: Value) -> bool:
        for side in (left, right):
            if isinstance(side, Part) and not side.is_built:
                raise NotKnownError("comparison")
        try:
            return COMPARE[type(op)](left, right)
        except TypeError as error:
            raise NotKnownError("comparison") from error

    def _call(self, node: ast.Call) -> Value:
        args = [self.known(argument) for argument in node.args if not isinstance(argument, ast.Starred)]
        kwargs: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.known(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs |= value
        name, place = getattr(node.func, "id", ""), getattr(node.func, "value", None)
        if hook := self.module.snapshot.hooks.get(name):
            return hook(*args, **kwargs)
        if isinstance(place, ast.expr) and isinstance(text := self.known(place), str):
            return {"upper": text.upper(), "lower": text.lower()}.get(getattr(node.func, "attr", ""), Part())
        match name, args:
            case "replace" | "deepcopy", [Part() as base]:
                return Part({**base.fields, **kwargs}, is_built=True)
            case "bool", [value] if not isinstance(value, Part):
                return bool(value)
            case "getattr", [Part() as owner, str() as attribute, *_]:
                return owner.get(attribute)
            case "hasattr", _:
                return True
            case "isinstance", [Part(), kind]:
                return isinstance(kind, Definition)
            case "isinstance", [value, _]:
                return type(value).__name__ == ast.unparse(node.args[1])
        function = self.known(node.func)
        if isinstance(function, Definition):
            return function.call(args, kwargs, self.depth + 1)
        return Part()
