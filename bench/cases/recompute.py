"""How many prompt tokens a server computes, against how many it would have to, and how long it takes to the first text.

    recompute ratio = prompt tokens computed / prompt tokens that no earlier prompt or reply begins with

What is computed is what the server says (`timings.prompt_n`). What it would have to compute is counted here: every
prompt is rendered with /apply-template and tokenised with /tokenize; what the longest earlier "prompt + reply" does
not cover is new, and at least one token is. Every round has a fresh server; requests go one after the other. TTFT is
measured at the client. A *returning* turn goes on with a conversation after another one was served; where there is
only one conversation, every turn but the first counts.
"""

from lib import scenarios, stats
from lib.case import BOTH, HEARTH, PEER, Case, Measure, figure, show_ratio, show_spread
from lib.ledger import new_tokens
from lib.svg import Bars, Plot

SURPRISES = """Prompts of which a server says another length than /tokenize does, as hearth keeps a reply as the tokens
it was sampled as, not as its text would be tokenised:"""
RECOMPUTE = Measure("recompute ratio", exact=True, digits=3)
TTFT = Measure("median TTFT of returning turns", "ms")


def play(client, turns, max_tokens):
    """Plays a scenario; returns a row for each request and what did not add up."""
    known, numbers, last, text, rows, surprises = [], {}, None, None, [], []
    while True:
        try:
            turn = turns.send(text)
        except StopIteration:
            return rows, surprises
        prompt_text = client.apply_template(turn.messages)
        prompt = client.tokenize(prompt_text)
        reply = client.chat(turn.messages, max_tokens, ignore_eos=True)
        returning = turn.conversation in numbers and turn.conversation is not last
        rows.append({"conversation": numbers.setdefault(turn.conversation, len(numbers)), "returning": returning,
                     "prompt": len(prompt), "new": new_tokens(prompt, known), "computed": reply.computed_tokens,
                     "ttft_ms": round(1000 * reply.ttft_s, 2)})
        if reply.prompt_tokens != len(prompt):
            surprises.append(f"request {len(rows)}: prompt_n + cache_n is {reply.prompt_tokens}, /tokenize counts "
                             f"{len(prompt)}")
        known.append(client.tokenize(prompt_text + reply.text))
        last, text = turn.conversation, reply.text


def returning_ms(rows):
    single = len({row["conversation"] for row in rows}) == 1
    return [row["ttft_ms"] for row in (rows[1:] if single else rows) if single or row["returning"]]


def summed(rows, surprises, conversations=True):
    """The values of a round, and what the report keeps of its requests."""
    times = returning_ms(rows)
    detail = [[row["prompt"], row["new"], row["computed"], row["ttft_ms"]] for row in rows]
    return {"values": {"recompute": sum(row["computed"] for row in rows) / sum(row["new"] for row in rows),
                       "ttft": stats.median(times)},
            "quartiles_ms": [round(value, 1) for value in stats.quartiles(times)],
            "requests": detail, **({"surprises": surprises} if surprises else {})}


class Scenario(Case):
    group = "recompute"
    measures = {"recompute": RECOMPUTE, "ttft": TTFT}
    play = None     # a generator function of lib/scenarios.py
    ctx_tokens, cache_mib, max_tokens = 8192, 1024, 8

    def begin(self, plan, cell, kind):
        return plan.start(kind, cell, self.ctx_tokens, self.cache_mib)

    def round(self, plan, cell, kind, number, running=None):
        turns = type(self).play(plan.pick(1.0, 0.4))
        with self.begin(plan, cell, kind) as running:
            return summed(*play(running.client, turns, self.max_tokens))

    def section(self, cells):
        return joined_table(self, cells)

    def plots(self, cells):
        return turn_plots(self, cells)


