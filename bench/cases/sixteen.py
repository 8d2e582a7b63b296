"""Sixteen agents' conversations with RAM for four: what is evicted first decides what is computed again."""

import json
import math
import os
import shutil
import subprocess
import tempfile
import time

from lib import agents, server, stats
from lib.case import HEARTH, MIB, PEER, Case, Measure
from lib.client import events
from lib.record import whole_reply
from lib.text import Text
from cases.disk import WORDS_PER_TOKEN, long_prompt
from cases.long_context import await_quiet

CONVERSATIONS = 4
CALL_TOKENS, TEXT_TOKENS = 64, 16
# No conversation is that long: all that is on disk is what the policy has learnt.
LEARNT_ALONE = ("--kv-min-tokens", "100000000")
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.",
                                           "parameters": {"type": "object", "properties": {}}}}]
# Servers beside hearth as it is and llama-server: the names of their values begin so.
OTHERS = {"lru": "hearth, LRU", "disk": "hearth, disk", "disk-lru": "hearth, LRU, disk"}


class Talk:
    """A conversation: what its requests say."""

    def __init__(self, number, seed):
        self.text, self.messages = Text("sixteen", seed, number), []

    def body(self, ask):
        words = int(ask.tokens * WORDS_PER_TOKEN)
        made = (self.messages[-1].get("tool_calls") if self.messages else None) or [{}]
        if not self.messages:
            self.messages = [{"role": "system", "content": self.text.words(words)},
                             {"role": "user", "content": self.text.question()}]
        elif ask.user:
            self.messages.append({"role": "user", "content": self.text.ask(words)})
        else:
            self.messages.append({"role": "tool", "content": self.text.words(words), **(
                {"tool_call_id": made[0]["id"]} if made[0] else {})})
        body = {"messages": list(self.messages), "max_tokens": CALL_TOKENS if ask.calls else TEXT_TOKENS}
        if not ask.calls:
            body["ignore_eos"] = True
        return body if ask.side else {**body, "tools": TOOLS, "tool_choice": "required" if ask.calls else "none"}


def send(client, body):
    """The reply (lib/record.py), and the seconds until the prompt was computed: where a call is forced, its first text
    comes dozens of tokens later."""
    chunks, computed_at_s, start = [], None, time.monotonic()
    connection, response = client.open("POST", "/v1/chat/completions", {
        **body, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "return_progress": True})
    try:
        for chunk in events(response):
            if "prompt_progress" in chunk:
                computed_at_s = time.monotonic()
            chunks.append(chunk)
    finally:
        connection.close()
    reply = whole_reply(chunks)
    if reply["error"] or computed_at_s is None:
        raise RuntimeError(f"a request failed: {json.dumps(reply)[:500]}")
    return reply, computed_at_s - start


def play(client, asks, seed):
    """Asks one after the other. Returns a row for each request (its prompt's tokens, those of them behind the
    conversation's last prompt and reply, those that were computed, milliseconds), and how many replies called a tool.
    """
    talks, known, rows, calls = {}, {}, [], 0
    for ask in asks:
        talk = talks.setdefault(ask.conversation, Talk(ask.conversation, seed))
        reply, took_s = send(client, talk.body(ask))
        talk.messages.append({**reply["message"], "content": reply["message"]["content"] or ""})
        calls += bool(reply["message"].get("tool_calls"))
        counts = reply["timings"]
        prompt = counts["cache_n"] + counts["prompt_n"]
        new = max(1, prompt - known.get(ask.conversation, 0))
        rows.append([prompt, new, counts["prompt_n"], round(1000 * took_s, 2)])
        known[ask.conversation] = prompt + counts["predicted_n"]
    return rows, calls


def measures():
    out = {"share": Measure("prompt tokens computed", "%"), "recompute": Measure("recompute ratio", digits=2),
           "ttft-p50": Measure("TTFT p50", "ms", digits=0, pooled=("times_ms", 0.5)),
           "ttft-p99": Measure("TTFT p99", "ms", digits=0, pooled=("times_ms", 0.99))}
    for name, title in OTHERS.items():
        out.update({
            f"{name}-share": Measure(f"prompt tokens computed: {title}", "%", compared=False),
            f"{name}-recompute": Measure(f"recompute ratio: {title}", digits=2, compared=False),
            f"{name}-ttft-p50": Measure(f"TTFT p50: {title}", "ms", digits=0, compared=False,
                                        pooled=(f"{name}-times_ms", 0.5)),
            f"{name}-ttft-p99": Measure(f"TTFT p99: {title}", "ms", digits=0, compared=False,
                                        pooled=(f"{name}-times_ms", 0.99))})
    return out


