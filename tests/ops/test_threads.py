"""A launch ends when all its threads have ended, whatever happens meanwhile."""

import signal
import threading
import time

import pytest

from tilewright.errors import UsageError
from tilewright.ops import _threads
from tilewright.ops._threads import launch, thread_count, threads


def on_three(main, helper) -> list[str]:
    """What was done by a launch on three threads: main() on this one, helper() on two others; then it raises."""
    done: list[str] = []

    def kernel(scratch):
        alone = threading.current_thread() is threading.main_thread()
        (main if alone else helper)()
        done.append("main" if alone else "helper")

    with threads(3):
        try:
            launch(kernel, tasks=9, words=1)
        except (KeyboardInterrupt, ZeroDivisionError) as error:
            done.append(type(error).__name__)
    return done


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background, which ignores it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("place", ["while it works", "while it waits"])
def test_an_interrupt_waits_for_the_helpers(place):
    """They write to the caller's memory, which may be freed when the exception has left."""
    here = threading.get_ident()
    threading.Timer(0.1, lambda: signal.pthread_kill(here, signal.SIGINT)).start()
    done = on_three(lambda: time.sleep(0.2 * (place == "while it works")), lambda: time.sleep(0.5))
    assert done == [*["main"] * (place == "while it waits"), "helper", "helper", "KeyboardInterrupt"]
    assert on_three(time.time, time.time).count("helper") == 2  # and the helpers serve on


def test_an_interrupt_between_two_starts(monkeypatch):
    """What had not been started is started, to be awaited: nobody is left waiting for it or by it."""

    class Interrupted(map):
        steps = 0

        def __next__(self):
            self.steps += 1
            if self.steps == 2:
                raise KeyboardInterrupt
            return super().__next__()

    monkeypatch.setattr(_threads, "map", Interrupted, raising=False)
    assert on_three(time.time, lambda: time.sleep(0.1)) == ["helper", "helper", "KeyboardInterrupt"]


def test_what_a_helper_raises_arrives():
    assert on_three(time.time, lambda: 1 // 0) == ["main", "ZeroDivisionError"]


@pytest.mark.parametrize("count", ["x", 1.5, 0, -1])
def test_a_number_of_threads_that_is_none_is_refused(count):
    with pytest.raises(UsageError, match=f"threads is {count!r}; "), threads(count):
        pytest.fail("the block was entered")


def test_threads_nest():
    with threads(3):
        with threads(None):
            assert thread_count() >= 1
        assert thread_count() == 3
