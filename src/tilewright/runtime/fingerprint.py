"""What results depend on beside the input's content and a verb's own settings; and what a worker takes along."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tilewright.formats.files import spelled
from tilewright.formats.models import table_path
from tilewright.ops.core.ladder import forced, forcing
from tilewright.ops.core.launch import asked_threads, threads
from tilewright.runtime.jobs.manifest import Value, file_identity
from tilewright.runtime.outputs import model_files

EXACT = ("amx-bf16", "avx512bf16")  # features of a CPU by which a kernel rounds in another way


@dataclass(frozen=True)
class Around:
    """The rungs that are forced and the threads that were asked for, where the job was called."""

    rungs: dict[str, str] = field(default_factory=dict)
    threads: int | None = None

    @classmethod
    def here(cls) -> Around:
        return cls(forced(), asked_threads())

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The same in another process."""
        with forcing(**self.rungs), threads(self.threads):
            yield


def device_class(device: str) -> str:
    """What has the same bits: "cpu, 16 lanes, amx-bf16", "cuda 9.0". device: "cpu" or "cuda"."""
    from tilewright.hardware import cpu, gpus

    if device == "cuda":
        return "cuda " + ".".join(map(str, gpus()[0].capability)) if gpus() else "cuda"
    names = [name for name in EXACT if cpu().has(name)]
    if names == ["avx512bf16"] and not cpu().multiplies_pairs:
        names.append("float32 products")
    return ", ".join([f"cpu, {cpu().lanes} lanes", *names])


def own_version() -> str:
    """Of tilewright; "" where it is not installed, but run from its sources."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tilewright")
    except PackageNotFoundError:
        return ""


def fingerprint(verb: str, job: Any, around: Around) -> dict[str, Value]:
    """Of a job with `model`, `input`, `dtype` and `device`: fields of the manifest. Raises InputError for a file that
    is not there."""
    fields: dict[str, Value] = {"verb": verb, "version": own_version(), "dtype": job.dtype}
    fields["device"] = device_class(job.device)
    fields |= {f"rung.{op}": name for op, name in sorted(around.rungs.items())}
    for name, path in files_of(job).items():
        if not name.startswith("model.") or os.path.exists(path):
            fields |= file_identity(name, path)
    return fields


def files_of(job: Any) -> dict[str, str]:
    """The files in the fingerprint of a job with `input` and, but for `convolve`, `model`: name -> path. Of a model's
    directory also those that would be read if they were there."""
    files = {"input": job.input} if job.input else {}
    model = getattr(job, "model", None)
    if model is None or not os.path.isdir(model):
        return files | ({} if model is None else {"model": model})
    kept = table_path(model)  # changes no bits, and is written by the job itself
    parts = [path for path in model_files(model) if path != kept]
    return files | {f"model.{spelled(os.path.basename(path))}": path for path in parts}
