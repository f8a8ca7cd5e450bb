"""Settings that no job can have are refused where they are made."""

import pytest

from tilewright.errors import UsageError
from tilewright.runtime.jobs.settings import Settings


def test_a_shard_has_a_size():
    with pytest.raises(UsageError, match=r"^shard_size is 0; a shard has at least 1 record.* Give 1 or more, or None"):
        Settings(shard_size=0)
    assert Settings(shard_size=1).shard_size == 1
