#!/usr/bin/env python3
"""What a crash costs: hearth and llama-server, SIGKILL in the middle of a conversation, start, next turn.

    recompute ratio = prompt tokens computed over the whole conversation / prompt tokens that were new to it

Both servers get the same conversation; its second half is played against a new process. SIGKILL comes two
seconds after a reply has ended: what hearth promises to have on disk by then. TTFT is measured at the client; that of the
first turn after the restart is what a user waits for. The server is ready (its /health says so) when that turn is
sent: what loading the model takes is the same for both and no part of it.

    bench/restart.py -m smollm2.gguf -m gemma3-270m.gguf -m hybrid.gguf
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time

from lib import gguf, server, stats
from lib.ledger import new_tokens
from lib.scenarios import Chat
from lib.text import Text

SAFE_S = 2.0


class Run:
    def __init__(self, kind, model, ending):
        self.server, self.model, self.ending = kind, os.path.basename(model.path), ending
        self.known, self.computed, self.new, self.prompt_tokens = [], 0, 0, 0
        self.first_ttft_s = self.start_s = None
        self.receipts = []

    def turn(self, client, chat, content, max_tokens):
        turns = chat.say(content)
        turn = next(turns)
        text = client.apply_template(turn.messages)
        prompt = client.tokenize(text)
        reply = client.chat(turn.messages, max_tokens)
        self.computed += reply.computed_tokens
        self.new += new_tokens(prompt, self.known)
        self.prompt_tokens = len(prompt)
        self.receipts.append(reply.extra)
        self.known.append(client.tokenize(text + reply.text))
        with contextlib.suppress(StopIteration):
            turns.send(reply.text)
        return reply

    @property
    def ratio(self):
        return self.computed / self.new

    def plain(self):
        return {key: value for key, value in vars(self).items() if key != "known"} | {"ratio": self.ratio}


def measure(options, model, kind, ending, number):
    run, chat = Run(kind, model, ending), Chat(system=Text("restart", number).words(options.system_words))
    text = Text("restart questions", number)
    with tempfile.TemporaryDirectory(prefix="hearth-restart-", dir=options.dir) as folder:
        extra = ["--kv-dir", folder, "--kv-disk", "16384"] if kind == server.HEARTH else []

        def start():
            return server.start(kind, model, options.lanes, options.ctx, options.cache_ram, options.threads, extra)

        with start() as running:
            for _ in range(options.turns):
                run.turn(running.client, chat, text.ask(options.words), options.max_tokens)
            if ending == "SIGKILL":
                time.sleep(SAFE_S)
                running.kill()
            else:
                running.process.send_signal(signal.SIGTERM)
                running.process.wait(60)
        begun_s = time.monotonic()
        with start() as running:
            run.start_s = time.monotonic() - begun_s
            for turn in range(options.turns):
                reply = run.turn(running.client, chat, text.ask(options.words), options.max_tokens)
                if turn == 0:
                    run.first_ttft_s = reply.ttft_s
    print(f"{run.model} {ending} {kind}: ratio {run.ratio:.3f}, first turn {run.first_ttft_s * 1000:.0f} ms",
          file=sys.stderr)
    return run


def report(groups, options):
    rows, failures = [], []
    for (model, ending), runs in groups.items():
        mine, peers = ([run for run in runs if run.server == kind] for kind in (server.HEARTH, server.PEER))
        ratio = max((run.ratio for run in mine), default=None)
        peer_ratio = max((run.ratio for run in peers), default=None)
        ttft, peer_ttft = (stats.median([run.first_ttft_s for run in group]) for group in (mine, peers))
        faster = stats.median([peer.first_ttft_s / run.first_ttft_s for run, peer in zip(mine, peers)])
        rows.append([f"{model}, {ending}", runs[0].prompt_tokens, stats.number(ratio, 3), stats.number(peer_ratio, 3),
                     stats.number(ttft and ttft * 1000, 0), stats.number(peer_ttft and peer_ttft * 1000, 0),
                     stats.number(faster, 1)])
        if ratio is not None and ratio > options.limit:
            failures.append(f"{model} {ending}: ratio {ratio:.3f} is over {options.limit}")
        if faster is not None and faster < options.faster:
            failures.append(f"{model} {ending}: the first turn is {faster:.1f} times faster, less than {options.faster}")
    header = ["restart", "prompt tokens at the end", "hearth ratio", "llama-server ratio", "hearth first TTFT, ms",
              "llama-server first TTFT, ms", "times faster"]
    lines = ["# A restart in the middle of a conversation", "", stats.table(header, rows), ""]
    if failures:
        lines += ["Outside the limits:", ""] + [f"- {failure}" for failure in failures] + [""]
    return "\n".join(lines), failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", help="GGUF file (repeatable; default: SmolLM2)")
    parser.add_argument("--server", action="append", choices=(server.HEARTH, server.PEER), help="default: both")
    parser.add_argument("--ending", action="append", choices=("SIGKILL", "SIGTERM"), help="default: SIGKILL")
    parser.add_argument("-np", "--lanes", type=int, default=1)
    parser.add_argument("-c", "--ctx", type=int, default=8192)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--cache-ram", type=int, help="MiB, for both servers; default: each server's own")
    parser.add_argument("--system-words", type=int, default=3000)
    parser.add_argument("--words", type=int, default=40, help="of a question")
    parser.add_argument("--turns", type=int, default=3, help="before the restart, and after it")
    parser.add_argument("--max-tokens", type=int, default=24, help="length of a reply")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1.05, help="of hearth's ratio")
    parser.add_argument("--faster", type=float, default=15, help="times, the first turn after the restart")
    parser.add_argument("--dir", help="where the state goes; default: the folder for temporary files")
    parser.add_argument("--out", default=os.path.join(server.REPOSITORY, "bench", "report", "restart"),
                        help="path of the report without .md and .json")
    options = parser.parse_args()

    groups = {}
    for path in options.model or [os.path.join(server.models_dir(), "smollm2.gguf")]:
        model = gguf.Model(path)
        for ending in options.ending or ["SIGKILL"]:
            for number in range(options.repeat):
                for kind in options.server or (server.HEARTH, server.PEER):
                    run = measure(options, model, kind, ending, number)
                    groups.setdefault((run.model, ending), []).append(run)
            text, failures = report(groups, options)
            stats.save(options.out, text, [run.plain() for runs in groups.values() for run in runs])
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
