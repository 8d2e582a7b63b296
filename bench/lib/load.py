"""A client for many requests at a time, on one thread (asyncio), which costs little: what arrives is kept with its
time, and read only when the request has ended.

    samples, share, seconds = run(port, plan)        plan: a coroutine function that is given a Sender

`share` is the part of one core that the client itself used in the `seconds` that it took: a measurement whose client is
busy measures the client.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field

from .client import Counts


@dataclass
class Sample(Counts):
    """One request and what came of it. Times are of time.monotonic()."""
    label: object = None
    due_s: float = None                         # when it was to be sent; None: when it was sent
    sent_s: float = None
    ended_s: float = None
    status: int = None
    text: str = ""
    texts_s: list = field(default_factory=list)  # when each piece of text arrived
    timings: dict = field(default_factory=dict)
    usage: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)
    error: str = None

    @property
    def ok(self):
        return self.error is None and self.status == 200

    @property
    def ttft_s(self):
        """From when it was to be sent: a client that is late does not make the server faster."""
        first = self.texts_s[0] if self.texts_s else self.ended_s
        return first - (self.sent_s if self.due_s is None else self.due_s)

    @property
    def gaps_s(self):
        return [later - earlier for earlier, later in zip(self.texts_s, self.texts_s[1:])]

    @property
    def generated_tokens(self):
        return self.timings.get("predicted_n") or self.usage.get("completion_tokens") or 0


class _Connection(asyncio.Protocol):
    def __init__(self, request):
        self.request, self.pieces = request, []
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        transport.write(self.request)

    def data_received(self, data):
        self.pieces.append((time.monotonic(), data))

    def connection_lost(self, error):
        if not self.ended.done():
            self.ended.set_result(error)


def _unchunk(body):
    """A chunked body's bytes, and for each of them... the offset in the raw body where its chunk ends."""
    out, ends, at = bytearray(), [], 0
    while at < len(body):
        line = body.find(b"\r\n", at)
        if line < 0:
            break
        size = int(body[at:line].split(b";")[0] or b"0", 16)
        if size == 0:
            break
        out += body[line + 2:line + 2 + size]
        at = line + 2 + size + 2
        ends.append((len(out), at - 2))
    return bytes(out), ends


def _read(sample, pieces):
    """Fills the sample from what arrived."""
    raw = b"".join(data for _, data in pieces)
    head, _, body = raw.partition(b"\r\n\r\n")
    if not head:
        raise ConnectionError("no answer")
    sample.status = int(head.split(b" ", 2)[1])
    start = len(head) + 4
    if b"transfer-encoding: chunked" in head.lower():
        body, ends = _unchunk(body)
    else:
        ends = [(len(body), len(body))]
    if sample.status != 200:
        sample.error = body[:300].decode("utf-8", "replace")
        return
    arrived, total = [], 0  # raw bytes that were there, and since when
    for when, data in pieces:
        total += len(data)
        arrived.append((total, when))
    chunk = piece = at = 0
    while True:
        end = body.find(b"\n\n", at)
        if end < 0:
            return
        event, at = body[at:end], end + 2
        while chunk + 1 < len(ends) and ends[chunk][0] < at:
            chunk += 1
        # Within a chunk bytes are one to one; what matters is when the event's last byte came.
        raw_end = start + ends[chunk][1] - (ends[chunk][0] - at)
        while piece + 1 < len(arrived) and arrived[piece][0] < raw_end:
            piece += 1
        _event(sample, event, arrived[piece][1])


def _event(sample, event, when):
    for line in event.split(b"\n"):
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        value = json.loads(line[5:])
        if "error" in value:
            sample.error = json.dumps(value["error"])[:300]
        for choice in value.get("choices", ()):
            text = choice["delta"].get("content") if "delta" in choice else choice.get("text")
            if text:
                sample.text += text
                sample.texts_s.append(when)
        sample.timings = value.get("timings") or sample.timings
        sample.usage = value.get("usage") or sample.usage
        sample.extra = value.get("hearth") or sample.extra


class Sender:
    def __init__(self, port, timeout_s=300):
        self.port, self.timeout_s, self.samples = port, timeout_s, []

    async def until(self, when_s):
        await asyncio.sleep(max(0.0, when_s - time.monotonic()))

    async def post(self, path, body, label=None, due_s=None):
        """Sends a streamed request and reads its answer to the end; failures are noted in the sample."""
        payload = json.dumps(body).encode()
        request = (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
                   f"Content-Length: {len(payload)}\r\n\r\n").encode() + payload
        sample = Sample(label, due_s)
        self.samples.append(sample)
        transport = None
        sample.sent_s = time.monotonic()
        try:
            transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(request), "127.0.0.1", self.port)
            await asyncio.wait_for(asyncio.shield(connection.ended), self.timeout_s)
            sample.ended_s = connection.pieces[-1][0] if connection.pieces else time.monotonic()
            _read(sample, connection.pieces)
            if sample.ok and not sample.timings and not sample.usage:
                sample.error = "the stream has no end"
        except asyncio.TimeoutError:
            sample.error = f"no end after {self.timeout_s} s"
        except (OSError, ValueError, KeyError, IndexError) as error:
            sample.error = repr(error)
        finally:
            sample.ended_s = sample.ended_s or time.monotonic()
            if transport:
                transport.abort()
        return sample

    async def chat(self, messages, max_tokens, label=None, due_s=None, **options):
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}, **options}
        return await self.post("/v1/chat/completions", body, label, due_s)


def run(port, plan, timeout_s=300):
    """Runs the plan to its end; returns (samples in the order of sending, share of a core, seconds)."""
    sender = Sender(port, timeout_s)
    start, used = time.monotonic(), time.process_time()
    asyncio.run(plan(sender))
    seconds = time.monotonic() - start
    return sender.samples, (time.process_time() - used) / seconds, seconds


WARM_UP = [{"role": "user", "content": "Warm up."}]


def warm_up(port):
    """A short request before what is measured."""
    run(port, lambda sender: sender.chat(list(WARM_UP), 4))


def failed(samples):
    """The distinct errors, for a message; raises nothing."""
    return sorted({sample.error or f"HTTP {sample.status}" for sample in samples if not sample.ok})
