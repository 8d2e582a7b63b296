"""What it costs to be watched: the same replies from a server that is, and from one that is not."""

import contextlib
import http.client
import os
import socket
import tempfile
import threading
import time

from lib import stats
from lib.case import HEARTH, Case, Cell, Measure
from lib.text import Text

from .hearth_only import cpu_us

OFF = ("--keep-requests", "0", "--no-metrics", "--no-slots", "--log-level", "error")


@contextlib.contextmanager
def page(port):
    """The stream that the page in a browser keeps open, and reads."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/events")
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"GET /events: {response.status}")

    def read():
        with contextlib.suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            while response.read1(65536):
                pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        connection.sock.shutdown(socket.SHUT_RDWR)  # close() alone would wait for what is being read: up to 15 s
        reader.join()
        connection.close()


class Watched(Case):
    """A server that is watched

    Two servers of one model, each halted while the other one replies, in turns: 48 tokens to a prompt of 300, of which all but the
    end is known, with
    `--trace` and without it (*trace*); and with everything that tells of a server (the page's stream open, the last
    requests, histograms, the log at its usual level, `--trace`) against none of it (*all*). The ratio is the middle over
    pairs of replies, one right after the other, of tokens a second. That is at the mercy of the machine; so beside it
    stands the processor time of all threads that do not compute, while a server replies, as a share of one core.
    """
    name, group = "watched", "cost"
    in_record = False
    servers, classes = (HEARTH,), ("pages",)
    rounds, quick_rounds = (1, 3), (1, 1)
    measures = {"decode": Measure("decode, watched over not watched", "times", True, compared=False, digits=3),
                "pairs": Measure("pairs", compared=False, digits=0),
                "speed": Measure("decode, not watched", "tokens/s", True, compared=False),
                "others": Measure("other threads, watched", "% of a core", compared=False, digits=2),
                "others_off": Measure("other threads, not watched", "% of a core", compared=False, digits=2)}

    def cells(self, plan):
        return [Cell("pages", 1, variant) for variant in ("trace", "all")]

    @staticmethod
    def _decode(plan, running, number):
        """(tokens per second, share of a core that the threads take which do not compute)"""
        before, begun_s = cpu_us(running.process.pid), time.monotonic()
        asked = f"{Text('watched', 'all').words(220)} {number}?"
        reply = running.client.chat([{"role": "user", "content": asked}], 48,
                                    ignore_eos=True)
        took_us = 1e6 * (time.monotonic() - begun_s)
        spent = sorted(spent - before.get(thread, 0) for thread, spent in cpu_us(running.process.pid).items())
        return (reply.timings["predicted_n"] / reply.timings["predicted_ms"] * 1000,
                sum(spent[:-plan.threads]) / took_us)

    def round(self, plan, cell, kind, number, running=None):
        pairs = plan.pick(40, 8)
        found, shares = [], []
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            flags = {True: ["--trace", os.path.join(folder, "trace.json")],
                     False: list(OFF) if cell.variant == "all" else []}
            servers = {watched: stack.enter_context(plan.start(kind, cell, 4096, 64, flags[watched]))
                       for watched in (True, False)}
            if cell.variant == "all":
                stack.enter_context(page(servers[True].port))
            for watched, running in servers.items():
                self._decode(plan, running, "warm")
                running.halt()
            for pair in range(pairs):
                speed, share = {}, {}
                for watched in (True, False) if pair % 2 else (False, True):
                    servers[watched].resume()
                    speed[watched], share[watched] = self._decode(plan, servers[watched], pair)
                    servers[watched].halt()
                found.append((speed[True], speed[False]))
                shares.append((share[True], share[False]))
            for running in servers.values():
                running.resume()
        return {"values": {"decode": stats.middle_ratio(found), "pairs": pairs,
                           "speed": stats.median([off for _, off in found]),
                           "others": 100 * stats.median([on for on, _ in shares]),
                           "others_off": 100 * stats.median([off for _, off in shares])}}


@contextlib.contextmanager
def asking(running, lanes):
    """Each lane has a reply, one after the other, until the end."""
    stop = threading.Event()

    def ask(lane):
        number = 0
        while not stop.is_set():
            number += 1
            running.client.chat([{"role": "user", "content": f"{Text('tabs', lane).words(100)} {number}?"}], 48, ignore_eos=True)

    threads = [threading.Thread(target=ask, args=(lane,)) for lane in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class Tabs(Case):
    """Tabs of the page

    Processor time of all threads of a server that do not compute, as a share of one core: with no tab of the page open,
    with one, with ten, and after these ten were hidden, which closes their streams. Once while each of four lanes has
    replies (*busy*), and once while nothing is asked for (*idle*).
    """
    name, group = "tabs", "cost"
    in_record = False
    servers, classes = (HEARTH,), ("pages",)
    rounds, quick_rounds = (3, 3), (1, 1)
    measures = {name: Measure(title, "% of a core", compared=False, digits=2) for name, title in
                (("none", "no tab"), ("one", "one tab"), ("ten", "ten tabs"), ("hidden", "ten hidden tabs"))}

    def cells(self, plan):
        return [Cell("pages", 4, variant) for variant in ("idle", "busy")]

    @staticmethod
    def _share(plan, pid, seconds, busy):
        before, begun_s = cpu_us(pid), time.monotonic()
        time.sleep(seconds)
        took_us = 1e6 * (time.monotonic() - begun_s)
        spent = sorted(spent - before.get(thread, 0) for thread, spent in cpu_us(pid).items())
        return 100 * sum(spent[:-plan.threads] if busy else spent) / took_us

    def round(self, plan, cell, kind, number, running=None):
        seconds, busy, values = plan.pick(30, 8), cell.variant == "busy", {}
        with plan.start(kind, cell, 8192, 64) as running, contextlib.ExitStack() as stack:
            if busy:
                stack.enter_context(asking(running, cell.lanes))
            for name, tabs in (("none", 0), ("one", 1), ("ten", 10), ("hidden", 0)):
                with contextlib.ExitStack() as pages:
                    for _ in range(tabs):
                        pages.enter_context(page(running.port))
                    values[name] = self._share(plan, running.process.pid, seconds, busy)
        return {"values": values}


CASES = [Watched(), Tabs()]
