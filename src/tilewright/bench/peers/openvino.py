"""OpenVINO, a library that compiles whole networks for CPUs: the setup that every comparison with it uses."""

from __future__ import annotations

from typing import Any

from tilewright.ops.core.launch import thread_count

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}  # accuracy classes that it computes on a CPU


def compiled(model: Any, dtype: str) -> Any:
    """The compiled form of an `openvino.Model` for this CPU, with `thread_count()` threads and one request at a time.

    dtype: a key of PRECISIONS, the precision of products; inputs and outputs stay as the model has them.
    """
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": thread_count(),
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # pinned threads of a second model would run on the same cores
    }
    return openvino.Core().compile_model(model, "CPU", settings)
