"""Programs as their users run them, set up as docs/clients.md says: the page's own configuration files, variables and
commands are what runs here, so the page holds as long as these tests do.

A section of the page may have code blocks behind a line "`NAME`:": these are files (`~/` is the home, everything else lies
in the working folder); and blocks of shell: lines with `export` are the environment, the others are commands with a text
in double quotes. The first command opens a session, the last one goes on with it.

HEARTH_PROGRAMS has a line name=directory for each environment that scripts/programs.sh has made; without a program its
tests are left out. Each gets an empty home, and nothing that it would reach outside of this machine can be reached.
"""

import contextlib
import functools
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import zlib

import pytest

from conftest import serve
from lib import as_chat
from lib import server as servers
from lib.ledger import of_exchanges
from lib.record import Recorder
from museum import UNSCRIPTED, says, tiny_flags
from ondisk import wait_until, wait_written

PAGE = os.path.join(servers.REPOSITORY, "docs", "clients.md")
NOWHERE = "http://127.0.0.1:9"
TIMEOUT_S = 300
# What a single request may cost beyond what is new in it: a call that its client has rewritten (Claude Code adds what its
# tools assume) is computed again as a whole, while by value only its end is new.
SLACK_TOKENS = 100


@functools.cache
def section(title):
    """The part of the page below a heading."""
    with open(PAGE, encoding="utf-8") as file:
        found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", file.read(), re.DOTALL | re.MULTILINE)
    assert found, f"docs/clients.md has no section {title}"
    return found[1]


def files(title):
    """Names and contents of the files that a section gives."""
    return re.findall(r"^`([^`\n]+)`:\n\n```\w*\n(.*?)^```$", section(title), re.DOTALL | re.MULTILINE)


def shell(title):
    """A section's lines of shell."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", section(title), re.DOTALL | re.MULTILINE)
    return "".join(blocks).replace("\\\n", " ").splitlines()


def table():
    """The page's table: of each program its package, version, and the tokens of its first prompt."""
    with open(PAGE, encoding="utf-8") as file:
        rows = re.findall(r"^\| (.+?) \| `(.+?)` ([\d.]+) \| ([\d,]+) \|", file.read(), re.MULTILINE)
    return {title: (package, version, int(tokens.replace(",", ""))) for title, package, version, tokens in rows}


def requirements():
    """Versions of the packages that scripts/programs.sh installs."""
    folder = os.path.join(os.path.dirname(__file__), "programs")
    text = ""
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            text += file.read()
    return dict(re.findall(r"^([\w-]+)(?:\[.*\])?==([\d.]+)$", text, re.MULTILINE))


def assert_first_prompt(ledger, title):
    """The page says about how long the first prompt is."""
    said, found = table()[title][2], ledger.rows[0][0]
    assert abs(found - said) <= said * 0.1, f"docs/clients.md says {said} of {title}, but its first prompt has {found}"


def installed(name):
    lines = os.environ.get("HEARTH_PROGRAMS", "").splitlines()
    return dict(line.split("=", 1) for line in lines).get(name)


def needs(name):
    return pytest.mark.skipif(not installed(name), reason=f"HEARTH_PROGRAMS has no {name} (scripts/programs.sh)")


