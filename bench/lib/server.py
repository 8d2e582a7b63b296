"""Starts and stops the two servers with the same flags."""

import ctypes
import functools
import http.client
import itertools
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

from .client import Client, HttpError

# A driver that is told to end takes its servers with it: an exit unwinds the context managers. One that is killed
# cannot; then the kernel ends them.
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent():
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def hearth_path():
    return os.environ.get("HEARTH_BIN") or os.path.join(REPOSITORY, "build", "hearth")


@functools.cache
def sanitizer():
    """What hearth was built with: "address", "thread" or None."""
    with open(hearth_path(), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
        marks = {"address": b"__asan_init", "thread": b"__tsan_init"}
        return next((name for name, mark in marks.items() if code.find(mark) >= 0), None)


def peer_path():
    """llama-server, built from the same source and with the same flags; the first call may build it."""
    path = os.environ.get("HEARTH_PEER")
    if not path:
        script = os.path.join(REPOSITORY, "scripts", "deps.sh")
        path = subprocess.run([script, "peer"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return path


def models_dir():
    cache = os.environ.get("HEARTH_CACHE") or os.path.expanduser("~/.cache/hearth")
    return os.environ.get("HEARTH_MODELS") or os.path.join(cache, "models")


@functools.cache
def _ports():
    """Those that this process draws from, round and round. Tests that run side by side have ranges of their own, below
    the ports that the kernel gives to connections."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw99")[2:]
    first = 10000 + int(worker) % 100 * 200
    return itertools.cycle(random.sample(range(first, first + 200), 200))


def free_port():
    """A port that nothing listens on, and not one that was drawn shortly before: whoever drew that may not listen yet."""
    for port in itertools.islice(_ports(), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no port is free")


# hearth keeps nothing on disk and finds nothing there unless a driver says so with --kv-dir and --session-db.
NO_DISK = {"HEARTH_KV_DIR": "none", "HEARTH_SESSION_DB": "none"}


def cores():
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def surroundings(more=None):
    """The environment of a server: what either would take a setting from is left out."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("HEARTH_", "LLAMA_ARG_"))}
    return {**ours, **NO_DISK, **(more or {})}


# How a server may end: by itself, or by a signal that it was sent (a second one ends it at once, with 128 and its
# number). Any other status is a crash or a finding of a sanitizer.
WELL = (0, -signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGINT)


class Server:
    """A running server; a context manager. Its log is kept when it fails, or ends badly, which is an error."""

    def __init__(self, command, port=None, start_timeout_s=120, env=None):
        for attempt in range(3):
            try:
                self._start(command, port or free_port(), start_timeout_s, env)
                return
            except RuntimeError as error:
                # A port that was free a moment ago may be a connection's by now.
                if port or attempt == 2 or "is in use" not in str(error):
                    raise

    def _start(self, command, port, start_timeout_s, env):
        self.port = port
        self.client = Client(self.port)
        self.command = [*command, "--host", "127.0.0.1", "--port", str(self.port)]
        self._hung = False
        self._log = tempfile.NamedTemporaryFile(prefix="hearth-bench-", suffix=".log", delete=False)
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                                        preexec_fn=_die_with_parent, env=surroundings(env))
        try:
            self._wait_ready(start_timeout_s)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _wait_ready(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.command[0]} ended with {self.process.returncode}\n{self.log()[-2000:]}")
            try:
                self.client.get("/health")
                return
            except (OSError, HttpError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.command[0]} was not ready after {timeout_s} s") from None
                time.sleep(0.02)

    def log(self):
        with open(self._log.name, encoding="utf-8", errors="replace") as file:
            return file.read()

    def memory_bytes(self, field):
        """A field of /proc/PID/status: VmHWM (peak), VmRSS, RssAnon."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
        raise KeyError(field)

    def halt(self):
        """SIGSTOP: it keeps what it has and computes nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        """SIGKILL, as a crash or a power cut would end it."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s=60):
        """SIGTERM, then SIGKILL; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGCONT)  # in case it is halted
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                self._hung = True
        self._log.close()
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        dead = self.process.poll()
        if dead is not None and kind is not None:
            print(f"{self.command[0]} had ended with {dead}", file=sys.stderr)
        status = self.stop()
        if kind is not None:
            print(f"log of {self.command[0]}: {self._log.name}", file=sys.stderr)
        elif self._hung or status not in WELL:
            how = "did not end" if self._hung else f"ended with {status}"
            raise RuntimeError(f"{self.command[0]} {how}; log: {self._log.name}\n{self.log()[-2000:]}")
        else:
            os.unlink(self._log.name)


HEARTH, PEER = "hearth", "llama-server"


def start(kind, model, lanes, ctx_tokens=8192, cache_mib=None, threads=None, extra=(), env=None):
    """Starts HEARTH or PEER on `model` (a gguf.Model). A model without a chat template gets chatml on both."""
    command = [hearth_path(), "serve"] if kind == HEARTH else [peer_path(), "--no-ui", "--kv-unified"]
    command += ["-m", model.path, "-c", str(ctx_tokens), "-np", str(lanes), "-t", str(threads or cores())]
    if cache_mib is not None:
        command += ["--cache-ram", str(cache_mib)]
    if not model.has_template:
        command += ["--chat-template", "chatml"]
    if kind == HEARTH:
        command += ["--metrics", "--slots"]
    return Server([*command, *extra], env=env)
