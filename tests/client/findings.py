"""What sanitizers find in any process of the program, servers and tools alike, fails a test.

Each process writes its report to a file of its own in one folder (`log_path`), whoever reads its output, whatever its exit
status is taken for. A test whose end finds a report there fails with it: the one that has started the process, or the last
one that shares its server.
"""

import glob
import os
import tempfile

import pytest

OPTIONS = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS")


class Findings:
    """A plugin of pytest."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="hearth-findings-")
        for name in OPTIONS:
            ours = f"log_path={self._folder.name}/report:print_suppressions=0"
            os.environ[name] = ":".join(filter(None, (os.environ.get(name), ours)))

    def take(self):
        """The reports that have come since the last call."""
        texts = []
        for path in sorted(glob.glob(os.path.join(self._folder.name, "report*"))):
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
            os.unlink(path)
        return texts

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self):
        try:
            return (yield)
        finally:
            reports = self.take()
            if reports:
                pytest.fail("\n".join(reports), pytrace=False)
