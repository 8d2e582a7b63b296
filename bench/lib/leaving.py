"""A client that goes away again and again, in the middle of a prefill and in the middle of a stream."""

import json
import random
import socket
import time

from .client import events
from .text import Text


def _in_prefill(client, number, wait_s):
    """Sends a long prompt and closes the connection after a moment, before any answer."""
    body = json.dumps({"messages": [{"role": "user", "content": Text("leave", number).words(1500)}],
                       "max_tokens": 8, "stream": number % 4 < 2}).encode()
    with socket.create_connection((client.host, client.port), timeout=30) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(wait_s)


def _in_stream(client, number, chunks):
    """Reads a few pieces of a long reply, then closes the connection."""
    body = {"messages": [{"role": "user", "content": Text("stream", number).ask(20)}], "max_tokens": 2000,
            "stream": True, "temperature": 0, "ignore_eos": True}
    connection, response = client.open("POST", "/v1/chat/completions", body)
    for count, _ in enumerate(events(response)):
        if count >= chunks:
            break
    response.close()
    connection.close()


def leave(running, times, warm_up):
    """Leaves `warm_up` and then `times` times; returns the memory in bytes before and after the latter. Raises
    RuntimeError when a lane stays busy (the replies would take far longer), or a normal request gets no answer."""
    client, chance, before = running.client, random.Random(7), None
    for number in range(warm_up + times):
        if number == warm_up:
            client.wait_idle()
            before = running.memory_bytes("RssAnon")
        if number % 2:
            _in_stream(client, number, chance.randrange(1, 6))
        else:
            _in_prefill(client, number, chance.uniform(0.0, 0.3))
    if not client.wait_idle():
        raise RuntimeError("lanes are still busy")
    if not client.chat([{"role": "user", "content": "Say hello."}], 8).text:
        raise RuntimeError("a normal request got no text")
    time.sleep(0.5)
    return before, running.memory_bytes("RssAnon")
