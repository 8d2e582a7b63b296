"""`hearth chat`: one message, lines from a pipe, and a person at a terminal (a pty). Replies come from a script on the
simulated engine."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import stat
import struct
import subprocess
import termios
import threading

import pytest

from conftest import serve
from lib import server as servers
from ondisk import wait_until

THINKING = os.path.join(os.path.dirname(__file__), "thinking.jinja")
STATUS = re.compile(r"reused ([\d,]+) · computed ([\d,]+) · ([\d,]+) tokens? at [\d.]+/s · first token \d+\.\d\d s")


def tally(line):
    """Reused, computed and sampled tokens of a status line."""
    return [int(number.replace(",", "")) for number in STATUS.search(line).groups()]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "script.jsonl"
    replies = {"capital": "Paris.", "river": "The Seine,\nof course.", "think": "<think>Let me see.</think>\n\nForty-two.",
               "evil": "a\x1b[31mred\x07b", "accents": "naïve 日本 😀", "long": "word " * 4000}
    path.write_text("".join(json.dumps({"when": {"last": last}, "reply": reply, "times": 0}) + "\n"
                            for last, reply in replies.items()))
    return path


@pytest.fixture(scope="module")
def chat_server(script):
    with serve("--engine", "sim", "-c", "65536", "--script", str(script), "--chat-template-file", THINKING) as server:
        yield server


def start(server, *arguments, **options):
    env = {**os.environ, "HEARTH_URL": f"http://127.0.0.1:{server.port}" if server else "", "HEARTH_API_KEY": "",
           **options.pop("env", {})}
    return subprocess.Popen([servers.hearth_path(), "chat", *map(str, arguments)], env=env, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def chat(server, *arguments, data="", status=0, env=None):
    process = start(server, *arguments, env=env or {})
    out, err = process.communicate(data, timeout=600)
    assert process.returncode == status, (out[-2000:], err[-2000:])
    return out, err.splitlines()


def complaint(server, *arguments, status=1, **options):
    _, lines = chat(server, *arguments, status=status, **options)
    assert len(lines) == 1 and lines[0].startswith("hearth chat: "), lines
    return lines[0]


# ---- one message ----

def test_one_message(chat_server):
    out, lines = chat(chat_server, "what", "is the capital?")
    assert out == "Paris.\n"
    assert len(lines) == 1
    reused, computed, sampled = tally(lines[0])
    assert computed > 0 and sampled > 0 and "session" not in lines[0]


def test_all_of_standard_input(chat_server):
    out, _ = chat(chat_server, "-", data="one line\nand the river\n")
    assert out == "The Seine,\nof course.\n"
    assert "no text" in complaint(chat_server, "-", data="")
    assert "no text" in complaint(chat_server, "-", data="a\0b")


def test_thoughts_stay_out_of_a_pipe(chat_server):
    out, _ = chat(chat_server, "think!")
    assert out == "Forty-two.\n"


def test_a_pipe_gets_the_text_as_it_is(chat_server):
    assert chat(chat_server, "evil")[0] == "a\x1b[31mred\x07b\n"
    assert chat(chat_server, "accents")[0] == "naïve 日本 😀\n"


def test_max_tokens(chat_server):
    out, lines = chat(chat_server, "--max-tokens", 3, "capital")
    assert "Paris.".startswith(out.rstrip("\n")) and out != "Paris.\n"
    assert tally(lines[0])[2] == 3 and "cut off" in lines[0]


# ---- lines from a pipe ----

def test_lines(chat_server):
    data = "capital\n\nriver\n/history\n//x\n/quit\nnever asked\n"
    out, lines = chat(chat_server, "--system", "Be brief.", "--max-tokens", 30, data=data)
    assert out.startswith("Paris.\nThe Seine,\nof course.\n")
    history = ("system\n  Be brief.\n\nuser\n  capital\n\nassistant\n  Paris.\n\nuser\n  river\n\nassistant\n"
               "  The Seine,\n  of course.\n")
    assert history in out
    (_, first, sampled), (reused, second, _), _ = (tally(line) for line in lines)
    assert reused >= first + sampled - 1 > 0  # the history is sent again, and known
    assert second < first + 20


def test_a_line_goes_on_behind_a_backslash(chat_server):
    out, _ = chat(chat_server, data="this is a\\\nlong question about the capital\n/history\n", status=0)
    assert "user\n  this is a\n  long question about the capital\n" in out
    assert out.startswith("Paris.\n")


def test_new(chat_server):
    out, _ = chat(chat_server, data="capital\n/new\nriver\n/history\n")
    assert "capital" not in out and "river" in out


def test_commands_that_are_none(chat_server):
    assert "no command /hlp" in complaint(chat_server, data="/hlp\ncapital\n")
    assert "no session" in complaint(chat_server, data="/fork x\n")
    assert "needs a name" in complaint(chat_server, data="/fork\n")
    assert "nothing" in complaint(chat_server, data="/quit now\n")
    out, _ = chat(chat_server, data="/help\n")
    for name in ("/new", "/session", "/fork", "/history", "/help", "/quit", "Ctrl-C"):
        assert name in out


# ---- servers ----

def test_no_server():
    line = complaint(None, "x", "--url", f"http://127.0.0.1:{servers.free_port()}/v1/")
    assert "hearth serve" in line and "/v1" not in line
    assert "hearth serve" in complaint(None, "x", env={"HEARTH_URL": f"http://localhost:{servers.free_port()}"})


def test_addresses(chat_server):
    for url in (f"http://127.0.0.1:{chat_server.port}/", f"http://127.0.0.1:{chat_server.port}/v1",
                f"http://localhost:{chat_server.port}/v1/?x=y#z"):
        proxy = {"http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
        assert chat(None, "--url", url, "capital", env=proxy)[0] == "Paris.\n"
    for url in ("ftp://127.0.0.1", "127.0.0.1:8080", "nonsense", "file:///etc/passwd"):
        assert "no address" in complaint(None, "--url", url, "x")


def test_wrong_usage(chat_server):
    assert "--session" in complaint(None, "--sesion", "x", status=2)
    assert "number" in complaint(None, "--max-tokens", "many", "x", status=2)
    assert "--key" in complaint(None, "--key", "a\nb: c", "x", status=2)
    text, _ = chat(None, "--help")
    for word in ("--session", "--url", "--key", "--model", "--system", "--max-tokens"):
        assert re.search(rf"^  {word}\b", text, re.M), word
    top = subprocess.run([servers.hearth_path(), "--help"], capture_output=True, text=True, check=True).stdout
    assert "hearth chat" in top


def test_keys():
    with serve("--engine", "sim", "--api-key", "alpha,beta") as server:
        assert "--key" in complaint(server, "x")
        assert "--key" in complaint(server, "--key", "gamma", "x")
        for options in ({"env": {"HEARTH_API_KEY": "beta,gamma"}}, {}):
            arguments = () if options else ("--key", "alpha")
            out, lines = chat(server, *arguments, "--max-tokens", 4, "x", **options)
            assert out and tally(lines[0])[2] <= 4


def test_the_servers_own_words(chat_server):
    assert "context" in complaint(chat_server, "-", data="word " * 70000)


class Canned:
    """A server that answers every request with the same bytes, and closes."""

    def __init__(self, answer):
        self.answer = answer
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                seen = b""
                while b"\r\n\r\n" not in seen or not seen.rstrip().endswith(b"}"):
                    seen += connection.recv(65536)
                connection.sendall(self.answer)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join(10)


def canned(body, status="200 OK", length=None, kind="text/event-stream"):
    return (f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length or len(body)}\r\n"
            f"Connection: close\r\n\r\n{body}").encode()


@pytest.mark.parametrize("answer, out, words", [
    (canned('data: {"choices": [{"delta": {"content": "ab"}}]}\n\n', length=500), "ab\n", "broke"),
    (canned('data: {"choices": [{"delta": {"content": "ab"}}]}\n\n'), "ab\n", "closed the connection"),
    (canned('data: {"choices": [{"delta": {"content": "ab"}}]}\n\ndata: {"error": {"message": "gone wrong"}}\n\n'),
     "ab\n", "gone wrong"),
    (canned("<html>", "502 Bad Gateway"), "", "502"),
    (canned('{"error": {"message": "not today"}}', "503 Busy"), "", "not today"),
    (canned("hello"), "", "closed the connection"),
    (b"nonsense\r\n\r\n", "", "failed"),
    (b"", "", "failed"),
], ids=["cut", "ended", "error", "page", "status", "text", "nonsense", "nothing"])
def test_replies_that_are_none(answer, out, words):
    with Canned(answer) as server:
        found, lines = chat(server, "x", status=1)
        assert found == out
        assert len(lines) == 1 and words in lines[0], lines


# ---- Ctrl-C ----

def busy(server):
    return any(slot["is_processing"] for slot in server.client.get("/slots"))


def test_interrupted_message(chat_server):
    process = start(chat_server, "a long one")
    process.stdin.close()
    assert process.stdout.read(5) == "word "
    assert busy(chat_server)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    wait_until(lambda: not busy(chat_server))
    process.stdout.close()
    process.stderr.close()


def catches_interrupts(process):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
        caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    return caught >> (signal.SIGINT - 1) & 1


def test_interrupted_input(chat_server):
    """Ctrl-C before the end of the message; again, as the first one may come before it is read."""
    process = start(chat_server, "-")
    wait_until(lambda: catches_interrupts(process))
    wait_until(lambda: process.send_signal(signal.SIGINT) or process.poll() is not None)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


def test_a_reply_that_nothing_reads(chat_server):
    """As in `hearth chat … | head`: the request ends with its reader."""
    process = start(chat_server, "a long one")
    process.stdin.close()
    assert process.stdout.read(5) == "word "
    process.stdout.close()
    assert process.wait(30) == -signal.SIGPIPE
    wait_until(lambda: not busy(chat_server))
    assert process.stderr.read() == ""
    process.stderr.close()


# ---- a person ----

class Terminal:
    """The program at a terminal of its own."""

    def __init__(self, server, home, *arguments, env=None):
        self.shown = ""
        self.raw = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(servers.hearth_path(), ["hearth", "chat", *map(str, arguments)],
                      {**os.environ, "HEARTH_URL": f"http://127.0.0.1:{server.port}", "XDG_DATA_HOME": str(home),
                       "TERM": "xterm", "NO_COLOR": "", "HEARTH_API_KEY": "", "LC_ALL": "C", **(env or {})})

    def _read(self, timeout_s):
        if not select.select([self.fd], [], [], timeout_s)[0]:
            return False
        try:
            self.raw += os.read(self.fd, 65536)
        except OSError:
            return False
        self.shown = self.raw.decode(errors="replace").replace("\r\n", "\n")
        return True

    def expect(self, text):
        """Everything up to and with a text, which is taken away."""
        while text not in self.shown:
            assert self._read(60), f"{text!r} did not come: {self.shown!r}"
        at = self.shown.index(text) + len(text)
        seen, rest = self.shown[:at], self.shown[at:]
        self.raw = rest.replace("\n", "\r\n").encode()
        self.shown = rest
        return seen

    def prompt(self):
        """Waits until a line can be typed: the prompt is there a moment before the terminal passes on every key."""
        seen = self.expect("\n> ")
        wait_until(lambda: not termios.tcgetattr(self.fd)[3] & termios.ICANON)
        return seen

    def say(self, text):
        os.write(self.fd, text.encode())

    def ask(self, text):
        """Types a line; what is shown until the next prompt."""
        self.say(text + "\r")
        return self.prompt()

    def end(self):
        while self._read(10):
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "data"


def test_person(chat_server, home):
    terminal = Terminal(chat_server, home)
    assert "/help" in terminal.prompt()
    seen = terminal.ask("the capital?")
    assert "\nParis.\n\x1b[2mreused" in seen and "\x1b[0m\n> " in seen
    assert tally(seen)[1] > 0
    seen = terminal.ask("think")
    assert "\n\x1b[2mLet me see.\x1b[0m\n\nForty-two.\n" in seen
    seen = terminal.ask("evil")
    assert "\na[31mredb\n" in seen
    seen = terminal.ask("/history")
    assert "user\n  the capital?\n" in seen and "assistant thinks\n  Let me see.\n" in seen
    assert "no command" in terminal.ask("/nothing")
    assert "/quit" in terminal.ask("/help")
    terminal.say("\x04")
    assert terminal.end() == 0


def test_person_types_any_character(chat_server, home):
    """Also where the locale is C."""
    terminal = Terminal(chat_server, home)
    terminal.prompt()
    assert "naïve 日本 😀" in terminal.ask("accents: Grüße 日本\x7f本")
    assert "accents: Grüße 日本\n" in terminal.ask("/history")
    terminal.say("/quit\r")
    assert terminal.end() == 0


def test_person_stops_a_reply(chat_server, home):
    terminal = Terminal(chat_server, home)
    terminal.prompt()
    terminal.say("a long one\r")
    terminal.expect("word word ")
    assert busy(chat_server)
    terminal.say("\x03")
    assert "stopped" in terminal.prompt()
    wait_until(lambda: not busy(chat_server))
    assert "user\n  a long one\n\nassistant\n  word word" in terminal.ask("/history")
    terminal.say("half a line\x03")  # drops it
    terminal.prompt()
    assert "Paris." in terminal.ask("capital")
    assert "half" not in terminal.ask("/history")
    terminal.say("\x04")
    assert terminal.end() == 0


def test_another_size(chat_server, home):
    terminal = Terminal(chat_server, home)
    terminal.prompt()
    terminal.say("the cap")
    terminal.expect("the cap")
    for columns in (40, 100):
        fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        terminal.expect("the cap")  # it is drawn again
    terminal.say("ital\r")
    assert "Paris." in terminal.prompt()
    terminal.say("\x04")
    assert terminal.end() == 0


def test_lines_are_kept(chat_server, home):
    for _ in range(2):
        terminal = Terminal(chat_server, home)
        terminal.prompt()
        terminal.ask("capital of Hungary")
        terminal.say("/quit\r")
        assert terminal.end() == 0
    history = home / "hearth" / "chat_history"
    assert "capital of Hungary" in history.read_text().replace("\\040", " ")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700
    terminal = Terminal(chat_server, home)
    terminal.prompt()
    terminal.say("\x1b[A\x1b[A")
    terminal.expect("capital of Hungary")
    terminal.say("\r")
    assert "Paris." in terminal.prompt()
    terminal.say("\x04")
    assert terminal.end() == 0


def test_person_without_styles(chat_server, home):
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        terminal = Terminal(chat_server, home, env=env)
        terminal.prompt()
        assert "\x1b[2m" not in terminal.ask("think")
        terminal.say("\x04")
        assert terminal.end() == 0


def test_person_without_server(home):
    class Nowhere:
        port = servers.free_port()

    terminal = Terminal(Nowhere, home)
    terminal.expect("hearth serve")
    assert terminal.end() == 1


# ---- sessions ----

@pytest.fixture
def keeping(script, tmp_path):
    """A server with a database of its own."""
    db = tmp_path / "sessions.db"
    with serve("--engine", "sim", "-c", "65536", "--script", str(script), "--session-db", str(db)) as server:
        server.db = db
        yield server


def sessions(server, *arguments):
    return subprocess.run([servers.hearth_path(), "sessions", *arguments, "--db", server.db], capture_output=True,
                          text=True, check=True, timeout=60).stdout


def test_session_goes_on(keeping):
    out, lines = chat(keeping, "--session", "trip", "--system", "Be brief.", "the capital")
    first = tally(lines[0])
    assert out == "Paris.\n" and lines[0].endswith("· session trip")
    out, lines = chat(keeping, "--session", "trip", "--system", "Be brief.", "the river")
    second = tally(lines[0])
    assert out == "The Seine,\nof course.\n"
    assert second[0] >= first[1] + first[2] - 1 and second[1] < first[1]
    shown = sessions(keeping, "show", "trip")
    assert "system\n  Be brief.\n" in shown and shown.count("Be brief.") == 1
    assert "user\n  the capital\n\nassistant\n  Paris.\n\nuser\n  the river\n" in shown
    out, _ = chat(keeping, "--session", "trip", data="/history\n")
    assert "user\n  the capital\n\nassistant\n  Paris.\n\nuser\n  the river\n" in out


def test_sessions_at_a_terminal(keeping, home):
    terminal = Terminal(keeping, home, "--session", "trip ü 1")
    assert "session trip ü 1, new" in terminal.prompt()
    assert "Paris." in terminal.ask("capital")
    assert "session side: 1 turn," in terminal.ask("/fork side")
    assert "The Seine" in terminal.ask("river")
    assert "session trip ü 1: 1 turn," in terminal.ask("/session trip ü 1")
    assert "trip ü 1" in terminal.ask("/session")
    assert "Seine" not in terminal.ask("/history")
    assert "without a session" in terminal.ask("/new")
    assert "no session" in terminal.ask("/fork other")
    assert "session" not in tail(terminal.ask("capital"))
    terminal.say("\x04")
    assert terminal.end() == 0
    listed = json.loads(sessions(keeping, "ls", "--json"))["sessions"]
    assert {(one["name"], one["turns"], one["text"]) for one in listed} == {
        ("trip ü 1", 1, "capital"), ("side", 2, "river")}


def tail(text):
    return text[text.index("reused"):]


def test_long_history(keeping):
    """More items than come on one page."""
    data = "".join(f"capital {number}\n" for number in range(60))
    out, _ = chat(keeping, "--session", "long", data=data + "/history\n")
    asked = re.findall(r"^  capital (\d+)$", out, re.M)
    assert asked == [str(number) for number in range(60)]


def test_a_server_that_keeps_nothing():
    """A session_id is a field that other servers do not know; then what was said before is not known there."""
    reply = ('data: {"choices": [{"delta": {"content": "ab"}}], "hearth": {"computed": 1}}\n\n'
             'data: [DONE]\n\n')
    with Canned(canned(reply)) as server:
        out, lines = chat(server, "--session", "x", "hello")
    assert out == "ab\n"
    assert "keeps no sessions" in lines[-1]
