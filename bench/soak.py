#!/usr/bin/env python3
"""Traffic for a long time, with clients that leave, stall and send garbage, and what must be true of the server
meanwhile and afterwards: `make soak`.

    bench/soak.py [sim] [real] [--minutes N] [--out PATH]

sim     a day of 64 agents in an hour, against the sim engine: one request of the day follows the other 24 times faster.
        --minutes N: N/60 of the day.
real    SmolLM2 on four lanes, with state on disk and sessions, for 10 minutes (--minutes N: for N).

Agents speak all three dialects, with tools, sessions, edits, forks, priorities and deadlines, under three keys; beside
them are at most as many clients that misbehave (lib/rowdy.py), and keys and log level are read again (SIGHUP) all the
time.

What is checked: resident memory is flat within 2 % once everything that has a budget is full (after a third of the
time, and for sim after 15 minutes; the medians of both halves of the rest, and the slope over all of it; a run that
ends earlier may still gain 4 MiB in its second half), open files and threads are those of the beginning, no connection
and no request is left, every lane is idle, none was older than its deadline, every valid request was answered, no
invalid one was, as many were answered as the day has, few were refused because the queue was full, every warning and
error in the log has a cause that is expected, the counters add up, and a conversation whose reply is greedy gets the
same one as at the beginning. The exit status is 1 when something is not so.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time

from lib import rowdy, server
from lib.client import HttpError
from lib.stats import number, save, table
from lib.text import Text

AGENTS = 64
DAY_REQUESTS = AGENTS * 24 * 6  # an agent asks six times in an hour of its day
MEMORY_SHARE = 0.02
LATE_BYTES = 4 << 20  # of the transcripts' budget and the database's cache
SAMPLE_S = 1.0
# Of a scheduler that looks at deadlines between two batches, and of a machine that does other things as well.
LATE_MS = 15000
IDLE_S = 90
LONG_MS = 60000

KINDS = {
    "sim": {"minutes": 60, "agents": AGENTS, "prompt_words": 150, "reply_tokens": 64, "patience_s": 180,
            "quiet_s": 900,
            "flags": ["--engine", "sim", "-np", "16", "-c", "131072", "--cache-ram", "4", "--transcript-bytes", "1M"]},
    "real": {"minutes": 10, "agents": 8, "prompt_words": 150, "reply_tokens": 24, "patience_s": 600, "quiet_s": 180,
             "flags": ["-np", "4", "-c", "8192", "--cache-ram", "96", "--kv-disk", "256", "--transcript-bytes", "2M"]},
}

# Lines of the log at "warn" and "error" that such clients must bring about. A reload that fails is none of them.
EXPECTED = (
    r"^http: \d+ more lines like these were left out",
)


def is_expected(line):
    return any(re.search(pattern, line) for pattern in EXPECTED)


# ---- looking at the server ----

class Watch:
    """Samples of the process, once in SAMPLE_S, and of what it says about its lanes."""

    def __init__(self, running, key):
        self.running, self.headers = running, {"Authorization": f"Bearer {key}"}
        self.samples, self.late, self.failures = [], [], 0
        self.waits = {}  # of requests that have waited for long: what the server says about them

    def ask(self, path):
        connection, response = self.running.client.open("GET", path, headers=self.headers)
        try:
            return response.read().decode()
        finally:
            connection.close()

    def metrics(self):
        return {name: float(value) for name, _, value in
                (line.partition(" ") for line in self.ask("/metrics").splitlines()
                 if line and line[0] != "#" and "{" not in line)}

    def _thread_name(self, number):
        """Those of io_uring are the kernel's, which begins and ends them as it likes."""
        try:
            with open(f"/proc/{self.running.process.pid}/task/{number}/comm", encoding="utf-8") as file:
                return file.read()
        except OSError:
            return "iou-gone"

    def process(self):
        pid = self.running.process.pid
        threads = sum(not name.startswith("iou-") for name in map(self._thread_name, os.listdir(f"/proc/{pid}/task")))
        return {"rss": self.running.memory_bytes("VmRSS"), "anon": self.running.memory_bytes("RssAnon"),
                "files": len(os.listdir(f"/proc/{pid}/fd")), "threads": threads}

    def look(self):
        """A sample, and requests that are older than they may be."""
        sample = {"at": time.monotonic(), **self.process()}
        self.samples.append(sample)
        try:
            slots, queue = json.loads(self.ask("/slots")), json.loads(self.ask("/queue"))
            sample["page_bytes"] = self.metrics()["hearth_page_bytes"]
        except (OSError, HttpError, ValueError):
            self.failures += 1
            return
        for what in [slot.get("hearth") for slot in slots] + queue["requests"]:
            if what and what.get("deadline_in_ms", 0) < -LATE_MS and len(self.late) < 20:
                self.late.append(what)
        for what in queue["requests"]:
            if what["waited_ms"] > LONG_MS and (len(self.waits) < 50 or what["id_task"] in self.waits):
                self.waits[what["id_task"]] = what

    def idle(self):
        """What is still at work, as text; None: nothing."""
        slots = [slot for slot in json.loads(self.ask("/slots")) if slot["is_processing"]]
        found = self.metrics()
        if slots or found["hearth_queued"] or found["hearth_http_connections"] > 1:
            return f"{len(slots)} lanes busy, {found['hearth_queued']:.0f} waiting, " \
                   f"{found['hearth_http_connections'] - 1:.0f} connections"
        return None

    def wait(self, busy):
        """Until `busy` returns nothing, for IDLE_S at most; what it returned last."""
        ends = time.monotonic() + IDLE_S
        while (left := busy()) and time.monotonic() < ends:
            time.sleep(0.5)
        return left

    def wait_idle(self):
        return self.wait(self.idle)

    def wait_closed(self, files):
        """What is written behind the last reply has its files open a while longer."""
        self.wait(lambda: self.process()["files"] > files)
        return self.process()


