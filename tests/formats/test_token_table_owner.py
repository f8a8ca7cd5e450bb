"""A kept token table decides results, and its checksums can be forged: who may have written it counts."""

import os

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.formats.token_table import read_table, write_table

ROWS, SLICES = np.array([[0, 1, -1]], np.int32), [np.ones((2, 4), np.float32)]


def read(path):
    row_of, slices = np.full((1, 3), -1, np.int32), np.zeros((1, 2, 4), np.float32)
    return read_table(path, "of this model", row_of, slices)


@pytest.fixture
def table(tmp_path):
    write_table(tmp_path / "t.table", "of this model", ROWS, SLICES)
    return tmp_path / "t.table"


def test_a_table_that_others_may_write_is_refused(table):
    assert read(table) == 2
    table.chmod(0o646)
    with pytest.raises(
        InputError,
        match=r"may be written by others \(mode 0646\); a file that others may change must not decide the results",
    ):
        read(table)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_table_of_another_user_is_refused(table, tmp_path):
    os.chown(table, 12345, 12345)
    with pytest.raises(
        InputError, match=r"belongs to user 12345, and this process is user 0; .*Remove it: the next run"
    ):
        read(table)
    os.chown(tmp_path, 12345, 12345)  # then that user could replace the model, too
    assert read(table) == 2
