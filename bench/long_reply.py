#!/usr/bin/env python3
"""What reading a long reply as it grows costs: CPU of the server per generated token, by thread.

A written reply of 64k tokens is streamed (`--script`) behind a prompt with eighteen tools: once with `tool_choice` none, so
that it is only text; once with auto, so that everything that looks for calls is at work; once it holds calls with long
arguments. The model has random weights and one layer, so shares of the total would mean little: the report names
microseconds per token, and what they are of the 20 ms that a token of a small real model takes.

    bench/long_reply.py [--tokens 65536]
"""

import argparse
import json
import os
import sys
import tempfile

from lib import server, stats
from lib.scripted import call
from lib.text import Text

TOKENS_PER_WORD = 1.32
TOOLS = [{"type": "function", "function": {"name": f"tool_{number}", "description": Text("tool", number).words(40),
                                           "parameters": {"type": "object", "properties": {
                                               "number": {"type": "integer"}, "text": {"type": "string"}}}}}
         for number in range(18)]
REAL_TOKEN_US = 20000


def cpu_us(pid):
    """User and system time of each thread, by its id: the scheduler's count, in microseconds."""
    out = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            out[thread] = int(file.read().split()[0]) / 1000
    return out


def replies(tokens):
    words = int(tokens / TOKENS_PER_WORD)
    prose = Text("long reply").words(words)
    # Quotes and newlines, as in code: the arguments are JSON with escapes.
    lines = Text("long calls").words(words // 8).replace(". ", ".\n\t\"").strip()
    made = "\n".join(call(f"tool_{number}", number=number, text=lines) for number in range(8))
    return {"text": (prose, "none"), "looked through for calls": (prose, "auto"), "calls": (made, "auto")}


def measure(options, name, reply, choice):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as script:
        script.write(json.dumps({"when": {}, "reply": reply, "times": 0}) + "\n")
        script.flush()
        command = [server.hearth_path(), "serve", "-m", options.model, "-c", str(2 * options.tokens + 8192), "-np", "1",
                   "-t", "1", "--script", script.name]
        with server.Server(command) as running:
            body = {"messages": [{"role": "user", "content": "Write."}], "stream": True, "temperature": 0, "tools": TOOLS,
                    "tool_choice": choice, "stream_options": {"include_usage": True}}
            running.client.stream("/v1/chat/completions", {**body, "max_tokens": 1})
            before = cpu_us(running.process.pid)
            answer = running.client.stream("/v1/chat/completions", body)
            after = cpu_us(running.process.pid)
    tokens = answer.usage["completion_tokens"]
    spent = sorted((after[thread] - before.get(thread, 0) for thread in after), reverse=True)
    return {"reply": name, "tokens": tokens, "finish": answer.finish,
            "engine_thread_us": spent[0] / tokens, "other_threads_us": sum(spent[1:]) / tokens, "total_s": answer.total_s}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default=os.path.join(server.models_dir(), "tiny.gguf"))
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--out", default=os.path.join(server.REPOSITORY, "bench", "report", "long_reply"),
                        help="path of the report without .md and .json")
    options = parser.parse_args()

    results = [measure(options, name, *made) for name, made in replies(options.tokens).items()]
    header = ["reply", "tokens", "finish", "CPU of the engine's thread, µs per token", "of all others", "more than text",
              "of a real token", "total, s"]
    rows = []
    for result in results:
        more_us = result["other_threads_us"] - results[0]["other_threads_us"]
        rows.append([result["reply"], result["tokens"], result["finish"], f"{result['engine_thread_us']:.0f}",
                     f"{result['other_threads_us']:.0f}", f"{more_us:.0f}", f"{100 * more_us / REAL_TOKEN_US:.2f} %",
                     f"{result['total_s']:.1f}"])
    text = "\n".join(["# A long streamed reply", "", stats.table(header, rows), ""])
    stats.save(options.out, text, results)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
