"""Keep the message of a panic in Rust off the terminal. Rust writes it to descriptor 2 before Python sees the error."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

_PANIC = re.compile(  # its line of source, its message, and with RUST_BACKTRACE the stack
    rb"\n?thread '[^\n]*panicked at [^\n]*\n[^\n]*\n"
    rb"(?:stack backtrace:\n(?: [^\n]*\n)*)?(?:note: [^\n]*RUST_BACKTRACE=[^\n]*\n)?"
)


class Aside:
    """Redirects descriptor 2 into a file while any thread is in a block of `without_panics`."""

    def __init__(self) -> None:
        self._lock, self._users, self._real = threading.Lock(), 0, -1
        self._file: IO[bytes] | None = None
        os.register_at_fork(before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._forked)

    @contextmanager
    def without_panics(self) -> Iterator[None]:
        """A block that may panic. Everything that is written in it reaches descriptor 2 at its end, except the
        panics."""
        if sys.stderr is None:  # there is no descriptor 2
            yield
            return
        self._begin()
        try:
            yield
        finally:
            self._end()

    def _begin(self) -> None:
        with self._lock:
            if self._users == 0:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - as long as the process
                sys.stderr.flush()
                self._real = os.dup(2)
                os.dup2(self._file.fileno(), 2)
            self._users += 1

    def _end(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            assert self._file is not None
            sys.stderr.flush()
            os.dup2(self._real, 2)
            os.close(self._real)
            if os.fstat(self._file.fileno()).st_size:
                self._file.seek(0)
                os.write(2, _PANIC.sub(b"", self._file.read()))
                self._file.seek(0)  # also for copies of descriptor 2
                self._file.truncate()

    def _forked(self) -> None:
        """Called in a child process. It has none of the other threads, so nobody would end their blocks."""
        if self._users:
            os.dup2(self._real, 2)
            os.close(self._real)
            self._users = 0
        self._lock.release()


ASIDE = Aside()
