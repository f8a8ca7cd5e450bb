"""Chooses the kernel of an operation. All dispatch of the project is here.

The ladder of an operation is a table of rungs (kernels) in its `ladder.py`. Each rung is one idea, declared once, as
data: the command line, the tests, the bench and the docs read that table. The rungs are in order, from naive to fast,
for all engines. The last rung that is marked `chosen` and accepts the problem runs. The problem does not contain the
number of rows in the batch, so the choice cannot depend on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.errors import Refused, UsageError, suggestion
from tilewright.ops.core.layers import split_target, target_of, wrong_layers

Need = Callable[[Hashable], "str | None"]  # a problem in, a reason to refuse out (None: fine); its docstring is shown
BLOCKS = (64, 128, 256, 512, 1024)  # threads per block that a sweep tries on a GPU


class Memory(NamedTuple):
    """Bytes of a rung's weights.

    prepared: of the prepared weights. preparing: the most that exists in addition while `prepare` runs, without the
    caller's weights. entry: per entry of a table that the rung fills as inputs arrive; 0 for a rung without a table.
    """

    prepared: int = 0
    preparing: int = 0
    entry: int = 0


@dataclass(frozen=True)
class Rung:
    """One kernel of a ladder, which adds one idea.

    name: engine, then idea, as in "cpu.packed". idea: one sentence on what changes from the rung `after`. kernel: path
    in `tilewright.ops` of the function that runs it, as in "softmax.cpu.vectors:normalise"; it is imported when the
    rung first runs. A user's own rung may hold the function itself. options: keyword arguments of that function. swept:
    the options that `tilewright sweep` may change, each with its default values; the function raises Refused for a
    value that cannot run. prepare: path of the function that packs the weights; None if the kernel takes the plain
    array. memory: path of a function memory(problem) -> Memory for the prepared weights; None if nothing is prepared.
    (Each thread of a kernel has at most `launch.SCRATCH_BYTES` of scratch in addition.) calls: other operations that
    the kernel and `prepare` run, with rungs of their own. needs: requirements on the problem and the machine. limit: a
    requirement that depends on the swept options, which it takes as keywords after the problem. slow: requirements
    without which the rung can run, but is not chosen. chosen: True if it may run by default; otherwise it exists to be
    taught, measured and forced. c: the constant of its error bound, in the units of the operation's `problem.bound`.
    """

    name: str
    idea: str
    kernel: str | Callable
    after: str | None = None
    needs: tuple[Need, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    swept: Mapping[str, tuple] = field(default_factory=dict)
    prepare: str | Callable | None = None
    memory: str | None = None
    calls: tuple[str, ...] = ()
    chosen: bool = False
    slow: tuple[Need, ...] = ()
    limit: Callable[..., str | None] | None = None
    c: float = 1.0

    @cached_property
    def run(self) -> Callable:
        """The kernel's function with its options."""
        function = _imported(self.kernel)
        return partial(function, **self.options) if self.options else function

    @cached_property
    def lay_out(self) -> Callable | None:
        """The function that `prepare` names."""
        return _imported(self.prepare) if self.prepare else None

    @cached_property
    def taken(self) -> set[Hashable]:
        """The problems that it accepted inside `trying`, cached: checking its needs takes longer than a small
        kernel."""
        return set()

    def varied(self, **options: Any) -> Rung:
        """The rung with other values of its `swept` options, for `trying`. Raises UsageError for another option."""
        if unknown := options.keys() - self.swept.keys():
            what, has = ", ".join(sorted(unknown)), ", ".join(self.swept) or "none"
            raise UsageError(f"{self.name} has no option {what} to sweep; it has {has}")
        return replace(self, options={**self.options, **options})

    def memory_for(self, problem: Hashable) -> Memory:
        """Bytes that the prepared weights of `problem` take."""
        return _imported(self.memory)(problem) if self.memory else Memory()

    def refuses(self, problem: Hashable) -> list[str]:
        """The reasons why this rung does not take `problem`; empty if it does."""
        limits = (partial(self.limit, **self.options),) if self.limit else ()
        return [why for need in (*self.needs, *limits) if (why := need(problem)) is not None]

    def unfit(self, problem: Hashable) -> list[str]:
        """The reasons why this rung is not chosen for `problem` unless it is forced."""
        return self.refuses(problem) or [why for need in self.slow if (why := need(problem)) is not None]


def _imported(path: str | Callable) -> Callable:
    """The function at "module:name" in `tilewright.ops`; a function itself."""
    if callable(path):
        return path
    module, name = path.split(":")
    return getattr(import_module(f"tilewright.ops.{module}"), name)


