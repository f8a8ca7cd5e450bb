"""Control groups of both versions, from made-up trees."""

import pytest

from tilewright.hardware import cgroup

GIB = 1 << 30


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """tree(membership, {file: text}) puts a process in made-up control groups."""

    def make(membership: str, files: dict[str, str]) -> None:
        (tmp_path / "self").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "fs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(cgroup, "ROOT", tmp_path / "fs")
        monkeypatch.setattr(cgroup, "MEMBERSHIP", tmp_path / "self")

    return make


def test_version_2_takes_the_tightest_of_the_group_and_those_around_it(tree):
    tree(
        "0::/job/step\n",
        {
            "job/step/cpu.max": "max 100000\n",
            "job/cpu.max": "150000 100000\n",
            "cpu.max": "800000 100000\n",
            "job/step/memory.max": "max\n",
            "job/step/memory.current": f"{GIB}\n",
            "job/memory.max": f"{4 * GIB}\n",
            "job/memory.current": f"{3 * GIB}\n",
            "job/memory.stat": f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB // 2}\n",
        },
    )
    assert cgroup.cores() == 1.5
    assert cgroup.memory_limit() == 4 * GIB
    assert cgroup.memory_left() == 4 * GIB - 3 * GIB + GIB + GIB // 2  # page cache is given up on demand


def test_version_1_as_in_a_container_whose_path_is_the_hosts(tree):
    tree(
        "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n",
        {
            "cpu/cpu.cfs_quota_us": "50000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "memory/memory.usage_in_bytes": f"{GIB}\n",
            "memory/memory.stat": f"active_file 7\ntotal_active_file {GIB // 4}\ntotal_inactive_file 0\n",
        },
    )
    assert cgroup.cores() == 0.5
    assert cgroup.memory_left() == GIB + GIB // 4


def test_no_limit_is_none(tree):
    tree(
        "5:memory:/\n4:cpu:/\n",
        {
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": "1\n",
        },
    )
    assert cgroup.cores() is None
    assert cgroup.memory_limit() is None
    assert cgroup.memory_left() is None


def test_a_group_over_its_limit_has_nothing_left(tree):
    tree("0::/\n", {"memory.max": "100\n", "memory.current": "160\n"})
    assert cgroup.memory_left() == 0


def test_a_system_without_control_groups(tree):
    tree("", {})
    assert cgroup.cores() is None
    assert cgroup.memory_left() is None