class Sixteen(Case):
    """Sixteen agents' conversations, RAM for four

    Sixteen agents ask in the rhythms of recorded sessions of Claude Code (bench/lib/agents.py): loops of tool calls,
    users who come back after a while or not at all, conversations that end and others that begin, short prompts in
    between. One request is sent after the other, in an order that is the same for all servers of a round, and another
    one in each round. Prompts have 7,000 to 8,000 tokens on average; --cache-ram is four times what hearth holds of
    such a one; a lane keeps its last conversation besides. *LRU* is `--cache-policy lru`: what was unused for longest
    goes first. *Disk*: everything is on a disk as well, whose reads are so slow that what RAM holds of a conversation
    takes half as long to read as the conversation to compute. hearth has learnt from 300 requests of other agents, as
    a server that has run for a while; nothing else is left of them. Models with random weights do not call tools: in
    hearth, which prints tools where the template does not, calls are forced; llama-server replies with as much text.
    TTFT is the time until the prompt is computed, as the server reports it in the stream.
    """
    name, group = "sixteen", "memory"
    classes = ("pages", "hybrid")
    long = True
    limit_s = 1200
    measures = measures()

    def __init__(self):
        self._known, self._folders = {}, []  # what was measured before the first round, and where it lies

    def _asks(self, plan, seed, full=150, quick=40):
        return agents.asks(plan.pick(full, quick), seed)

    @staticmethod
    def _ctx_tokens(cell):
        return 32768 if cell.lanes == 1 else 98304

    def _serve(self, plan, cell, cache_mib, extra=(), env=None):
        return plan.start(HEARTH, cell, self._ctx_tokens(cell), cache_mib, extra, env)

    def _copy(self, plan, cell):
        """What RAM holds of a conversation of mean length, and seconds to compute it: now, as machines change."""
        with self._serve(plan, cell, 2048) as running:
            tokens = agents.mean_prompt(self._asks(plan, 0))
            prompts = [long_prompt(running.client, tokens, seed) for seed in range(3)]
            before, took_s = await_quiet(running.client), []
            for prompt in prompts:
                timings = running.client.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})["timings"]
                took_s.append(timings["prompt_ms"] / 1000)
            after = await_quiet(running.client)
        held = sum(after[name] - before[name] for name in ("hearth_page_bytes", "hearth_snapshot_bytes"))
        return held / len(prompts), stats.median(took_s)

    def _budget_mib(self, plan, cell):
        key = ("budget", plan.quick, cell)
        if key not in self._known:
            self._known[key] = max(1, math.ceil(CONVERSATIONS * self._copy(plan, cell)[0] / MIB))
        return self._known[key]

    def _learnt(self, plan, cell):
        """A folder with what the policy learns of other agents on this model, and with nothing else."""
        key = ("learnt", plan.quick, cell.memory)
        if key not in self._known:
            folder = tempfile.TemporaryDirectory(prefix="hearth-learnt-")
            self._folders.append(folder)
            flags = ["--kv-dir", folder.name, *LEARNT_ALONE]
            with self._serve(plan, cell, self._budget_mib(plan, cell), flags) as running:
                play(running.client, self._asks(plan, "others", 300, 80), "others")
            self._known[key] = folder.name
        return self._known[key]

    def _slow_disk(self, bytes_per_s):
        """The environment of a server with a slow disk."""
        if "library" not in self._known:
            folder = tempfile.TemporaryDirectory(prefix="hearth-slow-disk-")
            self._folders.append(folder)
            path = os.path.join(folder.name, "slow_disk.so")
            source = os.path.join(server.REPOSITORY, "bench", "lib", "slow_disk.c")
            subprocess.run([os.environ.get("CC", "cc"), "-D_GNU_SOURCE", "-std=gnu11", "-O1", "-shared", "-fPIC", "-o",
                            path, source, "-ldl"], check=True)
            self._known["library"] = path
        return {"LD_PRELOAD": self._known["library"], "SLOW_DISK_BYTES_PER_S": str(bytes_per_s)}

    @staticmethod
    def _values(prefix, rows):
        prompts, new, computed, times_ms = zip(*rows)
        return {"values": {f"{prefix}share": 100 * sum(computed) / sum(prompts),
                           f"{prefix}recompute": sum(computed) / sum(new)},
                f"{prefix}times_ms": times_ms, f"{prefix}requests": [row[:3] for row in rows]}

    def _one(self, plan, cell, name, asks, number, disk_bytes_per_s):
        """A round of one server of hearth's; `name`: of OTHERS, or ""."""
        with tempfile.TemporaryDirectory(prefix="hearth-sixteen-") as parent:
            folder = os.path.join(parent, "kv")
            shutil.copytree(self._learnt(plan, cell), folder)
            flags = ["--kv-dir", folder, "--kv-disk", "8192"]
            flags += ["--kv-io", "threads"] if "disk" in name else LEARNT_ALONE
            flags += ["--cache-policy", "lru"] if "lru" in name else []
            env = self._slow_disk(disk_bytes_per_s) if "disk" in name else None
            with self._serve(plan, cell, self._budget_mib(plan, cell), flags, env) as running:
                deadline = time.monotonic() + 60
                while "the policy knows again" not in running.log() and "lru" not in name:
                    if time.monotonic() > deadline:
                        raise RuntimeError("what was learnt is not known again")
                    time.sleep(0.05)
                rows, calls = play(running.client, asks, number)
                metrics = running.client.metrics()
        if calls < sum(ask.calls for ask in asks) * 0.9:
            raise RuntimeError(f"only {calls} replies called a tool")
        out = self._values(f"{name}-" if name else "", rows)
        out[f"{name or 'ram'}_read_bytes"] = metrics.get("hearth_disk_read_bytes_total")
        return out

    def round(self, plan, cell, kind, number, running=None):
        asks = self._asks(plan, number)
        if kind == PEER:
            with plan.start(kind, cell, self._ctx_tokens(cell), self._budget_mib(plan, cell)) as running:
                return self._values("", play(running.client, asks, number)[0])
        self._learnt(plan, cell)
        held, took_s = self._copy(plan, cell)
        out = {"values": {}, "budget_mib": self._budget_mib(plan, cell), "copy_bytes": held, "copy_s": took_s,
               "disk_bytes_per_s": round(held / (took_s / 2))}
        names, flags = ["", *OTHERS], None
        for name in names[number % len(names):] + names[:number % len(names)]:
            found = self._one(plan, cell, name, asks, number, out["disk_bytes_per_s"])
            flags = flags if name else plan.flags[HEARTH]
            out["values"].update(found.pop("values"))
            out.update(found)
        plan.flags[HEARTH] = flags
        return out

    def section(self, cells):
        """For each cell a table of the servers, with what the budget and the disk came to."""
        blocks = []
        for result in cells.values():
            rows = []
            kinds = [("hearth", HEARTH, ""), *((title, HEARTH, f"{name}-") for name, title in OTHERS.items()),
                     ("llama-server", PEER, "")]
            for title, kind, prefix in kinds:
                found = [each[kind] for each in result["rounds"] if kind in each]
                if not found:
                    continue
                times = [time_ms for each in found for time_ms in each[f"{prefix}times_ms"]]
                share, ratio = (stats.median([each["values"][prefix + name] for each in found])
                                for name in ("share", "recompute"))
                rows.append([title, stats.number(share, 1), stats.number(ratio, 2),
                             *(stats.number(stats.quantile(times, part), 0) for part in (0.5, 0.99)), len(found)])
            blocks.append(stats.table([result["label"], "prompt tokens computed, %", "recompute ratio", "TTFT p50, ms",
                                       "TTFT p99, ms", "rounds"], rows))
            last = next((each[HEARTH] for each in reversed(result["rounds"]) if HEARTH in each), None)
            if last:
                blocks.append(f"RAM {last['budget_mib']} MiB, a conversation {last['copy_bytes'] / MIB:.1f} MiB and "
                              f"{1000 * last['copy_s']:.0f} ms to compute; the disk reads "
                              f"{last['disk_bytes_per_s'] / MIB:.1f} MiB/s.")
        return "\n\n".join(blocks)


CASES = [Sixteen()]
