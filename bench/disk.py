#!/usr/bin/env python3
"""The disk tier's speed, each against what the machine can do.

    cold      12,288 tokens restored with an empty page cache, against fio reading the same files (root, and fio)
    cached    the same with the files in the page cache, against memcpy
    turn      bytes written for a turn of 100 new tokens on a long conversation, in pages and snapshots
    decode    decoding right after a long prompt, while its state is written, against a server without a disk

Bytes restored are those that the server read (hearth_disk_read_bytes_total), the time is the receipt's restore_ms. fio reads
the files one after the other, buffered and around the page cache; the faster of the two counts. Both start with what the
other has left: every run drops the page cache first.

    bench/disk.py -m smollm2.gguf --dir /somewhere/on/the/disk
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from lib import gguf, server, stats
from lib.text import Text

MIB = 1 << 20
WORDS_PER_TOKEN = 0.7


def state_files(folder, endings=(".page", ".snap")):
    return sorted(os.path.join(base, name) for base, _, names in os.walk(folder) for name in names
                  if name.endswith(endings) and os.path.basename(base) not in ("bad", "tmp"))


def drop_caches():
    """Empties the page cache; False: only root can."""
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3\n")
    except OSError:
        return False
    return True


def warm(paths):
    for path in paths:
        with open(path, "rb") as file:
            while file.read(MIB):
                pass


def settle(client, quiet_s=1.0, timeout_s=120):
    """Waits until nothing is written any more; returns the metrics."""
    deadline, since, last = time.monotonic() + timeout_s, time.monotonic(), None
    while True:
        metrics = client.metrics()
        now = (metrics["hearth_disk_queued_bytes"], metrics["hearth_disk_written_total"])
        if now != last:
            since, last = time.monotonic(), now
        if (time.monotonic() - since > quiet_s and now[0] == 0) or time.monotonic() > deadline:
            return metrics
        time.sleep(0.05)


def serve(options, model, folder, extra=()):
    flags = ["--kv-dir", folder, "--kv-disk", "32768"] if folder else ["--kv-dir", "none"]
    return server.start(server.HEARTH, model, options.lanes, options.ctx, options.cache_ram, options.threads,
                        [*flags, *extra])


def long_prompt(client, tokens, *seed):
    """Token ids of prose: exactly as many as are asked for."""
    ids = client.tokenize(Text("disk", *seed).words(int(tokens * WORDS_PER_TOKEN * 1.5)))
    assert len(ids) >= tokens, len(ids)
    return ids[:tokens]


def complete(client, prompt, max_tokens, **options):
    return client.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                                           "ignore_eos": True, **options})


# ---------------------------------------------------------------------------------------------------- restoring

def write_state(options, model, folder):
    with serve(options, model, folder) as running:
        prompt = long_prompt(running.client, options.tokens)
        complete(running.client, prompt, 1)
        settle(running.client)
    return prompt


def restore(options, model, folder, prompt, prepare):
    """A server over the directory: (bytes per second, tokens from disk) of one restore."""
    with serve(options, model, folder) as running:
        deadline = time.monotonic() + 60
        while running.client.metrics()["hearth_disk_scanned"] != 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        prepare()
        before = running.client.metrics()["hearth_disk_read_bytes_total"]
        answer = complete(running.client, prompt + prompt[:1], 1)
        read = running.client.metrics()["hearth_disk_read_bytes_total"] - before
    receipt = answer["hearth"]
    seconds = (receipt["plan_ms"] + receipt["restore_ms"]) / 1000
    return {"bytes_per_s": read / seconds if seconds else 0, "bytes": read, "seconds": seconds,
            "tokens": receipt["reused"]["disk"], "computed": receipt["computed"]}


def fio(paths, direct):
    """Bytes per second of reading the files one after the other; None: fio failed."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.dirname(paths[0]))) as links:
        for number, path in enumerate(paths):  # fio's list of names is short
            os.link(path, os.path.join(links, str(number)))
        command = ["fio", "--name=read", "--rw=read", "--readonly", "--bs=1M", "--file_service_type=sequential",
                   "--output-format=json", f"--filename={':'.join(map(str, range(len(paths))))}"]
        command += (["--ioengine=libaio", "--direct=1", "--iodepth=8"] if direct
                    else ["--ioengine=psync", "--invalidate=1"])
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=links)
    try:
        job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]["read"]
    except (ValueError, KeyError, IndexError):
        print(f"fio failed: {done.stderr[-500:]}", file=sys.stderr)
        return None
    return job["bw_bytes"] or None


