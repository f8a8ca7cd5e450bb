"""The cases on which every rung of an operation is tested, one file for each operation."""

import importlib


def cases_of(op: str) -> list:
    """The cases of an operation."""
    return importlib.import_module(f"ops.cases.{op}").cases()
