"""Packages of the extras: they are imported when they are needed. Also the command that installs an extra."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from tilewright.errors import ResourceError

CLONE = Path(__file__).resolve().parents[3]  # if it is a clone; for an installed package it is a directory of pip


def package(name: str, what: str) -> Any:
    """The top package of module `name`, imported with it. Raises ResourceError, which says how to install it."""
    top = name.partition(".")[0]
    try:
        importlib.import_module(name)
        return importlib.import_module(top)
    except ImportError as error:
        remedy = f"install it: {install_command('volume')}"
        raise ResourceError(f"{what} needs the package {top}, which is not installed", remedy=remedy) from error


def install_command(extra: str) -> str:
    """The shell command that installs an extra with the pip of the running Python, from this clone of the repository,
    or otherwise from a package index."""
    if not (CLONE / "pyproject.toml").is_file():
        return f"pip install 'tilewright[{extra}]'"
    pip = Path(sys.prefix) / "bin" / "pip"
    if pip.is_relative_to(CLONE):
        pip = pip.relative_to(CLONE)
    elif sys.prefix == sys.base_prefix:
        pip = Path("pip")
    enter = "" if Path.cwd() == CLONE else f"cd {shlex.quote(os.fspath(CLONE))} && "
    return f"{enter}{shlex.quote(os.fspath(pip))} install -e '.[{extra}]'"