def memcpy_speed(count, rounds=5):
    """Bytes per second between two buffers that have been touched."""
    source, target = ctypes.create_string_buffer(count), ctypes.create_string_buffer(count)
    speeds = []
    for _ in range(rounds):
        start = time.monotonic()
        ctypes.memmove(target, source, count)
        speeds.append(count / (time.monotonic() - start))
    return stats.median(speeds)


def measure_restore(options, model, folder):
    prompt = write_state(options, model, folder)
    paths = state_files(folder)
    total = sum(os.path.getsize(path) for path in paths)
    out = {"files": len(paths), "file_bytes": total, "cold": [], "fio": [], "cached": [], "memcpy": []}
    cold = drop_caches()
    if not cold:
        print("cold: left out, only root can empty the page cache", file=sys.stderr)
    for _ in range(options.rounds):
        if cold:
            out["cold"].append(restore(options, model, folder, prompt, drop_caches))
        if cold and shutil.which("fio"):
            speeds = []
            for direct in (False, True):
                drop_caches()
                speeds.append(fio(paths, direct))
            out["fio"].append(max(filter(None, speeds), default=None))
        out["cached"].append(restore(options, model, folder, prompt, lambda: warm(paths)))
        out["memcpy"].append(memcpy_speed(min(total, 512 * MIB)))
    if not shutil.which("fio"):
        print("fio is not here: cold reads are not compared (apt-get install fio)", file=sys.stderr)
    out["fio"] = [speed for speed in out["fio"] if speed]
    return out


# ---------------------------------------------------------------------------------------------------- writing

def measure_turn(options, model, folder):
    """Bytes and files written for turns of about 100 new tokens, against two pages and a snapshot."""
    turns = []
    with serve(options, model, folder) as running:
        prompt = long_prompt(running.client, options.turn_tokens, "turn")
        complete(running.client, prompt, 1)
        before = settle(running.client)
        sizes = [(path, os.path.getsize(path)) for path in state_files(folder)]
        page, snapshot = (max((size for path, size in sizes if path.endswith(ending)), default=0)
                          for ending in (".page", ".snap"))
        for turn in range(4):
            prompt = prompt + long_prompt(running.client, 60, "more", turn)
            answer = complete(running.client, prompt, 40)
            prompt = prompt + running.client.tokenize(answer["choices"][0]["text"])
            after = settle(running.client)
            turns.append({"bytes": after["hearth_disk_written_bytes_total"] - before["hearth_disk_written_bytes_total"],
                          "files": after["hearth_disk_written_total"] - before["hearth_disk_written_total"]})
            before = after
    return {"page_bytes": page, "snapshot_bytes": snapshot, "turns": turns}


def measure_decode(options, model, folder, number):
    """Tokens per second right after a long prompt: with its state being written, and without a disk."""
    out = {}
    for name, where in (("disk", folder), ("none", None)):
        # Everything is written at the end of the prefill, at full rate, while the reply is decoded.
        with serve(options, model, where, ["--kv-interval-tokens", "1000000"] if where else []) as running:
            prompt = long_prompt(running.client, options.decode_prompt, "decode", number)
            answer = complete(running.client, prompt, options.decode_tokens)
            timings = answer["timings"]
            out[name] = timings["predicted_n"] / timings["predicted_ms"] * 1000
            if where:
                out["written_bytes"] = running.client.metrics()["hearth_disk_written_bytes_total"]
    return out


