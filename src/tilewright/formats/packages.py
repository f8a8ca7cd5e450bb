"""Packages of the extra `volume`, imported when the first file that needs them is opened."""

from __future__ import annotations

import importlib
from typing import Any

from tilewright.errors import ResourceError


def package(name: str, what: str) -> Any:
    """The top package of module `name`, imported with it. Raises ResourceError, which says how to install it."""
    top = name.partition(".")[0]
    try:
        importlib.import_module(name)
        return importlib.import_module(top)
    except ImportError as error:
        remedy = "install it: pip install 'tilewright[volume]'"
        raise ResourceError(f"{what} needs the package {top}, which is not installed", remedy=remedy) from error
