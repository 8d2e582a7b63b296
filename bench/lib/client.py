"""A client for the endpoints that hearth and llama-server have in common.

Every request has a connection of its own: what is measured is the server, and a request can be dropped at any byte.
"""

import http.client
import json
import time
from dataclasses import dataclass, field


class HttpError(Exception):
    def __init__(self, status, body):
        super().__init__(f"HTTP {status}: {body[:500]}")
        self.status, self.body = status, body


class Counts:
    """What the `timings` of a reply say."""
    @property
    def computed_tokens(self):
        return self.timings["prompt_n"]

    @property
    def prompt_tokens(self):
        return self.timings["prompt_n"] + self.timings["cache_n"]


@dataclass
class Reply(Counts):
    text: str = ""
    finish: str = None
    ttft_s: float = None       # from sending to the first text (or to the end of a reply without text)
    first_at_s: float = None   # time.monotonic() of that moment
    total_s: float = None
    timings: dict = field(default_factory=dict)
    usage: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)  # hearth's receipt


class Client:
    def __init__(self, port, host="127.0.0.1", timeout_s=600):
        self.host, self.port, self.timeout_s = host, port, timeout_s

    def open(self, method, path, body=None, headers=None):
        """Sends a request and returns (connection, response); the caller closes the connection."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        payload = None if body is None else json.dumps(body)
        headers = {**({} if body is None else {"Content-Type": "application/json"}), **(headers or {})}
        try:
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise HttpError(response.status, response.read().decode("utf-8", "replace"))
        except BaseException:
            connection.close()
            raise
        return connection, response

    def _text(self, method, path, body=None):
        connection, response = self.open(method, path, body)
        try:
            return response.read().decode("utf-8")
        finally:
            connection.close()

    def get(self, path):
        return json.loads(self._text("GET", path))

    def post(self, path, body):
        return json.loads(self._text("POST", path, body))

    def delete(self, path):
        return json.loads(self._text("DELETE", path))

    def tokenize(self, text):
        """The tokens of a prompt, as the server itself tokenises one."""
        return self.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]

    def apply_template(self, messages):
        return self.post("/apply-template", {"messages": messages})["prompt"]

    def metrics(self):
        """Prometheus samples without labels, name to value."""
        out = {}
        for line in self._text("GET", "/metrics").splitlines():
            name, _, value = line.partition(" ")
            if line and not line.startswith("#") and "{" not in name:
                out[name] = float(value)
        return out

    def chat(self, messages, max_tokens, **options):
        """A streamed chat completion at temperature 0, read to its end."""
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}, **options}
        return self.stream("/v1/chat/completions", body)

    def stream(self, path, body):
        reply = Reply()
        start = time.monotonic()
        connection, response = self.open("POST", path, body)
        try:
            for chunk in events(response):
                if "error" in chunk:
                    raise HttpError(200, json.dumps(chunk))
                for choice in chunk.get("choices", ()):
                    piece = choice["delta"].get("content") if "delta" in choice else choice.get("text")
                    if piece and reply.first_at_s is None:
                        reply.first_at_s = time.monotonic()
                    reply.text += piece or ""
                    reply.finish = choice.get("finish_reason") or reply.finish
                reply.timings = chunk.get("timings") or reply.timings
                reply.usage = chunk.get("usage") or reply.usage
                reply.extra = chunk.get("hearth") or reply.extra
        finally:
            connection.close()
        end = time.monotonic()
        reply.first_at_s = reply.first_at_s or end
        reply.ttft_s, reply.total_s = reply.first_at_s - start, end - start
        return reply

    def idle(self):
        """True when no lane works on a request."""
        return not any(slot["is_processing"] for slot in self.get("/slots"))

    def wait_idle(self, timeout_s=10.0):
        """Waits until every lane is idle; returns whether that happened in time."""
        deadline = time.monotonic() + timeout_s
        while not self.idle():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def events(response):
    """The JSON objects of a server-sent event stream, up to [DONE]."""
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
