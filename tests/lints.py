"""House rules as functions: each takes a source file and yields (line, what is wrong). test_layout.py tests them.

A review remark made twice becomes a lint: add a function to LINTS, and an offender and an innocent to the test.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

OPS = Path(__file__).resolve().parent.parent / "src/tilewright/ops"
FILE_LINES, FUNCTION_LINES, ARGUMENTS = 400, 60, 8
ENVIRONMENT = ("os.environ", "os.getenv", "environ", "getenv")
COMPILERS = tuple(f"{module}{name}" for module in ("", "numba.", "nb.") for name in ("jit", "njit"))

BELOW = {  # what a part of the package may import besides itself
    "errors": set(),
    "garbage": set(),
    "formats": {"errors"},
    "switches": {"errors"},
    "hardware": {"errors"},
    "simd": {"errors", "hardware"},
    "ops": {"errors", "hardware", "simd"},
}
BELOW["backends"] = {"ops", "formats", "switches", *BELOW["ops"]}
BELOW["ndimage"] = {"backends", *BELOW["backends"]}
BELOW["generation"] = {"backends", *BELOW["backends"]}
BELOW["models"] = {"generation", "backends", *BELOW["backends"]}
BELOW["runtime"] = BELOW["bench"] = {"garbage", "models", "ndimage", *BELOW["models"]}
BELOW["demo"] = {"runtime", "bench", *BELOW["runtime"]}
BELOW["cli"] = {"demo", *BELOW["demo"]}
BELOW["__main__"] = {"cli", "runtime"}
BELOW["lm_eval"] = {"runtime", *BELOW["runtime"]}
BELOW["__init__"] = {"errors", "ndimage", "runtime", *BELOW["runtime"]}  # for type checkers; loaded on first use

Finding = tuple[int, str]


@dataclass(frozen=True)
class Source:
    """A Python file: its path from the repository's root, and its text."""

    path: PurePosixPath
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text, str(self.path))

    @property
    def inside(self) -> tuple[str, ...]:
        """Its path from the package's root, () for a file outside the package."""
        return self.path.parts[2:] if self.path.parts[:2] == ("src", "tilewright") else ()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its syntax tree."""
        return list(ast.walk(self.tree))

    def walk(self, *kinds: type) -> Iterator:
        """All nodes of these kinds."""
        return (node for node in self.nodes if isinstance(node, kinds))

    def functions(self) -> Iterator:
        """Every function, nested ones and methods too."""
        return self.walk(ast.FunctionDef, ast.AsyncFunctionDef)

    def imports(self, *, types: bool = True) -> Iterator[tuple[int, str]]:
        """(line, module or name of a module) of every import, in functions too. types: also under TYPE_CHECKING."""
        for_types = () if types else [node for node in self.walk(ast.If) if "TYPE_CHECKING" in ast.dump(node.test)]
        skipped = {id(inner) for node in for_types for inner in ast.walk(node)}
        for node in self.walk(ast.Import, ast.ImportFrom):
            if id(node) in skipped:
                continue
            prefix = "." * node.level + (node.module or "") + "." if isinstance(node, ast.ImportFrom) else ""
            yield from ((node.lineno, prefix + alias.name) for alias in node.names)


def _called(node: ast.AST) -> str:
    """Dotted name of what a call or decorator names: "numba.njit"."""
    node = node.func if isinstance(node, ast.Call) else node
    if isinstance(node, ast.Attribute):
        return f"{_called(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def imports_go_down(source: Source) -> Iterator[Finding]:
    """cli -> bench, runtime -> models, ndimage -> generation, backends -> ops -> simd, hardware.

    formats and errors are leaves.
    """
    if not source.inside:
        return
    part = source.inside[0].removesuffix(".py")
    for line, name in source.imports():
        if name.startswith("."):
            yield line, f"relative import {name}: write it in full"
        first, _, rest = name.partition(".")
        target = rest.split(".")[0] or "__init__"
        if first == "tilewright" and target != part and target not in BELOW.get(part, set()):
            yield line, f"{part} imports {target}; it may import {', '.join(sorted(BELOW.get(part, ()))) or 'nothing'}"


def references_need_only_numpy(source: Source) -> Iterator[Finding]:
    """A reference is obvious: NumPy, scalar functions of `math`, and nothing of ours."""
    if source.inside[:1] == ("ops",) and source.path.name == "reference.py":
        for line, name in source.imports():
            if name.split(".")[0] not in ("math", "numpy"):
                yield line, f"a reference imports {name}; NumPy only"


def one_file_knows_mpi(source: Source) -> Iterator[Finding]:
    """MPI is an engine's business."""
    if source.inside and source.inside != ("runtime", "engines", "mpi.py"):
        for line, name in source.imports():
            if name.split(".")[0] == "mpi4py":
                yield line, "mpi4py belongs in runtime/engines/mpi.py"


