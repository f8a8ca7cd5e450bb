"""A verb's command: what becomes of its words, of `--config FILE`, and of `--help`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import typer
from typer.core import TyperCommand

from tilewright.cli._config import options_in
from tilewright.cli._options import GROUPS, MESSAGES, RUNS
from tilewright.errors import TilewrightError

_LEAST = re.compile(r"x>=([-\d.]+)")
_SPAN = re.compile(r"([-\d.]+)<=x<=([-\d.]+)")
_EVERY = len(str(2**62))  # digits of a bound that says no more than "an integer of 64 bits"

ARGUMENTS, OTHERS = "Arguments", "Options"  # titles in --help beside GROUPS

_from_file: ContextVar[dict[str, str]] = ContextVar("from_file", default={})  # noqa: B039 - never written to


class Verb(TyperCommand):
    """A verb. `--help` shows its options in groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        _check_repeated(ctx, order)
        params = self.get_params(ctx)
        if isinstance(file := given.get("config"), str):
            ctx.default_map = options_in(file, params)
            used = [param for param in params if param.name in ctx.default_map and param.name not in given]
            _from_file.set({flag: file for param in used for flag in param.opts})
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _in_our_words(error) + source_of(*(error.param.opts if error.param else ()))
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub(r"^\{(.*)\}(\.\.\.)?$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        params, groups = self.get_params(ctx), dict[str, list[tuple[str, str]]]()
        is_job = any(getattr(param, "rich_help_panel", None) == RUNS for param in params)
        for param in params:
            if record := param.get_help_record(ctx):
                title: str = getattr(param, "rich_help_panel", None) or OTHERS
                if title == MESSAGES and not is_job:  # the few options of such a verb stay together
                    title = OTHERS
                if param.param_type_name == "argument":
                    title = ARGUMENTS
                groups.setdefault(title, []).append((_plain_names(record[0], title), plain_range(record[1])))
        for title, records in sorted(groups.items(), key=_rank):
            with formatter.section(title):
                formatter.write_dl(records)


def source_of(*flags: str) -> str:
    """ " (from FILE)" if `--config FILE` gave one of these options, else ""."""
    files = _from_file.get()
    return next((f" (from {files[flag]})" for flag in flags if flag in files), "")


def name_source(error: BaseException) -> None:
    """Adds the file to the message of an error about an option that `--config FILE` gave."""
    if isinstance(error, typer.BadParameter):
        flags = [error.param_hint] if isinstance(error.param_hint, str) else list(error.param_hint or ())
        error.message = str(error.message) + source_of(*flags)
    elif isinstance(error, TilewrightError) and error.parameter:
        error.message += source_of(error.parameter)


def _rank(group: tuple[str, Any]) -> int:
    """Where a group stands in `--help`: arguments, a verb's own groups, those of GROUPS, the rest."""
    order = (ARGUMENTS, "", *GROUPS, OTHERS)
    return order.index(group[0] if group[0] in order else "")


def _check_repeated(ctx: Any, order: list[Any]) -> None:
    """Raises BadParameter for an option with one value that is given twice: the last would win without a word.

    order: the parameters in the order of the command line.
    """
    single = [o for o in order if o.param_type_name == "option" and not o.multiple and not o.is_flag]
    for option in single:
        if single.count(option) > 1:
            raise typer.BadParameter("it is given more than once, and takes one value", ctx=ctx, param=option)


def _in_our_words(error: typer.BadParameter) -> str:
    """What typer says of a bad value. Its later versions quote Pydantic, whose words are about Python."""
    words, about = str(error.message).removeprefix("Value error, "), getattr(error.__cause__, "errors", None)
    if about is None or not words.startswith("Input should be "):
        return words
    rule = words.removeprefix("Input should be ").partition(", unable to")[0]
    rule = f"a number {rule}" if rule.startswith(("greater", "less")) else rule
    return f"{about()[0]['input']!r} is given; {rule} is wanted"


def _plain_names(names: str, title: str) -> str:
    """ "--mode <reflect|constant>" -> "--mode reflect|constant"; of an argument its name alone."""
    if title == ARGUMENTS:
        return names.partition(" <")[0]
    return re.sub(r"<([^<>]*)>$", lambda found: found[1].removesuffix(" range"), names)


def plain_range(about: str) -> str:
    """An option's help with the limits of its value in words: "[default: 16; at least 1]"."""
    text, bracket, limits = about.rpartition("  [")
    if not bracket or not limits.endswith("]"):
        return about
    words = "; ".join(_limits(limits.removesuffix("]").split("; ")))
    return f"{text}  [{words}]" if words else text


def _limits(parts: list[str]) -> Iterator[str]:
    for part in parts:
        if found := _LEAST.fullmatch(part):
            yield f"at least {found[1]}"
        elif found := _SPAN.fullmatch(part):
            if len(found[2]) < _EVERY:
                yield f"{found[1]} to {found[2]}"
        else:
            yield re.sub(r"^default: \((.*)\)$", r"default: \1", part)