def probe(watch, cached):
    """Greedy replies of a conversation that grows. Each goes on counting, so that the next token is never a close call:
    how a batch is split, which depends on what else there is to do, moves logits by a little."""
    prompt, replies = Text("probe").words(200), []
    for first in (1, 40, 71):
        prompt += "\n\nThe numbers: " + " ".join(f"{n}," for n in range(first, first + 12))
        connection, response = watch.running.client.open(
            "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 24, "temperature": 0, "seed": 1,
                                        "cache_prompt": cached}, watch.headers)
        try:
            replies.append(json.loads(response.read())["choices"][0]["text"])
        finally:
            connection.close()
        prompt += replies[-1]
    return replies


# ---- the traffic ----

async def repeat(make, wait, ends, most):
    """Begins one after the other, `most` at a time."""
    running = set()
    while time.monotonic() < ends:
        await asyncio.sleep(wait())
        running = {task for task in running if not task.done()}
        if len(running) < most:
            running.add(asyncio.create_task(make()))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def traffic(watch, soaker, kind, seconds, live):
    pick, loop = random.Random("times"), asyncio.get_running_loop()
    ends = time.monotonic() + seconds
    if kind["agents"] == AGENTS:
        think_s = AGENTS * 3600 / DAY_REQUESTS
    else:
        think_s = 4.0
    slow_s = max(5.0, min(120.0, seconds / 5))

    async def look():
        while time.monotonic() < ends:
            await loop.run_in_executor(None, watch.look)
            await asyncio.sleep(SAMPLE_S)

    async def reload():
        while time.monotonic() < ends:
            await asyncio.sleep(min(7.0, max(0.1, ends - time.monotonic())))
            live(pick)
            watch.running.process.send_signal(signal.SIGHUP)

    await asyncio.gather(
        look(), reload(), *(soaker.agent(n, think_s, ends) for n in range(kind["agents"])),
        repeat(lambda: soaker.misbehave(slow_s * pick.random()), lambda: pick.expovariate(1.5), ends,
               most=kind["agents"]))


# ---- what must be true ----

def slope(samples, field):
    """Least squares: how much the field grows in a second."""
    times, values = [sample["at"] for sample in samples], [sample[field] for sample in samples]
    if len(samples) < 3:
        return 0.0
    return statistics.linear_regression(times, values).slope


