"""MkDocs hook: a link to a source file whose title begins with `source:` becomes the code that the title names.

    [matmul/cpu/naive.py, register](../../src/tilewright/ops/matmul/cpu/naive.py "source: register")

GitHub shows this line as a link, and the site shows the text of the function without its docstring. The title names a
function, class or assignment, nested ones with dots: `stepper.along`. It may name a part of it by the first words of
statements that stand side by side: `source: register from total = to for p`. The first such statements are taken. A
name or a statement that is not there stops the build.
"""

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

LINE = re.compile(r'^\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+) "source: (?P<words>[^"]+)"\)$', re.MULTILINE)
Statement = ast.stmt


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace every such line of a page of docs/learn."""
    if not page.file.src_uri.startswith("learn/"):
        return markdown
    return with_sources(markdown, Path(page.file.abs_src_path).parent)


def with_sources(markdown: str, folder: Path) -> str:
    """The page with code instead of the links. folder: what links are relative to."""

    def block(match: re.Match[str]) -> str:
        path = (folder / match["target"]).resolve()
        code = quoted(path.read_text(), match["words"], str(path))
        file = match["target"].rpartition("tilewright/")[2]
        name = match["words"].partition(" from ")[0]
        return f'```python title="{name}"\n{code}\n```\n\n[{file}]({match["target"]}){{ .source }}\n'

    replaced = LINE.sub(block, markdown)
    if left := re.search(r'^.*"source:.*$', replaced, re.MULTILINE):
        raise LookupError(f"this is no link to source that stands alone on its line: {left[0]}")
    return replaced


def quoted(text: str, words: str, path: str = "the file") -> str:
    """The source that `words` name, without docstring and without the indentation that all lines share.

    Raises LookupError naming the words and the file.
    """
    name, _, part = words.partition(" from ")
    node = _named(ast.parse(text), name, path)
    if not part:
        return _lines(text, *_span(node), skipped=_docstring(node))
    first, last = _statements(node, *part.split(" to ", 1), where=f"{name} in {path}")
    return _lines(text, _span(first)[0], _span(last)[1])


def _named(tree: ast.Module, name: str, path: str) -> Statement:
    """The function, class or assignment with a dotted name."""
    scope: ast.Module | Statement = tree
    for word in name.split("."):
        found = [node for node in ast.walk(scope) if word in _names(node) and node is not scope]
        direct = [node for node in getattr(scope, "body", []) if node in found] or found
        if len(direct) != 1:
            raise LookupError(f"{word!r} of {name!r} is {len(direct)} times in {path}; it has to be there once")
        scope = direct[0]
    assert isinstance(scope, Statement)
    return scope


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return []


def _docstring(node: Statement) -> range:
    """The lines of its docstring."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) and len(node.body) > 1:
        first = node.body[0]
        return range(first.lineno, (first.end_lineno or 0) + 1)
    return range(0)


def _span(node: Statement) -> tuple[int, int]:
    """Its first and last line, decorators included."""
    lines = [node.lineno] + [decorator.lineno for decorator in getattr(node, "decorator_list", [])]
    return min(lines), node.end_lineno or node.lineno


def _bodies(node: ast.AST) -> list[list[Statement]]:
    """Every list of statements below a node."""
    fields = [getattr(inner, name, None) for inner in ast.walk(node) for name in ("body", "orelse", "finalbody")]
    return [body for body in fields if isinstance(body, list)]


def _statements(node: Statement, first: str, last: str | None = None, *, where: str) -> tuple[Statement, Statement]:
    """The first statement that begins with `first`, and the next one beside it that begins with `last`."""
    for body in _bodies(node):
        after = body[next((at for at, one in enumerate(body) if _begins(one, first)), len(body)) :]
        ends = [one for one in after if last is None or _begins(one, last)]
        if after and ends:
            return after[0], ends[0]
    raise LookupError(f"no statements begin with {first!r} and then {last!r} in {where}")


def _begins(statement: Statement, words: str) -> bool:
    """Compared without spaces and quotation marks, as Python writes the statement."""
    return _bare(ast.unparse(statement)).startswith(_bare(words))


def _bare(text: str) -> str:
    return re.sub(r"[\s'\"()]", "", text)


def _lines(text: str, first: int, last: int, skipped: range = range(0)) -> str:
    numbered = enumerate(text.splitlines(), 1)
    kept = [line for number, line in numbered if first <= number <= last and number not in skipped]
    return textwrap.dedent("\n".join(kept))
