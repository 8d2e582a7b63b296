"""A client that goes away a hundred times leaves no lane busy and no memory behind."""

from conftest import serve
from lib import server as servers
from lib.leaving import leave


def test_disconnect(engine_flags):
    with serve(*engine_flags, "-c", "8192", "-np", "2", "--cache-ram", "16", "-b", "64", "-ub", "64") as running:
        before, after = leave(running, times=100, warm_up=20)
        if not servers.sanitizer():  # which keeps freed memory
            assert after - before < 8 << 20
        assert running.stop() == 0
