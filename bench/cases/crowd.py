"""Ten thousand clients at once that do not behave, and one that does."""

import http.client
import json
import time

from lib import crowd, server, stats
from lib.case import HEARTH, MIB, Case, Cell, Measure

CLIENTS = 10000
ASKED = 400  # of them one in eight for a reply
BODY = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "temperature": 0})


def ask_once(port, path, body=None):
    """Milliseconds on a connection of its own, and whether it was answered; one that is told to is asked again."""
    start = time.monotonic()
    for _ in range(100):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST" if body else "GET", path, body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
            connection.close()
        except (OSError, http.client.HTTPException):
            status = 0
        if status == 200:
            return 1000 * (time.monotonic() - start)
        time.sleep(0.1)
    raise RuntimeError(f"{path}: status {status}")


def ask_many(port, count):
    """Both kinds of short request."""
    health, chat = [], []
    for number in range(count):
        health.append(ask_once(port, "/health"))
        if number % 8 == 0:
            chat.append(ask_once(port, "/v1/chat/completions", BODY))
    return health, chat


class TenThousand(Case):
    """Ten thousand clients at once

    10,000 connections that are idle, slow, half-closed, reset, pipelining or never reading (lib/crowd.py), beside one
    client after another that asks GET /health and for a reply of 8 tokens, each on a new connection, of the sim engine.
    *roomy*: there is a place for every one of them. *full*: 4,096 places, the default, so that a new client always
    needs the place of another one. Times are medians and 99th percentiles with the crowd over those without it, on the
    same machine, which runs the crowd as well.
    """
    name, group = "crowd", "cost"
    in_record = False
    servers = (HEARTH,)
    rounds = (1, 1)
    limit_s = 300
    measures = {"health-p50": Measure("/health, median, times that of an empty server", "", compared=False),
                "health-p99": Measure("/health, 99th percentile, likewise", "", compared=False),
                "chat-p50": Measure("reply of 8 tokens, median, likewise", "", compared=False),
                "chat-p99": Measure("reply of 8 tokens, 99th percentile, likewise", "", compared=False),
                "most": Measure("longest of all", "ms", compared=False),
                "open": Measure("connections", compared=False, digits=0),
                "memory": Measure("memory with the crowd", "MiB", compared=False),
                "empty": Measure("memory without it", "MiB", compared=False),
                "each": Measure("memory for each connection", "KiB", compared=False)}

    def cells(self, plan):
        return [Cell("pages", 4, "roomy"), Cell("pages", 4, "full")]

    def round(self, plan, cell, kind, number, running=None):
        places = CLIENTS + 500 if cell.variant == "roomy" else 4096
        with server.Server([server.hearth_path(), "serve", "--engine", "sim", "-c", "8192", "--log-level", "error",
                            "--max-connections", str(places)]) as running:
            asked = plan.pick(ASKED, ASKED // 4)
            before = ask_many(running.port, asked)
            empty = running.memory_bytes("VmRSS")
            with crowd.gathered(running.port, CLIENTS, spread_s=10) as how:
                time.sleep(15)
                after = ask_many(running.port, asked)
                state = how()
            memory = running.memory_bytes("VmHWM")
            open_now = min(state["open"], places)
        values = {"most": max(after[0] + after[1]), "open": open_now, "memory": memory / MIB, "empty": empty / MIB,
                  "each": (memory - empty) / 1024 / open_now}
        for name, old, new in zip(("health", "chat"), before, after):
            values[f"{name}-p50"] = stats.median(new) / stats.median(old)
            values[f"{name}-p99"] = stats.quantile(new, 0.99) / stats.quantile(old, 0.99)
        return {"values": values, "crowd": state,
                "ms": {"before": [stats.median(each) for each in before],
                       "after": [stats.median(each) for each in after]}}


CASES = [TenThousand()]
