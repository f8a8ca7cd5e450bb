"""The table of sampling fields as Markdown, from `tilewright.formats.sampling_fields`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from cli_reference import escaped

from tilewright.formats import sampling_fields as table
from tilewright.generation.sampling import _RULES, SamplingParams

HEAD = """# Sampling fields

A record may give its own sampling fields: a line of a `.jsonl` file, a row of a Parquet file, the body of an OpenAI
batch line. `SamplingParams.of` takes the same names in Python. The names are those of vLLM, OpenAI and transformers.

tilewright sorts every field into one of three groups:

* **supported**: the field changes the answer, as in the library that it comes from;
* **harmless**: the field changes how an answer is computed or delivered, and not the answer, so any value is taken;
* **refused**: the field would change the answer, and tilewright does not compute it. The record becomes an error that
  names the field. A value that changes nothing is taken, and so is `null`.

All other names are data, and tilewright ignores them. A name that is almost the name of a field, such as
`tempreature`, makes the record an error.

This page is generated from `tilewright.formats.sampling_fields`.
"""


def sampling_page() -> str:
    """The whole page."""
    aliases = [f"| `{name}` | `{meant}` |" for name, meant in table.ALIASES.items()]
    return "\n".join([
        HEAD, "## Supported", "", "| field | default | allowed |", "|---|---|---|", *_supported(), "",
        "`do_sample` (transformers) is supported, too: `false` means `temperature` 0.", "",
        "### Other names for the same", "", "| name | means |", "|---|---|", *aliases, "",
        "## Refused", "", "| field | values that change nothing | instead |", "|---|---|---|",
        *_refused(table.REFUSED), "",
        "### In the body of an OpenAI batch line", "",
        "Outside such a body these names are data.", "",
        "| field | values that change nothing | instead |", "|---|---|---|", *_refused(table.REFUSED_IN_BODY), "",
        "## Harmless", "", _names(table.HARMLESS), "",
        "### In the body of an OpenAI batch line", "", _names(table.HARMLESS_IN_BODY), "",
    ])  # fmt: skip


def _supported() -> Iterator[str]:
    defaults = {field.name: field.default for field in fields(SamplingParams)}
    for name in table.PARAMETERS:
        allowed = _RULES[name].words if name in _RULES else "see [SamplingParams](python.md#sampling-parameters)"
        default = defaults[name]
        shown = "none" if default in (None, ()) else _as_json(default)
        yield f"| `{name}` | {shown} | {allowed} |"


def _refused(group: Mapping[str, tuple[Any, ...]]) -> Iterator[str]:
    for name, neutral in sorted(group.items()):
        values = ", ".join(f"`{_as_json(value)}`" for value in (*neutral, None))
        yield f"| `{name}` | {values} | {escaped(table.INSTEAD.get(name, ''))} |"


def _names(group: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(group))


def _as_json(value: Any) -> str:
    return json.dumps(value)
