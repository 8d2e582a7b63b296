#!/usr/bin/env python3
"""RAM that twelve conversations over one 1,200-word system prompt hold in hearth's cache.

    ideal = (tokens of the common prefix + tokens of twelve tails) × bytes of one token's K and V

A tail is what a conversation has behind the common prefix: its messages and the reply. Bytes per token come from the
model's metadata (plain attention, f16) or from --bytes-per-token; without either, from what a single cold request of
known length holds. Snapshots (other models than plain attention) are shown beside the pages.

    bench/ram.py -m smollm2.gguf
"""

import argparse
import os
import sys
import time

from lib import gguf, server, stats
from lib.scenarios import Chat, system_text
from lib.text import Text

CONVERSATIONS = 12
MIB = 1 << 20


def held(running, settle_s=1.0, timeout_s=60):
    """Bytes of pages and of snapshots, once they have not changed for `settle_s`: capturing happens in idle time."""
    deadline, since, last = time.monotonic() + timeout_s, time.monotonic(), None
    while True:
        metrics = running.client.metrics()
        now = (int(metrics["hearth_page_bytes"]), int(metrics["hearth_snapshot_bytes"]))
        if now != last:
            since, last = time.monotonic(), now
        if time.monotonic() - since > settle_s or time.monotonic() > deadline:
            return now
        time.sleep(0.1)


def talk(running, chat, content, max_tokens):
    """One turn; returns the tokens of prompt and reply."""
    turns = chat.say(content)
    turn = next(turns)
    reply = running.client.chat(turn.messages, max_tokens)
    return running.client.tokenize(running.client.apply_template(turn.messages) + reply.text)


def bytes_per_token(options, model):
    if options.bytes_per_token:
        return options.bytes_per_token, "given"
    if model.plain_attention:
        return model.kv_bytes_per_token(), "from the model's metadata"
    with server.start(server.HEARTH, model, 1, options.ctx, options.cache_ram, options.threads) as running:
        tokens = talk(running, Chat(system=system_text("alone")), "Well?", 1)
        return held(running)[0] / len(tokens), "measured with one request"


def distinct(sequences):
    """Tokens of a trie that holds all sequences."""
    total, known = 0, []
    for tokens in sequences:
        shared = max((len(os.path.commonprefix([tokens, other])) for other in known), default=0)
        total += len(tokens) - shared
        known.append(tokens)
    return total


def measure(options, model):
    per_token, source = bytes_per_token(options, model)
    text, system = Text("ram"), system_text()
    with server.start(server.HEARTH, model, options.lanes, options.ctx, options.cache_ram, options.threads) as running:
        before = held(running, settle_s=0.3)
        sequences = [talk(running, Chat(system=system), text.ask(60), options.max_tokens)
                     for _ in range(CONVERSATIONS)]
        pages, snapshots = (now - then for now, then in zip(held(running), before))
    tokens = distinct(sequences)
    return {"model": os.path.basename(model.path), "lanes": options.lanes, "tokens": tokens,
            "common_tokens": len(os.path.commonprefix(sequences)), "bytes_per_token": per_token,
            "bytes_per_token_source": source, "ideal_bytes": tokens * per_token, "page_bytes": pages,
            "snapshot_bytes": snapshots, "ratio": pages / (tokens * per_token)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", help="GGUF file (repeatable; default: SmolLM2)")
    parser.add_argument("-np", "--lanes", type=int, default=4)
    parser.add_argument("-c", "--ctx", type=int, default=8192)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--cache-ram", type=int, default=1024, help="MiB")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--bytes-per-token", type=float)
    parser.add_argument("--limit", type=float, default=1.1)
    parser.add_argument("--out", default=os.path.join(server.REPOSITORY, "bench", "report", "ram"),
                        help="path of the report without .md and .json")
    options = parser.parse_args()

    results = [measure(options, gguf.Model(path)) for path in
               options.model or [os.path.join(server.models_dir(), "smollm2.gguf")]]
    # Too little is as wrong as too much: then something was not kept.
    failures = [f"{result['model']}: {result['ratio']:.3f} of the ideal" for result in results
                if not 0.9 <= result["ratio"] <= options.limit]
    header = ["model", "common tokens", "distinct tokens", "bytes per token", "ideal, MiB", "pages, MiB", "ratio",
              "snapshots, MiB"]
    rows = [[result["model"], result["common_tokens"], result["tokens"], f"{result['bytes_per_token']:.0f}",
             f"{result['ideal_bytes'] / MIB:.1f}", f"{result['page_bytes'] / MIB:.1f}", f"{result['ratio']:.3f}",
             f"{result['snapshot_bytes'] / MIB:.1f}"] for result in results]
    text = "\n".join([f"# RAM held by {CONVERSATIONS} conversations over one system prompt", "",
                      stats.table(header, rows), ""] + [f"Outside the limits: {failure}" for failure in failures])
    stats.save(options.out, text, results)
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
