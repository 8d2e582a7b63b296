"""Guessing tokens ahead: replies that repeat what stands in the prompt, and one that does not."""

from lib.case import PEER, Case, Cell, Measure
from lib.text import Text

FILE = "\n".join(f"def step_{number}(items):\n    found = [item for item in items if item.number > {number}]\n"
                 f"    return sorted(found, key=lambda item: item.name)\n" for number in range(9))
TASKS = {
    "copy": f"Repeat this file exactly, nothing else.\n\n{FILE}",
    "json": "Write a JSON list of thirty objects with the keys number, name and room. Begin with "
            '[{"number": 1, "name": "lamp", "room": "hall"}, {"number": 2, "name": "lamp", "room": "hall"},',
    "prose": "Tell a story about this, in your own words. " + Text("speculation").words(120),
}


class Speculation(Case):
    """Speculative decoding without a draft model

    Greedy replies of 192 tokens, with guesses (`speculate: true`, which is what hearth does by itself where it is
    measured to be faster) and without (`false`); texts must be equal. *copy* repeats a file of the prompt, *json* a
    form of its own, *prose* neither. The ratio compares with llama-server without a draft model; its own n-gram
    guessing was left off, as it is by default.
    """
    name = "speculation"
    rounds, quick_rounds = (2, 7), (1, 1)
    both_alive = True
    measures = {"speed": Measure("decode, with guesses", "tokens/s", True),
                "gain": Measure("times faster with guesses than without", compared=False, digits=2)}

    def cells(self, plan):
        return [
            Cell(memory, 1, task) for memory in plan.pick(("pages", "window", "hybrid"), ("pages",)) for task in TASKS
        ]

    def open(self, plan, cell, kind):
        return plan.start(kind, cell, 8192, 256)

    def warm_up(self, plan, cell, running):
        self._decode(plan, cell, running, {})

    def _decode(self, plan, cell, running, extra):
        """(tokens per second, text), by the server's own count and time (predicted_n, predicted_ms)."""
        reply = running.client.chat([{"role": "user", "content": TASKS[cell.variant]}], plan.pick(192, 48),
                                    ignore_eos=True, **extra)
        return reply.timings["predicted_n"] / reply.timings["predicted_ms"] * 1000, reply.text

    def round(self, plan, cell, kind, number, running=None):
        if kind == PEER:
            return {"values": {"speed": self._decode(plan, cell, running, {})[0]}}
        found = {}
        for speculate in (True, False) if number % 2 else (False, True):
            found[speculate] = self._decode(plan, cell, running, {"speculate": speculate})
        if found[True][1] != found[False][1]:
            raise RuntimeError("the reply with guesses is another one than without")
        return {"values": {"speed": found[True][0], "gain": found[True][0] / found[False][0]}}


CASES = [Speculation()]