def memory_check(samples, quiet_s):
    """Flat from when everything that has a budget is full: after a third of the time, and after `quiet_s`. A run that
    is too short for that is judged by its second half, in which what fills up late may still do so."""
    begin, end = samples[0]["at"], samples[-1]["at"]
    since = begin + max((end - begin) / 3, quiet_s)
    long_enough = end - since >= (end - begin) / 3
    counted = [sample for sample in samples if sample["at"] >= (since if long_enough else (begin + end) / 2)]
    half = len(counted) // 2
    before, after = (statistics.median(sample["rss"] for sample in part) for part in (counted[:half], counted[half:]))
    drift = slope(counted, "rss") * (counted[-1]["at"] - counted[0]["at"]) / before
    figures = {"first": samples[0]["rss"], "before": before, "after": after, "grown": after / before - 1,
               "drift": drift, "long_enough": long_enough}
    most = MEMORY_SHARE if long_enough else max(MEMORY_SHARE, LATE_BYTES / before)
    return abs(after / before - 1) <= most and abs(drift) <= most, figures


def log_check(text):
    """Lines at warn or error that are not expected, failures without their error, and how many lines of each level there are."""
    odd, levels = [], {}
    for line in text.splitlines():
        parts = re.match(r"^\d\d:\d\d:\d\d\.\d+ (debug|info|warn|error) +(.*)", line)
        if not parts:
            continue
        level, what = parts.groups()
        levels[level] = levels.get(level, 0) + 1
        if (level in ("warn", "error") and not is_expected(what)) or (" end=failed" in what and "error=" not in what):
            odd.append(line)
    return odd, levels


def counters_check(found):
    ended = sum(found[f"hearth_requests_{how}_total"] for how in ("done", "failed", "cancelled"))
    return found["hearth_requests_total"] == ended, {
        name: found[f"hearth_{name}_total"] for name in
        ("requests", "requests_done", "requests_failed", "requests_cancelled", "requests_refused", "requests_late",
         "http_requests", "http_dropped", "http_refused", "http_evicted", "http_timeouts", "http_malformed",
         "http_stalled", "preemptions", "yields", "evicted_pages", "prompt_tokens", "prompt_computed_tokens")}