def turn_plots(case, cells):
    """TTFT of each request, with one lane: the median of the rounds."""
    out = []
    for key, result in cells.items():
        memory, lanes = key.split(".")[:2]
        if lanes != "1":
            continue
        plot = Plot(f"{case.title}: TTFT of each request ({memory})", "request", "ms", log_y=True)
        for kind in BOTH:
            rounds = [each[kind]["requests"] for each in result["rounds"] if kind in each]
            plot.line(kind, [(number + 1, stats.median([row[3] for row in rows]))
                             for number, rows in enumerate(zip(*rounds))])
        out.append((f"{case.name}-turns-{memory}.svg", plot, f"Each request's time to first token, {memory}, one lane."))
    return out


def joined_table(case, cells):
    """Recompute ratio and TTFT in one table, with the quartiles of a round's turns, the median of the rounds'."""
    header = ["", "recompute ratio: hearth", "llama-server", "TTFT, ms: hearth (quartiles)", "llama-server (quartiles)",
              "times better", "spread", "rounds"]
    rows = []
    for result in cells.values():
        ratio, ttft = (figure(case.measures[name], name, result) for name in ("recompute", "ttft"))
        if not ratio or not ttft:
            continue
        texts = []
        for kind, value in ((HEARTH, ttft["hearth"]), (PEER, ttft["peer"])):
            found = [each[kind]["quartiles_ms"] for each in result["rounds"] if kind in each]
            low, high = (stats.median([each[place] for each in found]) for place in (0, 2))
            texts.append(f"{stats.number(value, 0)} ({stats.number(low, 0)}–{stats.number(high, 0)})")
        rows.append([result["label"], stats.number(ratio["hearth"], 3), stats.number(ratio["peer"], 2), *texts,
                     show_ratio(ttft), show_spread(ttft), ttft["rounds"]])
    surprises = [f"{result['label']} {count}" for result in cells.values() if (count := sum(
        len(found.get("surprises", ())) for each in result["rounds"] for found in each.values()))]
    return "\n\n".join([stats.table(header, rows), *([f"{SURPRISES} {'; '.join(surprises)}."] if surprises else [])])


class Alternating(Scenario):
    """Three alternating conversations over a shared system prompt"""
    name, play = "alternating", scenarios.alternating

    def plots(self, cells):
        found = [(result["label"], figure(RECOMPUTE, "recompute", result), figure(TTFT, "ttft", result))
                 for result in cells.values()]
        found = [(label.replace(", ", "\n"), ratio, ttft) for label, ratio, ttft in found if ratio and ttft]
        if not found:
            return turn_plots(self, cells)
        labels = [label for label, _, _ in found]
        ratio, ttft = Bars("Recompute ratio, three alternating conversations", "computed / new tokens", labels), Bars(
            "TTFT of returning turns, three alternating conversations", "median, ms", labels, log_y=True)
        for drawing, place in ((ratio, 1), (ttft, 2)):
            drawing.bar("hearth", [each[place]["hearth"] for each in found])
            drawing.bar("llama-server", [each[place]["peer"] for each in found])
        return [("alternating-recompute.svg", ratio, "Prompt tokens computed for each one that was new: 1 is ideal."),
                ("alternating-ttft.svg", ttft, "Time to the first text when a conversation comes back."),
                *turn_plots(self, cells)]


class SidePrompts(Scenario):
    """One conversation with title requests in between"""
    name, play = "side-prompts", scenarios.side_prompts


class SubAgents(Scenario):
    """A long conversation with sub-agents over the same system prompt"""
    name, play = "sub-agents", scenarios.sub_agents


class Branches(Scenario):
    """Two alternating branches of one conversation"""
    name, play = "branches", scenarios.branches


class Probes(Scenario):
    """A tool loop of twelve turns, with ten probes in between

    A probe is a short request of its own, as an agent asks for a review of a command in the middle of a loop.
    """
    name, play = "probes", scenarios.probes


CASES = [Alternating(), SidePrompts(), SubAgents(), Branches(), Probes()]
