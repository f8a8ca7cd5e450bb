"""What a container or a batch system allows this process: Linux control groups, both versions of their interface."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cores() -> float | None:
    """The smallest CPU quota, in cores, of this process's group and the groups around it. None: no quota."""
    quotas = []
    for folder, version in _groups("cpu"):
        if version == 2:
            quota, period = (*_words(folder / "cpu.max"), "", "")[:2]
        else:
            quota, period = (" ".join(_words(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """The smallest memory limit in bytes; None: no limit. (Version 1 writes "none" as a number near 2^63.)"""
    return min((limit for limit, _ in _memory()), default=None)


def memory_left() -> int | None:
    """Bytes until the first limit is reached, where page cache counts as free. None: no limit."""
    return min((max(limit - used, 0) for limit, used in _memory()), default=None)


def _memory() -> Iterator[tuple[int, int]]:
    """(limit, used without page cache) of each group that limits memory."""
    for folder, version in _groups("memory"):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (" ".join(_words(folder / name)) for name in names)
        if limit.isdigit() and used.isdigit() and int(limit) < 1 << 62:
            yield int(limit), int(used) - _page_cache(folder, version)


def _page_cache(folder: Path, version: int) -> int:
    prefix = "" if version == 2 else "total_"
    words = _words(folder / "memory.stat")
    values = dict(zip(words[::2], words[1::2], strict=False))
    return sum(int(values.get(f"{prefix}{name}_file", 0)) for name in ("active", "inactive"))


def _groups(controller: str) -> Iterator[tuple[Path, int]]:
    """(directory, version) of this process's group for a controller and of every group around it, innermost first.

    Inside a container the path may be the host's, which is not mounted. Directories that do not exist are read as
    empty, and the search ends at the container's own root.
    """
    entries = [line.split(":", 2) for line in _text(MEMBERSHIP).splitlines() if line.count(":") >= 2]
    first = [(ROOT / controller, 1, path) for _, names, path in entries if controller in names.split(",")]
    second = [(ROOT, 2, path) for _, names, path in entries if not names]
    for root, version, path in first or second:
        folder = root / path.strip().lstrip("/")
        while folder != root:
            yield folder, version
            folder = folder.parent
        yield root, version


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
