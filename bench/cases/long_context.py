"""A long context, stepped from 8k to 45k tokens: cold, warm, after a restart, and what is kept of it.

The models are generated ones with a context that large. A prompt is token ids of prose, each step's its own.
"""

import math
import tempfile
import time

from lib import stats
from lib.case import BOTH, HEARTH, MIB, PEER, SAFE_S, Case, Cell, Measure, figure, show_ratio, show_spread
from lib.svg import Plot
from lib.text import Text

STEPS = (8192, 16384, 32768, 45056)
QUICK_STEPS = (8192, 16384)
CTX_TOKENS = 49152


def await_quiet(client, quiet_s=0.7, timeout_s=60):
    """Waits until nothing is captured or written any more; returns the metrics."""
    since, deadline, last = time.monotonic(), time.monotonic() + timeout_s, None
    while True:
        found = client.metrics()
        now = [found.get(name, 0) for name in ("hearth_page_bytes", "hearth_snapshot_bytes", "hearth_disk_queued_bytes",
                                               "hearth_disk_written_total")]
        if now != last:
            since, last = time.monotonic(), now
        if (time.monotonic() - since > quiet_s and now[2] == 0) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def complete(client, prompt):
    """TTFT in ms and computed tokens."""
    reply = client.stream("/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True,
                                              "stream": True, "stream_options": {"include_usage": True}})
    return 1000 * reply.ttft_s, reply.computed_tokens


class LongContext(Case):
    """A long context, 8k to 45k tokens: cold, warm, after a restart

    Cold: a prompt that nobody has seen. Warm: the same with 64 more tokens, after another prompt took the lane. After a
    restart: the same again, in a new process (SIGKILL, two seconds after the last reply). State: what hearth holds of
    the prompt in RAM, and on disk.
    """
    name = "long-context"
    classes = ("pages", "window", "hybrid", "snapshot")
    long = True
    rounds, quick_rounds, limit_s = (1, 3), (1, 1), 600
    measures = {
        "cold": Measure("TTFT cold", "ms"),
        "warm": Measure("TTFT warm", "ms"),
        "restart": Measure("TTFT after a restart", "ms"),
        "computed-warm": Measure("tokens computed, warm", exact=True, digits=0),
        "computed-restart": Measure("tokens computed after a restart", exact=True, digits=0),
        "ram": Measure("state in RAM", "MiB", exact=True, digits=2, compared=False),
        "disk": Measure("state on disk", "MiB", exact=True, digits=2, compared=False),
    }

    def cells(self, plan):
        one = [Cell(memory, 1, f"{tokens // 1024}k", True) for memory in self.classes
               for tokens in plan.pick(STEPS, QUICK_STEPS)]
        return one + [Cell(memory, 4, f"{STEPS[-1] // 1024}k", True) for memory in plan.pick(self.classes, ())]

    def round(self, plan, cell, kind, number, running=None):
        tokens = int(cell.variant[:-1]) * 1024
        values = {}
        with tempfile.TemporaryDirectory(prefix="hearth-long-") as folder:
            extra = ["--kv-dir", folder, "--kv-disk", "8192"] if kind == HEARTH else []
            with plan.start(kind, cell, CTX_TOKENS, 2048, extra) as running:
                client = running.client
                ids = client.tokenize(Text("long", tokens, number).words(math.ceil(tokens * 0.8)))
                more = client.tokenize(Text("more", tokens, number).words(200))
                if len(ids) < tokens or len(more) < 128:
                    raise RuntimeError(f"{len(ids)} tokens of text, {tokens} are needed")
                ids = ids[:tokens]
                before = await_quiet(client) if kind == HEARTH else {}
                values["cold"], _ = complete(client, ids)
                if kind == HEARTH:
                    after = await_quiet(client)
                    for name, keys in (("ram", ("hearth_page_bytes", "hearth_snapshot_bytes")),
                                       ("disk", ("hearth_disk_written_bytes_total",))):
                        values[name] = sum(after[key] - before[key] for key in keys) / MIB
                complete(client, more[:64])
                values["warm"], values["computed-warm"] = complete(client, ids + more[:64])
                time.sleep(SAFE_S)
                running.kill()
            with plan.start(kind, cell, CTX_TOKENS, 2048, extra) as running:
                values["restart"], values["computed-restart"] = complete(running.client, ids + more[:128])
        return {"values": values}

    def section(self, cells):
        """For each memory class a table of times and one of counts."""
        blocks, both = [], ("hearth", "peer")
        for memory in self.classes:
            times, counts = [], []
            for key, result in cells.items():
                if not key.startswith(memory + "."):
                    continue
                found = {name: figure(measure, name, result) for name, measure in self.measures.items()}
                tokens = " ".join(reversed(result["label"].split(", ")[1:]))
                row = [tokens]
                for name in ("cold", "warm", "restart"):
                    row += [stats.number(found[name][which], 0) for which in both]
                for name in ("warm", "restart"):
                    row += [show_ratio(found[name]), show_spread(found[name])]
                times.append([*row, found["warm"]["rounds"]])
                row = [tokens]
                for name in ("computed-warm", "computed-restart"):
                    row += [stats.number(found[name][which], 0) for which in both]
                row += [stats.number(found[name] and found[name]["hearth"], 2) for name in ("ram", "disk")]
                counts.append(row)
            if times:
                blocks += [
                    stats.table([f"{memory}, tokens", "cold, ms: hearth", "llama-server", "warm, ms: hearth",
                                 "llama-server", "restart, ms: hearth", "llama-server", "warm, times better", "spread",
                                 "restart, times better", "spread", "rounds"], times),
                    stats.table([f"{memory}, tokens", "computed, warm: hearth", "llama-server",
                                 "computed after a restart: hearth", "llama-server", "RAM, MiB", "disk, MiB"], counts)]
        return "\n\n".join(blocks)

    def plots(self, cells):
        out = []
        for memory in self.classes:
            plot = Plot(f"A long context ({memory}): time to first token", "prompt tokens", "ms", log_y=True)
            for name, dashed in (("cold", True), ("warm", False), ("restart", False)):
                for kind, which in zip(BOTH, ("hearth", "peer")):
                    points = []
                    for key, result in cells.items():
                        found = figure(self.measures[name], name, result)
                        if key.startswith(memory + ".1.") and found and found[which]:
                            points.append((int(key.split(".")[-1][:-1]) * 1024, found[which]))
                    plot.line(f"{'hearth' if kind == HEARTH else PEER}, {name}", sorted(points), dashed)
            if plot.lines:
                out.append((f"long-context-{memory}.svg", plot,
                            f"{memory}, one lane: a prompt that is new, comes back, comes back after a restart."))
        return out


CASES = [LongContext()]
