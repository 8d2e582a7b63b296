"""Recorded sessions: the chat completions that a client asked for, as JSON lines.

    {"session": "edits", "client": "hermes-agent 0.19.0", "about": "…"}     what follows belongs to it
    {"tools": [...]}            tools and messages are numbered, each from 0, through the file
    {"message": {...}}
    {"request": {"at_s": 0.0, "until_s": 1.5, "messages": [0, 1], "tools": 0, "options": {"stream": true, …}}}

What several requests share stands there once. Texts are veiled (lib/veil.py). `at_s` and `until_s` are when a request was sent and when its answer had
been read: requests that overlapped are replayed at the same time.
"""

import json
from dataclasses import dataclass, field

from lib import veil


@dataclass
class Request:
    at_s: float
    until_s: float
    messages: list
    tools: list
    options: dict

    def body(self):
        return {"messages": self.messages, **({"tools": self.tools} if self.tools else {}), **self.options}


@dataclass
class Session:
    name: str
    client: str
    about: str
    requests: list = field(default_factory=list)


def from_exchanges(name, client, about, exchanges, replace=()):
    """The chat completions among recorded exchanges. `replace`: pairs of texts, what stands for what."""
    session = Session(name, client, about)
    for exchange in exchanges:
        if exchange.path.endswith("/chat/completions") and exchange.body:
            body = _replaced(exchange.body, replace)
            options = {key: value for key, value in body.items() if key not in ("messages", "tools")}
            session.requests.append(Request(exchange.at_s, exchange.until_s, body["messages"], body.get("tools"),
                                            options))
    session.requests.sort(key=lambda request: request.at_s)
    start = session.requests[0].at_s if session.requests else 0
    for request in session.requests:
        request.at_s, request.until_s = round(request.at_s - start, 3), round(request.until_s - start, 3)
    return session


def _replaced(value, pairs):
    text = json.dumps(value, ensure_ascii=False)
    for old, new in pairs:
        text = text.replace(old, new)
    return json.loads(text)


def save(sessions, path):
    known = {"message": {}, "tools": {}}
    with open(path, "w", encoding="utf-8") as file:
        def line(value):
            file.write(json.dumps(value, ensure_ascii=False) + "\n")

        def number(kind, value):
            key = json.dumps(value)
            if key not in known[kind]:
                known[kind][key] = len(known[kind])
                line({kind: veil.message(value) if kind == "message" else veil.tools(value)})
            return known[kind][key]

        for session in sessions:
            line({"session": session.name, "client": session.client, "about": session.about})
            for request in session.requests:
                tools = number("tools", request.tools) if request.tools else None
                messages = [number("message", message) for message in request.messages]
                line({"request": {"at_s": request.at_s, "until_s": request.until_s, "messages": messages,
                                  "tools": tools, "options": request.options}})


def load(path):
    """The sessions of a file, in order."""
    sessions, messages, tools = [], [], []
    with open(path, encoding="utf-8") as file:
        for line in file:
            value = json.loads(line)
            if "message" in value:
                messages.append(value["message"])
            elif "tools" in value:
                tools.append(value["tools"])
            elif "request" in value:
                found = value["request"]
                sessions[-1].requests.append(Request(
                    found["at_s"], found["until_s"], [messages[number] for number in found["messages"]],
                    None if found["tools"] is None else tools[found["tools"]], found["options"]))
            else:
                sessions.append(Session(value["session"], value["client"], value["about"]))
    return sessions
