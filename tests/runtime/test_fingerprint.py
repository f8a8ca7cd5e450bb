"""Settings as a job is called: with the device of "auto", and the rungs and threads of the caller's `with` blocks."""

import pytest

from tilewright.errors import Refused, UsageError
from tilewright.ops.core.ladder import forced, using
from tilewright.ops.core.launch import asked_threads, threads
from tilewright.runtime.fingerprint import as_called, fingerprint, in_force
from tilewright.runtime.jobs.settings import Settings


def test_the_callers_blocks_count():
    with using(matmul="cpu.packed"), threads(1):
        found = as_called(Settings())
    assert (found.device, found.rungs, found.threads) == ("cpu", {"matmul": "cpu.packed"}, 1)


def test_settings_win_over_the_callers_blocks():
    with using(matmul="cpu.packed", softmax="cpu.naive"), threads(1):
        found = as_called(Settings(rungs={"matmul": "cpu.vectors"}, threads=2))
    assert found.rungs == {"matmul": "cpu.vectors", "softmax": "cpu.naive"} and found.threads == 2


def test_a_worker_has_them_too():
    with in_force(Settings(rungs={"matmul": "cpu.packed"}, threads=2)):
        assert forced() == {"matmul": "cpu.packed"} and asked_threads() == 2
    assert forced() == {} and asked_threads() is None


def test_rungs_are_part_of_what_results_depend_on():
    fields = fingerprint("classify", Settings(rungs={"matmul": "cpu.packed"}), "bfloat16")
    assert (fields["verb"], fields["dtype"], fields["rung.matmul"]) == ("classify", "bfloat16", "cpu.packed")


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (Settings(rungs={"nothing": "cpu.packed"}), UsageError),
        (Settings(rungs={"matmul": "cpu.nothing"}), Refused),
        (Settings(device="tpu"), UsageError),
        (Settings(dtype="float16"), UsageError),
        (Settings(threads=0), UsageError),
        (Settings(batch_size=0), UsageError),
    ],
)
def test_what_is_refused(settings, kind):
    with pytest.raises(kind):
        as_called(settings)
