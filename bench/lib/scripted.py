"""A stand-in for a server: answers chat completions from a script, for recording what a client does.

A script is a list of entries like those of `hearth serve --script`: `when` (`last`: a part of the last message, `tools`:
whether the request has tools), `reply` (text and calls as a model writes them, see `call()`), `times` (1; 0: any
number); and beyond those `finish` (a finish_reason) and `wait_s`. The first entry that fits and is not used up answers.
"""

import http.server
import json
import re
import threading
import time

CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
CTX_TOKENS = 262144


def call(name, /, **arguments):
    """A tool call in hearth's generic format."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def text_of(message):
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def about_tokens(value):
    return len(json.dumps(value, ensure_ascii=False)) // 4


class Scripted:
    """Listens until the end of its context."""

    def __init__(self, script):
        self._left = [dict(entry, left=entry.get("times", 1) or float("inf")) for entry in script]
        self._lock, self._calls = threading.Lock(), 0
        scripted = self

        class Handler(_Handler):
            server_script = scripted

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self._server.shutdown()
        self._server.server_close()

    def unused(self):
        return [entry for entry in self._left if entry.get("times", 1) and entry["left"]]

    def choose(self, body):
        last = text_of(body["messages"][-1])
        with self._lock:
            for entry in self._left:
                when = entry.get("when", {})
                if (entry["left"] and when.get("last", "") in last
                        and when.get("tools", bool(body.get("tools"))) == bool(body.get("tools"))):
                    entry["left"] -= 1
                    return entry
        return {"reply": "I have nothing to say to that."}

    def message(self, reply):
        """A reply's text as a message."""
        calls = []
        for found in CALL.findall(reply):
            parsed = json.loads(found)
            with self._lock:
                self._calls += 1
                number = self._calls
            calls.append({"id": f"call_{number:04d}", "type": "function", "function": {
                "name": parsed["name"], "arguments": json.dumps(parsed["arguments"], ensure_ascii=False)}})
        message = {"role": "assistant", "content": CALL.sub("", reply).strip() or None}
        return {**message, "tool_calls": calls} if calls else message


class _Handler(http.server.BaseHTTPRequestHandler):
    server_script = None

    def log_message(self, *args):
        pass

    def do_GET(self):
        model = {"id": "hearth", "object": "model", "created": 0, "owned_by": "hearth", "max_model_len": CTX_TOKENS}
        if self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [model]})
        elif self.path == "/v1/models/hearth":
            self._json(200, model)
        else:
            self._json(404, {"error": {"message": "not found", "type": "invalid_request_error"}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/chat/completions":
            self._json(404, {"error": {"message": "not found", "type": "invalid_request_error"}})
            return
        body = json.loads(body)
        entry = self.server_script.choose(body)
        time.sleep(entry.get("wait_s", 0))
        message = self.server_script.message(entry["reply"])
        finish = entry.get("finish") or ("tool_calls" if "tool_calls" in message else "stop")
        prompt, reply = about_tokens([body["messages"], body.get("tools")]), about_tokens(message)
        usage = {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}
        base = {"id": "chatcmpl-0", "created": int(time.time()), "model": "hearth"}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            self._json(200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        self._stream({**base, "object": "chat.completion.chunk"}, message, finish, usage)

    def _json(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, base, message, finish, usage):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        deltas = [{"role": "assistant", "content": ""}]
        if message["content"]:
            deltas.append({"content": message["content"]})
        for index, made in enumerate(message.get("tool_calls", ())):
            deltas.append({"tool_calls": [{"index": index, **made}]})
        for delta, end in [*((delta, None) for delta in deltas), ({}, finish)]:
            self._event({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]})
        self._event({**base, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
