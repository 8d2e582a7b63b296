"""The remote tier's speed: a prompt that another box has written to a Redis on the same machine.

Bytes fetched are those that the server read from the store (hearth_remote_read_bytes_total); the time is the receipt's:
asking, planning and restoring. redis-benchmark reads values of a chunk's size from the same store, by one connection and
by several, in the same minute; the faster counts.
"""

import os
import shutil
import subprocess
import tempfile
import time

from lib import server
from lib.case import HEARTH, MIB, Case, Measure
from cases.disk import complete, long_prompt

CHUNK = MIB  # REMOTE_CHUNK of src/tier/remote_engine.h
PROGRAM = shutil.which("redis-server") or shutil.which("redis-check-rdb")


class Redis:
    def __init__(self, folder):
        self.port = server.free_port()
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--save", "", "--dir", folder, "--bind", "127.0.0.1"],
            executable=PROGRAM, stdout=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.process.kill()
        self.process.wait()

    def benchmark(self, clients):
        """Bytes per second of GET."""
        command = ["redis-benchmark", "-p", str(self.port), "-d", str(CHUNK), "-c", str(clients), "-n", "1000", "--csv",
                   "-t", "get"]
        subprocess.run([*command[:-1], "set", "-n", "1"], check=True, capture_output=True)
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return float(told.splitlines()[-1].split(",")[1].strip('"')) * CHUNK


class Remote(Case):
    """A prompt from the store that boxes share

    One box computes a prompt and writes it to a Redis on the same machine; another one, new, is asked the same. *Fetch*:
    bytes read from the store by the time from asking it to the last import, against redis-benchmark with values of the
    size that hearth's have. *TTFT*: the client's time to the first token, with the store and without.
    """
    name, group = "remote", "cost"
    in_record = False
    servers = (HEARTH,)
    classes, lanes = ("pages", "hybrid"), (1,)
    rounds = (1, 3)
    limit_s = 600
    measures = {
        "fetch": Measure("fetched and imported", "MiB/s", compared=False),
        "redis": Measure("redis-benchmark, GET of 1 MiB", "MiB/s", compared=False),
        "share": Measure("fetched / redis-benchmark", compared=False, digits=2),
        "tokens": Measure("prompt", "tokens", compared=False, exact=True, digits=0),
        "ttft": Measure("TTFT, fetched", "ms", compared=False),
        "prefill": Measure("TTFT, computed", "ms", compared=False),
        "times": Measure("computed / fetched", compared=False, digits=1),
    }

    @staticmethod
    def _ask(client, prompt):
        start = time.monotonic()
        answer = complete(client, prompt, 1)
        return 1000 * (time.monotonic() - start), answer["hearth"]

    def round(self, plan, cell, kind, number, running=None):
        with tempfile.TemporaryDirectory(prefix="hearth-remote-") as folder, Redis(folder) as redis:
            flags = ["--kv-dir", "none", "--kv-remote", f"redis://127.0.0.1:{redis.port}"]
            with plan.start(HEARTH, cell, 32768, 4096, flags) as running:
                tokens = int(os.environ.get("HEARTH_BENCH_TOKENS", plan.pick(16384, 4096)))
                prompt = long_prompt(running.client, tokens, number)
                prefill_ms, _ = self._ask(running.client, prompt)
                while running.client.metrics()["hearth_remote_queued_bytes"] > 0:
                    time.sleep(0.05)
            with plan.start(HEARTH, cell, 32768, 4096, flags) as running:
                self._ask(running.client, prompt[:32])  # the model's pages are there
                ttft_ms, receipt = self._ask(running.client, prompt + prompt[:1])
                read = running.client.metrics()["hearth_remote_read_bytes_total"]
            if receipt["reused"]["remote"] < len(prompt) - 256:
                raise RuntimeError(f"only {receipt['reused']['remote']} tokens came from the store")
            fetch = read / (receipt["queue_ms"] + receipt["plan_ms"] + receipt["restore_ms"]) * 1000
            best = max(redis.benchmark(clients) for clients in (1, 4))
        return {"values": {"fetch": fetch / MIB, "redis": best / MIB, "share": fetch / best, "tokens": tokens,
                           "ttft": ttft_ms, "prefill": prefill_ms, "times": prefill_ms / ttft_ms}}


CASES = [Remote()] if PROGRAM and shutil.which("redis-benchmark") else []
