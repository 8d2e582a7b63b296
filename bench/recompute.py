#!/usr/bin/env python3
"""How many prompt tokens a server computes, against how many it would have to.

    recompute ratio = prompt tokens computed / prompt tokens that no earlier prompt or reply begins with

What is computed is what the server says (`timings.prompt_n`). What it would have to compute is counted here: every
prompt is rendered with /apply-template and tokenised with /tokenize; what the longest earlier "prompt + reply" does
not cover is new, and at least one token is, because the next one is chosen from its logits. Every scenario gets a
fresh server, hearth and llama-server in turns, requests one after the other.

TTFT is measured at the client, from sending a request to its first text. A *returning* turn continues a known
conversation after another one was served; in a scenario with a single conversation, every turn but the first counts.

    bench/recompute.py -m smollm2.gguf -m gemma3-270m.gguf -np 1 -np 4
"""

import argparse
import dataclasses
import os
import sys
import time

from lib import gguf, scenarios, server, stats
from lib.ledger import new_tokens

# How many times faster than llama-server the returning turns must be; elsewhere not slower, give or take the noise.
FASTER = {"alternating": 5, "sub_agents": 15}
NOT_SLOWER = 0.95


@dataclasses.dataclass
class Request:
    conversation: int
    returning: bool
    prompt_tokens: int
    new_tokens: int
    computed_tokens: int
    reply: str
    finish: str
    ttft_s: float
    receipt: dict  # hearth's


@dataclasses.dataclass
class Run:
    server: str
    model: str
    lanes: int
    scenario: str
    requests: list = dataclasses.field(default_factory=list)
    surprises: list = dataclasses.field(default_factory=list)

    def total(self, field):
        return sum(getattr(request, field) for request in self.requests)

    @property
    def ratio(self):
        return self.total("computed_tokens") / self.total("new_tokens")

    @property
    def returning_ttft_s(self):
        single = len({request.conversation for request in self.requests}) == 1
        picked = self.requests[1:] if single else [request for request in self.requests if request.returning]
        return stats.median([request.ttft_s for request in picked])

    def plain(self):
        return {**dataclasses.asdict(self), "ratio": self.ratio, "returning_ttft_s": self.returning_ttft_s}


def play(run, client, max_tokens, pause_s):
    """Plays the scenario on a fresh server and fills `run`."""
    turns = scenarios.ALL[run.scenario]()
    known, numbers, last, text = [], {}, None, None
    while True:
        try:
            turn = turns.send(text)
        except StopIteration:
            return
        prompt_text = client.apply_template(turn.messages)
        prompt = client.tokenize(prompt_text)
        reply = client.chat(turn.messages, max_tokens)
        returning = turn.conversation in numbers and turn.conversation is not last
        number = numbers.setdefault(turn.conversation, len(numbers))
        run.requests.append(Request(number, returning, len(prompt), new_tokens(prompt, known), reply.computed_tokens,
                                    reply.text, reply.finish, reply.ttft_s, reply.extra))
        if reply.prompt_tokens != len(prompt):
            run.surprises.append(f"request {len(run.requests)}: prompt_n + cache_n is {reply.prompt_tokens}, "
                                 f"/tokenize counts {len(prompt)}")
        known.append(client.tokenize(prompt_text + reply.text))
        last, text = turn.conversation, reply.text
        time.sleep(pause_s)


def measure(options, model, lanes, name, kind):
    with server.start(kind, model, lanes, options.ctx, options.cache_ram, options.threads) as running:
        run = Run(kind, os.path.basename(model.path), lanes, name)
        play(run, running.client, options.max_tokens, options.pause_ms / 1000)
    print(f"{run.model} -np {lanes} {name} {kind}: ratio {run.ratio:.3f}, "
          f"returning TTFT {run.returning_ttft_s * 1000:.0f} ms", file=sys.stderr)
    for surprise in run.surprises:
        print(f"  surprise: {surprise}", file=sys.stderr)
    return run


