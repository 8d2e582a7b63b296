#!/usr/bin/env python3
"""A client that goes away a hundred times, in the middle of a prefill and in the middle of a stream.

Afterwards every lane must be idle within two seconds, a normal request must be answered, and the server's memory must
be where it was after the first disconnects. Prompts are unique; the cache is small, so that it is full before the
comparison starts.

    bench/disconnect.py -m smollm2.gguf
"""

import argparse
import json
import os
import random
import socket
import sys
import time

from lib import gguf, server
from lib.client import events
from lib.text import Text

MIB = 1 << 20


def leave_in_prefill(client, number, wait_s):
    """Sends a long prompt and closes the connection after a moment, before any answer."""
    body = json.dumps({"messages": [{"role": "user", "content": Text("leave", number).words(1500)}],
                       "max_tokens": 8, "stream": number % 4 < 2}).encode()
    with socket.create_connection((client.host, client.port), timeout=30) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(wait_s)


def leave_in_stream(client, number, chunks):
    """Reads a few pieces of a long reply, then closes the connection."""
    body = {"messages": [{"role": "user", "content": Text("stream", number).ask(20)}], "max_tokens": 2000,
            "stream": True, "temperature": 0, "ignore_eos": True}
    connection, response = client.open("POST", "/v1/chat/completions", body)
    for count, _ in enumerate(events(response)):
        if count >= chunks:
            break
    response.close()
    connection.close()


def run(running, times, warm_up):
    """Returns a list of what went wrong and the memory before and after, in bytes."""
    client, chance, wrong, before = running.client, random.Random(7), [], None
    for number in range(warm_up + times):
        if number == warm_up:
            client.wait_idle()
            before = running.memory_bytes("RssAnon")
        if number % 2:
            leave_in_stream(client, number, chance.randrange(1, 6))
        else:
            leave_in_prefill(client, number, chance.uniform(0.0, 0.3))
    if not client.wait_idle(timeout_s=2.0):
        wrong.append(f"lanes still busy: {client.get('/slots')}")
    reply = client.chat([{"role": "user", "content": "Say hello."}], 8)
    if not reply.text:
        wrong.append("a normal request got no text")
    time.sleep(0.5)
    return wrong, before, running.memory_bytes("RssAnon")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default=os.path.join(server.models_dir(), "smollm2.gguf"))
    parser.add_argument("-np", "--lanes", type=int, default=2)
    parser.add_argument("-c", "--ctx", type=int, default=8192)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--cache-ram", type=int, default=16, help="MiB")
    parser.add_argument("--server", choices=(server.HEARTH, server.PEER), default=server.HEARTH)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=20, help="disconnects before memory is compared")
    parser.add_argument("--growth", type=float, default=8, help="MiB that memory may grow")
    options = parser.parse_args()

    with server.start(options.server, gguf.Model(options.model), options.lanes, options.ctx, options.cache_ram,
                      options.threads) as running:
        wrong, before, after = run(running, options.times, options.warm_up)
        status = running.stop()
    grown = (after - before) / MIB
    if grown > options.growth:
        wrong.append(f"memory grew by {grown:.1f} MiB")
    if status != 0:
        wrong.append(f"exit status {status}")
    print(f"{options.server}: {options.times} disconnects, memory {before / MIB:.1f} -> {after / MIB:.1f} MiB, "
          + ("; ".join(wrong) if wrong else "all lanes idle, answers as before"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
