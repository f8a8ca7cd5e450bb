"""Compiled kernels on disk: one file per kernel and signature, in a directory that nobody else can change.

The directory's name contains a hash of the source of `simd` and `ops`, of the versions and settings that generate code
and of the CPU. A file's name contains a hash of its kernel's code if that is elsewhere (`own_code.py`). So no file is
ever stale, and two machines may share a home. `private_directory.py` opens the directory
once and checks who may write to it. A file is MAGIC, a SHA-256, and a MessagePack record of names and object code
(`Stored`). Parsing it runs no code. Types come from the kernel's declaration, not from the file. A file that is
truncated, altered, of another user or of another kernel is ignored and written again. A complete file is renamed to its
final name, so any number of processes may start at once.
"""

import functools
import hashlib
import json
import os
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import llvmlite.binding
import msgspec

from tilewright.errors import ResourceError
from tilewright.simd.own_code import digest_of
from tilewright.simd.private_directory import PrivateDirectory, UnsafeDirectoryError

MAGIC = b"TWKERNEL"
MAX_BYTES = 256 << 20  # of a file; the largest kernel takes under 1 MB
ENDING = ".kernel"
# Numba's settings that change machine code: NUMBA_CPU_NAME, NUMBA_OPT and so on; USING_SVML: whether it found Intel's
# library of vector functions
SETTINGS = (
    "CPU_NAME", "CPU_FEATURES", "ENABLE_AVX", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT", "USING_SVML",
)  # fmt: skip
Record = TypeVar("Record", bound=msgspec.Struct)
_START = len(MAGIC) + hashlib.sha256().digest_size

_lock = threading.Lock()
_opened: dict[str, PrivateDirectory] = {}  # at most one: the directory in use
_warned: set[str] = set()


