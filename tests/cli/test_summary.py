"""The figures of a job's summary have as many digits as mean something."""

import math
from types import SimpleNamespace

import pytest

from tilewright.cli._jobs import _device_row
from tilewright.cli._output import significant, summary
from tilewright.runtime.reports import Report


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (30506151.717941, "30500000"), (251.084906, "251"), (5.337250, "5.34"), (0.0008056, "0.000806"),
        (999.6, "1000"), (0.0, "0"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_three_significant_digits_without_an_exponent(value, text):
    assert significant(value) == text


@pytest.mark.parametrize(("errors", "rates"), [(20, 0), (19, 2), (0, 2)])
def test_no_rate_if_all_records_are_bad(errors, rates):
    report = Report(records=20, errors=errors, computed=20, seconds={"run": 1e-5, "total": 0.5})
    assert summary(report, "sentences").count("(sentences/sec)") == rates


@pytest.mark.parametrize(("engine", "threads", "shown"), [("mpi", None, "cpu"), ("mpi", 3, "cpu, 3 threads")])
def test_ranks_divide_the_cores(engine, threads, shown):
    """The banner does not give each rank all cores of the machine."""
    given = SimpleNamespace(engine=engine, threads=threads, device="cpu", dtype="float32", workers=None)
    assert _device_row(given) == {"Device": shown}
