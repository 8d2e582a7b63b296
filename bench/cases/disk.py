"""The disk tier's speed, each against what the machine can do.

Bytes restored are those that the server read (hearth_disk_read_bytes_total), the time is the receipt's. fio reads the
files one after the other, buffered and around the page cache; the faster of the two counts. Both start with what the
other has left: every run drops the page cache first.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from lib import stats
from lib.case import HEARTH, MIB, Case, Measure
from lib.text import Text
from cases.long_context import await_quiet

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


def fio_speed(paths):
    found = []
    for direct in (False, True):
        drop_caches()
        found.append(fio(paths, direct))
    return max(filter(None, found), default=None)


def memcpy_speed(count, rounds=5):
    """Bytes per second between two buffers that have been touched."""
    source, target = ctypes.create_string_buffer(count), ctypes.create_string_buffer(count)
    speeds = []
    for _ in range(rounds):
        start = time.monotonic()
        ctypes.memmove(target, source, count)
        speeds.append(count / (time.monotonic() - start))
    return stats.median(speeds)


def long_prompt(client, tokens, *seed):
    """Token ids of prose: exactly as many as are asked for."""
    ids = client.tokenize(Text("disk", *seed).words(int(tokens * WORDS_PER_TOKEN * 1.5)))
    assert len(ids) >= tokens, len(ids)
    return ids[:tokens]


def complete(client, prompt, max_tokens):
    return client.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                                           "ignore_eos": True})


class Disk(Case):
    """The disk's part

    *Cold*: a prompt of 12,288 tokens restored by a new process with an empty page cache, against fio reading the same
    files (root and fio are needed). *Cached*: the same with the files in the page cache, against memcpy. *Turn*: bytes
    written for a turn of 100 new tokens on that conversation, the most of four. *Decode*: decoding right after a
    prompt of 4,096 tokens, while its state is written, relative to a server without a disk. HEARTH_BENCH_DIR names
    the folder that it happens in.
    """
    name, group = "disk", "cost"
    in_record = False
    servers = (HEARTH,)
    classes, lanes = ("pages", "hybrid"), (1,)
    rounds = (3, 3)
    limit_s = 600
    measures = {
        "cold": Measure("cold restore", "MiB/s", compared=False),
        "fio": Measure("fio, the same files", "MiB/s", compared=False),
        "cold-share": Measure("cold restore / fio", compared=False, digits=2),
        "cached": Measure("cached restore", "MiB/s", compared=False),
        "memcpy": Measure("memcpy", "MiB/s", compared=False),
        "cached-share": Measure("cached restore / memcpy", compared=False, digits=2),
        "turn": Measure("written for a turn", "MiB", compared=False, exact=True, digits=2),
        "page": Measure("a page", "MiB", compared=False, exact=True, digits=2),
        "snapshot": Measure("a snapshot", "MiB", compared=False, exact=True, digits=2),
        "decode": Measure("decode while writing / without a disk", compared=False, digits=3),
    }

    @staticmethod
    def _serve(plan, cell, folder, extra=()):
        flags = ["--kv-dir", folder, "--kv-disk", "32768"] if folder else ["--kv-dir", "none"]
        return plan.start(HEARTH, cell, 32768, 2048, [*flags, *extra])

    def round(self, plan, cell, kind, number, running=None):
        with tempfile.TemporaryDirectory(prefix="hearth-disk-", dir=os.environ.get("HEARTH_BENCH_DIR")) as folder:
            return {"values": {**self._restores(plan, cell, os.path.join(folder, "restore")),
                               **self._turns(plan, cell, os.path.join(folder, "turn")),
                               "decode": self._decode(plan, cell, os.path.join(folder, "decode"), number)}}

    def _restore(self, plan, cell, folder, prompt, prepare):
        """Bytes per second of one restore by a new process."""
        with self._serve(plan, cell, folder) as running:
            deadline = time.monotonic() + 60
            while running.client.metrics()["hearth_disk_scanned"] != 1 and time.monotonic() < deadline:
                time.sleep(0.05)
            prepare()
            before = running.client.metrics()["hearth_disk_read_bytes_total"]
            receipt = complete(running.client, prompt + prompt[:1], 1)["hearth"]
            read = running.client.metrics()["hearth_disk_read_bytes_total"] - before
        if receipt["reused"]["disk"] < len(prompt) - 256:
            raise RuntimeError(f"only {receipt['reused']['disk']} tokens came from disk")
        return read / (receipt["plan_ms"] + receipt["restore_ms"]) * 1000

    def _restores(self, plan, cell, folder):
        with self._serve(plan, cell, folder) as running:
            prompt = long_prompt(running.client, plan.pick(12288, 4096))
            complete(running.client, prompt, 1)
            await_quiet(running.client)
        paths = state_files(folder)
        speeds = {}
        if drop_caches():
            speeds["cold"] = self._restore(plan, cell, folder, prompt, drop_caches)
            speeds["fio"] = fio_speed(paths) if shutil.which("fio") else None
        speeds["cached"] = self._restore(plan, cell, folder, prompt, lambda: warm(paths))
        speeds["memcpy"] = memcpy_speed(min(sum(map(os.path.getsize, paths)), 512 * MIB))
        out = {name: speed / MIB for name, speed in speeds.items() if speed}
        if "cold" in out and "fio" in out:
            out["cold-share"] = out["cold"] / out["fio"]
        return {**out, "cached-share": out["cached"] / out["memcpy"]}

    def _turns(self, plan, cell, folder):
        written = []
        with self._serve(plan, cell, folder) as running:
            prompt = long_prompt(running.client, plan.pick(12288, 4096), "turn")
            complete(running.client, prompt, 1)
            before = await_quiet(running.client)
            sizes = [(path, os.path.getsize(path)) for path in state_files(folder)]
            page, snapshot = (max((size for path, size in sizes if path.endswith(ending)), default=0)
                              for ending in (".page", ".snap"))
            for turn in range(4):
                prompt = prompt + long_prompt(running.client, 60, "more", turn)
                answer = complete(running.client, prompt, 40)
                prompt = prompt + running.client.tokenize(answer["choices"][0]["text"])
                after = await_quiet(running.client)
                written.append(after["hearth_disk_written_bytes_total"] - before["hearth_disk_written_bytes_total"])
                before = after
        return {"turn": max(written) / MIB, "page": page / MIB, "snapshot": snapshot / MIB}

    def _decode(self, plan, cell, folder, number):
        speeds = []
        for where in (folder, None):
            # Everything is written at the end of the prefill, at full rate, while the reply is decoded.
            with self._serve(plan, cell, where, ["--kv-interval-tokens", "1000000"] if where else []) as running:
                prompt = long_prompt(running.client, plan.pick(4096, 2048), "decode", number)
                timings = complete(running.client, prompt, 64)["timings"]
                speeds.append(timings["predicted_n"] / timings["predicted_ms"])
        return speeds[0] / speeds[1]


CASES = [Disk()]
