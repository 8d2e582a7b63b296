#!/usr/bin/env python3
"""What happens before the first batch of a returning turn: reading, digesting, rendering, tokenising, planning.

A history of 145,000 tokens comes back with one new message, again and again; what counts is `prepare_ms` and `plan_ms`
of the receipt (hearth), beside what tokenising the whole prompt takes (/tokenize). The models have random weights, one
layer, and the tokenizers of SmolLM2 (BPE) and Gemma (SentencePiece), so that the history is read in about a minute.

    bench/prepare.py [-m tiny.gguf -m tiny-gemma.gguf] [--tokens 145000]
"""

import argparse
import os
import sys
import time

from lib import server, stats
from lib.text import Text

WORDS_PER_MESSAGE = 400
TOKENS_PER_WORD = 1.32


def history(tokens):
    """Messages of about so many tokens: questions, calls of a tool and their results, answers."""
    text, messages = Text("prepare"), [{"role": "system", "content": Text("prepare system").words(3000)}]
    rounds = max(1, int((tokens / TOKENS_PER_WORD - 3000) / (2.5 * WORDS_PER_MESSAGE)))
    for number in range(rounds):
        call = {"id": f"call_{number}", "type": "function",
                "function": {"name": "look_up", "arguments": f"{{\"number\":{number}}}"}}
        messages += [{"role": "user", "content": text.ask(WORDS_PER_MESSAGE // 4)},
                     {"role": "assistant", "content": "I look.", "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": call["id"], "content": text.words(2 * WORDS_PER_MESSAGE)},
                     {"role": "assistant", "content": text.words(WORDS_PER_MESSAGE // 4)}]
    return messages


TOOLS = [{"type": "function", "function": {"name": name, "description": Text("tool", name).words(120), "parameters": {
    "type": "object", "properties": {"number": {"type": "integer"}, "text": {"type": "string"}}}}}
    for name in ("look_up", "lend", "note", "count", "list")]


def measure(options, path):
    command = [server.hearth_path(), "serve", "-m", path, "-c", str(options.ctx), "-np", "1", "-t", "1"]
    with server.Server(command) as running:
        messages = history(options.tokens)

        def ask():
            body = {"messages": messages, "tools": TOOLS, "tool_choice": "none", "max_tokens": 8, "temperature": 0,
                    "stream": True, "stream_options": {"include_usage": True}}
            reply = running.client.stream("/v1/chat/completions", body)
            messages.append({"role": "assistant", "content": reply.text})
            return reply

        messages.append({"role": "user", "content": "Begin."})
        first = ask()
        turns = []
        for number in range(options.turns):
            messages.append({"role": "user", "content": f"Question {number}: {Text('q', number).ask(30)}"})
            turns.append(ask())
        prompt = running.client.apply_template(messages)
        start = time.monotonic()
        tokens = len(running.client.tokenize(prompt))
        tokenize_ms = 1000 * (time.monotonic() - start)
    prepare = [turn.extra["prepare_ms"] for turn in turns]
    return {"model": os.path.basename(path), "prompt_tokens": turns[-1].prompt_tokens, "tokens": tokens,
            "cold_prepare_ms": first.extra["prepare_ms"], "prepare_ms": stats.median(prepare),
            "worst_prepare_ms": max(prepare), "plan_ms": stats.median([turn.extra["plan_ms"] for turn in turns]),
            "computed": max(turn.computed_tokens for turn in turns), "tokenize_ms": tokenize_ms,
            "ttft_ms": stats.median([1000 * turn.ttft_s for turn in turns])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", help="GGUF file (repeatable; default: tiny and tiny-gemma)")
    parser.add_argument("-c", "--ctx", type=int, default=180000)
    parser.add_argument("--tokens", type=int, default=145000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--limit-ms", type=float, default=30)
    parser.add_argument("--out", default=os.path.join(server.REPOSITORY, "bench", "report", "prepare"),
                        help="path of the report without .md and .json")
    options = parser.parse_args()

    paths = options.model or [os.path.join(server.models_dir(), f"{name}.gguf") for name in ("tiny", "tiny-gemma")]
    results = [measure(options, path) for path in paths]
    failures = [f"{result['model']}: {result['prepare_ms'] + result['plan_ms']:.1f} ms" for result in results
                if result["prepare_ms"] + result["plan_ms"] > options.limit_ms]
    header = ["model", "prompt tokens", "prepare, ms", "worst, ms", "plan, ms", "first time, ms", "tokenize all, ms",
              "most computed", "TTFT, ms"]
    rows = [[result["model"], result["prompt_tokens"], *(f"{result[name]:.1f}" for name in (
        "prepare_ms", "worst_prepare_ms", "plan_ms", "cold_prepare_ms", "tokenize_ms")), result["computed"],
        f"{result['ttft_ms']:.0f}"] for result in results]
    text = "\n".join(["# Before the first batch of a returning turn", "", stats.table(header, rows), ""]
                     + [f"Outside the limit: {failure}" for failure in failures])
    stats.save(options.out, text, results)
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
