"""Many agents at once: open-loop arrivals, and how throughput grows with lanes and with the rate of arrivals.

The schedule of arrivals is drawn once (Poisson, fixed seed) and the same for both servers; a request goes out when it
is due, however busy the server is, and TTFT counts from then. A conversation's next turn is due a think time after its
answer. The client is one thread that keeps what arrives and reads it later (lib/load.py); its share of a core is in
the table.
"""

import asyncio
import random
import time

from lib import load, stats
from lib.case import Case, Cell, Measure, figure
from lib.svg import Plot
from lib.text import Text

BOUND_S = 2.0
LOAD_MEASURES = {
    "ttft-p50": Measure("TTFT p50", "ms"),
    "ttft-p90": Measure("TTFT p90", "ms"),
    "ttft-p99": Measure("TTFT p99", "ms"),
    "gap-p50": Measure("between two texts, p50", "ms"),
    "gap-p99": Measure("between two texts, p99", "ms"),
    "goodput": Measure(f"goodput: generated, of requests with TTFT up to {BOUND_S:.0f} s", "tokens/s", True),
    "rate": Measure("generated", "tokens/s", True),
    "client": Measure("the client's share of a core", "%", compared=False),
}


def values_of(samples, share, seconds):
    if errors := load.failed(samples):
        raise RuntimeError(f"{sum(not each.ok for each in samples)} of {len(samples)} requests failed: {errors[:3]}")
    first = [1000 * each.ttft_s for each in samples]
    gaps = [1000 * gap for each in samples for gap in each.gaps_s]
    good = sum(each.generated_tokens for each in samples if each.ttft_s <= BOUND_S)
    return {"ttft-p50": stats.quantile(first, 0.5), "ttft-p90": stats.quantile(first, 0.9),
            "ttft-p99": stats.quantile(first, 0.99), "gap-p50": stats.quantile(gaps, 0.5),
            "gap-p99": stats.quantile(gaps, 0.99), "goodput": good / seconds,
            "rate": sum(each.generated_tokens for each in samples) / seconds, "client": 100 * share}


def raw_of(samples):
    start = samples[0].sent_s
    return [[round(each.sent_s - start, 2), round(1000 * each.ttft_s, 1), each.computed_tokens, each.generated_tokens]
            for each in samples]


class Arrivals:
    """Conversations that begin at drawn times; `go` plays them."""

    def __init__(self, seed, count, per_s, turns, system_words, words, reply_tokens, think_s):
        chance = random.Random(f"arrivals/{seed}")
        self.system = Text("arrivals", "system", seed).words(system_words)
        self.seed, self.turns, self.words, self.reply_tokens = seed, turns, words, reply_tokens
        at, self.begins, self.thinks = 0.0, [], []
        for _ in range(count):
            at += chance.expovariate(per_s)
            self.begins.append(at)
            self.thinks.append([chance.expovariate(1 / think_s) for _ in range(turns)])

    async def _talk(self, sender, number, start_s):
        text, messages = Text("arrivals", self.seed, number), [{"role": "system", "content": self.system}]
        due_s = start_s + self.begins[number]
        for turn in range(self.turns):
            await sender.until(due_s)
            messages.append({"role": "user", "content": text.ask(self.words)})
            sample = await sender.chat(list(messages), self.reply_tokens, (number, turn), due_s)
            if not sample.ok:
                return
            messages.append({"role": "assistant", "content": sample.text})
            due_s = sample.ended_s + self.thinks[number][turn]

    async def go(self, sender):
        start_s = time.monotonic() + 0.1
        await asyncio.gather(*(self._talk(sender, number, start_s) for number in range(len(self.begins))))


def play(running, arrivals):
    load.warm_up(running.port)
    return load.run(running.port, arrivals.go)


