#!/usr/bin/env python3
"""Sends recorded sessions of real clients again and counts what is computed (bench/sessions, lib/sessions.py).

    recompute ratio = prompt tokens computed / prompt tokens that no earlier prompt or reply begins with

A request is sent when everything has been answered that had been answered when it was recorded, so what overlapped then
overlaps now. The replies in the history are the recorded ones, not the server's own: a session that was held elsewhere.
Every session gets a fresh server, hearth and llama-server in turns. With --dialect the same prompts are said in another
one, as the same client says them there (lib/dialects.py).

    bench/sessions.py -m smollm2.gguf -m hybrid.gguf -m gemma3-270m.gguf -np 1 -np 4
"""

import argparse
import dataclasses
import os
import sys
import threading

from lib import dialects, gguf, server, sessions, stats
from lib.ledger import Ledger


@dataclasses.dataclass
class Run:
    server: str
    model: str
    lanes: int
    session: str
    requests: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    computed_tokens: int = 0
    worst: list = dataclasses.field(default_factory=list)  # (computed - new, new, computed, request) of the worst three
    errors: list = dataclasses.field(default_factory=list)

    @property
    def ratio(self):
        return self.computed_tokens / self.new_tokens


class Replay:
    """One session against one server."""

    def __init__(self, client, session, max_tokens, dialect="chat"):
        self.client, self.session, self.max_tokens, self.dialect = client, session, max_tokens, dialects.ALL[dialect]
        self._ledger, self._lock = Ledger(client), threading.Lock()
        self._ended = [threading.Event() for _ in session.requests]
        self.rows, self.errors = [], []

    def _send(self, number):
        try:
            body = self.session.requests[number].body()
            with self._lock:
                new = self._ledger.ask(body)
            text, computed = dialects.send(self.client, self.dialect, body, self.max_tokens)
            with self._lock:
                self._ledger.answer(body, {"role": "assistant", "content": text}, computed)
                self.rows.append((computed - new, new, computed, number))
        except Exception as error:  # a thread's own end: the run reports it
            self.errors.append(f"request {number}: {error!r}")
        finally:
            self._ended[number].set()

    def _sent_after(self, number):
        at = self.session.requests[number].at_s
        return [other for other, request in enumerate(self.session.requests) if request.until_s <= at and other != number]

    def play(self, run):
        threads = []
        for number in range(len(self.session.requests)):
            for other in self._sent_after(number):
                self._ended[other].wait()
            thread = threading.Thread(target=self._send, args=(number,))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        run.requests, run.prompt_tokens = self._ledger.requests, self._ledger.prompts
        run.new_tokens, run.computed_tokens = self._ledger.new, self._ledger.computed
        run.worst, run.errors = sorted(self.rows, reverse=True)[:3], self.errors


def measure(options, model, lanes, session, kind):
    run = Run(kind, os.path.basename(model.path), lanes, session.name)
    with server.start(kind, model, lanes, options.ctx, options.cache_ram, options.threads) as running:
        Replay(running.client, session, options.max_tokens, options.dialect).play(run)
    print(f"{run.model} -np {lanes} {run.session} {kind}: {run.requests} requests, new {run.new_tokens}, computed "
          f"{run.computed_tokens}, ratio {run.ratio:.3f}; most too many: "
          + ", ".join(f"{more} at request {number}" for more, _, _, number in run.worst if more > 0), file=sys.stderr)
    for error in run.errors:
        print(f"  {error}", file=sys.stderr)
    return run


def report(runs, limits):
    """Markdown, and the list of what is outside the limits."""
    header = ["session", "model", "lanes", "requests", "prompt tokens", "new tokens", "hearth computed", "hearth ratio",
              "llama-server ratio"]
    rows, failures = [], []
    for (model, lanes, name), pair in runs.items():
        mine, peer = pair.get(server.HEARTH), pair.get(server.PEER)
        any_run = mine or peer
        rows.append([name, model, lanes, any_run.requests, any_run.prompt_tokens, any_run.new_tokens,
                     mine.computed_tokens if mine else "–", stats.number(mine and mine.ratio, 3),
                     stats.number(peer and peer.ratio, 2)])
        if mine and (mine.ratio > limits[model] or mine.errors):
            failures.append(f"{model} -np {lanes} {name}: ratio {mine.ratio:.3f} (limit {limits[model]}), "
                            f"{len(mine.errors)} errors")
    lines = ["# Recorded sessions, sent again", "", stats.table(header, rows), ""]
    return "\n".join(lines + [f"Outside the limits: {failure}" for failure in failures]), failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", help="GGUF file (repeatable; default: SmolLM2)")
    parser.add_argument("-np", "--lanes", action="append", type=int, help="lanes (repeatable; default: 1 and 4)")
    parser.add_argument("-s", "--session", action="append", help="name (repeatable; default: all)")
    parser.add_argument("-f", "--file", default=os.path.join(server.REPOSITORY, "bench", "sessions", "hermes.jsonl"))
    parser.add_argument("--dialect", choices=sorted(dialects.ALL), default="chat", help="what they are said in")
    parser.add_argument("--server", action="append", choices=(server.HEARTH, server.PEER), help="default: both")
    parser.add_argument("-c", "--ctx", type=int, default=98304)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--cache-ram", type=int, default=8192, help="MiB, for both servers")
    parser.add_argument("--max-tokens", type=int, default=8, help="length of a reply")
    parser.add_argument("--limit", type=float, help="default: 1.05 for plain attention, 1.10 for other models")
    parser.add_argument("--out", default=os.path.join(server.REPOSITORY, "bench", "report", "sessions"),
                        help="path of the report without .md and .json")
    options = parser.parse_args()

    models = [gguf.Model(path) for path in options.model or [os.path.join(server.models_dir(), "smollm2.gguf")]]
    limits = {os.path.basename(model.path): options.limit or (1.05 if model.plain_attention else 1.10)
              for model in models}
    runs = {}
    for model in models:
        for lanes in options.lanes or (1, 4):
            for session in sessions.load(options.file):
                if options.session and session.name not in options.session:
                    continue
                for kind in options.server or (server.HEARTH, server.PEER):
                    run = measure(options, model, lanes, session, kind)
                    runs.setdefault((run.model, lanes, run.session), {})[kind] = run
                text, failures = report(runs, limits)
                stats.save(options.out, text, [dataclasses.asdict(run) for pair in runs.values()
                                               for run in pair.values()])
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
