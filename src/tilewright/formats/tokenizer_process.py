"""Run a tokenizer whose patterns may take hours in another process, with limits of time and memory for each text.

The library has no such limits, and a thread of it cannot be stopped. The system kills the process at a limit, and
another process is started for the next text.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

import msgspec

from tilewright.errors import InputError
from tilewright.formats.files import naming

SECONDS = 10  # CPU time per text; 1 MiB takes 1 s with the patterns of GPT-4
MEMORY = 4 << 30  # bytes of address space; 1 MiB of text takes less than 1 GiB of it
_LENGTH = struct.Struct("<Q")  # the length of a message, which is sent before it


class TokenizerProcess:
    """Calls methods of `Tokenizer(path, content)` in another process, one call at a time, from any thread."""

    def __init__(self, path: str, content: bytes) -> None:
        self._path, self._content = path, content
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # PID; a forked child must not use its parent's process

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of the method. Raises the method's InputError, or one for a text that takes too much time or
        memory. Raises ResourceError if no process can be started."""
        with self._lock:
            if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
                self._start()
            assert self._process and self._process.stdin and self._process.stdout
            try:
                _send(self._process.stdin, pickle.dumps((method, arguments)))
                failed, *answer = msgspec.msgpack.decode(_received(self._process.stdout))
            except (EOFError, BrokenPipeError):
                self._end()
                raise self._too_much() from None
        if failed:
            raise InputError(answer[0], path=self._path, remedy=answer[1])
        return answer[0]

    def _start(self) -> None:
        code = (
            "from tilewright.formats import tokenizer, tokenizer_process; tokenizer_process.main(tokenizer.Tokenizer)"
        )
        with naming(sys.executable, "start a tokenizer with"):
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
                start_new_session=True,  # Ctrl-C is for this process only
            )
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, self._process, self._owner)
        assert self._process.stdin
        with suppress(BrokenPipeError):  # the answer to the first call shows it
            _send(self._process.stdin, pickle.dumps((self._path, self._content, SECONDS)))

    def _too_much(self) -> InputError:
        assert self._process
        status, self._process = self._process.returncode, None
        what = f"takes more than {SECONDS} s of CPU time or {MEMORY >> 30} GiB of memory to encode"
        if status not in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGABRT):
            what = f"cannot be encoded: the process of the tokenizer stopped with status {status}"
        remedy = "use the tokenizer.json that came with the model: this one has patterns of its own"
        return InputError(what, path=self._path, remedy=remedy)


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            pipe.close()  # type: ignore[union-attr]
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)  # it has ended, or ends because nothing more is sent
    process.kill()
    process.wait()


def _send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def _received(pipe: IO[bytes]) -> bytes:
    """The next message. Raises EOFError if there is none."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    message = pipe.read(*_LENGTH.unpack(head))
    if len(message) < _LENGTH.unpack(head)[0]:
        raise EOFError
    return message


def main(open_tokenizer: Callable[..., Any]) -> None:
    """Run the process until its parent stops. open_tokenizer: the class `Tokenizer`, passed because it imports this
    module."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # these signals are for the parent, which ends this process
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, MEMORY)
    pipe, tokenizer = sys.stdin.buffer, None
    path, content, seconds = pickle.loads(_received(pipe))
    with suppress(EOFError):
        while True:
            method, arguments = pickle.loads(_received(pipe))
            _limit(resource.RLIMIT_CPU, int(time.process_time()) + seconds + 1)
            try:
                tokenizer = tokenizer or open_tokenizer(path, content=content)
                answer = [False, getattr(tokenizer, method)(*arguments)]
            except InputError as error:
                answer = [True, error.message, error.remedy]
            _send(sys.stdout.buffer, msgspec.msgpack.encode(answer))


def _limit(kind: int, value: int) -> None:
    """Set only the soft limit: the limit of time is raised for the next text."""
    most = resource.getrlimit(kind)[1]
    with suppress(ValueError, OSError):  # some systems lack some of them
        resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))
