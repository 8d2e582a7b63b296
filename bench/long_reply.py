#!/usr/bin/env python3
"""What reading a long reply as it grows costs: CPU of the server per generated token, with and without tools declared.

A written reply of 64k tokens is streamed (`--script`), once without tools and once with eighteen, so that everything that
looks for calls in the text is at work; a third time it holds calls with long arguments. What the engine itself costs is
the same each time. The model has random weights and one layer.

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


def cpu_s(pid):
    """User and system time of all its threads."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def replies(tokens):
    words = int(tokens / TOKENS_PER_WORD)
    prose = Text("long reply").words(words)
    # Quotes and newlines, as in code: the arguments are JSON with escapes.
    lines = Text("long calls").words(words // 8).replace(". ", ".\n\t\"").strip()
    made = "\n".join(call(f"tool_{number}", number=number, text=lines) for number in range(8))
    return {"no tools": (prose, None), "tools, prose": (prose, TOOLS), "tools, calls": (made, TOOLS)}


def measure(options, name, reply, tools):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as script:
        script.write(json.dumps({"when": {}, "reply": reply, "times": 0}) + "\n")
        script.flush()
        command = [server.hearth_path(), "serve", "-m", options.model, "-c", str(2 * options.tokens), "-np", "1",
                   "-t", "1", "--script", script.name]
        with server.Server(command) as running:
            body = {"messages": [{"role": "user", "content": "Write."}], "stream": True, "temperature": 0,
                    "stream_options": {"include_usage": True}, **({"tools": tools} if tools else {})}
            before = cpu_s(running.process.pid)
            answer = running.client.stream("/v1/chat/completions", body)
            spent = cpu_s(running.process.pid) - before
            metrics = running.client.metrics()
    tokens = answer.usage["completion_tokens"]
    decode_s = metrics["hearth_decode_us_total"] / 1e6
    return {"reply": name, "tokens": tokens, "finish": answer.finish, "cpu_s": spent, "us_per_token": 1e6 * spent / tokens,
            "decode_s": decode_s, "total_s": answer.total_s}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default=os.path.join(server.models_dir(), "tiny.gguf"))
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--out", default=os.path.join(server.REPOSITORY, "bench", "report", "long_reply"),
                        help="path of the report without .md and .json")
    options = parser.parse_args()

    results = [measure(options, name, *made) for name, made in replies(options.tokens).items()]
    header = ["reply", "tokens", "finish", "CPU, s", "CPU per token, µs", "decoding, s", "total, s"]
    rows = [[result["reply"], result["tokens"], result["finish"], f"{result['cpu_s']:.1f}",
             f"{result['us_per_token']:.0f}", f"{result['decode_s']:.1f}", f"{result['total_s']:.1f}"]
            for result in results]
    text = "\n".join(["# A long streamed reply", "", stats.table(header, rows), ""])
    stats.save(options.out, text, results)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