def in_words(problem: Hashable) -> str:
    """The fields of a problem as text: "N=768, K=64, float32 on cpu". A flag is named only if it is true."""
    if not is_dataclass(problem):
        return str(problem)
    given = {each.name: getattr(problem, each.name) for each in fields(problem)}
    dtype, device = given.pop("dtype", None), given.pop("device", None)
    flags = {name for name, value in given.items() if isinstance(value, bool)}
    words = [
        name if name in flags else f"{name}={_plain(value)}" for name, value in given.items() if value is not False
    ]
    return ", ".join([*words, f"{dtype} on {device}"] if dtype else words)


def _plain(value: Hashable) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"({in_words(value)})" if is_dataclass(value) else str(value)


class Forced(NamedTuple):
    """The forced rungs by operation or by layer ("matmul@2"), and the operations and layers that ran meanwhile."""

    rungs: dict[str, str | Rung]
    ran: set[str]

    def again(self) -> bool:
        """True if the same rungs are forced now. The caller then replays the operations, so they are added to those
        that ran."""
        rungs, ran = _forced.get()
        if rungs != self.rungs:
            return False
        ran.update(self.ran)
        return True


_NOTHING = Forced({}, set())
_forced: ContextVar[Forced] = ContextVar("forced", default=_NOTHING)


@cache
def operations() -> tuple[str, ...]:
    """The names of all operations that have a ladder: the folders of `tilewright.ops` with a `problem.py`."""
    folders = Path(__file__).parent.parent.iterdir()
    return tuple(sorted(folder.name for folder in folders if (folder / "problem.py").exists()))


@contextmanager
def using(**rungs: str) -> Iterator[None]:
    """`with using(matmul="cpu.packed"):` forces a rung (kernel). If the rung cannot run, `Refused` is raised.

    Blocks may be nested; other operations keep their rungs. The rung is used wherever the operation runs, also inside
    another operation. `using(**{"conv_transpose2d@3": "simt.gather"})` forces a rung for one layer: the third call of
    the operation in a model's forward pass. A layer's rung takes precedence over that of its operation. Raises
    UsageError for an unknown operation, and Refused for an unknown rung. A model raises UsageError for a layer that it
    does not have. A warning at the end of the block says if the rung had no effect: if other operations ran in the
    block, but this one did not. The block has an effect on its own thread only.
    """
    with forcing(**rungs) as ran:
        yield
    unused = [f"{op}={name!r}" for op, name in rungs.items() if op not in ran]
    if unused and ran:
        what = f"using({', '.join(unused)}) had no effect on this block: it ran {', '.join(sorted(ran))}"
        warnings.warn(what, stacklevel=3)


@contextmanager
def forcing(**rungs: str) -> Iterator[set[str]]:
    """As `using`, without the warning. Yields the set of operations and layers that run in the block, see `Forced`."""
    named = [(split_target(target)[0], name) for target, name in rungs.items()]
    if unknown := {op for op, _ in named} - set(operations()):
        names = ", ".join(f"{op}{suggestion(op, operations())}" for op in sorted(unknown))
        raise UsageError(f"there is no operation {names}; the operations are {', '.join(operations())}")
    for op, name in named:
        import_module(f"tilewright.ops.{op}.ladder").ladder.check_name(name)
    with _inside(rungs) as inner:
        yield inner.ran


@contextmanager
def trying(op: str, rung: Rung) -> Iterator[None]:
    """Force a rung that is not in the ladder of `op`: one with other options, or a user's own kernel.

    Jobs refuse it, because they pass only the names of rungs to their workers.
    """
    with _inside({op: rung}):
        yield


@contextmanager
def _inside(rungs: Mapping[str, str | Rung]) -> Iterator[Forced]:
    """Force these rungs in addition to the outer ones."""
    outer = _forced.get()
    token = _forced.set(inner := Forced({**outer.rungs, **rungs}, set()))
    try:
        yield inner
    finally:
        _forced.reset(token)
        if outer.rungs:
            outer.ran.update(inner.ran)


@contextmanager
def forced_within() -> Iterator[Forced]:
    """The rungs that are forced in the block, and the operations that run in it."""
    with _inside({}) as inner:
        yield inner


@contextmanager
def preferring(**rungs: str) -> Iterator[None]:
    """Within the block, use these rungs, unless the caller has forced another one with `using`.

    It is for an operation that calls another one. Raises Refused if the rung that the caller has forced cannot run.
    """
    chosen = _forced.get().rungs
    with forcing(**{op: name for op, name in rungs.items() if op not in chosen}):
        yield


