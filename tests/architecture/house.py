"""Figures of the house, from its files alone; `python -m tests.architecture.house` prints every place.

A figure is a list of places, so that a test that fails says where to look.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PRODUCT = ("asap", "service", "graph", "tools", "kb_seed", "asap_client")
GENERATED = "generated"
UNTYPED = re.compile(r"\bAny\b|(?:dict|Mapping)\[str, (?:object|JsonValue)\]|\b(?:JsonObject|Payload)\b")
SENTENCES = {"says", "message", "summary", "reason", "sentence", "verdict", "detail", "note", "rule"}
"""Attributes that hold a sentence of ours."""
LOOKS_INTO = {"startswith", "endswith", "partition", "rpartition", "split", "removeprefix", "removesuffix"}
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
TYPE_NAME = re.compile(r"[A-Z][a-z]+[A-Za-z]*")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Figure = Callable[["list[Source]"], list[str]]


@dataclass(frozen=True)
class Source:
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


def read_product(root: Path = REPO) -> list[Source]:
    files = [file for room in PRODUCT for file in sorted((root / room).rglob("*.py"))]
    kept = [file for file in files if GENERATED not in file.relative_to(root).parts]
    return [Source(str(file.relative_to(root)), file.read_text()) for file in kept]


def count_lines(sources: list[Source]) -> int:
    return sum(len(source.text.splitlines()) for source in sources)


def late_constants(sources: list[Source]) -> list[str]:
    """Module constants after the first function or class: another file's header in the middle of this one."""
    found = []
    for source in sources:
        after = False
        for node in source.tree.body:
            after = after or isinstance(node, Function | ast.ClassDef)
            name = _assigned(node)
            if after and name and CONSTANT.fullmatch(name):
                found.append(f"{source.path}:{node.lineno} {name}")
    return found


def called_once(sources: list[Source]) -> list[str]:
    """Private functions that one place of their module uses: a name for a paragraph."""
    found = []
    for source in sources:
        tree = source.tree
        uses = Counter(_name_of(node) for node in ast.walk(tree))
        for node in ast.walk(tree):
            is_private = isinstance(node, Function) and re.match(r"_[^_]", node.name)
            if isinstance(node, Function) and is_private and not node.decorator_list and uses[node.name] == 1:
                found.append(f"{source.path}:{node.lineno} {node.name}")
    return found


def untyped(sources: list[Source]) -> list[str]:
    """Signatures that take or give anything."""
    found = []
    for source in sources:
        for node in _functions(source.tree):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            every += [star for star in (node.args.vararg, node.args.kwarg) if star]
            hints = [argument.annotation for argument in every] + [node.returns]
            if any(hint is not None and UNTYPED.search(ast.unparse(hint)) for hint in hints):
                found.append(f"{source.path}:{node.lineno} {node.name}")
    return found


def ambiguous_names(sources: list[Source]) -> list[str]:
    """Names of classes and type aliases that several modules define."""
    places: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        for node in source.tree.body:
            name = node.name if isinstance(node, ast.ClassDef) else _assigned(node)
            if name and (isinstance(node, ast.ClassDef) or TYPE_NAME.fullmatch(name)):
                places[name].add(source.path)
    return [f"{name}: {', '.join(sorted(at))}" for name, at in sorted(places.items()) if len(at) > 1]


def prose_as_data(sources: list[Source]) -> list[str]:
    """Places that split, search or branch on a sentence of ours."""
    found = []
    for source in sources:
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in LOOKS_INTO:
                    looks = _is_sentence(value)
                case ast.Compare(left=ast.Constant(), ops=[ast.In() | ast.NotIn()], comparators=[value]):
                    looks = _is_sentence(value)
                case _:
                    looks = False
            if looks and isinstance(node, ast.expr):
                found.append(f"{source.path}:{node.lineno} {ast.unparse(node)[:80]}")
    return found


def import_cycles(sources: list[Source]) -> list[str]:
    """Groups of modules that import one another, imports inside functions counted too."""
    trees = {
        source.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): source.tree
        for source in sources
    }
    graph = {name: set(_imports(tree, trees)) - {name} for name, tree in trees.items()}
    reached = {name: _reachable(name, graph) for name in graph}
    groups = {
        frozenset({name, *(other for other in reached[name] if name in reached[other])})
        for name in graph
        if name in reached[name]
    }
    return sorted(", ".join(sorted(group)) for group in groups)


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


def _imports(tree: ast.Module, modules: Collection[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name:
                yield name


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _assigned(node: ast.stmt) -> str | None:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return (
        target.id if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign) else None
    )


def _name_of(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _is_sentence(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
            return "err" in name
        case ast.Attribute(attr=attr):
            return attr in SENTENCES
        case _:
            return False


FIGURES = (late_constants, called_once, untyped, ambiguous_names, prose_as_data, import_cycles)


def main() -> None:
    sources = read_product()
    functions = sum(1 for source in sources for _ in _functions(source.tree))
    print(f"{len(sources)} files, {count_lines(sources):,} lines, {functions:,} functions")
    for figure in FIGURES:
        places = figure(sources)
        print(f"\n{figure.__name__.replace('_', ' ')}: {len(places)}", *places, sep="\n  ")


if __name__ == "__main__":
    main()
