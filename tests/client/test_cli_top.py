"""`hearth top`: what a server is doing. Against the sim engine, and against servers that say less than hearth does."""

import contextlib
import http.server
import json
import os
import pty
import select
import signal
import subprocess
import threading
import time

import pytest

from conftest import serve
from lib import server as servers

NO_PROXY = {"HEARTH_URL": "", "HEARTH_API_KEY": ""}


def run(*arguments, status=0, env=None):
    done = subprocess.run([servers.hearth_path(), "top", *map(str, arguments)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120, env={**os.environ, **NO_PROXY, **(env or {})})
    assert done.returncode == status, (done.stdout[-2000:], done.stderr[-2000:])
    return done


def complaint(*arguments, status=1, **options):
    lines = run(*arguments, status=status, **options).stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("hearth top: ")
    return lines[0]


def url(server):
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def sim():
    with serve("--engine", "sim", "-np", "2", "-c", "8192", "--api-key", "hush") as server:
        yield server


@contextlib.contextmanager
def other_server(answers):
    """Answers each path with what is in the dictionary, or 404."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = answers.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "not here").encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Asking:
    """Requests that keep a server busy until they are dropped."""

    def __init__(self, server, count, **body):
        self.open = []
        for number in range(count):
            message = {"role": "user", "content": f"{number} " + "word " * 200}
            self.open.append(server.client.open(
                "POST", "/v1/chat/completions",
                {"messages": [message], "max_tokens": 4000, "ignore_eos": True, "stream": True, **body},
                {"Authorization": "Bearer hush"}))

    def drop(self):
        for connection, _ in self.open:
            connection.close()


def test_an_idle_server(sim):
    text = run("--url", url(sim), "--api-key", "hush", "--once").stdout
    lines = text.splitlines()
    assert lines[0].startswith(f"hearth top  {url(sim)}  sim  hearth ")
    assert [line.split()[0] for line in lines if line[:1].isalpha()] == [
        "hearth", "requests", "prompts", "replies", "cache", "clients", "LANE"]
    assert [line.split()[:2] for line in lines[-2:]] == [["0", "idle"], ["1", "idle"]]
    assert "\033" not in text


def test_lanes_and_what_waits(sim):
    asking = Asking(sim, 2)
    frame = json.loads(run("--json", "--interval", "1", env={"HEARTH_URL": url(sim), "HEARTH_API_KEY": "hush,other"})
                       .stdout)
    assert [slot["is_processing"] for slot in frame["slots"]] == [True, True]
    assert frame["interval"]["generated_tokens"] > 0
    assert frame["interval"]["seconds"] > 0
    assert frame["metrics"]["hearth_lanes_busy"] == 2
    text = run("--url", url(sim), "--api-key", "hush", "--interval", "1").stdout
    lanes = [line.split() for line in text.splitlines() if line.startswith("   ")]
    assert [lane[1] for lane in lanes] == ["decode", "decode"]
    assert "2 running" in text and "/s now" in text
    asking.drop()


def test_who_is_let_in(sim):
    assert "(--api-key)" in complaint("--url", url(sim))
    assert "(--api-key)" in complaint("--url", url(sim), "--api-key", "wrong")
    assert "one line" in complaint("--api-key", "a\nb", status=2)


def test_no_server():
    with servers.socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    assert "no server answers at " + address in complaint("--url", address)
    assert "is no address" in complaint("--url", "ftp://x")


def test_usage():
    assert "--interval" in run("--help").stdout
    assert "1 to 3600 seconds" in complaint("--interval", "0", status=2)
    assert "--itnerval" in complaint("--itnerval", "1", status=2)
    run("extra", status=2)


def test_something_else_listens():
    with other_server({"/props": "<html>"}) as address:
        assert "is no hearth server" in complaint("--url", address)
    with other_server({}) as address:
        assert "is no hearth server" in complaint("--url", address)


def test_a_server_that_says_little():
    with other_server({"/props": "{}"}) as address:
        text = run("--url", address).stdout
        assert "(--metrics)" in text and "(--slots)" in text
    with other_server({"/props": "{}", "/slots": '[{}, {"id": "x", "hearth": {}}]', "/metrics": "a b\nc\n\n# d 1\n",
                       "/queue": '{"requests": [{}, 7]}', "/health": "[]"}) as address:
        text = run("--url", address, "--interval", "1").stdout
        assert "- running, - waiting" in text
        run("--url", address, "--json")


def test_names_cannot_write_to_the_terminal():
    lane = {"id": 0, "is_processing": True, "hearth": {"state": "decode", "class": "x\033[2J", "key": "\u202ekey",
                                                       "session": "a\nb\033]0;title\a" + "ü" * 60}}
    with other_server({"/props": json.dumps({"model_alias": "m\033[31m"}), "/slots": json.dumps([lane])}) as address:
        text = run("--url", address).stdout
        assert "\033" not in text and "\a" not in text
        assert len([line for line in text.splitlines() if " decode " in line]) == 1


def read_until(master, wanted, seconds=60):
    seen, end = "", time.monotonic() + seconds
    while wanted not in seen and time.monotonic() < end:
        if select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 65536).decode("utf-8", "replace")
    assert wanted in seen, seen[-2000:]
    return seen


def test_watching_goes_on_when_the_server_comes_back():
    master, slave = pty.openpty()
    port = servers.free_port()
    flags = ["--engine", "sim", "-np", "1"]
    with serve(*flags, port=port):
        process = subprocess.Popen([servers.hearth_path(), "top", "--url", f"http://127.0.0.1:{port}", "--interval",
                                    "1"], stdin=slave, stdout=slave, stderr=slave, env={**os.environ, **NO_PROXY})
        os.close(slave)
        assert "\033[?25l" in read_until(master, "in the last ")
    read_until(master, "no server answers")
    with serve(*flags, port=port):
        read_until(master, "LANE")
        process.send_signal(signal.SIGINT)
        read_until(master, "\033[?25h")
        assert process.wait(20) == 0
    os.close(master)
