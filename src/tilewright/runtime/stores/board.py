"""Who works on which shard of a shared job: leases that any store can hold.

workers/ID      a worker process. It rewrites its object every BEAT_SECONDS; one older than LEASE_SECONDS is dead.
taken/00042     the process that has claimed shard 42, and how many processes have claimed it so far
lead            the process that plans and merges

An age is the difference of two times of the store's clock. So the clocks of the machines need not agree. Leases only
avoid double work. They are not needed for correctness: two processes that run the same shard write the same bytes.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec

from tilewright.errors import InternalError, ResourceError
from tilewright.runtime.jobs.durable import alive
from tilewright.runtime.stores.objects import Stat

LEASE_SECONDS = 30.0
BEAT_SECONDS = 7.0
KNOWN_SECONDS = 2.0  # for which the answer "alive" or "dead" about another process is cached
LEAD, CLAIMS, WORKERS = "lead", "taken", "workers"
LOOK_SECONDS, LOOK_SHARE = 0.5, 20  # the pause between two scans of the job: the minimum, and in durations of a scan
MOST_SECONDS = 10.0  # the longest pause, unless a scan takes longer: a dead process's shards wait this long
PAGE = 1000  # shards per page of a listing: with fewer shards left than pages, each is asked for by itself
FEW = 16  # or with at most so many left, all at once
MISSES = 3  # failed claims in a row after which the list of free shards is read anew
TAKEN_OVER = f"another run has taken over, because this one gave no response for {LEASE_SECONDS:g} s"
TRIES = 4  # processes that may die with a shard before it is given up; as schedule.KILLS within one run


class Keys(Protocol):
    """The methods of a store that leases use; `objects.Objects` describes them."""

    url: str

    def get(self, name: str) -> tuple[bytes, Stat] | None: ...

    def stat(self, name: str) -> Stat | None: ...

    def put(self, name: str, data: bytes, *, absent: bool = False, match: Stat | None = None) -> str | None: ...

    def names(self, folder: str) -> dict[str, Stat]: ...

    def delete(self, names: list[str]) -> None: ...


class Member(msgspec.Struct):
    """A worker process of a job. shards, records: how many it has committed. since: seconds since 1970."""

    host: str
    pid: int
    since: float
    device: str = ""
    shards: int = 0
    records: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {time.strftime('%F %T', time.localtime(self.since))}"


class Claim(msgspec.Struct):
    """A shard's lease. worker: the process's ID. tries: processes that have claimed the shard, including this one."""

    worker: str
    tries: int = 1


class Board:
    """`with Board(keys) as board`: this process is a worker of the job until the end of the block."""

    def __init__(self, keys: Keys, device: str = "") -> None:
        self._keys = keys
        self.id = f"{_here()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.member = Member(os.uname().nodename, os.getpid(), time.time(), device)
        self._mine: set[int] = set()  # shards that are claimed and not yet committed
        self._known: dict[str, tuple[float, bool]] = {}  # other processes: (time of the check, alive)
        self._beat_at = (0.0, 0.0)  # the time of the last heartbeat: by the store's clock, and by time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="tilewright-lease", daemon=True)

    def watched(self) -> Board:
        """This board for a process that only reads. It writes no heartbeat, so it assumes that the clocks agree."""
        self._beat_at = time.time(), time.monotonic()
        return self

    def __enter__(self) -> Board:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(ResourceError):  # leases that remain expire, and others take the shards over
            mine = [name for name in map(claim_name, self._mine) if self._holds(name)]
            self._keys.delete([*mine, f"{WORKERS}/{self.id}"])

    def _holds(self, name: str) -> bool:
        """True if this process still owns the claim; False if another process has taken it over."""
        got = self._keys.get(name)
        return got is not None and f'"{self.id}"'.encode() in got[0]

    def _keep_alive(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(ResourceError):  # a missed heartbeat only lets others take the shards over
                self._beat()

    def _beat(self) -> None:
        name = f"{WORKERS}/{self.id}"
        self._keys.put(name, msgspec.json.encode(self.member))
        found, now = self._keys.stat(name), time.monotonic()
        if found:
            self._beat_at = (found.modified, now)

    def alive(self, worker: str) -> bool:
        """True if the process wrote a heartbeat within the last LEASE_SECONDS and its PID, if on this host, exists."""
        if worker == self.id:
            return True
        where, _, rest = worker.rpartition("-")[0].rpartition("-")
        if where == _here() and rest.isdecimal() and not alive(int(rest)):
            return False
        asked, answer = self._known.get(worker, (0.0, False))
        if time.monotonic() - asked > KNOWN_SECONDS or not asked:
            found = self._keys.stat(f"{WORKERS}/{worker}")
            stores_now = self._beat_at[0] + time.monotonic() - self._beat_at[1]
            answer = found is not None and stores_now - found.modified < LEASE_SECONDS
            self._known[worker] = (time.monotonic(), answer)
        return answer

    @contextmanager
    def leading(self, remedy: str) -> Iterator[None]:
        """Within the block only this process plans and merges. Raises ResourceError if another process does so."""
        earlier = None
        if (found := self._keys.get(LEAD)) is not None:
            if self.alive(holder := found[0].decode(errors="replace")):
                raise self._taken(holder, remedy)
            earlier = found[1]
        put = self._keys.put(LEAD, self.id.encode(), absent=earlier is None, match=earlier)
        if put is None and not self._leads():  # if it leads, the answer to its own request was lost
            raise self._taken("", remedy)
        try:
            self._check_conditions()
            yield
        finally:
            with suppress(ResourceError):
                if self._leads():
                    self._keys.delete([LEAD])

    def _leads(self) -> bool:
        found = self._keys.get(LEAD)
        return found is not None and found[0] == self.id.encode()

    def _check_conditions(self) -> None:
        """Raises ResourceError if the store has no conditional writes: each process would then run all shards."""
        replaced = None
        with suppress(ResourceError):  # Google's store may refuse a second write to an object within a second
            replaced = self._keys.put(LEAD, self.id.encode(), absent=True)
        if replaced is not None:
            what = "the store has replaced an object, although the write was for a missing one only (If-None-Match)"
            raise ResourceError(what, path=self._keys.url, remedy="use a store with conditional writes")

    def check_leads(self) -> None:
        """Raises ResourceError if another run has taken over, for example because this machine was suspended."""
        if not self._leads() and self._keys.put(LEAD, self.id.encode(), absent=True) is None:  # else it has expired
            raise ResourceError(
                TAKEN_OVER, path=self._keys.url, remedy="run the same command again when that run has ended"
            )

    def _taken(self, holder: str, remedy: str) -> ResourceError:
        who = member_of(self._keys, holder) or "one that has just begun"
        return ResourceError(f"another run works on this job: {who}", path=self._keys.url, remedy=remedy)

    def take(self, number: int, over: Claim | None = None, match: Stat | None = None) -> bool:
        """Claim a shard; False if another process was faster.

        over, match: a dead process's claim and its version, which the new claim replaces; None for an unclaimed shard.
        """
        claim = msgspec.json.encode(Claim(self.id, over.tries + 1 if over else 1))
        put = self._keys.put(claim_name(number), claim, absent=match is None, match=match)
        if put is None and not self._holds(claim_name(number)):  # if it holds, the answer to its own request was lost
            return False
        self._mine.add(number)
        return True

    def committed(self, number: int, records: int) -> None:
        """Note that this process has committed the shard. The claim stays, and needs no renewal."""
        self._mine.discard(number)
        self.member.shards, self.member.records = self.member.shards + 1, self.member.records + records

    def claims(self, among: Collection[int] | None = None) -> set[int]:
        """The numbers of the claimed shards. among: ask only for these, one by one."""
        if among is not None:
            return existing(self._keys, among, claim_name)
        return {int(last) for name in self._keys.names(CLAIMS) if (last := name.rpartition("/")[2]).isdecimal()}

    def left_by_the_dead(self, number: int, *, supervised: bool) -> tuple[Claim, Stat] | None:
        """The claim of a shard whose process is dead, and the claim's version; None if the process is alive.

        Raises InternalError if TRIES processes have died with the shard, unless supervised.
        """
        got = self._keys.get(claim_name(number))
        if got is None:
            return None
        try:
            claim = msgspec.json.decode(got[0], type=Claim)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            claim = Claim("")
        if self.alive(claim.worker):
            return None
        if claim.tries >= TRIES and not supervised:
            raise InternalError(
                f"shard {number} was begun by {claim.tries} processes, and each of them ended without finishing it",
                path=self._keys.url,
                remedy="run the command of the job with --engine local: it makes the record that causes this an error",
            )
        return claim, got[1]

    def forget(self, numbers: list[int]) -> None:
        """Delete the claims of these shards, so that anyone may run them."""
        if numbers:
            self._keys.delete([*map(claim_name, numbers)])


@cache
def _here() -> str:
    """The host, its boot and its PID namespace, in which PIDs are unique. Hosts may have the same name, and containers
    of different hosts the same number of their namespace; the ID of the boot differs."""
    host = os.uname().nodename[:80].replace("/", "_")
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
        return f"{host}-{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    return host


def existing(keys: Keys, among: Collection[int], name: Callable[[int], str]) -> set[int]:
    """The shards of `among` whose object exists. name: returns a shard's object name."""
    with ThreadPoolExecutor(FEW, "tilewright-scan") as pool:
        found = pool.map(keys.stat, map(name, among))
        return {number for number, status in zip(among, found, strict=True) if status}


