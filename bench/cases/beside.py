"""Short requests while a prompt of 40,000 tokens is read."""

import asyncio
import random
import time

from lib import load, stats
from lib.case import Case, Cell, Measure
from lib.text import Text

LONG_TOKENS = 40000
SHORT_PER_S = {"hybrid": 2.0, "pages": 6.0}  # well below what lanes can do beside the long one


class Beside(Case):
    """Short requests beside a prefill of 40,000 tokens

    A long prompt is sent, then short ones (ten words, two tokens of reply) at random times until it is read; on average
    two a second on hybrid, which reads more slowly, and six on pages.
    TTFT is that of the short ones that were due before the long one's first token, of all rounds together; with one
    lane hearth preempts the long one for each of them. *Long* is what the long prompt itself takes. hearth guesses
    ahead, as by default.
    """
    name, group = "beside", "load"
    rounds = (10, 16)  # p99 needs many samples
    limit_s = 300
    measures = {
        "ttft-p50": Measure("TTFT p50 of the short ones", "ms", pooled=("ttfts_ms", 0.5)),
        "ttft-p99": Measure("TTFT p99 of the short ones", "ms", pooled=("ttfts_ms", 0.99)),
        "long": Measure("TTFT of the long one", "ms"),
        "shorts": Measure("short requests", digits=0, compared=False),
    }

    def cells(self, plan):
        return [
            Cell("hybrid", 4, long=True),
            Cell("hybrid", 1, long=True),
            Cell("pages", 4, long=True),
            Cell("pages", 1, long=True),
        ]

    def round(self, plan, cell, kind, number, running=None):
        with plan.start(kind, cell, 65536, 1024) as running:
            ids = running.client.tokenize(Text("beside", number).words(LONG_TOKENS))
            ids = ids[:plan.pick(LONG_TOKENS, 16384)]
            load.warm_up(running.port)
            samples, share, _ = load.run(running.port, lambda sender: self._go(
                sender, ids, number, SHORT_PER_S[cell.memory]))
        if errors := load.failed(samples):
            raise RuntimeError(f"requests failed: {errors[:3]}")
        long_one = next(each for each in samples if each.label == "long")
        read_s = long_one.sent_s + long_one.ttft_s
        times = [1000 * each.ttft_s for each in samples if each.label == "short" and each.due_s < read_s]
        if not times:
            raise RuntimeError(f"no short request came in {long_one.ttft_s:.1f} s")
        return {"values": {"ttft-p50": stats.quantile(times, 0.5), "ttft-p99": stats.quantile(times, 0.99),
                           "long": 1000 * long_one.ttft_s, "shorts": len(times)},
                "client_share": round(share, 4), "ttfts_ms": [round(value, 1) for value in times]}

    @staticmethod
    async def _go(sender, ids, number, per_s):
        body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True}
        over, chance, waiting = asyncio.Event(), random.Random(f"beside/{number}"), []

        async def read_long():
            await sender.post("/v1/completions", body, "long")
            over.set()

        waiting.append(asyncio.create_task(read_long()))
        due_s = time.monotonic() + 0.5
        while not over.is_set():
            due_s += chance.expovariate(per_s)
            try:
                await asyncio.wait_for(over.wait(), max(0.0, due_s - time.monotonic()))
                break
            except asyncio.TimeoutError:
                pass
            ask = [{"role": "user", "content": Text("short", number, len(waiting)).words(10)}]
            waiting.append(asyncio.create_task(sender.chat(ask, 2, "short", due_s)))
        await asyncio.gather(*waiting)


CASES = [Beside()]
