"""What concerns hearth alone: the way to the first batch, long replies, clients that go away."""

import json
import os
import tempfile
import time

from lib import leaving, stats
from lib.case import HEARTH, MIB, Case, Cell, Measure
from lib.scripted import call
from lib.text import Text

TOKENS_PER_WORD = 1.32
WORDS_PER_MESSAGE = 400


class Prepare(Case):
    """Before the first batch of a returning turn

    A history of 145,000 tokens comes back with one new message, again and again: reading, digesting, rendering,
    tokenising, planning (`prepare_ms` and `plan_ms` of the receipt), beside tokenising the whole prompt (/tokenize).
    """
    name, group = "prepare", "cost"
    in_record = False
    servers, classes, lanes, long = (HEARTH,), ("pages",), (1,), True
    rounds = (1, 1)
    measures = {"prepare": Measure("prepare, median", "ms", compared=False),
                "worst": Measure("prepare, most", "ms", compared=False),
                "plan": Measure("plan, median", "ms", compared=False, digits=2),
                "cold": Measure("prepare, the first time", "ms", compared=False),
                "tokenize": Measure("tokenising everything", "ms", compared=False),
                "ttft": Measure("TTFT, median", "ms", compared=False),
                "computed": Measure("tokens computed, most", compared=False, exact=True, digits=0)}

    TOOLS = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": Text("tool", name).words(120),
                "parameters": {
                    "type": "object",
                    "properties": {"number": {"type": "integer"}, "text": {"type": "string"}},
                },
            },
        }
        for name in ("look_up", "lend", "note", "count", "list")
    ]

    @staticmethod
    def _history(tokens):
        """Messages of about so many tokens: questions, calls of a tool and their results, answers."""
        text, messages = Text("prepare"), [{"role": "system", "content": Text("prepare system").words(3000)}]
        rounds = max(1, int((tokens / TOKENS_PER_WORD - 3000) / (2.5 * WORDS_PER_MESSAGE)))
        for number in range(rounds):
            made = {"id": f"call_{number}", "type": "function",
                    "function": {"name": "look_up", "arguments": f"{{\"number\":{number}}}"}}
            messages += [{"role": "user", "content": text.ask(WORDS_PER_MESSAGE // 4)},
                         {"role": "assistant", "content": "I look.", "tool_calls": [made]},
                         {"role": "tool", "tool_call_id": made["id"], "content": text.words(2 * WORDS_PER_MESSAGE)},
                         {"role": "assistant", "content": text.words(WORDS_PER_MESSAGE // 4)}]
        return messages

    def round(self, plan, cell, kind, number, running=None):
        messages = self._history(plan.pick(145000, 30000))
        turns = []
        with plan.start(kind, cell, 180000, 2048) as running:
            for turn in range(8):
                messages.append({"role": "user", "content": f"Question {turn}: {Text('q', turn).ask(30)}"})
                turns.append(running.client.chat(messages, 8, tools=self.TOOLS, tool_choice="none"))
                messages.append({"role": "assistant", "content": turns[-1].text})
            prompt = running.client.apply_template(messages)
            start = time.monotonic()
            running.client.tokenize(prompt)
            tokenize_ms = 1000 * (time.monotonic() - start)
        prepare = [turn.extra["prepare_ms"] for turn in turns[1:]]
        return {"values": {"prepare": stats.median(prepare), "worst": max(prepare),
                           "plan": stats.median([turn.extra["plan_ms"] for turn in turns[1:]]),
                           "cold": turns[0].extra["prepare_ms"], "tokenize": tokenize_ms,
                           "ttft": stats.median([1000 * turn.ttft_s for turn in turns[1:]]),
                           "computed": max(turn.computed_tokens for turn in turns[1:])}}


def cpu_us(pid):
    """User and system time of each thread, by its id: the scheduler's count, in microseconds."""
    out = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            out[thread] = int(file.read().split()[0]) / 1000
    return out


class LongReply(Case):
    """A long streamed reply

    65,536 tokens said from a script, as text, as text that is looked through for calls, and as calls: processor time of
    the engine's thread and of all others, for a token.
    """
    name, group = "long-reply", "cost"
    in_record = False
    servers = (HEARTH,)
    rounds = (1, 1)
    measures = {"engine": Measure("the engine's thread, per token", "µs", compared=False),
                "others": Measure("all other threads, per token", "µs", compared=False),
                "tokens": Measure("tokens", compared=False, exact=True, digits=0)}
    TOOLS = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "parameters": {
                    "type": "object",
                    "properties": {"number": {"type": "integer"}, "text": {"type": "string"}},
                },
            },
        }
        for number in range(8)
    ]

    def cells(self, plan):
        return [Cell("pages", 1, variant, True) for variant in ("text", "looked-through", "calls")]

    @staticmethod
    def _reply(variant, tokens):
        words = int(tokens / TOKENS_PER_WORD)
        if variant != "calls":
            return Text("long reply").words(words), "none" if variant == "text" else "auto"
        # Quotes and newlines, as in code: the arguments are JSON with escapes.
        lines = Text("long calls").words(words // 8).replace(". ", ".\n\t\"").strip()
        return "\n".join(call(f"tool_{number}", number=number, text=lines) for number in range(8)), "auto"

    def round(self, plan, cell, kind, number, running=None):
        tokens = plan.pick(65536, 8192)
        reply, choice = self._reply(cell.variant, tokens)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as script:
            script.write(json.dumps({"when": {}, "reply": reply, "times": 0}) + "\n")
            script.flush()
            with plan.start(kind, cell, 2 * tokens + 8192, 1024, ["--script", script.name]) as running:
                ask = [{"role": "user", "content": "Write."}]
                running.client.chat(ask, 1, tools=self.TOOLS, tool_choice=choice)
                before = cpu_us(running.process.pid)
                answer = running.client.chat(ask, 4 * tokens, tools=self.TOOLS, tool_choice=choice)
                after = cpu_us(running.process.pid)
        spent = sorted((after[thread] - before.get(thread, 0) for thread in after), reverse=True)
        said = answer.usage["completion_tokens"]
        return {"values": {"engine": spent[0] / said, "others": sum(spent[1:]) / said, "tokens": said}}


class Disconnect(Case):
    """A client that goes away a hundred times

    In the middle of a prefill and in the middle of a stream. Afterwards every lane must soon be idle, a normal request
    must be answered, and memory be where it was after the first twenty. The cache is small, so that it
    is full then.
    """
    name, group = "disconnect", "hold"
    in_record = False
    servers, classes, lanes = (HEARTH,), ("pages",), (2,)
    rounds = (1, 1)
    measures = {
        "before": Measure("memory before", "MiB", compared=False),
        "after": Measure("memory after", "MiB", compared=False),
    }
    GROWTH_MIB = 8

    def round(self, plan, cell, kind, number, running=None):
        with plan.start(kind, cell, 8192, 16) as running:
            before, after = leaving.leave(running, plan.pick(100, 20), plan.pick(20, 6))
            if running.stop() != 0:
                raise RuntimeError("the server did not end as it should")
        if after - before > self.GROWTH_MIB * MIB:
            raise RuntimeError(f"memory grew by {(after - before) / MIB:.1f} MiB")
        return {"values": {"before": before / MIB, "after": after / MIB}}


CASES = [Prepare(), LongReply(), Disconnect()]