class OpenLoop(Case):
    """Load: 64 conversations arrive

    64 conversations of four turns over one system prompt arrive at random, with think times between the turns: 256
    requests on four lanes. Replies have 16 tokens. hearth guesses ahead, as by default.
    """
    name, group = "arrivals", "load"
    classes, lanes = ("pages", "hybrid"), (4,)
    rounds = (1, 3)
    limit_s = 1200
    measures = LOAD_MEASURES
    PER_S = {"pages": 0.7, "hybrid": 1.5}

    def arrivals(self, plan, cell, number):
        return Arrivals(number, plan.pick(64, 16), self.PER_S[cell.memory], plan.pick(4, 2), 300, 20, 16, 5.0)

    def round(self, plan, cell, kind, number, running=None):
        with plan.start(kind, cell, 16384, 1024) as running:
            samples, share, seconds = play(running, self.arrivals(plan, cell, number))
        return {"values": values_of(samples, share, seconds), "requests": raw_of(samples)}


class Rates(Case):
    """Saturation: rate of arrivals

    As `arrivals` with three turns, at rates from far below what the machine can do to beyond it. hearth guesses ahead,
    as by default.
    """
    name, group = "rates", "load"
    RATES = (0.25, 0.5, 1.0, 2.0)
    rounds = (1, 2)
    limit_s = 900
    measures = LOAD_MEASURES

    def cells(self, plan):
        return [Cell("pages", 4, f"{str(rate).replace('.', '_')}ps") for rate in plan.pick(self.RATES, (0.5, 2.0))]

    def round(self, plan, cell, kind, number, running=None):
        rate = float(cell.variant[:-2].replace("_", "."))
        arrivals = Arrivals(("rates", number), plan.pick(12, 8), rate, plan.pick(3, 2), 300, 20, 24, 3.0)
        with plan.start(kind, cell, 16384, 1024) as running:
            samples, share, seconds = play(running, arrivals)
        return {"values": values_of(samples, share, seconds)}

    def plots(self, cells):
        points = [(float(key.split(".")[-1][:-2].replace("_", ".")), result) for key, result in cells.items()]
        return _curves(self, points, "rates", "conversations per second", True)


class Lanes(Case):
    """Saturation: lanes

    As many clients as lanes, each with a new question as soon as it is answered: 60 words, 32 tokens of reply. hearth
    guesses ahead, as by default.
    """
    name, group = "saturation", "load"
    classes, lanes = ("pages",), (1, 2, 4, 8, 16)
    rounds = (2, 4)
    measures = LOAD_MEASURES

    def cells(self, plan):
        return [Cell("pages", lanes) for lanes in plan.pick(self.lanes, (1, 4, 16))]

    def round(self, plan, cell, kind, number, running=None):
        each = plan.pick(max(2, 16 // cell.lanes), 2)

        async def client(sender, lane):
            for turn in range(each):
                ask = [{"role": "user", "content": Text("saturation", number, lane, turn).ask(60)}]
                await sender.chat(ask, 32, (lane, turn))

        async def everybody(sender):
            await asyncio.gather(*(client(sender, lane) for lane in range(cell.lanes)))

        with plan.start(kind, cell, 16384, 512) as running:
            load.warm_up(running.port)
            samples, share, seconds = load.run(running.port, everybody)
        return {"values": values_of(samples, share, seconds)}

    def plots(self, cells):
        points = [(int(key.split(".")[1]), result) for key, result in cells.items()]
        return _curves(self, points, "saturation", "lanes", True)


def _curves(case, points, name, x_label, log_x):
    out = []
    for measure, title in (("rate", "throughput"), ("ttft-p99", "TTFT p99")):
        plot = Plot(f"{title.capitalize() if title[0] != 'T' else title} against {x_label}", x_label,
                    f"{title}, {case.measures[measure].unit}", log_x=log_x, log_y=measure != "rate",
                    ticks=sorted(x for x, _ in points))
        for kind, which in (("hearth", "hearth"), ("llama-server", "peer")):
            plot.line(kind, sorted((x, found[which]) for x, result in points
                                   if (found := figure(case.measures[measure], measure, result)) and found[which]))
        if plot.lines:
            out.append((f"{name}-{measure}.svg", plot, plot.title + "."))
    return out


CASES = [OpenLoop(), Lanes(), Rates()]