def claim_name(number: int) -> str:
    """The name of a shard's claim."""
    return f"{CLAIMS}/{number:05d}"


def member_of(keys: Keys, worker: str, folder: str = WORKERS) -> Member | None:
    """The entry that a process wrote about itself; None if it is missing or damaged."""
    got = keys.get(f"{folder}/{worker}") if worker else None
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(got[0], type=Member) if got else None
    return None


class SharedShards:
    """A `task.Source` that shares the shards of `todo` with other processes, in that order.

    done: returns the numbers of all committed shards or, given some numbers, of the committed ones among them.
    elsewhere: is called with the shards that others have committed, and returns the damaged ones. supervised: also run
    a shard with which TRIES processes have died. again: committed shards that this process computes anew. check: called
    before each claim; it raises the error of an upload, because a shard that is not uploaded is never `done`.
    """

    check: Callable[[], object] = staticmethod(lambda: None)

    def __init__(
        self,
        board: Board,
        todo: list[int],
        done: Callable[[Collection[int] | None], set[int]],
        elsewhere: Callable[[list[int]], list[int]],
        *,
        supervised: bool,
        again: Set[int] = frozenset(),
    ) -> None:
        self._board, self._done, self._elsewhere = board, done, elsewhere
        self._order, self._supervised = todo, supervised
        self._again = again
        self._left = set(todo)  # neither committed here nor known to be committed elsewhere
        self._given: set[int] = set()  # shards that this process's workers run now
        self._free: list[int] = []  # unclaimed shards at the last scan, in reverse order
        self._claimed: list[int] = []  # claimed shards that were not committed at the last scan, in reverse order
        self._next_look, self._misses = 0.0, 0

    @property
    def over(self) -> bool:
        return not self._left

    def next(self) -> int | None:
        self.check()
        number = self._claimable()
        if number is None and time.monotonic() >= self._next_look:
            self._look()
            number = self._claimable()
        if number is not None:
            self._given.add(number)
        return number

    def _claimable(self) -> int | None:
        """Claim a shard that was free at the last scan, or else one of a dead process. None if there is none."""
        number = self._fresh()
        return self._orphan() if number is None else number

    def drop(self, number: int) -> None:
        self._left.discard(number)
        self._given.discard(number)

    def done(self, number: int, records: int) -> None:
        """Note that this process has committed a shard."""
        self._board.committed(number, records)
        self.drop(number)

    def _fresh(self) -> int | None:
        """Claim the next shard that was free at the last scan; None if there is none, or a scan is due."""
        while self._free and (self._misses < MISSES or time.monotonic() < self._next_look):
            number = self._free.pop()
            if self._board.take(number):
                self._misses = 0
                return number
            self._misses += 1
        return None

    def _orphan(self) -> int | None:
        """Take over a dead process's shard; None if there is none. A shard is looked at once after each scan."""
        while self._claimed:
            number = self._claimed.pop()
            if number not in self._left or number in self._given:
                continue
            found = self._board.left_by_the_dead(number, supervised=self._supervised)
            wanted = found and (number in self._again or number not in self._done([number]))
            if found and wanted and self._board.take(number, *found):
                return number
        return None

    def _look(self) -> None:
        """Scan the job: which shards have others committed, and which have they claimed?"""
        begin = time.monotonic()
        few = sorted(self._left) if len(self._left) <= max(FEW, len(self._order) // PAGE) else None
        waiting = self._left - self._given - self._again  # before `_done`: meanwhile a thread may call `done`
        others = sorted(waiting & self._done(few))
        bad = self._elsewhere(others) if others else []
        self._board.forget(bad)
        self._left -= set(others) - set(bad)
        claims = self._board.claims(few)
        waiting = self._left - self._given
        open_shards = [number for number in reversed(self._order) if number in waiting]
        self._free, self._misses = [number for number in open_shards if number not in claims], 0
        self._claimed = [number for number in open_shards if number in claims]
        scan = time.monotonic() - begin
        pause = min(max(LOOK_SECONDS, LOOK_SHARE * scan), max(MOST_SECONDS, scan))
        self._next_look = begin + scan + pause
