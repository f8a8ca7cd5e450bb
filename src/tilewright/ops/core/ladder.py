"""Which kernel runs, and why: the whole dispatch of the project.

An operation's ladder is a tree of rungs, each one idea, declared once, in the operation's `ladder.py` or
`gpu_ladder.py`; its function imports the kernel. The command line, the tests, the bench and the READMEs read that
declaration. Choice follows a fixed preference and never looks at the number
of rows in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tilewright.errors import Refused, UsageError

Need = Callable[[Hashable], "str | None"]  # a problem in, a reason to refuse out (None: fine)


@dataclass(frozen=True)
class Rung:
    """One idea of a ladder.

    name: engine, then idea: "cpu.packed". idea: one sentence, what changes from the rung `after`. run: the op's own
    call. prepare: turns weights into what `run` takes, once; None where `run` takes the plain array. c: the constant of
    its error bound, in the units that the op's `spec.bound` states. slow: needs without which it runs, but is not
    chosen.
    """

    name: str
    idea: str
    after: str | None
    needs: tuple[Need, ...]
    run: Callable
    prepare: Callable[..., Any] | None = None
    c: float = 1.0
    slow: tuple[Need, ...] = ()

    def refuses(self, problem: Hashable) -> list[str]:
        """The reasons why this rung does not take `problem`; empty if it does."""
        return [why for need in self.needs if (why := need(problem)) is not None]

    def unfit(self, problem: Hashable) -> list[str]:
        """The reasons why this rung is not chosen for `problem` unless it is forced."""
        return self.refuses(problem) or [why for need in self.slow if (why := need(problem)) is not None]


_forced: ContextVar[dict[str, str]] = ContextVar("forced")


@cache
def operations() -> tuple[str, ...]:
    """The names of all operations that have a ladder: the folders of `tilewright.ops` with a `problem.py`."""
    folders = Path(__file__).parent.parent.iterdir()
    return tuple(sorted(folder.name for folder in folders if (folder / "problem.py").exists()))


@contextmanager
def using(**rungs: str) -> Iterator[None]:
    """`with using(matmul="cpu.packed"):` forces a rung; it raises `Refused` rather than fall back.

    Nests; other ops keep theirs. It holds for the operation wherever it runs, also beneath another one. Raises
    UsageError for an operation that does not exist, Refused for a rung that it does not have.
    """
    if unknown := rungs.keys() - set(operations()):
        raise UsageError(f"there is no operation {', '.join(sorted(unknown))}; there are {', '.join(operations())}")
    for op, name in rungs.items():
        import_module(f"tilewright.ops.{op}.ladder").ladder.check_name(name)
    token = _forced.set({**_forced.get({}), **rungs})
    try:
        yield
    finally:
        _forced.reset(token)


@contextmanager
def preferring(**rungs: str) -> Iterator[None]:
    """Choose these rungs inside, except for operations that a caller forces with `using`: his choice always wins.

    For an operation that runs on another one. Raises Refused, as every forced rung does, where the caller's choice
    does not take the problem.
    """
    chosen = _forced.get({})
    with using(**{op: name for op, name in rungs.items() if op not in chosen}):
        yield


def forced() -> dict[str, str]:
    """The rungs that are forced here, by operation."""
    return dict(_forced.get({}))


class Ladder:
    """The rungs of one operation in the order of declaration, and the order in which they are preferred."""

    def __init__(self, op: str, prefer: tuple[str, ...]):
        self.op, self.prefer = op, prefer
        self.rungs: dict[str, Rung] = {}
        self._chosen = lru_cache(maxsize=1024)(self._choose)

    def rung(
        self,
        name: str,
        *,
        idea: str,
        after: str | None,
        needs: tuple[Need, ...] = (),
        prepare: Callable | None = None,
        c: float = 1.0,
        slow: tuple[Need, ...] = (),
    ):
        """Declare the decorated function as a rung that stands on `after`."""

        def declare(run):
            if name in self.rungs:
                raise ValueError(f"{self.op}.{name} is declared twice")
            if after is not None and after not in self.rungs:
                raise ValueError(f"{self.op}.{name} stands on {after!r}, which is not declared above it")
            self.rungs[name] = Rung(name, idea, after, needs, run, prepare, c, slow)
            return run

        return declare

    def check_name(self, name: str) -> None:
        """Raises Refused for a rung that is not there."""
        if name not in self.rungs:
            raise Refused(f"{self.op} has no rung {name!r}; it has {', '.join(self.rungs)}")

    def _choose(self, problem: Hashable, forced: str | None) -> Rung:
        if forced is not None:
            self.check_name(forced)
        reasons = {}
        for name in (forced,) if forced else self.prefer:
            rung = self.rungs[name]
            reasons[name] = rung.refuses(problem) if forced else rung.unfit(problem)
            if not reasons[name]:
                return self.rungs[name]
        lines = [
            f"no rung of {self.op} accepts {problem}" if forced is None else f"{self.op}.{forced} refuses {problem}"
        ]
        raise Refused("\n".join(lines + [f"  {name}: {'; '.join(why)}" for name, why in reasons.items()]))

    def choose(self, problem: Hashable) -> Rung:
        """The rung that will run `problem` here and now.

        Raises Refused if a forced rung refuses it, or if none accepts it.
        """
        return self._chosen(problem, _forced.get({}).get(self.op))

    def explain(self, problem: Hashable) -> str:
        """One line a preferred rung: chosen, refused and why, or never reached."""
        chosen, lines, reached = self.choose(problem).name, [], True
        for name in dict.fromkeys((*self.prefer, chosen)):
            why = self.rungs[name].unfit(problem)
            if name == chosen:
                lines.append(f"-> {name}: {self.rungs[name].idea}")
                reached = False
            else:
                lines.append(
                    f"   {name}: {'refused - ' + '; '.join(why) if why else 'accepts' if reached else 'not reached'}"
                )
        return "\n".join(lines)
