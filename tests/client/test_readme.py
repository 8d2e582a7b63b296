"""The commands that the README and `hearth serve --hello` print work as they stand, but for the port."""

import os
import re
import site
import subprocess
import sys

import pytest

from lib import server as servers
from ondisk import wait_until

README = os.path.join(servers.REPOSITORY, "README.md")


def commands(text):
    """The curl and Python commands in a text, each with its continuation lines and its here-document."""
    out, lines = [], iter(text.splitlines())
    for line in lines:
        if not line.startswith(("curl ", "python3 ")):
            continue
        command = [line]
        while command[-1].endswith(("\\", "&&")):
            command.append(next(lines))
        end = re.search(r"<<'(\w+)'$", command[-1])
        while end and command[-1] != end[1]:
            command.append(next(lines))
        out.append("\n".join(command))
    return out


def run(command, port, folder):
    """Output of a command as a user would type it, with this server's port. The SDK is the one that the tests have."""
    command = command.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("/tmp/openai-sdk", str(folder / "sdk"))
    environment = {**os.environ, "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
                   "PYTHONPATH": os.pathsep.join(site.getsitepackages()), "PIP_NO_INDEX": "1",
                   "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed(language_flags):
    with servers.Server([servers.hearth_path(), "serve", *language_flags, "-t", "1", "-c", "4096", "--hello"]) as running:
        wait_until(lambda: len(commands(running.log())) == 2, "it says what to try")  # a moment after it listens
        yield running, running.log()


OUTPUTS = {}  # of commands that have run: the README has what --hello prints


def check(found, port, folder):
    for command in found:
        if command not in OUTPUTS:
            OUTPUTS[command] = run(command, port, folder)
    outputs = [OUTPUTS[command] for command in found]
    assert any("\"choices\"" in output for output in outputs), outputs
    assert all(output.strip() for output in outputs)


@pytest.mark.llama
def test_hello(printed, tmp_path):
    running, text = printed
    found = commands(text)
    assert [command.split()[0] for command in found] == ["curl", "python3"]
    check(found, running.port, tmp_path)


@pytest.mark.llama
def test_readme(printed, tmp_path):
    with open(README, encoding="utf-8") as file:
        found = commands(file.read())
    assert {command.split()[0] for command in found} >= {"curl", "python3"}, "the README has lost its snippets"
    check(found, printed[0].port, tmp_path)
