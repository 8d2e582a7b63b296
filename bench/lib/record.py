#!/usr/bin/env python3
"""A proxy that remembers what a client and a server said to each other.

    with Recorder(server.port) as recorder:      # a client is pointed at recorder.port
        …
    recorder.exchanges                           # in the order of arrival

Bytes are passed on as they come, in both directions: streams stay streams, and a client that goes away is seen by the
server. A connection carries one request. Stand-alone, exchanges are printed as JSON lines:

    bench/lib/record.py --target 8080 --port 9090 >exchanges.jsonl
"""

import argparse
import dataclasses
import http.client
import io
import json
import select
import socket
import socketserver
import sys
import threading
import time

HEAD_MAX_BYTES = 1 << 16


@dataclasses.dataclass
class Exchange:
    at_s: float         # since the recorder was started
    method: str
    path: str
    body: object        # parsed JSON, or None
    until_s: float = None
    status: int = None  # None: no whole head came back
    reply: object = None  # in one piece, also of a stream: see whole_reply() and whole_events(); else the parsed body
    left: bool = False  # the client went away first


class Recorder:
    """Listens until the end of its context."""

    def __init__(self, target_port, port=0, on_exchange=None):
        self.target_port, self.exchanges, self._on_exchange = target_port, [], on_exchange
        self._lock, self._start = threading.Lock(), time.monotonic()
        recorder = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                recorder._serve(self.request)

        class Listener(socketserver.ThreadingTCPServer):
            allow_reuse_address, daemon_threads, request_queue_size = True, True, 64

        self._listener = Listener(("127.0.0.1", port), Handler)
        self.port = self._listener.server_address[1]
        self._thread = threading.Thread(target=self._listener.serve_forever, kwargs={"poll_interval": 0.05},
                                        daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self._listener.shutdown()
        self._listener.server_close()

    def now_s(self):
        return time.monotonic() - self._start

    def of(self, path):
        """The exchanges whose path ends like this."""
        with self._lock:
            return [exchange for exchange in self.exchanges if exchange.path.endswith(path)]

    def open(self):
        """How many exchanges have not ended."""
        with self._lock:
            return sum(exchange.until_s is None for exchange in self.exchanges)

    def await_end(self, timeout_s=60):
        """Waits until no exchange is open: a client may have read its answer before it is noted here."""
        deadline = time.monotonic() + timeout_s
        while self.open():
            if time.monotonic() > deadline:
                raise RuntimeError("an exchange does not end")
            time.sleep(0.01)

    def _serve(self, client):
        head, body = _read_request(client)
        if head is None:
            return
        method, path = head.split(b" ", 2)[:2]
        exchange = Exchange(round(self.now_s(), 3), method.decode(), path.decode(), _json(body))
        with self._lock:
            self.exchanges.append(exchange)
        answer = bytearray()
        try:
            with socket.create_connection(("127.0.0.1", self.target_port), timeout=600) as server:
                server.sendall(_without_keep_alive(head) + body)
                exchange.left = not _relay(client, server, answer)
        except OSError:
            exchange.left = True
        exchange.status, exchange.reply = _parse_answer(bytes(answer))
        exchange.until_s = round(self.now_s(), 3)
        if self._on_exchange:
            self._on_exchange(exchange)


def _read_request(client):
    """Head and body; (None, None) when the client closes or sends something else."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(1 << 16)
        if not piece or len(data) > HEAD_MAX_BYTES:
            return None, None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n")
                   if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        piece = client.recv(1 << 20)
        if not piece:
            return None, None
        body += piece
    return head, body


def _without_keep_alive(head):
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def _relay(client, server, answer):
    """Passes the answer on. False: the client went away before its end."""
    while True:
        ready, _, _ = select.select([client, server], [], [])
        if server in ready:
            piece = server.recv(1 << 16)
            if not piece:
                return True
            answer += piece
            client.sendall(piece)
        elif not client.recv(1 << 16):
            return False


def _json(data):
    try:
        return json.loads(data)
    except ValueError:
        return None


class _Bytes:
    """What http.client wants of a socket."""

    def __init__(self, data):
        self._data = data

    def makefile(self, mode):
        return io.BytesIO(self._data)


def _parse_answer(data):
    response = http.client.HTTPResponse(_Bytes(data))
    try:
        response.begin()
    except (http.client.HTTPException, OSError, ValueError):
        return None, None
    try:
        body = response.read()
    except http.client.IncompleteRead as cut:
        body = cut.partial
    if (response.getheader("Content-Type") or "").startswith("text/event-stream"):
        lines = [line[5:].strip() for line in body.split(b"\n") if line.startswith(b"data:")]
        chunks = [chunk for chunk in map(_json, lines) if isinstance(chunk, dict)]
        return response.status, whole_events(chunks) if chunks and "type" in chunks[0] else whole_reply(chunks)
    body = _json(body)
    return response.status, whole_reply([body]) if isinstance(body, dict) and "choices" in body else body


def whole_reply(chunks):
    """The first choice of a chat completion from its chunks (or from the one object it is): a dict with `message`,
    `finish`, `usage`, `timings` and `hearth`."""
    message, calls = {"role": "assistant", "content": None}, {}
    out = {"message": message, "finish": None, "usage": None, "timings": None, "hearth": None, "error": None}
    for chunk in chunks:
        for name in ("usage", "timings", "hearth", "error"):
            out[name] = chunk.get(name) or out[name]
        for choice in chunk.get("choices", ()):
            if choice.get("index", 0) == 0:
                out["finish"] = choice.get("finish_reason") or out["finish"]
                _add(message, calls, choice.get("delta") or choice.get("message") or {})
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return out


def _add(message, calls, delta):
    for name in ("content", "reasoning_content"):
        if delta.get(name) is not None:
            message[name] = (message.get(name) or "") + delta[name]
    for index, piece in enumerate(delta.get("tool_calls") or ()):
        call = calls.setdefault(piece.get("index", index), {"type": "function",
                                                            "function": {"name": "", "arguments": ""}})
        call["id"] = piece.get("id") or call.get("id")
        function = piece.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def whole_events(events):
    """The response (Responses) or the message (Messages) that a stream of events comes to, or its error."""
    out, pieces = {}, {}
    for event in events:
        kind = event.get("type")
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            return event["response"]
        if kind == "error":
            return {"error": event.get("error") or event}
        if kind == "message_start":
            out = dict(event["message"], content=[])
        elif kind == "content_block_start":
            out["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            delta, block = event["delta"], out["content"][event["index"]]
            if delta["type"] == "input_json_delta":
                pieces[event["index"]] = pieces.get(event["index"], "") + delta["partial_json"]
                continue
            name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}[delta["type"]]
            block[name] = block.get(name, "") + delta[name]
        elif kind == "message_delta":
            out.update(event["delta"], hearth=event.get("hearth"))
            out["usage"].update((name, value) for name, value in event["usage"].items() if value is not None)
    for index, piece in pieces.items():
        out["content"][index]["input"] = _json(piece)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=int, required=True, help="the server's port")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()

    def show(exchange):
        print(json.dumps(dataclasses.asdict(exchange), ensure_ascii=False), flush=True)

    with Recorder(options.target, options.port, show) as recorder:
        print(f"listening on http://127.0.0.1:{recorder.port}", file=sys.stderr)
        threading.Event().wait()


if __name__ == "__main__":
    main()
