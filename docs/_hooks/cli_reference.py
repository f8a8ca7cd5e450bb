"""The command line as Markdown: one page per verb, from the objects that typer parses the command line with."""

import html
import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from tilewright.cli import VERBS, app
from tilewright.cli._verb import plain_range

FOLDER = "reference/cli/"
KIND = re.compile(r"<(int|float|list\[str\]|str)(?: range)?>")  # how typer writes the type of a value without a name
KINDS = {"int": "INTEGER", "float": "NUMBER", "str": "TEXT", "list[str]": ""}


def verb_pages() -> dict[str, str]:
    """Page, relative to the documentation's folder -> the verb that it describes."""
    return {f"{FOLDER}{verb}.md": verb for verb in VERBS}


def verb_page(verb: str) -> str:
    """The page of a verb, its subcommands included. Raises ValueError for an option without a help text."""
    group = typer.main.get_command(app)
    top = group.context_class(group, info_name="tilewright")
    command = group.get_command(top, verb)
    context = command.context_class(command, info_name=verb, parent=top)
    return "\n".join([f"# {verb}", "", *_described(command, context, level=2)])


def _described(command: Any, context: Any, level: int) -> Iterator[str]:
    yield from ["```text", usage(command, context), "```", ""]
    if text := paragraphs(command.help or ""):
        yield from [text, ""]
    for panel, rows in _options(command, context).items():
        yield from [
            f"{'#' * level} {panel}",
            "",
            f"| {'argument' if panel == 'Arguments' else 'option'} | meaning |",
            "|---|---|",
            *rows,
            "",
        ]
    for name in getattr(command, "commands", None) or ():
        inner = command.get_command(context, name)
        if inner.hidden:
            continue
        yield from [f"{'#' * level} {context.info_name} {name}", ""]
        yield from _described(inner, inner.context_class(inner, info_name=name, parent=context), level + 1)


def usage(command: Any, context: Any) -> str:
    """The line that `--help` starts with."""
    return f"Usage: {context.command_path} {' '.join(command.collect_usage_pieces(context))}"


def _options(command: Any, context: Any) -> dict[str, list[str]]:
    """Heading -> the rows of its table. Raises ValueError for an option without a help text."""
    tables: dict[str, list[str]] = {}
    for param in command.params:
        if getattr(param, "hidden", False) or (record := param.get_help_record(context)) is None:
            continue
        name, text = record
        if not getattr(param, "help", ""):
            raise ValueError(f"{context.command_path}: {name} has no help text")
        kind = "Arguments" if param.param_type_name == "argument" else "Options"
        panel = getattr(param, "rich_help_panel", None) or kind
        spelled = html.escape(KIND.sub(lambda match: KINDS[match[1]], name).rstrip()).replace("|", "&#124;")
        meaning = escaped(plain_range(text)).replace("|", "&#124;")
        tables.setdefault(panel, []).append(f"| <code>{spelled}</code> | {meaning} |")
    return tables


def paragraphs(text: str) -> str:
    r"""A docstring or a help text as Markdown. Paragraphs that are indented, or formulas, or follow a \b, are code."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text).replace("\f", ""))
    return "\n\n".join(_code(block) if _is_code(block) else escaped(block) for block in blocks if block.strip("\n\b "))


def _is_code(block: str) -> bool:
    lines = block.strip("\n").splitlines()
    if block.startswith(("\b", "tilewright ", "import ", "from ", "    ")):
        return True
    return all(re.match(r"\S+(\[.*?\])? = .*[^.;:]$", line) for line in lines)


def _code(block: str) -> str:
    text = inspect.cleandoc("\n" + block.strip("\b\n"))
    return f"```text\n{text}\n```"


def escaped(text: str) -> str:
    """Text in which Markdown's marks mean nothing, but for what stands between backticks."""
    parts = text.split("`")
    plain = [re.sub(r"([*_\[\]#])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    parts[::2] = plain
    return "`".join(parts)
