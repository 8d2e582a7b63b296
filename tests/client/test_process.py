"""The process: how it starts, how it refuses to, how it ends."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import serve
from lib import server as servers
from lib.client import HttpError, events

USER = {"role": "user", "content": "Tell me a story."}


def refusal(*flags):
    """Exit status and the lines on stderr of a server that must not start."""
    done = subprocess.run([servers.hearth_path(), "serve", "--host", "127.0.0.1", *flags], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)
    return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("hearth:")]


def assert_refused(flags, *words):
    status, lines = refusal(*flags)
    assert status == 1
    assert len(lines) == 1, lines
    for word in words:
        assert word in lines[0]


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_refused(["--engine", "sim", "--port", port], port, "in use")


def test_missing_model(tmp_path):
    path = str(tmp_path / "missing.gguf")
    assert_refused(["-m", path, "--port", "0"], path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100], ids=["empty", "short", "other"])
def test_broken_model(tmp_path, content):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    assert_refused(["-m", str(path), "--port", "0"], str(path))


@pytest.mark.llama
def test_truncated_model(tmp_path):
    path = tmp_path / "half.gguf"
    with open(os.path.join(servers.models_dir(), "smollm2.gguf"), "rb") as whole:
        path.write_bytes(whole.read(40 << 20))
    assert_refused(["-m", str(path), "--port", "0"], str(path))


def test_no_model():
    assert_refused(["--port", "0"], "-m")


def test_versions():
    done = subprocess.run([servers.hearth_path(), "--version"], capture_output=True, text=True, timeout=20, check=True)
    assert "hearth" in done.stdout and "llama.cpp" in done.stdout


def test_idle_server_ends_with_zero(engine_flags):
    running = serve(*engine_flags, "-c", "512")
    assert running.stop() == 0


def test_closed_streams():
    """What is printed goes to no file or connection that is opened later."""
    closed = ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-']
    with servers.Server([*closed, servers.hearth_path(), "serve", "--engine", "sim", "-c", "512"]) as running:
        assert [os.readlink(f"/proc/{running.process.pid}/fd/{fd}") for fd in range(3)] == ["/dev/null"] * 3


def test_sigterm_lets_running_requests_finish(engine_flags):
    """The stream goes on to its end, new requests are refused, the exit status is 0."""
    with serve(*engine_flags, "-c", "2048", "-np", "2") as running:
        body = {"messages": [USER], "max_tokens": 100, "ignore_eos": True, "stream": True}
        connection, response = running.client.open("POST", "/v1/chat/completions", body)
        chunks = events(response)
        received = [next(chunks), next(chunks)]
        running.process.send_signal(signal.SIGTERM)
        outcomes, ended = [], threading.Event()
        refused = threading.Thread(target=lambda: outcomes.append(try_request_once_draining(running, ended)))
        refused.start()
        received += list(chunks)
        ended.set()
        connection.close()
        refused.join()
        assert received[-1]["choices"][0]["finish_reason"] == "length"
        assert outcomes[0] in (503, "refused")
        assert running.process.wait(20) == 0


def try_request_once_draining(running, ended):
    """When /health says that the server drains, or nobody listens any more; at the latest when it should."""
    with contextlib.suppress(HttpError, OSError):
        while not ended.is_set() and running.client.get("/health"):
            time.sleep(0.01)
    try:
        running.client.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 1})
    except OSError:
        return "refused"
    except Exception as error:
        return getattr(error, "status", repr(error))
    return 200


def test_sigterm_ends_after_the_grace_period(engine_flags):
    with serve(*engine_flags, "-c", "8192", "-np", "1", "--grace", "1") as running:
        body = {"messages": [USER], "max_tokens": 6000, "ignore_eos": True, "stream": True}
        connection, response = running.client.open("POST", "/v1/chat/completions", body)
        next(events(response))
        start = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
        assert time.monotonic() - start < 15
        connection.close()
