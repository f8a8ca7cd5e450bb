"""Finds the GPUs of a node for its MPI ranks, and lists which device each rank uses."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tilewright.errors import UsageError


def gpu_names(node: Any) -> tuple[str, ...]:
    """The GPUs that this rank may choose from, by CUDA's names. node: the communicator of this node's ranks.

    Raises UsageError if there are several GPUs and this process has already used the driver: then it can no longer
    hide the other GPUs.
    """
    from tilewright.hardware import gpus

    asked = bool(gpus.cache_info().currsize)
    given = node.allgather(os.environ.get("CUDA_VISIBLE_DEVICES") or None)
    count = node.bcast(_count_gpus() if node.rank == 0 and None in given else 0)
    own = given[node.rank]
    names = tuple(own.split(",")) if own else tuple(map(str, range(count)))
    if asked and len(names) > 1:
        remedy = "set CUDA_VISIBLE_DEVICES for each rank, or run the job before anything else uses a GPU"
        raise UsageError(f"this process used CUDA before its rank could choose one of {len(names)} GPUs", remedy=remedy)
    return names


def _count_gpus() -> int:
    """The number of GPUs, counted in a separate process; 0 without a driver."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from tilewright.hardware import gpus; print(len(gpus()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def device_lines(ranks: list[tuple[str, str]]) -> list[str]:
    """One line per node with its ranks and their devices. ranks: (host, device) of each rank."""
    hosts: dict[str, list[str]] = {}
    for rank, (host, device) in enumerate(ranks):
        hosts.setdefault(host, []).append(f"{rank} on {device}")
    return [f"Ranks of {host}: {', '.join(each)}" for host, each in hosts.items()]
