"""`tilewright doctor`: this machine, and what is missing on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli._options import Json
from tilewright.cli._output import show

INSTRUCTIONS = ("avx2", "fma", "avx512f", "avx512bf16", "amx-bf16")  # they decide which rungs run
LIBRARIES = (
    *("numpy", "numba", "llvmlite", "safetensors", "msgspec", "typer", "rich", "psutil", "ml_dtypes"),
    *("tokenizers", "pillow"),
)
EXTRAS = {  # of the package: its libraries, and their use
    "gpu": (("torch", "triton", "numba-cuda"), "NVIDIA GPUs"),
    "volume": (("nibabel", "tifffile", "zarr"), "NIfTI, TIFF and Zarr volumes"),
    "parquet": (("pyarrow",), "Parquet files"),
    "mpi": (("mpi4py",), "workers on many nodes"),
    "ray": (("ray",), "workers on a Ray cluster"),
    "bench": (("torch",), "PyTorch beside our kernels"),
    "peers": (
        ("torch", "transformers", "scipy", "openvino", "ctranslate2", "halide", "opencv-python-headless"),
        "all libraries that `bench` compares",
    ),
    "cloud": (("obstore",), "object stores"),
    "zstd": (("backports.zstd",), "inputs compressed by Zstandard"),
    "eval": (("lm-eval", "tqdm"), "lm-evaluation-harness"),
}


def doctor(
    roofs: Annotated[
        bool,
        typer.Option("--roofs", help="Also measure arithmetic and copies, for some seconds on idle cores."),
    ] = False,
    json: Json = False,
) -> None:
    """Show this machine: cores, caches, memory, instruction sets, GPUs, engines, libraries and compiled kernels.

    \b
    tilewright doctor
    """
    from json import dumps

    found = examine()
    if roofs:
        found["roofs"] = measured(found["cpu"]["cores"])
        found["gpu_roofs"] = measured_gpu()
    show(dumps(found) if json else readable(found))


def examine() -> dict[str, Any]:
    """All facts, ready for JSON; sizes in bytes."""
    import platform
    from dataclasses import asdict

    from tilewright import hardware

    cpu = hardware.cpu()
    return {
        "machine": hardware.machine_name(),
        "cpu": {
            "name": cpu.name,
            "cores": cpu.cores,
            "caches": {"L1d": cpu.l1d, "L2": cpu.l2, "L3": cpu.l3},
            "lanes": cpu.lanes,
            "instructions": {name: cpu.has(name) for name in INSTRUCTIONS},
        },
        "memory": {"total": cpu.memory, "available": hardware.available_memory()},
        "gpus": [asdict(gpu) for gpu in hardware.gpus()],
        "no_gpu": hardware.no_gpu(),
        "no_cuda": no_cuda(),
        "engines": hardware.engines(),
        "versions": {"python": platform.python_version(), "system": platform.platform(), **versions()},
        "compiled": compiled(),
    }


def no_cuda() -> str | None:
    """Why `--device cuda` would be refused; None: it works."""
    from tilewright.errors import ResourceError
    from tilewright.runtime.devices import place_for

    try:
        place_for("cuda")
    except ResourceError as error:
        return error.message
    return None


def versions() -> dict[str, str | None]:
    """Library -> its version, None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in dict.fromkeys(("tilewright", *LIBRARIES, *(name for names, _ in EXTRAS.values() for name in names))):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def compiled() -> dict[str, Any]:
    """The directory of compiled kernels and its state; nothing is made or compiled."""
    from tilewright.errors import ResourceError
    from tilewright.simd import cache

    if os.environ.get("TILEWRIGHT_CACHE") == "off":
        return {"directory": None, "state": "off: every run compiles (TILEWRIGHT_CACHE=off)", "kernels": 0, "bytes": 0}
    folder = cache.directory()
    state, files = "empty: the first run compiles", []
    try:
        cache.check(folder, make=False)
        files = [path.stat().st_size for path in folder.glob("*.kernel") if path.is_file()]
        state = "in use" if files else state
        if not os.access(folder, os.W_OK):
            state += ", but it cannot be written: new kernels are not kept"
    except ResourceError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            state = f"refused: {error}"
        elif not _can_be_made(folder):
            state = "cannot be made: every run compiles; set TILEWRIGHT_CACHE to a directory of your own"
    return {"directory": str(folder), "state": state, "kernels": len(files), "bytes": sum(files)}


def _can_be_made(folder: Path) -> bool:
    """Whether the nearest directory above that is there may be written."""
    there = next(parent for parent in folder.absolute().parents if os.path.lexists(parent))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def measured(cores: int) -> list[dict[str, Any]]:
    """The roofs on one thread and on all cores."""
    from tilewright.bench.roofs import measured_roofs

    found = [measured_roofs(count) for count in sorted({1, cores})]
    return [
        {"threads": roof.threads, "copy_gbytes_s": roof.copy_gbytes_s}
        | {f"{name}_gflops": rate for name, rate in roof.instructions.items()}
        for roof in found
    ]


