#!/usr/bin/env python3
"""The record: hearth beside llama-server of the same source and flags, case by case, in one run.

    bench/bench.py                        the whole record, into bench/report
    bench/bench.py --quick                the same in a few rounds, into build/bench
    bench/bench.py alternating restart -np 1 -m hybrid      a selection, into build/bench
    bench/bench.py --resume               goes on with a run that was cut off
    bench/bench.py --list                 what there is

A name is a case or a group of them; -m is a memory class, or class=FILE for a model of one's own. All cells get a
round first; then, while there is time (--minutes), those whose ratio is known worst get another one. A round that
fails is reported and costs nobody else. After every round the report is written: report.md, report.json and the plots.
"""

import argparse
import os
import signal
import sys
import time
import traceback

import cases
from lib import case as kinds
from lib import figures, page, server, store

PRINTED_ROUNDS = 3
SPREAD_GOAL = 0.05  # a cell whose ratios are known as well needs no more rounds


class OutOfTime(Exception):
    pass


def _alarm(number, frame):
    raise OutOfTime


def limited(seconds, call):
    signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)  # again and again: an event loop may catch it
    try:
        return call()
    except OutOfTime:
        raise TimeoutError(f"no end after {seconds} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Runner:
    def __init__(self, plan, record, kinds_wanted, minutes):
        self.plan, self.record, self.wanted = plan, record, kinds_wanted
        self.deadline_s = time.monotonic() + 60 * minutes
        self.printed = figures.printed()

    def say(self, text):
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)

    def _order(self, case, number):
        """Nobody is always the one that comes after the other."""
        kinds_here = [kind for kind in case.servers if kind in self.wanted]
        return kinds_here if number % 2 == 0 else list(reversed(kinds_here))

    def _round(self, case, cell, number, running):
        out = {}
        for kind in self._order(case, number):
            others = [other for name, other in running.items() if name != kind]
            for other in others:
                other.halt()
            try:
                out[kind] = limited(case.limit_s,
                                    lambda: case.round(self.plan, cell, kind, number, running.get(kind)))
            finally:
                for other in others:
                    other.resume()
            values = " ".join(f"{name}={value:.4g}" for name, value in out[kind]["values"].items() if value is not None)
            self.say(f"{case.name} {cell.key} {kind}: {values}")
        return out

    def measure(self, case, cell):
        """One more round of a cell; what goes wrong is noted there. False: something did."""
        result = self.record.cell(case, cell)
        running, start = {}, time.monotonic()
        self.plan.flags = {}
        try:
            if case.both_alive:
                for kind in self._order(case, len(result["rounds"])):
                    running[kind] = case.open(self.plan, cell, kind)
                    limited(case.limit_s, lambda: case.warm_up(self.plan, cell, running[kind]))
                    running[kind].halt()
                for each in running.values():
                    each.resume()
            result["rounds"].append(self._round(case, cell, len(result["rounds"]), running))
            result.pop("error", None)
        except KeyboardInterrupt:
            raise
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {str(error)[:600]}"
            self.say(f"{case.name} {cell.key} failed: {result['error']}")
            traceback.print_exc(limit=-4, file=sys.stderr)
        finally:
            for each in running.values():
                each.stop()
        result["seconds"] = round(result.get("seconds", 0) + time.monotonic() - start, 1)
        self.record.note(case, cell, self.plan)
        return "error" not in result

    def _wanted(self, case, cell):
        """How many rounds a cell gets in any case: more where README.md or docs/ print its ratio."""
        shown = not self.plan.quick and f"{case.name}.{cell.key}" in self.printed
        return max(case.fewest_rounds(self.plan), PRINTED_ROUNDS if shown else 0)

    def first_pass(self, chosen):
        for case in chosen:
            self.say(f"== {case.name}: {case.title}")
            for cell in case.selected(self.plan):
                rounds = self.record.cell(case, cell)["rounds"]
                while len(rounds) < self._wanted(case, cell) and self.measure(case, cell):
                    pass
            self.record.write()

    def more_rounds(self, chosen):
        """Where the ratio is known worst, as long as there is time."""
        while True:
            left_s, found = self.deadline_s - time.monotonic(), []
            for case in chosen:
                for cell in case.selected(self.plan):
                    result = self.record.cell(case, cell)
                    done = len(result["rounds"])
                    if "error" in result or not done or done >= case.most_rounds(self.plan):
                        continue
                    each_s, spread = result["seconds"] / done, kinds.widest_spread(case, result)
                    if spread > SPREAD_GOAL and 1.2 * each_s < left_s:
                        found.append((min(spread, 10) / each_s, case, cell))
            if not found:
                return
            _, case, cell = max(found, key=lambda each: each[0])
            self.measure(case, cell)
            self.record.write()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help="names of cases or groups; default: all of the record")
    parser.add_argument("-np", "--lanes", action="append", type=int, help="only these (repeatable)")
    parser.add_argument("-m", "--model", action="append", default=[], metavar="CLASS[=FILE]",
                        help=f"only these memory classes: {', '.join(kinds.CLASSES)} (repeatable)")
    parser.add_argument("-t", "--threads", type=int, help="of both servers; default: all cores")
    parser.add_argument("--server", action="append", choices=kinds.BOTH, help="default: both")
    parser.add_argument("--quick", action="store_true", help="one round of less, for a look")
    parser.add_argument("--minutes", type=float, help="more rounds are begun until then (default: 120; quick: 15)")
    parser.add_argument("--resume", action="store_true", help="keep the rounds of the run before, which was cut off")
    parser.add_argument("--out", metavar="DIR", help="where the report goes (default: see above)")
    parser.add_argument("--list", action="store_true", help="the cases, and nothing else")
    return parser.parse_args()


def show_list():
    for case in cases.ALL:
        apart = "" if case.in_record else "   (not in the record: by name)"
        print(f"{case.name:16} {case.group:12} {case.title}{apart}")
    return 0


def main():
    options = arguments()
    if options.list:
        return show_list()
    chosen = cases.select(options.case)
    own = dict(name.split("=", 1) for name in options.model if "=" in name)
    classes = [name.split("=", 1)[0] for name in options.model]
    unknown = [name for name in classes if name not in kinds.CLASSES]
    if unknown:
        sys.exit(f"there is no memory class {unknown[0]}: {', '.join(kinds.CLASSES)}")
    whole = not (options.case or options.lanes or options.model or options.server or options.quick or options.threads)
    out = options.out or os.path.join(server.REPOSITORY, *(("bench", "report") if whole else ("build", "bench")))
    plan = kinds.Plan(options.quick, options.threads, classes, options.lanes, own)
    record = store.Record(out, plan, chosen, whole, options.resume)
    runner = Runner(plan, record, options.server or kinds.BOTH, options.minutes or (15 if options.quick else 120))
    try:
        runner.first_pass(chosen)
        runner.more_rounds(chosen)
    finally:
        record.write(ended=True)
    print(page.summary(record))
    if whole:
        print(figures.compare_with_pages(record.data["figures"]))
    print(f"the report is {os.path.relpath(os.path.join(out, 'report.md'))}")
    return 1 if record.errors() else 0


if __name__ == "__main__":
    sys.exit(main())