def pooled(runs, kind):
    """Repetitions of one cell as (ratio, TTFT, computed, new): the worst ratio and the median of the rest."""
    mine = [run for run in runs if run.server == kind]
    if not mine:
        return None, None, None, None
    return (max(run.ratio for run in mine), stats.median([run.returning_ttft_s for run in mine]),
            stats.median([run.total("computed_tokens") for run in mine]),
            stats.median([run.total("new_tokens") for run in mine]))


def report(groups, limits):
    """Markdown, and the list of what is outside the limits."""
    header = ["scenario", "new tokens", "hearth computed", "hearth ratio", "llama-server ratio", "hearth TTFT, ms",
              "llama-server TTFT, ms", "TTFT, times faster"]
    lines, failures, rows, section = ["# Recompute ratio and time to first token", ""], [], [], None
    for (model, lanes, name), runs in groups.items():
        if (model, lanes) != section:
            lines += [stats.table(header, rows), ""] if rows else []
            lines += [f"## {model}, {lanes} lane{'s' if lanes > 1 else ''} (limit {limits[model]})", ""]
            rows, section = [], (model, lanes)
        ratio, ttft, computed, new = pooled(runs, server.HEARTH)
        peer_ratio, peer_ttft, _, peer_new = pooled(runs, server.PEER)
        faster = peer_ttft / ttft if ttft and peer_ttft else None
        rows.append([scenarios.ALL[name].__doc__, stats.number(new if new is not None else peer_new, 0),
                     stats.number(computed, 0), stats.number(ratio, 3), stats.number(peer_ratio, 3),
                     stats.number(ttft and ttft * 1000, 0), stats.number(peer_ttft and peer_ttft * 1000, 0),
                     stats.number(faster, 1)])
        if ratio is not None and ratio > limits[model]:
            failures.append(f"{model} -np {lanes} {name}: ratio {ratio:.3f} is over {limits[model]}")
        if faster is not None and faster < FASTER.get(name, NOT_SLOWER):
            failures.append(f"{model} -np {lanes} {name}: TTFT {faster:.2f} times faster, "
                            f"less than {FASTER.get(name, NOT_SLOWER)}")
        failures += [f"{model} -np {lanes} {name}: {surprise}"
                     for run in runs if run.server == server.HEARTH for surprise in run.surprises]
    lines += [stats.table(header, rows), ""]
    if failures:
        lines += ["Outside the limits:", ""] + [f"- {failure}" for failure in failures] + [""]
    return "\n".join(lines), failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", help="GGUF file (repeatable; default: SmolLM2)")
    parser.add_argument("-np", "--lanes", action="append", type=int, help="lanes (repeatable; default: 1 and 4)")
    parser.add_argument("-s", "--scenario", action="append", choices=scenarios.ALL, help="repeatable; default: all")
    parser.add_argument("--server", action="append", choices=(server.HEARTH, server.PEER), help="default: both")
    parser.add_argument("-c", "--ctx", type=int, default=8192)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--cache-ram", type=int, help="MiB, for both servers; default: each server's own")
    parser.add_argument("--max-tokens", type=int, default=24, help="length of a reply")
    parser.add_argument("--pause-ms", type=float, default=0, help="between requests")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--limit", type=float, help="default: 1.05 for plain attention, 1.15 for other models")
    parser.add_argument("--out", default=os.path.join(server.REPOSITORY, "bench", "report", "recompute"),
                        help="path of the report without .md and .json")
    options = parser.parse_args()

    models = [gguf.Model(path) for path in
              options.model or [os.path.join(server.models_dir(), "smollm2.gguf")]]
    limits = {os.path.basename(model.path): options.limit or (1.05 if model.plain_attention else 1.15)
              for model in models}
    groups = {}
    for model in models:
        for lanes in options.lanes or (1, 4):
            for name in options.scenario or scenarios.ALL:
                for _ in range(options.repeat):
                    for kind in options.server or (server.HEARTH, server.PEER):
                        run = measure(options, model, lanes, name, kind)
                        groups.setdefault((run.model, lanes, name), []).append(run)
                text, failures = report(groups, limits)
                stats.save(options.out, text, [run.plain() for runs in groups.values() for run in runs])
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
