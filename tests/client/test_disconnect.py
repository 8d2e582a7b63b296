"""A client that goes away again and again leaves no lane busy and no memory behind."""

import pytest

from conftest import serve
from lib import server as servers
from lib.leaving import leave


@pytest.mark.parametrize("times", [20, pytest.param(100, marks=pytest.mark.long)])
def test_disconnect(engine_flags, times):
    # The cache may fill at any time, as far as its budget goes: that is half of what memory may grow by.
    with serve(*engine_flags, "-c", "8192", "-np", "2", "--cache-ram", "4", "-b", "64", "-ub", "64") as running:
        before, after = leave(running, times=times, warm_up=20)
        if not servers.sanitizer():  # which keeps freed memory
            assert after - before < 8 << 20
        assert running.stop() == 0
