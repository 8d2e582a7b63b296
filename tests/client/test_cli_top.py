"""`hearth top`: what a server is doing. Against the sim engine, and against servers that say less than hearth does."""

import contextlib
import fcntl
import http.client
import http.server
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
import unicodedata

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
    assert [line.split()[0] for line in lines if line.lstrip()[:1].isalpha()] == [
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
    lanes = [line.split() for line in text.splitlines() if line.startswith("    ")]
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


def test_each_wait_has_words_of_its_own():
    """What needs another cure is another word: each that the server has in its table is told differently."""
    with open(os.path.join(servers.REPOSITORY, "src", "cache", "receipt.h"), encoding="utf-8") as header:
        words = re.findall(r'X\([A-Z]+, "([a-z]+)", "', header.read().split("define HEARTH_WAIT_TABLE")[1]
                           .split("enum hearth_wait {")[0])
    assert len(words) > 5
    waiting = [{"request_id": f"req_{word}", "state": "queued", "wait": word, "class": "side", "waited_ms": 1000}
               for word in words]
    with other_server({"/props": "{}", "/slots": "[]", "/queue": json.dumps({"waiting": 1, "requests": waiting})}) as at:
        lines = run("--url", at).stdout.splitlines()
    header = next(line for line in lines if line.startswith(" WAITS"))
    told = [line[header.index("WHY"):].strip() for line in lines[lines.index(header) + 1:]]
    assert len(told) == len(words) == len(set(told)), told
    assert not [text for text in told if "…" in text]


def test_waste_is_told_by_what_was_computed_again():
    """Also where the client's main cause is that it waited, for much longer."""
    clients = [{"client": "busy/1.0", "lost_ms": 900, "causes": [{"cause": "queued", "kind": "wait"}, {"cause": "evicted", "kind": "waste"}]},
               {"client": "fine/1.0", "lost_ms": 0, "causes": []}]
    with other_server({"/props": "{}", "/requests/clients": json.dumps(
            {"requests": 4, "again_tokens": 50, "computed_tokens": 100, "data": clients})}) as at:
        lines = run("--url", at).stdout.splitlines()
    assert "wasted    50 % of computed: 0.9 s evicted busy/1.0" in lines, lines


# ---- on a terminal ----

SEQUENCE = re.compile(r"\033\[(\??[0-9;]*)([A-Za-z])")


class Screen:
    """`hearth top` in a terminal, and what is on its screen. Knows the few sequences that it uses, and no others: it
    neither wraps lines nor scrolls, and a line that is too wide fails the test."""

    def __init__(self, url, rows, columns, *options):
        self.master, slave = pty.openpty()
        self.found = termios.tcgetattr(slave)
        self.resize(rows, columns)
        self.process = subprocess.Popen([servers.hearth_path(), "top", "--url", url, *options], stdin=slave,
                                        stdout=slave, stderr=slave, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                                        env={**os.environ, **NO_PROXY, "TERM": "xterm"})
        self.slave = slave
        self.text, self.lines, self.row, self.column, self.frames = "", [], 0, 0, 0
        self.cursor, self.other = True, False

    def resize(self, rows, columns):
        self.rows, self.columns, self.lines = rows, columns, []
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def obey(self, parameters, command):
        if command == "H":
            self.row = self.column = 0
        elif command == "K":
            self.put_line(self.line()[:self.column])
        elif command == "J":
            del self.lines[self.row + 1:]
            self.frames += parameters == ""
        elif command in "hl" and parameters == "?25":
            self.cursor = command == "h"
        elif command in "hl" and parameters == "?1049":
            self.other = command == "h"
        else:
            raise AssertionError(f"an unknown sequence: {parameters}{command}")

    def line(self):
        return self.lines[self.row] if self.row < len(self.lines) else ""

    def put_line(self, text):
        self.lines += [""] * (self.row + 1 - len(self.lines))
        self.lines[self.row] = text

    def take(self, text):
        self.text += text
        while self.text:
            if self.text[0] == "\033":
                found = SEQUENCE.match(self.text)
                if not found:
                    return  # the rest of it is still to come
                self.obey(found[1], found[2])
                self.text = self.text[found.end():]
                continue
            if self.text[0] == "\r":
                self.column = 0
            elif self.text[0] == "\n":
                self.row += 1
                assert self.row < self.rows, self.lines
            else:
                assert self.text[0].isprintable()
                self.put_line(self.line()[:self.column].ljust(self.column) + self.text[0])
                self.column += 2 if unicodedata.east_asian_width(self.text[0]) in "WF" else 1
                assert self.column <= self.columns, self.line()
            self.text = self.text[1:]

    def until(self, wanted, seconds=60):
        """Reads until a whole frame is as wanted."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.master], [], [], 0.2)[0]:
                before = self.frames
                self.take(os.read(self.master, 65536).decode("utf-8", "replace"))
                if self.frames > before and wanted("\n".join(self.lines)):
                    return self.lines
        raise AssertionError("\n".join(self.lines))

    def key(self, bytes_):
        os.write(self.master, bytes_)

    def end(self, status):
        """The program has ended, and the terminal is as it was."""
        ended = self.process.wait(20)
        while select.select([self.master], [], [], 0)[0]:
            self.take(os.read(self.master, 65536).decode("utf-8", "replace"))
        assert ended == status
        assert self.cursor and not self.other
        assert termios.tcgetattr(self.slave) == self.found
        os.close(self.slave)
        os.close(self.master)


UP, DOWN, ENTER, ESCAPE = b"\033[A", b"\033OB", b"\r", b"\033"


def marked(text):
    return [line for line in text.split("\n") if line.startswith(">")]


@pytest.fixture()
def busy():
    """Two lanes that decode, and a request that waits; one that has ended."""
    with serve("--engine", "sim", "-np", "2", "-c", "32768", "--metrics", "--slots", "--api-key", "hush") as server:
        connection, response = server.client.open(
            "POST", "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "word " * 400}], "max_tokens": 1},
            {"Authorization": "Bearer hush", "User-Agent": "\u4f60\u597d-agent/1".encode().decode("latin-1")})
        response.read()
        connection.close()
        asking = Asking(server, 2)
        waiting = http.client.HTTPConnection("127.0.0.1", server.port)
        waiting.request("POST", "/v1/chat/completions",
                        json.dumps({"messages": [{"role": "user", "content": "2 " + "word " * 200}]}),
                        {"Authorization": "Bearer hush", "Content-Type": "application/json"})
        while True:
            connection, response = server.client.open("GET", "/queue", headers={"Authorization": "Bearer hush"})
            queue = json.load(response)
            connection.close()
            if queue["waiting"] == 1:
                break
        yield server
        waiting.close()
        asking.drop()


@pytest.mark.parametrize("rows, columns", [(24, 80), (40, 140), (24, 40), (60, 300)])
def test_keys_and_widths(busy, rows, columns):
    screen = Screen(url(busy), rows, columns, "--interval", "1", "--api-key", "hush")
    text = "\n".join(screen.until(lambda text: "1 waiting" in text and text.count("decode") == 2))
    assert len(screen.lines) <= rows
    assert "LANE" in text and "WAITS" in text and "every lane is busy" in text
    assert "wasted    0 % of computed" in text
    if columns >= 80:
        for title in ("CONVERSATION", "PROMPT", "DONE", "SINCE", "REUSED", "ENDED", "CLIENT", "WHY"):
            assert title in text, text
        assert "new_conversation" in text
        assert "q quit" in screen.lines[-1]
    assert ("CLASS" in text) == (columns >= 140)
    assert marked(text) == []
    screen.key(DOWN)
    assert marked("\n".join(screen.until(marked)))[0].split()[:2] == [">", "0"]
    screen.key(DOWN)
    screen.until(lambda text: [line.split()[1] for line in marked(text)] == ["1"])
    screen.key(ENTER)
    text = "\n".join(screen.until(lambda text: "lane 1: computes the reply of" in text))
    assert "hearth why req_" in text and "ENDED" not in text
    screen.key(DOWN + DOWN)
    text = "\n".join(screen.until(lambda text: "waits " in text))
    assert "what helps" in text
    screen.key(ESCAPE)
    screen.until(lambda text: "ENDED" in text and len(marked(text)) == 1)
    if columns >= 80:
        screen.key(b"s")
        screen.until(lambda text: "sort: prompt" in text)
    screen.key(UP + UP + UP)
    screen.until(lambda text: marked(text) and screen.lines.index(marked(text)[0]) == 9)
    screen.key(b"xyz\033[15~q")
    screen.end(0)


def test_the_size_may_change(busy):
    screen = Screen(url(busy), 24, 80, "--interval", "3600", "--api-key", "hush")
    screen.until(lambda text: "1 waiting" in text)
    screen.resize(50, 140)
    screen.until(lambda text: "CLASS" in text)
    screen.resize(10, 60)
    screen.until(lambda text: "CLASS" not in text and "LANE" in text)
    screen.process.send_signal(signal.SIGTERM)
    screen.end(-signal.SIGTERM)


@pytest.mark.parametrize("stop, status", [(signal.SIGINT, 0), (signal.SIGHUP, -signal.SIGHUP),
                                          (signal.SIGQUIT, -signal.SIGQUIT), (b"\x03", 0), (b"q", 0)])
def test_the_terminal_is_left_as_it_was(sim, stop, status):
    screen = Screen(url(sim), 24, 80, "--api-key", "hush")
    screen.until(lambda text: "LANE" in text)
    assert screen.other and not screen.cursor
    assert termios.tcgetattr(screen.slave) != screen.found
    if isinstance(stop, bytes):
        screen.key(stop)
    else:
        screen.process.send_signal(stop)
    screen.end(status)


def test_a_server_that_does_not_answer_keeps_no_key_waiting():
    hangs, held = threading.Event(), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if hangs.is_set():
                held.append(self.path)
                hangs.wait()
                release.wait()
            self.send_response(200 if self.path == "/props" else 404)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    release = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        screen = Screen(f"http://127.0.0.1:{server.server_port}", 24, 80, "--interval", "1")
        screen.until(lambda text: "--slots" in text)
        hangs.set()
        end = time.monotonic() + 60
        while not held and time.monotonic() < end:
            time.sleep(0.01)
        screen.key(b"q")
        screen.end(0)
        release.set()
        server.shutdown()


def test_watching_goes_on_when_the_server_comes_back():
    port = servers.free_port()
    flags = ["--engine", "sim", "-np", "1"]
    with serve(*flags, port=port):
        screen = Screen(f"http://127.0.0.1:{port}", 24, 80, "--interval", "1")
        screen.until(lambda text: "in the last " in text and "q quit" in text)
    screen.until(lambda text: "no server answers" in text and "LANE" in text)
    screen.key(DOWN)
    screen.until(marked)
    with serve(*flags, port=port):
        screen.until(lambda text: "q quit" in text)
        screen.process.send_signal(signal.SIGINT)
        screen.end(0)
