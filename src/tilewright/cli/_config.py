"""`--config FILE`: options of a verb in a TOML file, as in `max-tokens = 64`. The command line wins over the file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from json import dumps
from typing import Any

import typer

FLAG = "--config"
TAKEN = (FLAG, "--help")  # for the command line alone


def options_in(path: str, params: Iterable[Any]) -> dict[str, Any]:
    """The file's values by the names of the verb's parameters, as click's `default_map` takes them.

    A key is the option's long name, with hyphens or underscores. A list is for options that may be repeated. Paths are
    relative to the working directory, as on the command line. Raises BadParameter for a file that cannot be read or is
    no TOML, and for a key or value that is no option's.
    """
    try:
        with open(path, "rb") as file:
            given = tomllib.load(file)
    except OSError as error:
        raise _refused(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _refused(f"{path} is no TOML: {error}") from error
    options = {
        _key(flag): param for param in params for flag in param.opts if flag.startswith("--") and flag not in TAKEN
    }
    found: dict[str, Any] = {}
    for key, value in given.items():
        param = options.get(_key(key))
        if param is None:
            near = get_close_matches(_key(key), options, 1, 0.75)
            remedy = f"; did you mean {near[0]}?" if near else "; a key is an option's long name, as in max-errors = 3"
            remedy = "; options are given without tables" if isinstance(value, dict) else remedy
            raise _refused(f"{path}: {key!r} is no option of this verb{remedy}")
        if param.name in found:
            raise _refused(f"{path}: {key!r} is given twice, with a hyphen and with an underscore")
        found[param.name] = _value(f"{path}: {key}", value, param)
    return found


def _key(name: str) -> str:
    return name.removeprefix("--").replace("_", "-")


def _value(name: str, value: Any, param: Any) -> Any:
    """What click converts as it does the words of a command line. Raises BadParameter for another kind of value."""
    if getattr(param, "is_flag", False):
        if not isinstance(value, bool):
            raise _refused(f"{name} is {_as_toml(value)}; true or false is wanted")
        return value
    if param.multiple:
        values = value if isinstance(value, list) else [value]
        return [_word(name, each) for each in values]
    return _word(name, value)


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _refused(f"{name} is {_as_toml(value)}; text or a number is wanted")
    return str(value)


def _as_toml(value: Any) -> str:
    """A value as the file has it; a table as its kind alone."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_toml, value))}]"
    if isinstance(value, dict):
        return "a table"
    return dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)  # dates as in ISO 8601


def _refused(what: str) -> typer.BadParameter:
    return typer.BadParameter(what, param_hint=FLAG)