def run(name, minutes):
    kind, seconds = KINDS[name], minutes * 60
    flags = list(kind["flags"])
    ledger, checks = rowdy.Ledger(), []
    tempfile.tempdir = None

    def check(what, ok, told=""):
        checks.append({"check": what, "ok": bool(ok), "told": str(told)})
        print(f"  {'ok  ' if ok else 'FAIL'} {what}{': ' if told != '' else ''}{told}", flush=True)

    with tempfile.TemporaryDirectory(prefix="hearth-soak-") as place:
        keys, config = os.path.join(place, "keys"), os.path.join(place, "config")

        def live(pick):
            """Rewrites what SIGHUP reads."""
            classes = {rowdy.KEYS[0]: " scope=infer,sessions,admin",  # it watches, too
                       rowdy.KEYS[2]: f" class=background weight={pick.choice((0.5, 1, 2))}"}
            for path, lines in (
                    (keys, [key + classes.get(key, "") for key in rowdy.KEYS] + [f"soak-{pick.randrange(1000)}"]),
                    (config, [f"log-level = {pick.choice(('info', 'warn', 'debug'))}"])):
                with open(os.open(path + ".new", os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
                    file.write("\n".join(lines) + "\n")
                os.replace(path + ".new", path)

        live(random.Random("first"))
        tempfile.tempdir = place  # for the server's log: nobody tidies up here
        flags += ["--api-key-file", keys, "--config", config, "--session-db", os.path.join(place, "soak.db")]
        flags += ["--kv-dir", os.path.join(place, "kv")] if name == "real" else []
        flags += ["-m", os.path.join(server.models_dir(), "smollm2.gguf")] if name == "real" else []
        with server.Server([server.hearth_path(), "serve", *flags, "--metrics", "--slots"]) as running:
            watch = Watch(running, rowdy.KEYS[0])
            cold, warm = probe(watch, False), probe(watch, True)
            watch.wait_idle()
            first = watch.process()
            print(f"{name}: {minutes:g} minutes with {kind['agents']} agents", flush=True)
            soaker = rowdy.Soaker(running.port, ledger, name, kind["patience_s"], kind["prompt_words"],
                                  kind["reply_tokens"])
            asyncio.run(traffic(watch, soaker, kind, seconds, live))
            left = watch.wait_idle()
            check("every lane is idle and every connection closed", left is None, left or "")
            last, found = watch.wait_closed(first["files"] + 2), watch.metrics()
            flat, memory = memory_check(watch.samples, kind["quiet_s"])
            check("memory is flat", flat, f"{memory['before'] / 2**20:.1f} to {memory['after'] / 2**20:.1f} MiB "
                  f"({memory['grown']:+.2%}), drift {memory['drift']:+.2%}"
                  + ("" if memory["long_enough"] else "; the run is too short for 2 %"))
            check("open files are those of the beginning", last["files"] <= first["files"] + 2,
                  f"{first['files']} and {last['files']}")
            check("threads are those of the beginning", last["threads"] <= first["threads"] + 2,
                  f"{first['threads']} and {last['threads']}")
            check("no request outlived its deadline", not watch.late, watch.late or "")
            check("every valid request was answered, and no invalid one", not ledger.wrong and not ledger.open,
                  f"{len(ledger.wrong)} were not" if ledger.wrong else "")
            answered, refused = ledger.statuses[200], ledger.statuses[429]
            due = 0.9 * DAY_REQUESTS * minutes / 60 if name == "sim" else 10 * minutes
            check("as many were asked as there had to be, and few refused", answered >= due and refused <= answered / 20,
                  f"{answered} answered, {refused} refused with 429")
            balanced, counters = counters_check(found)
            check("the counters add up", balanced)
            check("the server could always be asked", watch.failures == 0, watch.failures or "")
            cold_again, again = probe(watch, False), probe(watch, True)
            check("the probe is answered as at the beginning", cold == cold_again,
                  "" if cold == cold_again else f"{cold} and {cold_again}")
            check("and so it is from the cache", again == warm, "" if again == warm else f"{warm} and {again}")
            status = running.stop()
            check("it ends when it is told to", status == 0, status)
            odd, levels = log_check(running.log())
            check("every warning and error in the log is expected", not odd, f"{len(odd)} are not" if odd else "")
    return {"kind": name, "minutes": minutes, "hours_of_the_day": minutes / 60 * 24 if name == "sim" else None,
            "checks": checks, "memory": memory, "first": first, "last": last, "counters": counters,
            "clients": dict(sorted(ledger.counts.items())), "wrong": ledger.wrong, "log_levels": levels,
            "odd_lines": odd[:50], "samples": watch.samples, "from_cache_as_before": again == warm,
            "long_waits": list(watch.waits.values())}


def report(results):
    parts = ["# Soak\n"]
    for result in results:
        parts.append(f"## {result['kind']}, {result['minutes']:g} minutes\n")
        parts.append(table(("check", "", ""), [(each["check"], "ok" if each["ok"] else "**failed**", each["told"])
                                               for each in result["checks"]]))
        parts.append("\n" + table(("counter", ""), [(name, number(value, 0))
                                                    for name, value in result["counters"].items()]))
        parts.append("\n" + table(("clients", ""), list(result["clients"].items())) + "\n")
        for title, lines in (("What was wrong", result["wrong"]), ("Lines of the log", result["odd_lines"])):
            if lines:
                parts.append(f"{title}:\n\n```\n" + "\n".join(lines) + "\n```\n")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="sim, real (default: both)")
    parser.add_argument("--minutes", type=float, help="of each")
    parser.add_argument("--out", default=os.path.join("build", "soak", "soak"), help="report: PATH.md and PATH.json")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"there is no {unknown.pop()}: there are sim and real")
    if options.minutes is not None and options.minutes < 0.5:
        parser.error("--minutes: half a minute at least")
    results = [run(name, options.minutes or KINDS[name]["minutes"]) for name in options.kinds or KINDS]
    save(options.out, report(results), results)
    print(f"report: {options.out}.md")
    sys.exit(0 if all(each["ok"] for result in results for each in result["checks"]) else 1)


if __name__ == "__main__":
    main()
