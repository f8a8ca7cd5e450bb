"""Mutants of files, read by the product's own readers in child processes with limits.

A reader may return or refuse with an InputError or a UsageError of one paragraph. All else is a finding: a signal,
another exception, CPU time without end, memory beyond the limit, two readings that differ, and, where a seal protects
the content, any other content.
"""

import os
import random
import re
import resource
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import InputError, UsageError

CPU_SECONDS = 20  # of one mutant, which takes milliseconds; counted in CPU time, so a loaded machine changes nothing
MEMORY = 256 << 20  # bytes beside twice the file
ADDRESSES = 6 << 30  # bytes of addresses: far above MEMORY, so that a lying length cannot exhaust the machine
BATCH = 200  # mutants a child, which is forked anew then
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
WORDS = (
    *(b"-1", b"0", b"1", b"1e999", b"-0.0", b"NaN", b"Infinity", b"null", b"true", b"{}", b"[]", b'""', b'"\\ud800"'),
    *(b"9" * 5000, b"[" * 100_000, b'{"a":' * 50_000, b"\xff", b"\0", b"2147483648", b"9223372036854775808", b"1.5"),
    *(b'"' + b"x" * 100_000 + b'"', b"-9223372036854775809", b"1" + b"0" * 300, b"\xed\xa0\x80", b"\r", b"\n"),
)


@dataclass
class Kind:
    """A kind of file. seeds: whole files. read: returns bytes that stand for all that it read. text: mutated as words,
    too. sealed: what is read must be what a seed says, or nothing; known: one of these contents instead. refuses: some
    mutants are refused."""

    seeds: list[bytes]
    read: Callable[[bytes], bytes]
    text: bool = False
    sealed: bool = False
    known: set[bytes] | None = None
    refuses: bool = True


@dataclass
class Findings:
    """counts: of outcomes. wrong: (what happened, bytes of the mutant)."""

    counts: Counter = field(default_factory=Counter)
    wrong: list = field(default_factory=list)


def mutants(rng: random.Random, seeds: list[bytes], count: int, *, text: bool):
    """`count` mutants of `seeds`: cut short at each length (as many as fit), flipped bits, lying lengths, splices."""
    for number in range(count):
        seed = rng.choice(seeds)
        if number % 4 == 0:
            step = max(1, len(seed) * 4 // count)
            yield seed[: number // 4 * step % (len(seed) + 1)]
            continue
        data = bytearray(seed)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            kinds = (_flip, _splice, _lie, _word, _word) if text else (_flip, _splice, _lie, _lie)
            rng.choice(kinds)(rng, data, seeds)
        yield bytes(data)


def _flip(rng, data, seeds):
    for _ in range(rng.randint(1, 3) if data else 0):
        data[_position(rng, data)] ^= 1 << rng.randrange(8)


def _splice(rng, data, seeds):
    other = rng.choice(seeds)
    a, b = sorted(rng.randrange(len(other) + 1) for _ in range(2))
    begin = rng.randrange(len(data) + 1)
    end = min(len(data), begin + rng.choice((0, b - a, rng.randrange(64))))
    data[begin:end] = other[a:b] if rng.random() < 0.7 else b""


def _lie(rng, data, seeds):
    width = rng.choice((1, 2, 4, 8))
    if len(data) < width:
        return
    begin = _position(rng, data) // (width if rng.random() < 0.7 else 1) * (width if rng.random() < 0.7 else 1)
    begin = min(begin, len(data) - width)
    number = rng.choice((*NUMBERS, len(data), len(data) - 1, len(data) + 1, rng.randrange(2**64)))
    data[begin : begin + width] = (number % 2 ** (8 * width)).to_bytes(width, rng.choice(("little", "big")))


def _word(rng, data, seeds):
    """Replaces a number, a name or a piece of punctuation of a text."""
    found = list(re.finditer(rb'-?[0-9.]+|"[^"]{0,80}"|[][{},:]|\s', data[: 1 << 16]))
    if found:
        begin, end = rng.choice(found).span()
        data[begin:end] = rng.choice((*WORDS, b"", bytes(data[begin:end]) * 2))


def _position(rng, data):
    """Anywhere, or among the first bytes, where headers lie."""
    return rng.randrange(min(len(data), rng.choice((32, 512, len(data)))))


def survey(read, cases, *, known=None) -> Findings:
    """What `read(data)`, which writes `data` to its own file and reads it, does with each of `cases`.

    read: returns bytes that stand for all that was read. known: contents of which every reading must be one.
    """
    found, cases = Findings(), list(cases)
    while cases:
        done = _in_child(read, cases[:BATCH], known, found)
        cases = cases[done:]
    return found


def _in_child(read, cases, known, found) -> int:
    """Reads some of `cases` in a child process and notes outcomes; how many it read or died of."""
    sys.stdout.flush()
    sys.stderr.flush()
    source, target = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(source)
            os.fsync = os.fstat  # only a power cut tells the difference
            _limit()
            for data in cases:
                outcome = _outcome(read, data, known).encode("utf-8", "replace")
                os.write(target, struct.pack("<I", len(outcome)) + outcome)
        finally:
            os._exit(0)
    os.close(target)
    with os.fdopen(source, "rb") as answers:
        outcomes = []
        while head := answers.read(4):
            outcomes.append(answers.read(struct.unpack("<I", head)[0]).decode())
    _, status = os.waitpid(pid, 0)
    if len(outcomes) < len(cases):
        code = os.waitstatus_to_exitcode(status)
        outcomes.append(f"!ended by {signal.Signals(-code).name}" if code < 0 else f"!ended with exit code {code}")
    for data, outcome in zip(cases, outcomes, strict=False):
        found.counts[outcome.split(":")[0].lstrip("!")] += 1
        if outcome.startswith("!"):
            found.wrong.append((outcome[1:], data))
    return len(outcomes)


def _limit() -> None:
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ADDRESSES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _outcome(read, data: bytes, known) -> str:
    """ "read", "refused", or what is wrong after an exclamation mark."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)  # its signal ends a child that loops, in Python or below
    answers = []
    for _ in range(2):
        try:
            answers.append(read(data))
        except (InputError, UsageError) as error:
            text = str(error)
            if "\n" in text or len(text) > 3000 or "Traceback" in text:
                return f"!no paragraph: {text[:300]!r}"
            answers.append(None)
        except BaseException as error:
            return f"!{type(error).__name__}: {error!s:.300}"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
    if grown > 2 * len(data) + MEMORY:
        return f"!memory: {grown >> 20} MiB for a file of {len(data):,} bytes"
    if answers[0] != answers[1]:
        return "!two readings differ"
    if known is not None and answers[0] is not None and answers[0] not in known:
        return "!other content"
    return "refused" if answers[0] is None else "read"


def at(path: Path, read: Callable[[], bytes]) -> Callable[[bytes], bytes]:
    """A reader of bytes: it writes them to `path` first, then calls `read`."""

    def written(data: bytes) -> bytes:
        path.write_bytes(data)
        return read()

    return written
