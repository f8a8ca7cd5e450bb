"""What is said about this machine, and about made-up ones."""

import re
import subprocess
import sys

import pytest

from tilewright.hardware import CPU, available_memory, cgroup, cpu, engines, machine_name

module = sys.modules["tilewright.hardware.cpu"]


def made(*features: str) -> CPU:
    return CPU("made up", 2, frozenset(features), None, None, None, 1 << 30)


@pytest.mark.parametrize(
    ("features", "lanes"),
    [
        (("avx512f", "avx512vl", "avx2", "fma"), 16),
        (("avx512f", "avx2", "fma"), 8),
        (("avx2", "fma"), 8),
        (("avx2",), 4),
        ((), 4),
    ],
)
def test_lanes_follow_from_the_instruction_sets(features, lanes):
    assert made(*features).lanes == lanes


def test_this_machine_is_sane():
    found = cpu()
    assert found is cpu()
    assert found.cores >= 1
    assert found.memory >= available_memory() > 0
    assert all(size is None or 1 << 12 <= size <= 1 << 32 for size in (found.l1d, found.l2, found.l3))
    assert found.l1d is None or found.l2 is None or found.l1d <= found.l2


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (1.4, 1), (1.6, 2), (0.2, 1), (64.0, 8)])
def test_cores_are_bound_by_affinity_and_quota(monkeypatch, quota, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cgroup, "cores", lambda: quota)
    assert module._usable_cores() == cores


def test_available_memory_is_bound_by_the_group(monkeypatch):
    monkeypatch.setattr(cgroup, "memory_left", lambda: 4096)
    assert available_memory() == 4096


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("AMD EPYC 9575F 64-Core Processor", "amd-epyc-9575f-2c"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c-2c"),
        ("AMD EPYC", "amd-epyc-zen5-2c"),
        ("Intel(R) Xeon(R) Processor @ 2.10GHz", "intel-xeon-zen5-2c"),
        ("Apple M3 Pro", "apple-m3-pro-2c"),
        ("../../etc", "etc-zen5-2c"),
    ],
)
def test_a_machines_name_is_a_folder_name(monkeypatch, name, slug):
    monkeypatch.setattr(module, "_cpu_name", lambda: name)
    monkeypatch.setattr(module, "_usable_cores", lambda: 2)
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "znver5")
    assert machine_name() == slug
    assert re.fullmatch(r"[a-z0-9-]+", slug)


@pytest.mark.parametrize("name", ["Intel(R) Xeon(R) Processor", "Intel(R) Xeon(R) Platinum 8592+"])
def test_a_machine_that_hides_its_matrix_units_is_another(monkeypatch, name):
    monkeypatch.setattr(module, "_cpu_name", lambda: name)
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "emeraldrapids")
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: {"amx-bf16": True})
    whole = machine_name()
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: {"amx-bf16": False})
    assert machine_name().split("-") == [*whole.split("-")[:-1], "noamx", whole.split("-")[-1]]


def test_a_missing_engine_has_its_reason(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "triton" else object())
    found = engines()
    assert found["tile"] == "No module named 'triton'"
    assert found["cpu"] is None


def test_nothing_heavy_is_imported_by_asking():
    code = (
        "import sys, tilewright.hardware as h; h.cpu(); h.engines(); h.machine_name(); h.available_memory();"
        "sys.exit(' '.join({'numba', 'numpy', 'torch', 'triton'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
