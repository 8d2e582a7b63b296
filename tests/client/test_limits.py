"""Preparing a prompt has bounds and an end: what a body takes in memory, who waits for whom, and what ends it."""

import http.client
import json
import signal
import threading
import time

import pytest

from conftest import serve
from lib import server as servers

MIB = 1 << 20
CHAT = "/v1/chat/completions"
SPARE = (64 + 16) * MIB  # what the limit allows beside ten times the body, and what a server may do meanwhile
HEAD = b'{"max_tokens":1,"messages":[{"role":"user","content":"hi"}],"x":'
SHORT = {"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}


def many(unit, size):
    return unit * (size // len(unit))


def turns(size):
    turn = b'{"role":"user","content":"%s"},' % (b"word " * 200)
    return b'{"max_tokens":1,"messages":[' + many(turn, size) + b'{"role":"user","content":"hi"}]}'


# Of each kind, one body whose values are small: their memory is many times their text. And texts, which are served.
BODIES = {
    "arrays": lambda size: (CHAT, HEAD + b"[" + many(b"[],", size) + b"1]}"),
    "objects": lambda size: (CHAT, HEAD + b"[" + many(b"{},", size) + b"1]}"),
    "numbers": lambda size: (CHAT, HEAD + b"[" + many(b"1,", size) + b"1]}"),
    "names": lambda size: (CHAT, HEAD + b"{" + b",".join(b'"%x":1' % i for i in range(size // 10)) + b"}}"),
    "empty messages": lambda size: (CHAT, b'{"messages":[' + many(b"{},", size) + b"{}]}"),
    "a text": lambda size: (CHAT, json.dumps({"messages": [{"role": "user", "content": "word " * (size // 5)}]}).encode()),
    "escapes": lambda size: (CHAT, HEAD + b'"' + many(b"\\u00e9", size) + b'"}'),
    "long messages": lambda size: (CHAT, turns(size)),
    "pieces": lambda size: ("/tokenize", b'{"with_pieces":true,"content":"' + many(b"~", size) + b'"}'),
    "tokens": lambda size: ("/detokenize", b'{"tokens":[' + many(b"1000,", size) + b"1]}"),
    "items": lambda size: ("/v1/responses", turns(size).replace(b"max_tokens", b"max_output_tokens")
                           .replace(b"messages", b"input")),
    "blocks": lambda size: ("/v1/messages", turns(size)),
}


def post(server, path, body, timeout_s=300):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def await_memory(server, most):
    """Waits until the server's memory is what it was, or nearly."""
    deadline = time.monotonic() + 60
    while server.memory_bytes("RssAnon") > most and time.monotonic() < deadline:
        time.sleep(0.2)
    return server.memory_bytes("RssAnon")


@pytest.fixture(scope="module")
def measured():
    with serve("--engine", "sim") as server:
        for path in (CHAT, "/v1/messages"):
            post(server, path, json.dumps(SHORT))
        yield server


@pytest.mark.parametrize("name", BODIES)
def test_a_body_takes_ten_times_its_bytes_and_gives_them_back(measured, name):
    path, body = BODIES[name](30 * MIB)
    idle = measured.memory_bytes("RssAnon")
    with open(f"/proc/{measured.process.pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak begins here
    before = measured.memory_bytes("VmRSS")
    status, _ = post(measured, path, body)
    assert status in (200, 400, 413)
    if not servers.sanitizer():  # which keeps freed memory
        assert measured.memory_bytes("VmHWM") - before < 10 * len(body) + SPARE
        # Transcripts and interned messages may stay, within their budgets.
        assert await_memory(measured, idle + SPARE) < idle + SPARE + len(body)
    assert measured.client.get("/health")["status"] == "ok"


@pytest.mark.llama
def test_text_of_ids_that_is_many_times_the_body_is_refused(server):
    _, answer = post(server, "/tokenize", json.dumps({"content": " " * 64}))
    longest = json.loads(answer)["tokens"][0]
    status, answer = post(server, "/detokenize", json.dumps({"tokens": [longest] * 100}))
    assert status == 200 and len(json.loads(answer)["content"]) == 6400
    status, answer = post(server, "/detokenize", json.dumps({"tokens": [longest] * 1500000}))
    assert status == 413 and "its answer would take more memory" in json.loads(answer)["error"]["message"]


HEAVY = json.dumps({"content": "word " * (8 * MIB), "with_pieces": True}).encode()


class Heavy:
    """Requests that are being prepared."""

    def __init__(self, server, count):
        self.answers = []
        self.threads = [threading.Thread(target=self._ask, args=(server,)) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _ask(self, server):
        try:
            self.answers.append(post(server, "/tokenize", HEAVY)[0])
        except (OSError, http.client.HTTPException):
            self.answers.append(None)

    def join(self):
        for thread in self.threads:
            thread.join()
        return self.answers


def spends_cpu(server, seconds):
    """Waits until the server has worked for so long since."""
    begun = cpu_s(server)
    while cpu_s(server) - begun < seconds:
        time.sleep(0.05)


def cpu_s(server):
    with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_short_requests_go_past_heavy_ones():
    with serve("--engine", "sim", "--prepare-timeout", "0", "--grace", "0") as server:
        heavy = Heavy(server, 6)
        spends_cpu(server, 1)
        assert post(server, CHAT, json.dumps(SHORT))[0] == 200
        assert post(server, "/v1/messages", json.dumps(SHORT))[0] == 200
        assert heavy.answers == []
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert 200 not in heavy.join()


def rest(server):
    """CPU time by when the server takes no more of it."""
    deadline = time.monotonic() + 60
    spent = None
    while spent != cpu_s(server) and time.monotonic() < deadline:
        spent = cpu_s(server)
        time.sleep(1)
    return spent


def test_nobody_prepares_for_a_client_that_has_gone():
    """What is left of the work is not done: the same request takes many times the CPU when its client stays."""
    with serve("--engine", "sim", "--prepare-timeout", "0") as server:
        idle = rest(server)
        assert post(server, "/tokenize", HEAVY)[0] == 200
        whole = rest(server)
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/tokenize", HEAVY, {"Content-Type": "application/json"})
        spends_cpu(server, 0.3)
        connection.close()
        assert rest(server) - whole < (whole - idle) / 2


def test_preparing_has_a_limit_of_cpu_time():
    with serve("--engine", "sim", "--prepare-timeout", "0.05") as server:
        status, answer = post(server, "/tokenize", HEAVY)
        assert status == 400
        assert json.loads(answer)["error"]["code"] == "preparation_timeout"
        status, answer = post(server, "/v1/messages/count_tokens", json.dumps(
            {"messages": [{"role": "user", "content": "word " * (4 * MIB)}]}))
        assert status == 400 and "--prepare-timeout" in json.loads(answer)["error"]["message"]
        assert post(server, CHAT, json.dumps(SHORT))[0] == 200