def any_forced() -> bool:
    """True if a rung is forced now."""
    return bool(_forced.get().rungs)


def forced() -> dict[str, str]:
    """The rungs that are forced now, by operation. A job forces them in its workers.

    The job itself reports rungs without effect, so `using` does not. Raises Refused inside `trying`.
    """
    rungs, ran = _forced.get()
    named: dict[str, str] = {}
    for op, rung in rungs.items():
        if isinstance(rung, Rung):
            raise Refused(f"a job cannot run {op}.{rung.name} with options or a kernel of its own")
        named[op] = rung
    ran.update(named)
    return named


def forced_for(op: str) -> str | None:
    """The name of the rung that is forced for the operation, or for its current layer. Raises Refused as `forced`."""
    rungs = forced()
    return rungs.get(target_of(op, rungs))


def check_layers(model: str, calls: Mapping[str, int]) -> None:
    """Raises UsageError for a rung that is forced for a layer that the model does not have.

    model: its name in the message. calls: how often its forward pass calls each operation whose calls are numbered.
    """
    for target, what in wrong_layers(_forced.get().rungs, calls):
        raise UsageError(f"a rung is forced for {target}, and {model} has no such layer: {what}")


class Ladder:
    """The table of one operation's rungs. Each rung is declared after the rung that it improves.

    taught: True if no job runs this operation by default; it exists to be taught and measured.
    """

    def __init__(self, op: str, *rungs: Rung, taught: bool = False):
        self.op, self.taught = op, taught
        self.rungs: dict[str, Rung] = {}
        for rung in rungs:
            if rung.name in self.rungs:
                raise ValueError(f"{op}.{rung.name} is declared twice")
            if rung.after is not None and rung.after not in self.rungs:
                raise ValueError(f"{op}.{rung.name} stands on {rung.after!r}, which is not declared above it")
            self.rungs[rung.name] = rung
        self.prefer = tuple(rung.name for rung in reversed(rungs) if rung.chosen)
        self._chosen = lru_cache(maxsize=1024)(self._choose)

    def check_name(self, name: str) -> None:
        """Raises Refused for an unknown rung."""
        if name not in self.rungs:
            near = suggestion(name, self.rungs)
            raise Refused(f"{self.op} has no rung {name!r}{near}; it has {', '.join(self.rungs)}")

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
            f"no rung of {self.op} accepts {in_words(problem)}"
            if forced is None
            else f"{self.op}.{forced} refuses {in_words(problem)}"
        ]
        raise Refused("\n".join(lines + [f"  {name}: {'; '.join(why)}" for name, why in reasons.items()]))

    def table(self) -> str:
        """All rungs as text, including those of missing engines: idea, kernel, needs, and whether it may be chosen."""
        lines = [f"{self.op}: no job runs it by default; it is there to be taught"] if self.taught else [self.op]
        for rung in self.rungs.values():
            lines.append(f"{rung.name}  ({'chosen where it can run' if rung.chosen else 'taught'})")
            lines.append(f"    {rung.idea}")
            module, function = str(rung.kernel).split(":")
            options = ", ".join(f"{name}={value!r}" for name, value in rung.options.items())
            lines.append(f"    kernel: ops/{module.replace('.', '/')}.py, {function}({options})")
            sweeps = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in rung.swept.items())
            lines += [f"    sweep: {sweeps}"] if sweeps else []
            needs = [
                (getdoc(need) or need.__name__).rstrip(".")
                for need in (*rung.needs, *filter(None, [rung.limit]), *rung.slow)
            ]
            lines += [f"    needs: {'; '.join(needs)}"] if needs else []
            lines += [f"    calls: {', '.join(rung.calls)}"] if rung.calls else []
            lines += [f"    after: {rung.after}"] if rung.after else []
        return "\n".join(lines)

    def choose(self, problem: Hashable) -> Rung:
        """The rung that runs `problem` on this machine, given the rungs that are forced now.

        Raises Refused if the forced rung cannot run the problem, or if no rung can.
        """
        rungs, ran = _forced.get()
        if not rungs:
            return self._chosen(problem, None)
        target = target_of(self.op, rungs)
        ran.update((self.op, target))
        rung = rungs.get(target)
        if not isinstance(rung, Rung):
            return self._chosen(problem, rung)
        if problem in rung.taken:
            return rung
        if reasons := rung.refuses(problem):
            raise Refused(f"{self.op}.{rung.name} refuses {in_words(problem)}: {'; '.join(reasons)}")
        rung.taken.add(problem)
        return rung

    def explain(self, problem: Hashable) -> str:
        """One line per preferred rung: chosen, accepted, refused with the reasons, or not reached."""
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
