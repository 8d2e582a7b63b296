"""Several conversations at the same time, one on each lane."""

import asyncio

from lib import load, stats
from lib.case import Case, Measure, standard_table
from lib.ledger import new_tokens
from lib.text import Text
from cases.recompute import TTFT, joined_table

TURNS = 3


class Parallel(Case):
    """Parallel decodes: a conversation on each of 1, 4 and 16 lanes

    All begin together; each has three turns with a reply of 48 tokens and goes on as soon as it is answered. Prompts
    share nothing. TTFT is that of the turns behind the first; the rate is of all generated tokens over the whole time.
    hearth guesses ahead, as by default.
    """
    name, group = "parallel", "load"
    lanes = (1, 4, 16)
    classes = ("pages", "hybrid")
    rounds = (1, 5)
    measures = {
        "recompute": Measure("recompute ratio", digits=3),
        "ttft": TTFT,
        "rate": Measure("generated, all lanes", "tokens/s", True),
    }

    def round(self, plan, cell, kind, number, running=None):
        reply, words = plan.pick(48, 16), 250
        with plan.start(kind, cell, 16384, 1024) as running:
            load.warm_up(running.port)
            known = {}

            async def talk(sender, lane):
                text, messages = Text("parallel", number, lane), []
                for turn in range(TURNS):
                    messages.append({"role": "user", "content": text.ask(words if turn == 0 else 20)})
                    sample = await sender.chat(list(messages), reply, (lane, turn))
                    known.setdefault(lane, []).append((list(messages), sample))
                    if not sample.ok:
                        return
                    messages.append({"role": "assistant", "content": sample.text})

            async def plan_all(sender):
                await asyncio.gather(*(talk(sender, lane) for lane in range(cell.lanes)))

            samples, share, seconds = load.run(running.port, plan_all)
            if errors := load.failed(samples):
                raise RuntimeError(f"requests failed: {errors}")
            new = self._new_tokens(running.client, known)
        times = [1000 * each.ttft_s for each in samples if each.label[1] > 0]
        values = {"recompute": sum(each.computed_tokens for each in samples) / new, "ttft": stats.median(times),
                  "rate": sum(each.generated_tokens for each in samples) / seconds}
        return {"values": values, "quartiles_ms": [round(value, 1) for value in stats.quartiles(times)],
                "client_share": round(share, 4)}

    @staticmethod
    def _new_tokens(client, known):
        """Prompts share nothing but the head of the template, which the warm-up has computed."""
        total, seen = 0, [client.tokenize(client.apply_template(load.WARM_UP))]
        for turns in known.values():
            for messages, sample in turns:
                text = client.apply_template(messages)
                prompt = client.tokenize(text)
                total += new_tokens(prompt, seen)
                seen += [prompt, client.tokenize(text + sample.text)]
        return total

    def section(self, cells):
        return joined_table(self, cells) + "\n\n" + standard_table(self, cells, "rate")


CASES = [Parallel()]