class Program:
    """An installation of one user: a home, a working folder, and a server's port instead of 8080."""

    def __init__(self, name, title, folder, port):
        self.home, self.work, self.port = str(folder / "home"), str(folder / "work"), port
        for path in (self.home, self.work):
            os.makedirs(path, exist_ok=True)
        for file_name, text in files(title):
            path = os.path.join(self.work, file_name.replace("~", self.home, 1))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(self._here(text))
        lines = [self._here(line) for line in shell(title)]
        self._environment = {**self._surroundings(name), **{
            key: value for line in lines if line.startswith("export ")
            for key, value in (word.split("=", 1) for word in shlex.split(line)[1:])}}
        self._commands = [shlex.split(line) for line in lines if line and not line.startswith(("export ", "#"))]
        self._opened = False

    def _here(self, text):
        return text.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}").replace("localhost:8080", f"localhost:{self.port}")

    def _surroundings(self, name):
        path = os.path.join(installed(name), "bin") + os.pathsep + os.environ["PATH"]
        return {"PATH": path, "HOME": self.home, "XDG_CONFIG_HOME": f"{self.home}/.config", "TERM": "dumb",
                "XDG_CACHE_HOME": f"{self.home}/.cache", "XDG_DATA_HOME": f"{self.home}/.local/share", "LC_ALL": "C.UTF-8",
                "XDG_STATE_HOME": f"{self.home}/.local/state", "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE,
                "ALL_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1,localhost", "COLUMNS": "120", "LINES": "50"}

    def path(self, name):
        return os.path.join(self.work, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def change(self, name, old, new):
        """Another set-up than the page's: in one of its files."""
        path = self.path(name.replace("~", self.home, 1))
        with open(path, encoding="utf-8") as file:
            text = file.read()
        assert old in text, f"docs/clients.md has no {old!r} in {name}"
        self.write(path, text.replace(old, new))

    def command(self, text, flags=(), new=False):
        """The page's command with this text and more flags before it."""
        command = self._commands[0 if new or not self._opened else -1]
        self._opened = True
        return [*command[:-1], *flags, text]

    def _process(self, command):
        return subprocess.Popen(command, cwd=self.work, env=self._environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def start(self, text, *flags, new=False):
        """Begins a turn in a process of its own."""
        return self._process(self.command(text, flags, new))

    def run(self, *command):
        """Another command; what it printed."""
        return self.answer(self._process(command))

    @staticmethod
    def answer(process):
        """Waits for a turn that was begun; what it printed."""
        try:
            output, errors = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise RuntimeError(f"no end\n{output[-2000:]}\n{errors[-2000:]}") from None
        assert process.returncode == 0, f"ended with {process.returncode}\n{output[-2000:]}\n{errors[-2000:]}"
        return output.strip()

    def ask(self, text, *flags, new=False):
        return self.answer(self.start(text, *flags, new=new))


class Play:
    """A server that speaks a script, over a directory, with a recorder before it that outlives it."""

    def __init__(self, folder, model, flags):
        self._folder, self._flags = folder, [*tiny_flags(model), "--kv-dir", os.path.join(folder, "kv"), *flags]
        self._runs, self.lost = 0, []
        self.server = self.recorder = None

    def start(self, script):
        self._runs += 1
        path = os.path.join(self._folder, f"script-{self._runs}.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in [*script, says(UNSCRIPTED, times=0)])
        self.server = serve(*self._flags, "--script", path, port=self.server.port if self.server else None)
        if not self.recorder:
            self.recorder = Recorder(self.server.port)
        self.port = self.recorder.port

    def exchanges(self):
        """What asked the model, or tried to."""
        self.recorder.await_end()
        return [exchange for exchange in self.recorder.exchanges if exchange.method == "POST" and exchange.body]

    def kill_in_mid_stream(self, tokens=50):
        """SIGKILL, once a reply has got this far. What the requests that run then cost is lost with the server."""
        def far():
            slots = self.server.client.get("/slots")
            return any(slot["state"] == "decode" and slot["n_decoded"] >= tokens for slot in slots)
        wait_until(far, "a reply is being written", TIMEOUT_S)
        self.lost += [exchange for exchange in self.recorder.exchanges if exchange.until_s is None]
        self.server.kill()

    def written(self):
        """Waits until all that is known is on disk."""
        wait_written(self.server)

    def full(self):
        """Those that were told, in the words of their dialect, that the context is full: by an error, or by a response
        that does not end the turn."""
        def tells(reply):
            error = reply.get("error") or {}
            return (error.get("code") == "context_length_exceeded" or reply.get("end_turn") is False
                    or error.get("message", "").startswith("prompt is too long: "))
        return [exchange for exchange in self.exchanges() if isinstance(exchange.reply, dict) and tells(exchange.reply)]

    def assert_well(self, limit=1.02, each=True):
        """No request was refused, but for those that did not fit, everything was in the script, and prompts cost what is
        new in them: all together, and each, unless they ran beside each other: then the one that came first may have
        waited for what the other computed."""
        unanswered = [*self.lost, *self.full()]
        failed = [(exchange.method, exchange.path, exchange.status, exchange.reply) for exchange in self.recorder.exchanges
                  if exchange not in unanswered and exchange.status not in (None, 200)]
        # Programs look for other servers than this one, too.
        failed = [each for each in failed if each[2] != 404 or as_chat.dialect(each[1])]
        assert not failed, failed
        assert UNSCRIPTED not in json.dumps([exchange.reply for exchange in self.exchanges()])
        ledger = of_exchanges(self.server.client, self.exchanges(), unanswered)
        assert ledger.rows
        assert ledger.ratio <= limit, f"computed {ledger.computed}, new {ledger.new}: {ledger.rows}"
        dear = [row for row in ledger.rows if row[1] > row[2] * limit + SLACK_TOKENS]
        assert not (each and dear), f"(prompt, computed, new): {dear} of {ledger.rows}"
        return ledger


@contextlib.contextmanager
def play(folder, script, *flags, model="tiny"):
    acted = Play(str(folder), model, flags)
    try:
        acted.start(script)
        yield acted
    finally:
        if acted.recorder:
            acted.recorder.__exit__(None, None, None)
        if acted.server:
            acted.server.__exit__(*sys.exc_info())


def png(side=8):
    """A picture, as a file."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((row * 3 % 256, 0, 9)) * side for row in range(side))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
