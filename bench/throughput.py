#!/usr/bin/env python3
"""Prefill and decode speed and peak memory, hearth against llama-server.

Both servers run at the same time and are measured turn about (A B A B …), so that a change of the machine's mood
meets both; the one that is not measured is idle. Every prompt is unique from its first words, so that no cache can
help, and caches stay on, as in use.

    prefill  prompt tokens / seconds from sending to the first text; 4 lanes: all tokens / until all have ended
    decode   generated tokens after the first / seconds from the first text to the end

Peak memory is VmHWM after a load of its own, the same for both: long prompts on every lane, then a decode; llama-server
has its prompt cache off, hearth may use as much more as its cache budget.

    bench/throughput.py -m smollm2.gguf -np 1 -np 4
"""

import argparse
import os
import sys
import threading
import time

from lib import gguf, server, stats
from lib.text import Text

KINDS = (server.HEARTH, server.PEER)
MIB = 1 << 20


def together(client, bodies):
    """Runs requests at the same time; returns the replies and the moment of sending."""
    replies = [None] * len(bodies)

    def one(index):
        replies[index] = client.stream("/v1/chat/completions", bodies[index])

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(bodies))]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in replies:
        raise RuntimeError("a request failed")
    return replies, start


def request(seed, words, max_tokens):
    return {"messages": [{"role": "user", "content": Text(*seed).words(words)}], "max_tokens": max_tokens,
            "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


def prefill(client, seed, lanes, options):
    """Tokens per second."""
    bodies = [request((*seed, lane), options.prompt_words // lanes, 1) for lane in range(lanes)]
    replies, start = together(client, bodies)
    return sum(reply.computed_tokens for reply in replies) / (max(reply.first_at_s for reply in replies) - start)


def decode(client, seed, lanes, options):
    """Tokens per second, all lanes together."""
    bodies = [request((*seed, lane), 12, options.decode_tokens) for lane in range(lanes)]
    replies, start = together(client, bodies)
    first = min(reply.first_at_s for reply in replies)
    last = max(start + reply.total_s for reply in replies)
    return sum(reply.timings["predicted_n"] - 1 for reply in replies) / (last - first)


def speeds(options, model, lanes):
    """{measure: {kind: [tokens per second]}}"""
    out = {measure.__name__: {kind: [] for kind in KINDS} for measure in (prefill, decode)}
    running = {}
    try:
        for kind in KINDS:
            running[kind] = server.start(kind, model, lanes, options.ctx, options.cache_ram, options.threads)
        for number in range(-1, options.rounds):
            # The order changes every round: nobody is always the one that comes after the other.
            for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                client = running[kind].client
                for measure in (prefill, decode):
                    client.wait_idle()
                    time.sleep(options.pause_ms / 1000)
                    value = measure(client, (measure.__name__, lanes, number), lanes, options)
                    if number >= 0:  # the round before warms up
                        out[measure.__name__][kind].append(value)
                        print(f"{os.path.basename(model.path)} -np {lanes} {measure.__name__} {kind}: {value:.1f}/s",
                              file=sys.stderr)
    finally:
        for each in running.values():
            each.stop()
    return out


def memory(options, model, lanes, kind):
    """Peak bytes after the load."""
    cache_mib = options.cache_ram if kind == server.HEARTH else 0
    with server.start(kind, model, lanes, options.ctx, cache_mib, options.threads) as running:
        for number in range(2):
            words = options.ctx // 4 // lanes
            together(running.client, [request(("memory", number, lane), words, 16) for lane in range(lanes)])
            running.client.wait_idle()
            time.sleep(0.5)
        return running.memory_bytes("VmHWM")


def ratio(values):
    """Median of hearth/llama-server round by round, and its spread."""
    pairs = [a / b for a, b in zip(values[server.HEARTH], values[server.PEER])]
    return stats.median(pairs), stats.spread(pairs)


def report(results, options):
    rows, memory_rows, failures = [], [], []
    for cell in results:
        where = f"{cell['model']}, {cell['lanes']} lane{'s' if cell['lanes'] > 1 else ''}"
        for measure, values in cell["speeds"].items():
            middle, spread = ratio(values)
            rows.append([f"{where}: {measure}", stats.number(stats.median(values[server.HEARTH]), 1),
                         stats.number(stats.median(values[server.PEER]), 1), stats.number(middle, 3),
                         "–" if spread is None else f"±{spread * 100:.1f} %"])
            if middle < options.limit:
                failures.append(f"{where}: {measure} at {middle:.3f}, limit {options.limit}")
        mine, peer = cell["memory"][server.HEARTH], cell["memory"][server.PEER]
        allowed = peer + options.cache_ram * MIB
        memory_rows.append([where, f"{mine / MIB:.0f}", f"{peer / MIB:.0f}", f"{allowed / MIB:.0f}"])
        if mine > allowed:
            failures.append(f"{where}: peak memory {mine / MIB:.0f} MiB, allowed {allowed / MIB:.0f}")
    text = ["# Speed and memory", "",
            stats.table(["tokens per second", "hearth", "llama-server", "ratio", "spread"], rows), "",
            stats.table(["peak memory, MiB", "hearth", "llama-server without cache",
                         f"allowed: + {options.cache_ram} of cache"], memory_rows), ""]
    if failures:
        text += ["Outside the limits:", ""] + [f"- {failure}" for failure in failures] + [""]
    return "\n".join(text), failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", help="GGUF file (repeatable; default: SmolLM2)")
    parser.add_argument("-np", "--lanes", action="append", type=int, help="lanes (repeatable; default: 1 and 4)")
    parser.add_argument("-c", "--ctx", type=int, default=8192)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--cache-ram", type=int, default=256, help="MiB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt-words", type=int, default=800, help="of a prefill, all lanes together")
    parser.add_argument("--decode-tokens", type=int, default=96, help="of a lane")
    parser.add_argument("--pause-ms", type=float, default=300, help="before every measure")
    parser.add_argument("--limit", type=float, default=0.98)
    parser.add_argument("--out", default=os.path.join(server.REPOSITORY, "bench", "report", "throughput"),
                        help="path of the report without .md and .json")
    options = parser.parse_args()

    results = []
    for path in options.model or [os.path.join(server.models_dir(), "smollm2.gguf")]:
        model = gguf.Model(path)
        for lanes in options.lanes or (1, 4):
            results.append({"model": os.path.basename(path), "lanes": lanes, "speeds": speeds(options, model, lanes),
                            "memory": {kind: memory(options, model, lanes, kind) for kind in KINDS}})
            text, failures = report(results, options)
            stats.save(options.out, text, results)
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
