"""Fields of a record that would change how a model reads its text or token ids. No verb supports them, so a value that
has an effect is an error of the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tilewright.formats.records import BadLine
from tilewright.formats.sampling_fields import refusal, shown

BESIDE = ("attention_mask", "inputs_embeds", "position_ids", "token_type_ids")  # see MODEL_INPUTS


def check_beside(fields: Mapping[str, Any]) -> None:
    """Raises BadLine for a field of BESIDE that would change the answer. fields: of a record, as JSON (msgspec.Raw) or
    values."""
    for name in BESIDE:
        if name in fields and (rule := refusal(name, value := value_of(fields[name]), body=False)):
            raise BadLine(f"is {shown(value)}; {rule}", name)


def value_of(field: Any) -> Any:
    """The value of a field of a JSON line (msgspec.Raw) or of a row. The text of a value that msgspec cannot read."""
    if not isinstance(field, msgspec.Raw):
        return field
    try:
        return msgspec.json.decode(field)
    except (msgspec.MsgspecError, RecursionError):
        return bytes(field).decode(errors="replace")
