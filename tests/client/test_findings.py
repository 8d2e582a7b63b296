"""A finding of a sanitizer fails a test: here of a program that has one."""

import os
import subprocess

import pytest

from lib import server as servers

PROGRAMS = {
    "address": ("#include <stdlib.h>\nint main(void) { return malloc(7) == NULL; }", "7 byte(s) leaked"),
    "thread": ("#include <pthread.h>\nstatic int n;\nstatic void *add(void *arg) { n++; return arg; }\n"
               "int main(void) { pthread_t one; pthread_create(&one, NULL, add, NULL); n++; pthread_join(one, NULL); }",
               "data race"),
}


@pytest.mark.skipif(not servers.sanitizer(), reason="built without a sanitizer")
def test_a_finding_is_seen(pytestconfig, tmp_path):
    findings = pytestconfig.pluginmanager.get_plugin("findings")
    source, words = PROGRAMS[servers.sanitizer()]
    program = str(tmp_path / "program")
    subprocess.run([os.environ.get("CC", "cc"), f"-fsanitize={servers.sanitizer()}", "-pthread", "-xc", "-", "-o", program],
                   input=source, text=True, check=True)
    assert subprocess.run([program], check=False).returncode != 0
    reports = findings.take()
    assert len(reports) == 1 and words in reports[0]
