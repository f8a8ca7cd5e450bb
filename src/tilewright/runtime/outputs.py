"""Where an output must not go: over what the job reads."""

from __future__ import annotations

import os
from typing import Any

from tilewright.errors import UsageError
from tilewright.formats.files import same_file
from tilewright.formats.models import CONFIG, GENERATION, table_path
from tilewright.formats.sharded import INDEX, WEIGHTS
from tilewright.runtime.load import TOKENIZER


def check_output(job: Any) -> None:
    """Raises UsageError if the job's output is its input, its answers, or a file of its model, there or not yet."""
    read = {name: getattr(job, name) for name in ("input", "answers", "model")}
    read |= {f"model's {os.path.basename(path)}": path for path in _model_files(job.model)}
    for name, path in read.items():
        if path and (same_file(path, job.output) or os.path.realpath(path) == os.path.realpath(job.output)):
            raise UsageError(f"the output would overwrite the {name}", path=job.output, hint="choose another output")


def _model_files(path: str) -> list[str]:
    """Every file that is, or would be taken for, a part of the model at `path`."""
    if not os.path.isdir(path):
        return [table_path(path)]
    weights = [name for name in sorted(os.listdir(path)) if name.endswith(".safetensors")]
    names = dict.fromkeys((CONFIG, GENERATION, TOKENIZER, WEIGHTS, INDEX, *weights))
    return [*(os.path.join(path, name) for name in names), table_path(path)]
