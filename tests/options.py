"""Command lines for tests. An option may be given once, so a test that wants another value replaces the first one."""

from collections.abc import Sequence


def replaced(command: Sequence[str], *options: str) -> list[str]:
    """`command` with `options` at its end, less its own options of the same names and their values."""
    names, kept, skip = {word for word in options if word.startswith("-") and word != "-"}, [], False
    for word in command:
        if not skip and word not in names:
            kept.append(word)
        skip = not skip and word in names
    return [*kept, *options]
