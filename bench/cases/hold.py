"""RAM that twelve conversations over one system prompt hold in hearth's cache, against the bytes of their tokens."""

import asyncio
import os
import time

from lib import load
from lib.case import HEARTH, MIB, Case, Measure
from lib.scenarios import Chat, system_text
from lib.text import Text
from cases.long_context import await_quiet

CONVERSATIONS = 12


def talk(running, chat, content):
    """One turn; returns the tokens of prompt and reply."""
    turns = chat.say(content)
    turn = next(turns)
    reply = running.client.chat(turn.messages, 16, ignore_eos=True)
    return running.client.tokenize(running.client.apply_template(turn.messages) + reply.text)


def distinct(sequences):
    """Tokens of a trie that holds all sequences."""
    total, known = 0, []
    for tokens in sequences:
        total += len(tokens) - max((len(os.path.commonprefix([tokens, other])) for other in known), default=0)
        known.append(tokens)
    return total


class Hold(Case):
    """RAM held by twelve conversations over one system prompt

    Ideal is the common beginning once and each conversation's own tokens, at the bytes that the model's metadata give
    for a token's K and V (f16). Too little is as wrong as too much: then something was not kept.
    """
    name, group = "ram", "memory"
    servers = (HEARTH,)
    classes, lanes = ("pages",), (4,)
    rounds = (1, 1)
    measures = {"ratio": Measure("pages held / ideal", exact=True, compared=False, digits=3),
                "pages": Measure("pages held", "MiB", exact=True, compared=False, digits=2),
                "ideal": Measure("ideal", "MiB", exact=True, compared=False, digits=2)}

    def round(self, plan, cell, kind, number, running=None):
        text, system = Text("ram"), system_text()
        with plan.start(kind, cell, 8192, 1024) as running:
            before = await_quiet(running.client)
            sequences = [talk(running, Chat(system=system), text.ask(60)) for _ in range(CONVERSATIONS)]
            after = await_quiet(running.client)
        pages = after["hearth_page_bytes"] - before["hearth_page_bytes"]
        ideal = distinct(sequences) * plan.model(cell).kv_bytes_per_token()
        return {"values": {"ratio": pages / ideal, "pages": pages / MIB, "ideal": ideal / MIB}}


class Peak(Case):
    """Peak memory after the same load

    VmHWM after long prompts on every lane and a short decode, twice. llama-server has its prompt cache off; hearth may
    use its budget for stored state (256 MiB) on top.
    """
    name, group = "peak", "memory"
    classes, lanes = ("pages", "hybrid"), (4,)
    rounds = (1, 1)
    CACHE_MIB = 256
    measures = {"memory": Measure("peak memory", "MiB")}

    def round(self, plan, cell, kind, number, running=None):
        with plan.start(kind, cell, 8192, self.CACHE_MIB if kind == HEARTH else 0) as running:
            async def everybody(sender):
                await asyncio.gather(*(sender.chat([{"role": "user", "content": Text("peak", turn, lane).words(
                    8192 // 5 // cell.lanes)}], 16) for lane in range(cell.lanes)))

            for turn in range(2):
                samples, _, _ = load.run(running.port, everybody)
                if errors := load.failed(samples):
                    raise RuntimeError(f"requests failed: {errors}")
                running.client.wait_idle()
                time.sleep(0.5)
            return {"values": {"memory": running.memory_bytes("VmHWM") / MIB}}


CASES = [Hold(), Peak()]