def files_are_short(source: Source) -> Iterator[Finding]:
    """A file is read in one sitting."""
    lines = source.text.count("\n")
    if lines > FILE_LINES:
        yield FILE_LINES, f"{lines} lines; {FILE_LINES} are allowed: make it a folder"


def functions_are_short(source: Source) -> Iterator[Finding]:
    """A function is seen on one screen."""
    for function in source.functions():
        lines = function.end_lineno - function.lineno + 1
        if lines > FUNCTION_LINES:
            yield function.lineno, f"{function.name} has {lines} lines; {FUNCTION_LINES} are allowed"


def arguments_are_few(source: Source) -> Iterator[Finding]:
    """At most eight by position, kernels included. The object itself does not count, nor what can only be named, like
    PyTorch's options. In `ops` and `simd` a parameter that the body unpacks counts as what it is unpacked into, and a
    record whose fields are read by name counts as one. So do the (tasks, scratch) that `launch` adds, and the (context,
    builder, signature) that Numba gives to a code generator."""
    for function in source.functions():
        given = function.args
        names = [a.arg for a in (*given.posonlyargs, *given.args, given.vararg, given.kwarg) if a]
        names = names[names[:1] in (["self"], ["cls"]) :]
        sizes = dict.fromkeys(names, 1)
        if source.inside[:1] in (("ops",), ("simd",)):
            for name, count in _unpacked(function):
                if name in sizes:
                    sizes[name] = max(sizes[name], count)
        count = sum(sizes.values()) - (names[-2:] == ["tasks", "scratch"])
        count -= 2 * (names[:3] == ["context", "builder", "signature"])
        if count > ARGUMENTS:
            yield function.lineno, f"{function.name} takes {count} arguments; {ARGUMENTS} are allowed"


