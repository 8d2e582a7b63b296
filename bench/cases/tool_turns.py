"""A loop of tool turns on a prompt of 13,745 tokens."""

from lib import stats
from lib.case import Case
from lib.ledger import Ledger
from lib.text import Text
from cases.recompute import RECOMPUTE, TTFT, joined_table, turn_plots

PROMPT_TOKENS = 13745


class ToolTurns(Case):
    """A loop of tool turns on 13,745 tokens

    The first prompt has 13,745 tokens; eight turns follow, each with a tool's result of about 60 words. A reply comes
    back as text without the white space around it, as agents send it, so that it is not tokenised as it was sampled;
    ideal is to compute what stands behind it. (Models with random weights write no calls: replies are text.) TTFT is
    that of the turns behind the first.
    """
    name = "tool-turns"
    group = "recompute"
    long = True
    measures = {"recompute": RECOMPUTE, "ttft": TTFT}

    def round(self, plan, cell, kind, number, running=None):
        with plan.start(kind, cell, 24576, 2048) as running:
            return self._loop(plan, running.client)

    @staticmethod
    def _history(client, tokens):
        """A system text such that the first prompt has this many tokens, give or take a few."""
        words = Text("tool turns").words(tokens).split(" ")
        count = int(tokens * 0.7)
        for _ in range(4):
            messages = [{"role": "system", "content": " ".join(words[:count])},
                        {"role": "user", "content": "Go through the rooms."}]
            have = len(client.tokenize(client.apply_template(messages)))
            if abs(have - tokens) < 3:
                break
            count += round((tokens - have) * count / have)
        return messages

    def _loop(self, plan, client):
        text, ledger, rows, times = Text("tool results"), Ledger(client), [], []
        messages = self._history(client, plan.pick(PROMPT_TOKENS, 4096))
        for turn in range(plan.pick(9, 5)):
            body = {"messages": list(messages)}
            new = ledger.ask(body)
            reply = client.chat(messages, 24, ignore_eos=True)
            message = {"role": "assistant", "content": reply.text.strip()}
            ledger.answer(body, message, reply.computed_tokens)
            rows.append([reply.prompt_tokens, new, reply.computed_tokens, round(1000 * reply.ttft_s, 2)])
            times += [1000 * reply.ttft_s] if turn else []
            messages += [message, {"role": "tool", "content": text.words(60)}]
        return {"values": {"recompute": ledger.ratio, "ttft": stats.median(times)},
                "quartiles_ms": [round(value, 1) for value in stats.quartiles(times)], "requests": rows}

    def section(self, cells):
        return joined_table(self, cells)

    def plots(self, cells):
        return turn_plots(self, cells)


CASES = [ToolTurns()]
