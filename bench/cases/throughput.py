"""Prefill and decode speed with 1, 4 and 16 lanes.

Both servers live at the same time, and the one that is not measured is halted. Each round has new ones: rounds of
one pair of processes have been some percent apart from those of another. Every prompt is unique from its first
words, so that no cache can help; caches stay on, as in use.
"""

import asyncio
import time

from lib import load, stats
from lib.case import HEARTH, Case, Measure, figure
from lib.svg import Bars
from lib.text import Text

STEP_COUNTERS = ("decode_us", "sample_us", "sched_us", "generated_tokens")


def together(port, seed, lanes, words, max_tokens):
    """The same request for every lane at the same time: samples, and the client's share of a core. No tokens are
    guessed ahead; llama-server does not know that field, and guesses only when it is started with a flag."""
    def messages(lane):
        """With a system text of its own: templates that have one for those who bring none would let prompts begin alike."""
        text = Text(*seed, lane)
        return [{"role": "system", "content": text.words(4)}, {"role": "user", "content": text.words(words - 4)}]

    async def plan(sender):
        await asyncio.gather(*(sender.chat(messages(lane), max_tokens, speculate=False) for lane in range(lanes)))

    samples, share, _ = load.run(port, plan)
    if errors := load.failed(samples):
        raise RuntimeError(f"requests failed: {errors}")
    return samples, share


def prefill_speed(samples):
    """Of all prompt tokens: the few that such prompts begin alike with, and that are not computed twice, count too."""
    start, end = min(each.sent_s for each in samples), max(each.ended_s for each in samples)
    return sum(each.prompt_tokens for each in samples) / (end - start)


def decode_speed(samples):
    """Texts a second while all lanes generate: from the last one's first to the first one's last."""
    start, end = max(each.texts_s[0] for each in samples), min(each.texts_s[-1] for each in samples)
    texts = sum(start < at <= end for each in samples for at in each.texts_s)
    if texts < 8 * len(samples):
        raise RuntimeError(f"all lanes generated together for only {texts} texts")
    return texts / (end - start)


def whole_speed(samples):
    """Generated tokens a second, from sending to the last end: prompts, waiting and all."""
    start, end = min(each.sent_s for each in samples), max(each.ended_s for each in samples)
    return sum(each.generated_tokens for each in samples) / (end - start)


def counters(client):
    found = client.metrics()
    return {name: found[key] for name in STEP_COUNTERS if (key := f"hearth_{name}_total") in found}


class Throughput(Case):
    """Prefill and decode speed, 1, 4 and 16 lanes

    Guessing ahead is off in both. Prefill: prompt tokens of all lanes until all are computed. Decode: tokens per second
    of all lanes, while all generate; generated: all tokens of these replies, from sending (prompts of eight words) to the
    last one's end; between two texts of one reply, p50 and p99; the longest gap of each reply and the time to its first
    text, of the same requests. Overhead: of hearth's own thread, what is neither computing nor sampling, and sampling
    with delivery, relative to computing; of the rounds without prefill.
    """
    name = "throughput"
    both_alive = True
    lanes = (1, 4, 16)
    rounds, quick_rounds = (5, 15), (2, 2)
    measures = {
        "prefill": Measure("prefill", "tokens/s", True),
        "decode": Measure("decode", "tokens/s", True),
        "whole": Measure("generated, short prompts and all", "tokens/s", True),
        "gap-p50": Measure("between two texts, p50", "ms"),
        "gap-p99": Measure("between two texts, p99", "ms"),
        "pause-p99": Measure("longest of a reply's gaps, p99", "ms"),
        "ttft-p50": Measure("TTFT of short prompts at once, p50", "ms"),
        "ttft-p99": Measure("TTFT of short prompts at once, p99", "ms"),
        "sched": Measure("scheduling, of decode time", "%", compared=False, digits=2),
        "sched-us": Measure("scheduling, per token", "µs", compared=False, digits=2),
        "sample": Measure("sampling and delivering, of decode time", "%", compared=False, digits=2),
        "client": Measure("the client's share of a core", "%", compared=False, digits=1),
    }

    def cells(self, plan):
        cells = super().cells(plan)
        return [cell for cell in cells if cell.memory in ("pages", "hybrid") or cell.lanes != 1]

    def open(self, plan, cell, kind):
        return plan.start(kind, cell, 16384, 256)

    def _decode_tokens(self, plan, cell):
        return plan.pick(96, 32) if cell.lanes < 16 else plan.pick(64, 24)

    def warm_up(self, plan, cell, running):
        together(running.port, ("warm up", cell.lanes), cell.lanes, 30, 8)

    def round(self, plan, cell, kind, number, running=None):
        client, lanes = running.client, cell.lanes
        client.wait_idle()
        words = max(plan.pick(640, 240) // lanes, 40)
        prefilled, _ = together(running.port, ("prefill", number, lanes), lanes, words, 1)
        client.wait_idle()
        time.sleep(0.3)
        before = counters(client) if kind == HEARTH else {}
        decoded, share = together(running.port, ("decode", number, lanes), lanes, 8, self._decode_tokens(plan, cell))
        gaps = [1000 * gap for each in decoded for gap in each.gaps_s]
        pauses, first = [1000 * max(each.gaps_s) for each in decoded], [1000 * each.ttft_s for each in decoded]
        values = {"prefill": prefill_speed(prefilled), "decode": decode_speed(decoded), "whole": whole_speed(decoded),
                  "gap-p50": stats.quantile(gaps, 0.5), "gap-p99": stats.quantile(gaps, 0.99),
                  "pause-p99": stats.quantile(pauses, 0.99), "ttft-p50": stats.quantile(first, 0.5),
                  "ttft-p99": stats.quantile(first, 0.99), "client": 100 * share}
        if before:
            client.wait_idle()
            spent = {name: value - before[name] for name, value in counters(client).items()}
            if spent.get("decode_us") and "sched_us" in spent:
                values["sched"] = 100 * spent["sched_us"] / spent["decode_us"]
                values["sched-us"] = spent["sched_us"] / spent["generated_tokens"]
                values["sample"] = 100 * spent["sample_us"] / spent["decode_us"]
        return {"values": values}

    def plots(self, cells):
        out = []
        for name in ("prefill", "decode"):
            rows = [(result["label"].replace(", ", "\n"), figure(self.measures[name], name, result))
                    for result in cells.values()]
            rows = [(label, found) for label, found in rows if found and found.get("ratio")]
            if rows:
                bars = Bars(f"{name.capitalize()}: hearth's speed over llama-server's", "ratio",
                            [label for label, _ in rows])
                bars.bar("hearth", [(found["ratio"], found.get("low"), found.get("high")) for _, found in rows])
                out.append((f"throughput-{name}.svg", bars, f"{name.capitalize()}: 1 is llama-server's speed."))
        return out


CASES = [Throughput()]