def home() -> Path:
    """`$TILEWRIGHT_CACHE`, otherwise `$XDG_CACHE_HOME/tilewright`, otherwise `~/.cache/tilewright`."""
    if chosen := os.environ.get("TILEWRIGHT_CACHE"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "tilewright"
    try:
        return Path.home() / ".cache" / "tilewright"
    except RuntimeError as error:
        remedy = "name a directory for compiled kernels: TILEWRIGHT_CACHE"
        raise ResourceError("this user has no home directory", remedy=remedy) from error


def sources() -> bytes:
    """The sha256 of the sources of all kernels, as they were before this process declared its first kernel."""
    return _first_read()[0]


@functools.cache
def _first_read() -> tuple[bytes, list[tuple]]:
    """(the sha256 of the sources, their stamps before they were read)."""
    stamps, root = _stamps(), _package()
    digest = hashlib.sha256()
    for source, *_ in stamps:
        digest.update(str(source.relative_to(root)).encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.digest(), stamps


def _stamps() -> list[tuple]:
    """(path, time of change, size, inode) of each source of a kernel: an edit changes one of them."""
    root = _package()
    files = sorted([*(root / "simd").rglob("*.py"), *(root / "ops").rglob("*.py")])
    return [(path, found.st_mtime_ns, found.st_size, found.st_ino) for path in files if (found := path.stat())]


def _package() -> Path:
    return Path(__file__).resolve().parent.parent


def _are_sources_unchanged() -> bool:
    """False if a source was edited after the first kernel was declared. A kernel that is compiled then may come from
    the old file or from the new one. Also False for a package of compiled modules (.pyc), which has no sources."""
    _, stamps = _first_read()
    try:
        return bool(stamps) and _stamps() == stamps
    except OSError:
        return False


@functools.cache
def key() -> str:
    """16 hex digits of everything that changes the machine code of a kernel."""
    import llvmlite
    import llvmlite.binding
    import numba
    from numba.core import config

    digest = hashlib.sha256(sources())
    features = llvmlite.binding.get_host_cpu_features().flatten()
    settings = repr([getattr(config, name, None) for name in SETTINGS])
    versions = (sys.version, numba.__version__, llvmlite.__version__)
    parts = (*versions, llvmlite.binding.get_host_cpu_name(), features, settings)
    digest.update("\0".join(parts).encode())
    return digest.hexdigest()[:16]


def directory() -> Path:
    """The directory of this package's compiled kernels on this machine; it may not exist yet."""
    return home() / key()


def check(path: Path, *, make: bool = True) -> None:
    """Make the directory `path` (mode 0700), or check that nobody else can change its files. It stays open.

    Raises ResourceError if it cannot be made, with the OSError as its cause, and UnsafeDirectoryError if another user
    could change it: code is loaded from it.
    """
    _open(path, make=make, again=True)


def _open(path: Path, *, make: bool = True, again: bool = False) -> PrivateDirectory:
    """The directory, opened or already open. again: check an open one and the directories above it once more."""
    name = os.path.abspath(path)
    with _lock:
        known = _opened.get(name)
        try:
            if known is not None and not again and known.check():
                return known
            while _opened:
                _opened.popitem()[1].close()
            _opened[name] = PrivateDirectory(name, make=make)
            return _opened[name]
        except UnsafeDirectoryError as error:
            error.remedy = (
                "set TILEWRIGHT_CACHE to a directory that only you may change, in one like that, or to 'off' to "
                "compile in every run"
            )
            raise
        except OSError as error:
            raise ResourceError(
                f"the directory for compiled kernels cannot be made: {error.strerror}",
                path=path,
                remedy="set TILEWRIGHT_CACHE to a directory of your own, or to 'off' to compile in every run",
            ) from error


class Stored(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A compiled kernel. kernel, signature: its name and declaration. library: Numba's name of its code library.
    unique, mangled, environment, tags, number: Numba's names of the function and their parts. others: environments of
    the functions inside it; none has constants. symbols: names of the functions in the object code."""

    kernel: str
    signature: str
    library: str
    unique: str
    mangled: str
    environment: str
    tags: list[str]
    number: int
    others: list[str]
    symbols: list[str]
    object_code: bytes


class KernelCache:
    """Loads and saves one kernel's machine code; replaces the cache object of Numba's dispatcher.

    function: the kernel's Python function, under the name that Numba compiles. A kernel whose code `own_code` cannot
    describe has no file.
    """

    def __init__(self, name: str, function):
        self.name, self.function, self.own = name, function, digest_of(function)

    def load_overload(self, signature, target_context):
        """The compiled kernel, or None if there is no complete file of it, or no directory to load from."""
        if self.own is None:
            return None
        from numba.core.runtime import rtsys

        rtsys.initialize(target_context)  # and not refresh(): what Numba needs to compile takes 0.3 s to import
        stored = read_record(self._file(signature), Stored)
        if stored is None or (stored.kernel, stored.signature) != (self.name, str(signature)):
            return None
        return _rebuilt(stored, signature, self.function, target_context)

    def save_overload(self, signature, result) -> None:
        """Write the compiled kernel. If the disk is full or read-only, the next run compiles it again."""
        stored = None if self.own is None else _stored(self.name, signature, self.function, result)
        if stored is not None:
            write_record(self._file(signature), stored)

    def _file(self, signature) -> str:
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.name)
        fields = [kind.fields for kind in getattr(signature, "args", ()) if hasattr(kind, "fields")] if self.own else ""
        return f"{safe}-{hashlib.sha256(f'{self.name}{signature}{self.own}{fields}'.encode()).hexdigest()[:12]}{ENDING}"


def read_record(name: str, kind: type[Record]) -> Record | None:
    """The record in a file of the directory. None if the file is missing, damaged or of another kind, or if there is no
    directory to load from."""
    folder = _folder()
    content = None if folder is None else folder.read(name, MAX_BYTES)
    return None if content is None else _decoded(content, kind)


def _decoded(content: bytes, kind: type[Record]) -> Record | None:
    """The record in a file's content; None if the file is damaged."""
    digest, payload = content[len(MAGIC) : _START], memoryview(content)[_START:]
    if content[: len(MAGIC)] != MAGIC or hashlib.sha256(payload).digest() != digest:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_record(name: str, record: msgspec.Struct) -> None:
    """Write a record to a file of the directory. Does nothing if the disk is full or read-only, or if a source has
    changed since this process read it."""
    if (folder := _folder()) is None or not _are_sources_unchanged():
        return
    payload = msgspec.msgpack.encode(record)
    with suppress(OSError):
        folder.write(name, MAGIC + hashlib.sha256(payload).digest() + payload)


def _folder() -> PrivateDirectory | None:
    """The open directory. None, with a warning, if the default directory cannot be used. Raises ResourceError if
    TILEWRIGHT_CACHE names one that cannot."""
    try:
        return _open(directory())
    except ResourceError as error:
        if os.environ.get("TILEWRIGHT_CACHE"):
            raise
        if str(error) not in _warned:
            _warned.add(str(error))
            warnings.warn(f"every process compiles its kernels: {error}", RuntimeWarning, stacklevel=2)
        return None


def _stored(name: str, signature, function, result) -> Stored | None:
    """The record of a compiled kernel. None for a kernel that could not be rebuilt from it: one that refers to Python
    objects, that contains an address of this process, or whose types differ from its declaration."""
    library, kind, (object_code, bitcode) = result.library.serialize_using_object_code()
    described, others = result.fndesc, result._find_referenced_environments()
    plain = kind == "object" and not result.objectmode and not result.lifted and not result.reload_init
    plain = plain and not result.library.has_dynamic_globals  # an array over 1 MB or with gaps, a ctypes function
    if not plain or any(environment.consts for environment in (result.environment, *others)):
        return None
    stored = Stored(
        name, str(signature), library, described.unique_name, described.mangled_name, described.env_name,
        list(described.abi_tags), described.uid, [environment.env_name for environment in others],
        _symbols(bitcode), object_code,
    )  # fmt: skip
    again = _descriptor(stored, signature, function)
    same = ("modname", "qualname", "args", "kws", "restype", "argtypes", "native", "inline", "noalias", "global_dict")
    if any(getattr(again, field) != getattr(described, field) for field in same):
        return None
    return stored


def _symbols(bitcode: bytes) -> list[str]:
    """Names of the functions and variables that a module defines."""
    module = llvmlite.binding.parse_bitcode(bitcode)
    return [one.name for one in (*module.functions, *module.global_variables) if not one.is_declaration]


def _stubs(symbols: list[str]) -> bytes:
    """The bitcode of a module with these symbols and nothing else.

    Numba keeps a kernel's bitcode beside its object code, to inline it elsewhere. A kernel is never inlined, and Numba
    reads only the symbols. Parsing the whole bitcode takes 8 ms for each kernel.
    """
    lines = [f"@{json.dumps(name)} = global i8 0" for name in symbols]
    return llvmlite.binding.parse_assembly("\n".join(lines)).as_bitcode()


def _descriptor(stored: Stored, signature, function):
    """Numba's description of the kernel: symbol names from the file, everything else from the declaration."""
    from numba.core.funcdesc import PythonFunctionDescriptor
    from numba.core.sigutils import normalize_signature

    arguments, result = normalize_signature(signature)
    code = function.__code__
    return PythonFunctionDescriptor(
        True, function.__module__, function.__qualname__, stored.unique, function.__doc__ or "", None, result, None,
        code.co_varnames[: code.co_argcount], (), mangler=lambda name, types, abi_tags=(), uid=None: stored.mangled,
        argtypes=tuple(arguments), env_name=stored.environment, abi_tags=tuple(stored.tags), uid=stored.number,
    )  # fmt: skip


def _rebuilt(stored: Stored, signature, function, target_context):
    """Numba's result of a compilation; None if the machine code does not contain the kernel."""
    from numba.core.compiler import CompileResult
    from numba.core.typing import signature as typed

    described = _descriptor(stored, signature, function)
    environments = [_environment(name, function.__globals__) for name in [described.env_name, *stored.others]]
    code = (stored.library, "object", (stored.object_code, _stubs(stored.symbols)))
    result = CompileResult._rebuild(
        target_context, code, described, environments[0], typed(described.restype, *described.argtypes), False, (), "",
        [], tuple(environments[1:]),
    )  # fmt: skip
    return result if result.library.get_pointer_to_function(described.llvm_func_name) else None


def _environment(name: str, globals_of_kernel: dict):
    """The environment of that name, which has no constants; created if this process has none."""
    from numba.core.environment import Environment, lookup_environment

    if (found := lookup_environment(name)) is None:
        found = Environment(globals_of_kernel)
        found.env_name = name
        Environment._memo[name] = found
    return found