def _unpacked(function: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    """(name, into how many names) of every assignment in the function, nested ones excluded, that unpacks a name."""

    def leaves(target: ast.AST) -> int:
        return sum(map(leaves, target.elts)) if isinstance(target, ast.Tuple) else 1

    def pairs(target: ast.AST, value: ast.AST) -> Iterator[tuple[str, int]]:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for left, right in zip(target.elts, value.elts, strict=True):
                yield from pairs(left, right)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Name):
            yield value.id, leaves(target)

    for node in _own_nodes(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from pairs(target, node.value)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below this one, but not those of functions that it defines."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _own_nodes(child)


def compiled_code_says_its_options(source: Source) -> Iterator[Finding]:
    """Numba's defaults are nobody's decision: fastmath and boundscheck are written out, as `simd.kernel` does."""
    if not source.inside:
        return
    for node in source.walk(ast.Call, ast.FunctionDef):
        uses = [node] if isinstance(node, ast.Call) else [d for d in node.decorator_list if not isinstance(d, ast.Call)]
        for use in uses:
            if _called(use) not in COMPILERS:
                continue
            said = {k.arg for k in use.keywords} if isinstance(use, ast.Call) else set()
            missing = sorted({"fastmath", "boundscheck"} - said)
            if missing:
                yield use.lineno, f"{_called(use)} without {' and '.join(missing)}"


def comparisons_are_used(source: Source) -> Iterator[Finding]:
    """A comparison whose verdict is thrown away checks nothing."""
    for node in source.walk(ast.Expr):
        if isinstance(node.value, ast.Call):
            name = _called(node.value).split(".")[-1]
            if name in ("allclose", "array_equal", "array_equiv", "isclose"):
                yield node.lineno, f"the verdict of {name} is thrown away"


def only_the_command_line_prints(source: Source) -> Iterator[Finding]:
    """A library is silent."""
    if source.inside and source.inside[0] not in ("cli", "demo.py"):
        for call in source.walk(ast.Call):
            if _called(call) == "print":
                yield call.lineno, "print in a library"


def errors_are_named(source: Source) -> Iterator[Finding]:
    """`except Exception` hides the defects that nobody thought of."""
    for handler in source.walk(ast.ExceptHandler):
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        for kind in kinds:
            if kind is None or _called(kind) in ("Exception", "builtins.Exception"):
                yield handler.lineno, "except without the errors that are meant"


def imports_do_nothing(source: Source) -> Iterator[Finding]:
    """Nothing reads the environment while a module is imported."""
    for node in _own_nodes(source.tree) if source.inside else ():
        if isinstance(node, ast.Attribute | ast.Name) and _called(node) in ENVIRONMENT:
            yield node.lineno, "the environment is read at import"


def public_functions_are_documented(source: Source) -> Iterator[Finding]:
    """In a public module every public function says what it takes and gives; a rung's `idea` is its documentation."""
    if not source.inside or any(part.startswith("_") and part != "__init__.py" for part in source.inside):
        return
    for function in source.tree.body:
        if not isinstance(function, ast.FunctionDef) or function.name.startswith("_") or ast.get_docstring(function):
            continue
        if "overload" in map(_called, function.decorator_list):  # the function itself follows
            continue
        yield function.lineno, f"{function.name} is public and has no docstring"


def ideas_stand_alone(source: Source) -> Iterator[Finding]:
    """A table shows some rungs of a ladder: an idea that refers to the one above may stand below another there."""
    if source.inside[:1] == ("ops",) and source.path.name == "ladder.py":
        for node in source.walk(ast.Constant):
            if isinstance(node.value, str) and node.value.startswith("the same"):
                yield node.lineno, f"an idea refers to another: {node.value!r}"


def tile_kernels_unpack_flat(source: Source) -> Iterator[Finding]:
    """Triton 3.6, the oldest that is allowed, takes no tuple within a tuple that is assigned to."""
    for function in source.walk(ast.FunctionDef):
        if any(_called(d).endswith("triton.jit") or _called(d) == "gluon.jit" for d in function.decorator_list):
            targets = (t for node in ast.walk(function) if isinstance(node, ast.Assign) for t in node.targets)
            for target in targets:
                if isinstance(target, ast.Tuple) and any(isinstance(part, ast.Tuple) for part in target.elts):
                    yield target.lineno, f"{function.name} unpacks a tuple within a tuple: Triton 3.6 cannot"


def parameters_have_names(source: Source) -> Iterator[Finding]:
    """A parameter travels in a record: no `piece[2]` of a parameter, and no index that is bound by
    `SLOT, FIRST = range(2)`. An array's element of a known index is unpacked, or read through a local name."""
    if source.inside[:1] not in (("ops",), ("simd",), ("generation",)):
        return
    numbers = {
        name.id
        for node in source.walk(ast.Assign)
        if isinstance(node.value, ast.Call) and _called(node.value) == "range"
        for target in node.targets
        if isinstance(target, ast.Tuple)
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and name.id.isupper()
    }
    for function in source.functions():
        given = {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
        for node in _own_nodes(function):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in given:
                index = node.slice
                if isinstance(index, ast.Constant) and isinstance(index.value, int):
                    yield node.lineno, f"{ast.unparse(node)} reads a parameter by number: give it a name in a record"
    for node in source.walk(ast.Subscript):
        used = {name.id for name in ast.walk(node.slice) if isinstance(name, ast.Name)} & numbers
        if used:
            yield node.lineno, f"{sorted(used)[0]} is an index bound by range: make it a field of a record of columns"


def rungs_name_functions(source: Source) -> Iterator[Finding]:
    """The paths `kernel`, `prepare` and `memory` of a rung exist. The files are read, not imported: a path is checked
    on machines without its engine, too."""
    if source.inside[:1] != ("ops",) or source.path.name != "ladder.py":
        return
    for call in source.walk(ast.Call):
        for field in call.keywords if _called(call) == "Rung" else ():
            if field.arg in ("kernel", "prepare", "memory"):
                path = field.value.value if isinstance(field.value, ast.Constant) else ast.unparse(field.value)
                module, _, name = str(path).partition(":")
                file = OPS / f"{module.replace('.', '/')}.py"
                if not file.is_file():
                    yield field.value.lineno, f"{field.arg}={path!r}: ops has no file {file.relative_to(OPS)}"
                elif name not in _defined(file):
                    yield field.value.lineno, f"{field.arg}={path!r}: {file.relative_to(OPS)} defines no {name}"


@cache
def _defined(file: Path) -> set[str]:
    """Names that the module binds by def, assignment or import, at its top level or under an `if` there."""
    names, statements = set(), ast.parse(file.read_text(), str(file)).body
    branches = [node for node in statements if isinstance(node, ast.If)]
    for node in (*statements, *(inner for branch in branches for inner in (*branch.body, *branch.orelse))):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return names


UNITS = "thread|warp|block|program|row|column|task|worker|file|line|rank|record|shard|sequence|token|call|core|sample"
DIALECT = (  # what a stranger reads twice, and what to write
    (r"(?<!\bin )(?<!\blast )\bplaces?\b", "device, slot, offset, index: the one you mean"),
    (r"\brooms?\b", "buffer, workspace, capacity"),
    (r"\blook(s|ed|ing)? at\b", "attend to, read, check"),
    (r"\bon (its|their|the) way\b", "in flight"),
    (r"\b(in|by) turns\b", "alternating, interleaved"),
    (r"\bask(s|ed|ing)? (for )?(\w+ )?ahead\b", "prefetch"),
    (rf"\b(a|an) ({UNITS}) an? (?!time\b)", "one ... per ..."),
    (r"\b(those that|of which|as far as)\b", "two sentences"),
    (r"\bcomes? in\b", "is loaded"),
)


def results_are_returned(source: Source) -> Iterator[Finding]:
    """In runtime and cli no nested function hands out a result by `nonlocal` or through a list of its parent."""
    if source.inside[:1] not in (("runtime",), ("cli",)):
        return
    for node in source.walk(ast.Nonlocal):
        yield node.lineno, "nonlocal: return the value, or hold it in an object"
    for outer in source.functions():
        lists = {name for node in ast.walk(outer) for name in _bound_to_list(node)}
        read = {node.value.id for node in ast.walk(outer) if _is_element(node, ast.Load)}
        nested = [one for one in ast.walk(outer) if isinstance(one, ast.FunctionDef | ast.Lambda) and one is not outer]
        for node in (node for one in nested for node in ast.walk(one)):
            if _is_element(node, ast.Store) and node.value.id in lists:
                yield node.lineno, f"{node.value.id}[...] hands out a result: return it"
            elif isinstance(node, ast.Call) and _called(node) in {f"{name}.append" for name in lists & read}:
                yield node.lineno, f"{_called(node)} hands out a result: return it"


def _bound_to_list(node: ast.AST) -> Iterator[str]:
    """The names that an assignment binds to a list of its own."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and isinstance(node.value, ast.List):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _is_element(node: ast.AST, context: type) -> bool:
    """Whether it is `name[0]`, or another constant index, in this context."""
    indexed = isinstance(node, ast.Subscript) and isinstance(node.ctx, context) and isinstance(node.value, ast.Name)
    return indexed and isinstance(node.slice, ast.Constant)


def words_are_standard(source: Source) -> Iterator[Finding]:
    """Comments, docstrings and names of `ops`, `simd`, `generation` and `formats` use the field's words."""
    if source.inside[:1] not in (("ops",), ("simd",), ("generation",), ("formats",)):
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.NAME:
            for word in {"place", "places", "room", "rooms", "look"} & set(token.string.lower().split("_")):
                yield token.start[0], f"the name {token.string} says {word!r}: use the field's word"
        elif token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            for pattern, better in DIALECT:
                for found in re.finditer(pattern, token.string, re.IGNORECASE):
                    line = token.start[0] + token.string.count("\n", 0, found.start())
                    yield line, f"{found.group()!r}: write {better}"


def work_is_done(source: Source) -> Iterator[Finding]:
    """What is left to do is an issue, not a comment."""
    if source.path.name in ("lints.py", "test_layout.py"):
        return
    for number, line in enumerate(source.text.splitlines(), start=1):
        if any(word in line for word in ("TODO", "FIXME", "XXX")):
            yield number, "unfinished work in a comment"


LINTS = [
    function
    for name, function in vars(sys.modules[__name__]).items()
    if callable(function)
    and getattr(function, "__module__", "") == __name__
    and not name.startswith("_")
    and name.islower()
]
