"""Explains a SIGBUS in a mapped file: the process prints a message, and exits with a code.

The signal arrives if another program truncates a mapped file, and this process then reads a page after the new end. The
signal handler is native code. It searches a table of maps, which Python has filled before, and calls write() and
_exit(). A handler in Python would need the GIL. A kernel's thread does not hold the GIL, and waiting for it could take
forever, because the thread with the GIL may wait for this thread. Python code could also not run safely in the middle
of a C function. Any other SIGBUS goes to the handler that was set before.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tilewright.formats.mapped import FAULTS
from tilewright.runtime.process.signals import SHOW_CURSOR

MACHINES = ("x86_64", "aarch64")  # Linux on these has si_code at byte 8 of siginfo_t, and si_addr at byte 16
SA_SIGINFO, SA_ONSTACK = 4, 0x08000000
BUS_ADRERR = 2  # si_code for an address without a page; other codes mean faulty memory, or a signal from a process
JSON_WANTED = np.zeros(1, np.int64)  # 1 within `explained(json=True)`; the signal handler reads it


class SigAction(ctypes.Structure):
    """struct sigaction of glibc and musl. handler: an address; 0: the default handler."""

    _fields_ = (
        ("handler", ctypes.c_size_t),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_size_t),
    )


# {0}: the table of maps, {1}: its slots, {2}: the action before, {3}, {4}: address and bytes of what goes before a text
# {5}: BUS_ADRERR, {6}: address of an int64: 1 where stdout gets the error as JSON, otherwise 0
# If several threads fault at the same time, the first one prints, and the others wait for the process to exit.
# If the previous handler calls this handler again, the signal goes to the default handler.
ACTION = """
declare i64 @write(i32, ptr, i64)
declare void @_exit(i32)
declare i32 @raise(i32)
declare i32 @pause()
declare i32 @sigaction(i32, ptr, ptr)
@found = internal global i32 0

define void @action(i32 %number, ptr %info, ptr %context) {{
  %why.at = getelementptr i8, ptr %info, i64 8
  %why = load i32, ptr %why.at
  %address.at = getelementptr i8, ptr %info, i64 16
  %address = load i64, ptr %address.at
  %no.page = icmp eq i32 %why, {5}
  br i1 %no.page, label %search, label %other
search:
  %slot = phi i64 [ 0, %0 ], [ %next, %elsewhere ]
  %begin.at = getelementptr [7 x i64], ptr inttoptr (i64 {0} to ptr), i64 %slot
  %begin = load i64, ptr %begin.at
  %end.at = getelementptr i64, ptr %begin.at, i64 1
  %end = load i64, ptr %end.at
  %not.below = icmp uge i64 %address, %begin
  %not.above = icmp ult i64 %address, %end
  %inside = and i1 %not.below, %not.above
  br i1 %inside, label %found, label %elsewhere
elsewhere:
  %next = add i64 %slot, 1
  %more = icmp ult i64 %next, {1}
  br i1 %more, label %search, label %other
found:
  %earlier = atomicrmw xchg ptr @found, i32 1 seq_cst
  %first = icmp eq i32 %earlier, 0
  br i1 %first, label %tell, label %wait
wait:
  %woken = call i32 @pause()
  br label %wait
tell:
  %text.at = getelementptr i64, ptr %begin.at, i64 2
  %text = load ptr, ptr %text.at
  %size.at = getelementptr i64, ptr %begin.at, i64 3
  %size = load i64, ptr %size.at
  %code.at = getelementptr i64, ptr %begin.at, i64 4
  %code = load i32, ptr %code.at
  %before = call i64 @write(i32 2, ptr inttoptr (i64 {3} to ptr), i64 {4})
  %said = call i64 @write(i32 2, ptr %text, i64 %size)
  %line.at = getelementptr i64, ptr %begin.at, i64 5
  %line = load ptr, ptr %line.at
  %line.size.at = getelementptr i64, ptr %begin.at, i64 6
  %line.size = load i64, ptr %line.size.at
  %wanted = load i64, ptr inttoptr (i64 {6} to ptr)
  %line.count = mul i64 %line.size, %wanted
  %told = call i64 @write(i32 1, ptr %line, i64 %line.count)
  call void @_exit(i32 %code)
  unreachable
other:
  %restored = call i32 @sigaction(i32 %number, ptr inttoptr (i64 {2} to ptr), ptr null)
  store i64 0, ptr inttoptr (i64 {2} to ptr)
  %sent = icmp sle i32 %why, 0
  br i1 %sent, label %again, label %done
again:
  %raised = call i32 @raise(i32 %number)
  br label %done
done:
  ret void
}}
"""


@contextmanager
def explained(*, json: bool = False) -> Iterator[None]:
    """Within the block, a SIGBUS in a map that `explain_faults` knows prints its text, and the process exits.

    json: also print the error as a line of JSON on stdout. A nested block joins the outer one. It has an effect only on
    Linux on MACHINES.
    """
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        yield
        return
    libc, ours, before = ctypes.CDLL(None), *_compiled()[:2]
    now = SigAction()
    libc.sigaction(signal.SIGBUS, None, ctypes.byref(now))
    if now.handler == ours.handler:
        yield
        return
    JSON_WANTED[0] = json
    libc.sigaction(signal.SIGBUS, ctypes.byref(ours), ctypes.byref(before))
    try:
        yield
    finally:
        JSON_WANTED[0] = 0
        libc.sigaction(signal.SIGBUS, None, ctypes.byref(now))
        if now.handler == ours.handler:  # else another handler has replaced it, and may still call it
            libc.sigaction(signal.SIGBUS, ctypes.byref(before), None)


@functools.cache
def _compiled() -> tuple[SigAction, SigAction, object]:
    """(the handler's struct, an empty struct for the previous handler, the object that keeps the code in memory).
    Compiling it takes about 6 ms."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    before, show = SigAction(), ctypes.create_string_buffer(SHOW_CURSOR.encode())
    size = len(SHOW_CURSOR) if sys.stderr and sys.stderr.isatty() else 0
    addresses = FAULTS.ctypes.data, len(FAULTS), ctypes.addressof(before), ctypes.addressof(show), size
    module = binding.parse_assembly(ACTION.format(*addresses, BUS_ADRERR, JSON_WANTED.ctypes.data))
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    ours = SigAction(handler=engine.get_function_address("action"), flags=SA_SIGINFO | SA_ONSTACK)
    return ours, before, (engine, show)