def measured_gpu() -> dict[str, Any] | None:
    """The first GPU's roofs; None where there is none, or no PyTorch to use it."""
    from tilewright.errors import ResourceError

    try:
        from tilewright.bench.roofs import measured_roofs

        roof = measured_roofs(0)
    except ResourceError:
        return None
    return {"copy_gbytes_s": roof.copy_gbytes_s, "gflops": roof.gflops, "link_gbytes_s": roof.link_gbytes_s}


def readable(found: dict[str, Any]) -> str:
    """The facts as lines of text."""
    cpu, memory, compiled = found["cpu"], found["memory"], found["compiled"]
    caches = ", ".join(f"{name} {size_of(size)}" for name, size in cpu["caches"].items())
    instructions = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in cpu["instructions"].items())
    versions = found["versions"]
    optional = {name for names, _ in EXTRAS.values() for name in names}
    missing = [name for name, version in versions.items() if version is None and name not in optional]
    present = [f"{name} {version}" for name, version in versions.items() if version and name not in optional]
    lines = [
        ("machine", found["machine"]),
        ("CPU", f"{cpu['name']}, {cpu['cores']} usable core{'s' if cpu['cores'] != 1 else ''}"),
        ("caches", caches),
        ("memory", f"{size_of(memory['total'])}, {size_of(memory['available'])} available"),
        ("vectors", f"{cpu['lanes']} float32 lanes"),
        ("instructions", instructions),
    ]
    lines += [("GPU", of_gpu(gpu)) for gpu in found["gpus"]] or [("GPU", f"none - {found['no_gpu']}")]
    for engine, why in found["engines"].items():
        lines.append((f"engine {engine}", "available" if why is None else f"unavailable - {why}"))
    lines.append(("--device cuda", "works" if found["no_cuda"] is None else f"does not work: {found['no_cuda']}"))
    lines.append(("versions", ", ".join(present)))
    if missing:
        lines.append(("not installed", ", ".join(missing)))
    lines += [(f"extra {name}", of_extra(name, versions)) for name in EXTRAS]
    kernels = f", {compiled['kernels']} kernels, {size_of(compiled['bytes'])}" if compiled["kernels"] else ""
    where = f" ({compiled['directory']})" if compiled["directory"] else ""
    lines.append(("compiled code", f"{compiled['state']}{kernels}{where}"))
    for roof in found.get("roofs", []):
        rates = {"float32": roof["float32_gflops"], "bfloat16": roof["bfloat16_gflops"], "AMX": roof["amx_gflops"]}
        known = [f"{name} {rate:,.0f} GFLOP/s" for name, rate in rates.items() if rate]
        count = "1 thread" if roof["threads"] == 1 else f"{roof['threads']} threads"
        lines.append((f"roofs, {count}", ", ".join([f"copy {roof['copy_gbytes_s']:.1f} GB/s", *known])))
    if roof := found.get("gpu_roofs"):
        speeds = ", ".join(f"{name} {rate / 1e3:,.1f} TFLOP/s" for name, rate in roof["gflops"].items())
        links = ", ".join(f"{name} {rate:,.1f} GB/s" for name, rate in roof["link_gbytes_s"].items())
        lines.append(("roofs, GPU", f"copy {roof['copy_gbytes_s']:,.0f} GB/s, {speeds}; {links}"))
    return "\n".join(f"{name:<18}{text}" for name, text in lines)


def of_extra(extra: str, versions: dict[str, str | None]) -> str:
    """One line: the libraries of an extra with their versions, and the command that installs it if one is missing."""
    from tilewright.formats.packages import install_command

    names, use = EXTRAS[extra]
    told = ", ".join(f"{name} {versions.get(name) or 'missing'}" for name in names)
    if all(versions.get(name) for name in names):
        return f"installed - {told} ({use})"
    return f"missing - {told} ({use}); {install_command(extra)}"


def of_gpu(gpu: dict[str, Any]) -> str:
    """One line: name, size, what it can do."""
    major, minor = gpu["capability"]
    size = f"{gpu['multiprocessors']} multiprocessors, {size_of(gpu['memory'])}, {size_of(gpu['l2'])} of L2"
    return f"{gpu['name']}, {size}, compute capability {major}.{minor}, driver for CUDA {gpu['driver']}"


def size_of(count: int | None) -> str:
    """Bytes in the largest unit that keeps a whole digit: 1 MiB, 23.5 GiB."""
    if count is None:
        return "unknown"
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.1f} {unit}".replace(".0 ", " ")
    return f"{count} bytes"