# ---------------------------------------------------------------------------------------------------- report

def report(results, options):
    rows, failures = [], []

    def row(what, mine, unit, limit_text, holds):
        rows.append([what, mine, unit, limit_text])
        if not holds:
            failures.append(f"{what}: {mine} {unit}, limit {limit_text}")

    for result in results:
        model, found = result["model"], result["restore"]
        for name, against, limit in (("cold", "fio", options.cold_limit), ("cached", "memcpy", options.cached_limit)):
            if not found[name]:
                continue
            speed = stats.median([one["bytes_per_s"] for one in found[name]])
            tokens = min(one["tokens"] for one in found[name])
            row(f"{model}: {name}, tokens from disk", tokens, "", f"at least {options.tokens - 256}",
                tokens >= options.tokens - 256)
            if not found[against]:
                rows.append([f"{model}: {name}", stats.number(speed / MIB, 0), "MiB/s", "–"])
                continue
            peer = stats.median(found[against])
            row(f"{model}: {name}, {speed / MIB:.0f} MiB/s against {peer / MIB:.0f} by {against}",
                stats.number(speed / peer, 2), "", f"at least {limit}", speed / peer >= limit)
        turn = result["turn"]
        allowed = 2 * turn["page_bytes"] + turn["snapshot_bytes"]
        worst = max(one["bytes"] for one in turn["turns"])
        row(f"{model}: written for a turn of 100 tokens on {options.turn_tokens}", stats.number(worst / MIB, 2), "MiB",
            f"at most {allowed / MIB:.2f}", worst <= allowed)
        if result["decode"]:
            kept = stats.median([one["disk"] / one["none"] for one in result["decode"]])
            row(f"{model}: decoding while writing, share of the speed without", stats.number(kept, 3), "",
                f"at least {options.decode_limit}", kept >= options.decode_limit)
    text = ["# Disk", "", stats.table(["what", "measured", "unit", "limit"], rows), ""]
    if failures:
        text += ["Outside the limits:", ""] + [f"- {failure}" for failure in failures] + [""]
    return "\n".join(text), failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", help="GGUF file (repeatable; default: SmolLM2)")
    parser.add_argument("-np", "--lanes", type=int, default=1)
    parser.add_argument("-c", "--ctx", type=int, default=32768)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--cache-ram", type=int, default=2048, help="MiB")
    parser.add_argument("--tokens", type=int, default=12288, help="that are restored")
    parser.add_argument("--turn-tokens", type=int, default=12288, help="of the conversation that gets turns")
    parser.add_argument("--decode-prompt", type=int, default=4096, help="tokens; 0: leave it out")
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold-limit", type=float, default=0.6)
    parser.add_argument("--cached-limit", type=float, default=0.5)
    parser.add_argument("--decode-limit", type=float, default=0.95)
    parser.add_argument("--dir", help="a folder on the disk that is measured; default: the folder for temporary files")
    parser.add_argument("--out", default=os.path.join(server.REPOSITORY, "bench", "report", "disk"),
                        help="path of the report without .md and .json")
    options = parser.parse_args()

    results = []
    for path in options.model or [os.path.join(server.models_dir(), "smollm2.gguf")]:
        model = gguf.Model(path)
        with tempfile.TemporaryDirectory(prefix="hearth-disk-", dir=options.dir) as folder:
            found = {"model": os.path.basename(path),
                     "restore": measure_restore(options, model, os.path.join(folder, "restore")),
                     "turn": measure_turn(options, model, os.path.join(folder, "turn")), "decode": []}
            for number in range(options.rounds if options.decode_prompt else 0):
                found["decode"].append(measure_decode(options, model, os.path.join(folder, "decode"), number))
        results.append(found)
        text, failures = report(results, options)
        stats.save(options.out, text, results)
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
