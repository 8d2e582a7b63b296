"""What a crash costs: SIGKILL in the middle of a conversation, start, next turn.

SIGKILL comes two seconds after a reply has ended: what hearth promises to have on disk by then. The server is ready
(its /health says so) when the next turn is sent: what loading the model takes is the same for both and no part of it.
"""

import tempfile
import time

from lib.case import HEARTH, SAFE_S, Case, Measure
from lib.ledger import new_tokens
from lib.scenarios import Chat
from lib.text import Text

TURNS = 3


class Talk:
    """One conversation, and what it costs."""

    def __init__(self, chat, max_tokens=8):
        self.chat, self.max_tokens, self.known, self.computed, self.new = chat, max_tokens, [], 0, 0

    def turn(self, client, content):
        self.chat.messages.append({"role": "user", "content": content})
        text = client.apply_template(self.chat.messages)
        prompt = client.tokenize(text)
        reply = client.chat(list(self.chat.messages), self.max_tokens, ignore_eos=True)
        self.computed += reply.computed_tokens
        self.new += new_tokens(prompt, self.known)
        self.known.append(client.tokenize(text + reply.text))
        self.chat.messages.append({"role": "assistant", "content": reply.text})
        return reply


class Restart(Case):
    """A restart in the middle of a conversation

    Three turns, SIGKILL two seconds after the last reply, start, three turns. TTFT is that of the first turn
    afterwards. llama-server keeps nothing that outlives its process.
    """
    name = "restart"
    measures = {"recompute": Measure("recompute ratio", exact=True, digits=3),
                "ttft": Measure("TTFT of the first turn after the restart", "ms")}
    rounds = (1, 5)

    def round(self, plan, cell, kind, number, running=None):
        talk = Talk(Chat(system=Text("restart", number).words(plan.pick(1200, 400))))
        text = Text("restart questions", number)
        with tempfile.TemporaryDirectory(prefix="hearth-restart-") as folder:
            extra = ["--kv-dir", folder, "--kv-disk", "8192"] if kind == HEARTH else []
            with plan.start(kind, cell, 8192, 1024, extra) as running:
                for _ in range(TURNS):
                    talk.turn(running.client, text.ask(40))
                time.sleep(SAFE_S)
                running.kill()
            with plan.start(kind, cell, 8192, 1024, extra) as running:
                first = [talk.turn(running.client, text.ask(40)) for _ in range(TURNS)][0]
        return {"values": {"recompute": talk.computed / talk.new, "ttft": 1000 * first.ttft_s}}


CASES = [Restart()]
