"""Every error message of the package, found in its source: `python tests/tools/messages.py` prints them by file.

A message is an argument of an error of `tilewright.errors`, of what becomes one (BadLine, RecordError, Damaged), of a
plain exception that is raised, or of a function that returns an error. A value stands as {expression}.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent / "src/tilewright"
ROOTS = {"TilewrightError", "BadLine", "RecordError", "Damaged"}  # the last three are told with other words around
PLAIN = {"ValueError", "TypeError", "RuntimeError", "AttributeError", "KeyError", "OverflowError"}
MOST = 8  # variants of one message that are shown

Scope = ast.FunctionDef | ast.Module
READ = ast.FunctionDef | ast.ImportFrom | ast.ClassDef | ast.Raise


@dataclass(frozen=True)
class Message:
    """One call that makes an error: its file, from the package's root, its line, and what it says.

    kind: the error's class, or the function's name. texts: variants of the message, or the words that a function which
    returns an error is given. remedies: variants of its remedy.
    """

    path: str
    line: int
    kind: str
    texts: tuple[str, ...]
    remedies: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = "\n         or ".join(self.texts) or "-"
        return "\n".join([f"  {self.line:>4} {self.kind}: {said}", *(f"         -> {text}" for text in self.remedies)])


@dataclass
class Module:
    """A file: its syntax tree, and the names in it that are errors or functions which return one."""

    path: str
    tree: ast.Module
    kinds: set[str] = field(default_factory=set)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Its functions, imports, classes and raised errors."""
        return [node for node in ast.walk(self.tree) if isinstance(node, READ)]

    @property
    def name(self) -> str:
        """As `import` writes it."""
        return "tilewright." + self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def messages() -> list[Message]:
    """All messages of the package, by file and line."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    return messages_of(texts)


def messages_of(texts: dict[str, str]) -> list[Message]:
    """The messages of these files: path from the package's root -> source."""
    modules = [Module(path, ast.parse(text)) for path, text in sorted(texts.items())]
    family = _family(modules)
    makers = {
        (module.name, node.name)
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.FunctionDef) and node.returns and _last_name(node.returns) in family
    }
    for module in modules:
        imported = {
            (node.module, alias.name)
            for node in module.nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        own = {name for where, name in makers if where == module.name}
        module.kinds = family | own | {name for where, name in makers & imported}
    return [message for module in modules for message in _of(module)]


def _family(modules: list[Module]) -> set[str]:
    """The names of all classes of errors."""
    classes = [node for module in modules for node in module.nodes if isinstance(node, ast.ClassDef)]
    above = {node.name: {_last_name(base) for base in node.bases} for node in classes}
    found = set(ROOTS)
    while more := {name for name, bases in above.items() if bases & found} - found:
        found |= more
    return found


def _of(module: Module) -> Iterator[Message]:
    raised = {id(node.exc) for node in module.nodes if isinstance(node, ast.Raise)}
    for call, scopes in _calls(module.tree, (module.tree,)):
        kind = _last_name(call.func)
        if kind not in module.kinds and not (kind in PLAIN and id(call) in raised):
            continue
        given = {word.arg: _texts(word.value, scopes, call.lineno) for word in call.keywords if word.arg}
        if {"parameter", "value", "rule"} <= given.keys():
            texts = [f"{p} is {v}; {r}" for p in given["parameter"] for v in given["value"] for r in given["rule"]]
        else:
            texts = [text for part in call.args for text in _texts(part, scopes, call.lineno)]
            texts += [text for name in ("message", "value", "rule") for text in given.get(name, ())]
        said = tuple(dict.fromkeys(text for text in texts if " " in text))
        remedies = tuple(dict.fromkeys(filter(None, given.get("remedy", ()))))
        yield Message(module.path, call.lineno, kind, said[:MOST], remedies[:MOST])


def _calls(node: ast.AST, scopes: tuple[Scope, ...]) -> Iterator[tuple[ast.Call, tuple[Scope, ...]]]:
    """(call, the functions around it and the module, innermost first) of all calls below a node."""
    for child in ast.iter_child_nodes(node):
        inside = (child, *scopes) if isinstance(child, ast.FunctionDef) else scopes
        if isinstance(child, ast.Call):
            yield child, inside
        yield from _calls(child, inside)


def _last_name(node: ast.AST) -> str:
    """The last part of a dotted name; "" for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _texts(node: ast.AST, scopes: tuple[Scope, ...], line: int) -> list[str]:
    """What an expression may say in this line: a condition says both of its values, a name what was assigned to it."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else [""]
    if isinstance(node, ast.IfExp):
        return _texts(node.body, scopes, line) + _texts(node.orelse, scopes, line)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [a + b for a in _texts(node.left, scopes, line) for b in _texts(node.right, scopes, line)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(_part(part, scopes, line) for part in node.values)]
    if isinstance(node, ast.Name):
        found = [text for held in _assigned(scopes, node.id, line) for text in _texts(*held)]
        if any(" " in text for text in found):
            return found
    return [f"{{{ast.unparse(node)}}}"]


def _part(part: ast.AST, scopes: tuple[Scope, ...], line: int) -> str:
    """A part of an f-string: its longest words, or {expression} where it has none."""
    if not isinstance(part, ast.FormattedValue):
        return _texts(part, scopes, line)[0]
    words = [text for text in _texts(part.value, scopes, line) if " " in text and not text.startswith("{")]
    return max(words, key=len, default=f"{{{ast.unparse(part.value)}}}")


def _assigned(scopes: tuple[Scope, ...], name: str, line: int) -> list[tuple[ast.AST, tuple[Scope, ...], int]]:
    """(value, the scopes that its own names lie in, line) of what a name may hold in a line; none for a parameter.

    An assignment in a block around the line hides those before it. Of others each may hold.
    """
    for depth, scope in enumerate(scopes):
        found = _assignments(scope).get(name, [])
        if isinstance(scope, ast.FunctionDef):
            found = [(statement, value) for statement, value in found if statement.lineno < line]
            around = _around(scope, line)
            found = [pair for pair in found if id(pair[0]) in around][-1:] or found
            if not found and name in {one.arg for one in ast.walk(scope.args) if isinstance(one, ast.arg)}:
                return []
        if found:
            rest = scopes[depth if isinstance(scope, ast.FunctionDef) else depth + 1 :]
            return [(value, rest, statement.lineno) for statement, value in found]
    return []


@cache
def _assignments(scope: Scope) -> dict[str, list[tuple[ast.stmt, ast.expr]]]:
    """name -> (statement or expression that binds it, value) in a function, or at the top of a module."""
    found: dict[str, list] = {}
    for node in ast.walk(scope) if isinstance(scope, ast.FunctionDef) else scope.body:
        if not isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for one, value in pairs:
                if isinstance(one, ast.Name):
                    found.setdefault(one.id, []).append((node, value))
    return found


def _around(scope: ast.FunctionDef, line: int) -> set[int]:
    """The ids of the statements in all blocks of a function that the line is in."""
    found, body = set(), scope.body
    while body:
        found |= {id(statement) for statement in body}
        here = next((s for s in body if s.lineno <= line <= (s.end_lineno or 0)), None)
        blocks = [getattr(here, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(here, "handlers", [])]
        body = next((b for b in blocks if b and b[0].lineno <= line <= (b[-1].end_lineno or 0)), [])
    return found


def main() -> None:
    """Prints the catalogue."""
    path = ""
    for message in messages():
        if message.path != path:
            path = message.path
            sys.stdout.write(f"\n{path}\n")
        sys.stdout.write(f"{message}\n")


if __name__ == "__main__":
    main()
