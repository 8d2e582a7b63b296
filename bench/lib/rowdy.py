"""Clients for a soak (bench/soak.py), on asyncio: those that behave, and those that do not.

A Ledger counts what was asked and what came of it. Whatever is not expected of the server is a line in `wrong`: a
valid request that is not answered, an invalid one that is, an answer 500, half an answer, silence.
"""

import asyncio
import collections
import json
import random
import socket
import struct
import time

from .client import HttpError, events
from .dialects import ALL
from .text import Text

KEYS = ("soak-alice", "soak-bob", "soak-cron")
TOOLS = [{"type": "function", "function": {
    "name": name, "description": f"{name} a file",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}}
    for name in ("read", "write")]
GONE = (ConnectionError, asyncio.IncompleteReadError, OSError)
MOST_WRONG = 100


class Ledger:
    def __init__(self):
        self.counts = collections.Counter()
        self.statuses = collections.Counter()  # of valid requests
        self.wrong = []
        self.open = {}  # of requests that wait for their answer: what it is, until when

    def count(self, *what):
        self.counts[" ".join(map(str, what))] += 1

    def complain(self, text):
        self.count("wrong")
        if len(self.wrong) < MOST_WRONG:
            self.wrong.append(text)


class Connection:
    """One request over a connection of its own."""

    def __init__(self, port, window=None):
        self.port, self.window = port, window

    async def __aenter__(self):
        sock = socket.socket()
        if self.window:  # before the connection: so the kernel keeps little of what is not read
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.window)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
            self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=self.window or 65536)
        except BaseException:
            sock.close()
            raise
        self.socket = sock
        return self

    async def __aexit__(self, *_):
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    def reset(self):
        """The next close is a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def head(self):
        """Status and headers of a response. A half-closed client gets a 100 first: that is how the server asks whether it lives."""
        while True:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            if (status := int(lines[0].split()[1])) >= 200:
                return status, dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)

    async def response(self):
        """Status and whole body."""
        status, headers = await self.head()
        if headers.get("transfer-encoding") != "chunked":
            return status, await self.reader.readexactly(int(headers.get("content-length", 0)))
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        return status, body


def request_bytes(path, body=None, key=None, method="POST", headers=()):
    payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: soak", "Connection: close", f"Content-Length: {len(payload)}",
             *(f"{name}: {value}" for name, value in headers)]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


async def ask(port, path, body=None, **options):
    """A whole exchange: status and body."""
    async with Connection(port) as connection:
        await connection.send(request_bytes(path, body, **options))
        return await connection.response()


class Soaker:
    """What all clients share. `patience_s`: within which a valid request must be answered."""

    def __init__(self, port, ledger, seed, patience_s, prompt_words, reply_tokens):
        self.port, self.ledger, self.random = port, ledger, random.Random(seed)
        self.patience_s, self.prompt_words, self.reply_tokens = patience_s, prompt_words, reply_tokens
        self.seed, self.serial = seed, 0

    def next(self):
        self.serial += 1
        return self.serial

    # ---- those that behave ----

    async def ask_well(self, dialect, body, max_tokens, key, **more):
        """A valid request; the reply's text, or None when it was refused for a reason that is allowed."""
        path, said, headers = ALL[dialect].request(body, max_tokens)
        headers = {name: value for name, value in headers.items() if name != "x-api-key"}
        if dialect == "chat" and self.random.random() < 0.3:
            said = {**said, "stream": False}
            said.pop("stream_options")
        said |= more
        deadline_s = said.get("deadline_ms", 0) / 1000
        number, kind = self.next(), f"{dialect} {said.get('priority', '')} of {key}"
        self.ledger.open[number] = (kind, time.monotonic() + (deadline_s or self.patience_s))
        try:
            status, answer = await asyncio.wait_for(
                ask(self.port, path, said, key=key, headers=headers.items()), self.patience_s)
            self.ledger.count(dialect, status)
            self.ledger.statuses[status] += 1
            if status == 200:
                return self._read(dialect, said, answer, deadline_s)
            if status == 429 or (status == 504 and deadline_s):
                return None
            self.ledger.complain(f"{kind}: {status}: {answer[:300]!r}")
        except (TimeoutError, asyncio.TimeoutError):
            self.ledger.complain(f"{kind}: no answer within {self.patience_s} s")
        except (*GONE, HttpError, ValueError, KeyError, TypeError) as error:
            self.ledger.complain(f"{kind}: {type(error).__name__}: {error}"[:400])
        finally:
            del self.ledger.open[number]
        return None

    def _read(self, dialect, said, answer, deadline_s):
        if not said.get("stream"):
            return json.loads(answer)["choices"][0]["message"].get("content") or ""
        seen = list(events(answer.split(b"\n")))
        late = [event for event in seen if event.get("error") or event.get("type") in ("error", "response.failed")]
        if late and deadline_s:
            self.ledger.count("deadline in the stream")
            return None
        if late:
            raise HttpError(200, json.dumps(late[0]))
        return ALL[dialect].read(iter(seen))[0]

    async def agent(self, number, think_s, ends):
        """Conversations, one after the other, until `ends` (of time.monotonic()), a request every `think_s` or as soon
        as the one before is answered. Each sends its whole history in a dialect of its own, edits and forks it now and
        then, and has its title made beside; some live in a session."""
        pick, due = self.random, time.monotonic()
        while time.monotonic() < ends:
            turns, name = pick.randrange(3, 14), f"soak-{number}-{self.next()}"
            session = name if pick.random() < 0.3 else None
            dialect = "chat" if session else pick.choice(tuple(ALL))
            key = KEYS[number % len(KEYS)]
            text = Text(self.seed, name)
            head = Text("head", pick.randrange(3)).words(self.prompt_words)  # shared by a third of all
            body = {"messages": [{"role": "system", "content": head}]}
            if pick.random() < 0.4:
                body["tools"] = TOOLS
            for turn in range(turns):
                due += pick.expovariate(1 / think_s)
                await asyncio.sleep(max(0, min(due, ends) - time.monotonic()))
                if time.monotonic() >= ends:
                    break
                await self._turn(dialect, body, text, key, session, turn)
            if session:
                await self._forget(session, key)

    async def _turn(self, dialect, body, text, key, session, turn):
        pick, more, messages = self.random, {}, body["messages"]
        if pick.random() < 0.3:
            more["priority"] = pick.choice(("interactive", "side", "background", 0, 2))
        if pick.random() < 0.1:
            more["deadline_ms"] = pick.choice((50, 500, 5000, 60000))
        if dialect != "responses" and pick.random() < 0.1:
            more["return_progress"] = True
        if not session and len(messages) > 3 and pick.random() < 0.1:  # an edit: the past is another one
            place = pick.randrange(1, len(messages) - 1)
            messages[place] = {**messages[place], "content": text.words(10)}
            self.ledger.count("edits")
        messages.append({"role": "user", "content": text.ask(pick.randrange(4, 25))})
        sent = {**body, "messages": messages[-1:] if session and turn else messages}
        reply = await self.ask_well(dialect, sent, pick.randrange(4, self.reply_tokens), key,
                                    **({"session_id": session} if session else {}), **more)
        if not reply:
            messages.pop()
            return
        messages.append({"role": "assistant", "content": reply})
        if pick.random() < 0.1:  # a fork: somebody else goes on from here, or from before
            fork = messages[:pick.randrange(2, len(messages) + 1)] + [{"role": "user", "content": text.ask(10)}]
            await self.ask_well("chat", {**body, "messages": fork}, 8, key)
            self.ledger.count("forks")
        if pick.random() < 0.1:
            title = [{"role": "user", "content": "A title for: " + messages[1]["content"]}]
            await self.ask_well("chat", {"messages": title}, 6, key, priority="side")

    async def _forget(self, session, key):
        try:
            status, _ = await asyncio.wait_for(
                ask(self.port, f"/v1/sessions/{session}", key=key, method="DELETE"), self.patience_s)
            self.ledger.count("sessions deleted", status)
            if status not in (200, 404):
                self.ledger.complain(f"DELETE of a session: {status}")
        except (*GONE, TimeoutError, asyncio.TimeoutError) as error:
            self.ledger.complain(f"DELETE of a session: {type(error).__name__}: {error}")

    # ---- those that do not ----

    def _body(self, words, tokens, **more):
        return {"messages": [{"role": "user", "content": Text(self.seed, "rowdy", self.next()).words(words)}],
                "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}

    def _valid(self, stream=True):
        path = self.random.choice(("/v1/chat/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"))
        body = self._body(self.random.randrange(20, self.prompt_words), 2 * self.reply_tokens, stream=stream)
        if path == "/v1/responses":
            body = {"input": body["messages"], "max_output_tokens": 2 * self.reply_tokens, "stream": stream,
                    "store": self.random.random() < 0.2}
        return request_bytes(path, body, key=self.random.choice(KEYS))

    async def leave_in_request(self):
        data = self._valid()
        async with Connection(self.port) as connection:
            await connection.send(data[:self.random.randrange(len(data))])
            await asyncio.sleep(self.random.random())

    async def leave_in_prefill(self):
        async with Connection(self.port) as connection:
            await connection.send(self._valid(stream=self.random.random() < 0.5))
            await asyncio.sleep(self.random.expovariate(3))
            if self.random.random() < 0.3:
                connection.reset()

    async def leave_in_stream(self):
        async with Connection(self.port) as connection:
            await connection.send(self._valid())
            await connection.reader.read(self.random.randrange(1, 4000))
            await asyncio.sleep(self.random.expovariate(2))
            if self.random.random() < 0.3:
                connection.reset()

    async def stall(self, seconds):
        """Asks for much and reads nothing."""
        async with Connection(self.port, window=4096) as connection:
            await connection.send(self._valid())
            await asyncio.sleep(seconds)

    async def read_slowly(self, seconds):
        ends = time.monotonic() + seconds
        async with Connection(self.port, window=4096) as connection:
            await connection.send(self._valid())
            while time.monotonic() < ends and await connection.reader.read(self.random.randrange(1, 20)):
                await asyncio.sleep(self.random.random())

    async def send_slowly(self, seconds):
        data, ends = self._valid(), time.monotonic() + seconds
        async with Connection(self.port) as connection:
            for at in range(len(data)):
                await connection.send(data[at:at + 1])
                await asyncio.sleep(0.5)
                if time.monotonic() > ends:
                    break

    async def say_nothing(self, seconds):
        async with Connection(self.port) as connection:
            await asyncio.sleep(self.random.random() * seconds)
            del connection

    async def talk_garbage(self):
        """Something that must not be answered with 200, nor with 500."""
        pick = self.random
        data, allowed = pick.choice(garbage(pick))
        async with Connection(self.port) as connection:
            await connection.send(data)
            if pick.random() < 0.5:
                connection.writer.write_eof()
            try:
                status, _ = await asyncio.wait_for(connection.head(), self.patience_s)
            except GONE:
                status = "closed"
            except (TimeoutError, asyncio.TimeoutError):
                status = "silence"
        self.ledger.count("garbage", status)
        if status != "closed" and status not in allowed:
            self.ledger.complain(f"garbage {data[:60]!r}: {status}, not one of {allowed}")

    async def misbehave(self, seconds):
        """One of the above; `seconds`: how long the slow ones go on."""
        ways = ((self.leave_in_request, ()), (self.leave_in_prefill, ()), (self.leave_in_prefill, ()),
                (self.leave_in_stream, ()), (self.leave_in_stream, ()), (self.stall, (seconds,)),
                (self.read_slowly, (seconds,)), (self.send_slowly, (seconds,)), (self.say_nothing, (seconds,)),
                (self.talk_garbage, ()), (self.talk_garbage, ()), (self.talk_garbage, ()))
        way, arguments = self.random.choice(ways)
        self.ledger.count(way.__name__)
        try:
            await way(*arguments)
        except GONE:
            pass  # it was cut off, as it deserved
        except (HttpError, ValueError, LookupError, asyncio.LimitOverrunError) as error:  # no HTTP came back
            self.ledger.complain(f"{way.__name__}: {type(error).__name__}: {error}"[:400])


def garbage(pick):
    """Pairs of what to send and the statuses that may answer it."""
    key, chat = KEYS[0], "/v1/chat/completions"
    good = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    deep = b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}"
    return [
        (pick.randbytes(pick.randrange(1, 2000)) + b"\r\n\r\n", (400, 408, 414, 431, 501, 505, "silence")),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400, 501)),
        (request_bytes(chat, b'{"messages": [', key=key), (400,)),
        (request_bytes(chat, b'{"messages":[{"role":"user","content":"\xff\xfe"}]}', key=key), (400,)),
        (request_bytes(chat, b"\xff\xd8\xff\xe0" * 100, key=key), (400,)),
        (request_bytes(chat, deep, key=key), (400,)),
        (request_bytes(chat, b"", key=key), (400,)),
        (request_bytes(chat, {"messages": "none"}, key=key), (400,)),
        (request_bytes(chat, {**good, "temperature": "warm"}, key=key), (400,)),
        (request_bytes(chat, {**good, "priority": "mine"}, key=key), (400,)),
        (request_bytes(chat, {"messages": [{"role": "user", "content": "x " * 200000}]}, key=key), (400, 413)),
        (request_bytes("/v1/messages", {"max_tokens": -1}, key=key), (400,)),
        (request_bytes("/v1/responses", {"input": 7}, key=key), (400,)),
        (request_bytes("/v1/responses", {"previous_response_id": "resp_0", "input": "x"}, key=key), (400, 404)),
        (request_bytes(chat, good, key="wrong"), (401,)),
        (request_bytes(chat, good), (401,)),
        (request_bytes("/v1/nothing", good, key=key), (404,)),
        (request_bytes("/v1/messages", method="DELETE", key=key), (405,)),
        (request_bytes("/" + "u" * 60000, good, key=key), (414, 431)),
        (request_bytes(chat, good, key=key, headers=[("X-Huge", "h" * 60000)]), (431,)),
        (request_bytes(chat, good, key=key, headers=[(f"X-{n}", "h") for n in range(300)]), (431,)),
        (f"POST {chat} HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n".encode(), (401, 413)),
        (f"POST {chat} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"
         f"Authorization: Bearer {key}\r\n\r\nzz\r\n".encode(), (400,)),
        (f"POST {chat} HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n"
         f"Transfer-Encoding: chunked\r\n\r\n".encode(), (400,)),
        (request_bytes(chat, good, key=key)[:-20], (400, 408, "silence")),  # a body that is cut off
    ]
