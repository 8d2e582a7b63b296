"""The record on disk: report.json holds everything that was measured; report.md and the plots are made of it.

    {"format", "machine", "models", "quick", "started", "seconds",
     "cases": {name: {"title", "flags": {server: command line},
                      "cells": {key: {"label", "rounds": [{server: {"values": {measure: number}, …}}],
                                      "seconds", "commit", "date", "error", "machine"}}}},
     "figures": {"case.class.lanes.measure": {"hearth", "peer", "ratio", "low", "high", "spread", "unit", "kind",
                                              "rounds"}}}

A run of the whole record starts from nothing; one of a selection replaces what it measures in the report that is
there, if that is of the same machine. A cell with a `machine` was taken over from the record of that one.
"""

import json
import os
import sys
import time

from . import case as kinds
from . import machine, page

FORMAT = 1


def load(folder):
    try:
        with open(os.path.join(folder, "report.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if found.get("format") == FORMAT else None


def _same_machine(a, b):
    return all(a.get(name) == b.get(name) for name in ("cpu", "cores"))


class Record:
    def __init__(self, folder, plan, chosen, whole, resume):
        self.folder, self.plan, self.chosen = folder, plan, {case.name: case for case in chosen}
        os.makedirs(folder, exist_ok=True)
        here = machine.describe()
        before = load(folder)
        if before and not whole and not _same_machine(before["machine"], here):
            sys.exit(f"{folder} holds the record of another machine, {machine.short(before['machine'])}: name another "
                     "folder (--out)")
        if before and (not _same_machine(before["machine"], here) or before["quick"] != plan.quick):
            before = None
        if before and resume and before["machine"]["hearth_commit"] != here["hearth_commit"]:
            print("resuming: the rounds that are kept are of another commit")
        self.data = before if before and (resume or not whole) else {
            "format": FORMAT, "machine": here, "models": {}, "quick": plan.quick, "seconds": 0, "cases": {},
            "started": time.strftime("%Y-%m-%d %H:%M %Z")}
        self.data["machine"] = here
        if not resume:
            for case in chosen:
                self._forget(case)
        self._digests = {}  # of the models that this run has used
        self._begun, self._before_s = time.monotonic(), self.data["seconds"]

    def _forget(self, case):
        """The cells that are about to be measured again."""
        cells = self.data["cases"].get(case.name, {}).get("cells", {})
        for cell in case.selected(self.plan):
            cells.pop(cell.key, None)

    def cell(self, case, cell):
        entry = self.data["cases"].setdefault(case.name, {"title": case.title, "flags": {}, "cells": {}})
        return entry["cells"].setdefault(cell.key, {"label": cell.label, "rounds": [], "seconds": 0})

    def note(self, case, cell, plan):
        """What the cell was measured with."""
        result = self.cell(case, cell)
        flags = self.data["cases"][case.name]["flags"]
        for kind, said in plan.flags.items():
            flags[kind] = in_common(flags.get(kind, said), said)
        result["commit"], result["date"] = self.data["machine"]["hearth_commit"], time.strftime("%Y-%m-%d")

    def errors(self):
        return [f"{name} {key}: {result['error']}" for name, entry in self.data["cases"].items()
                for key, result in entry["cells"].items() if "error" in result]

    def write(self, ended=False):
        data = self.data
        data["seconds"] = round(self._before_s + time.monotonic() - self._begun)
        for name, path in self.plan.used_models.items():
            if name not in self._digests:
                self._digests[name] = machine.model(path)
        data["models"].update(self._digests)
        import cases  # the cases know this module's neighbours
        known = {case.name: case for case in cases.ALL}
        data["cases"] = {name: data["cases"][name] for name in known if name in data["cases"]}
        data["figures"] = {}
        for name, entry in data["cases"].items():
            order = {cell.key: place for place, cell in enumerate(known[name].cells(kinds.Plan()))}
            entry["cells"] = dict(sorted(entry["cells"].items(), key=lambda item: order.get(item[0], len(order))))
            data["figures"].update(kinds.figures(known[name], entry["cells"]))
        path = os.path.join(self.folder, "report.json")
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(compact(data))
        os.replace(path + ".new", path)
        page.write(self.folder, data, known)


def in_common(one, other):
    """Of two command lines: N for a value that each cell has its own of, such as a budget."""
    words = one.split(), other.split()
    if len(words[0]) != len(words[1]):
        return other
    return " ".join(a if a == b else "N" for a, b in zip(*words))


def compact(data):
    """JSON with a line for each round and each figure, so that a record can be compared with the one before."""
    def lines(value, depth, path):
        if isinstance(value, dict) and value and depth < 7:
            if path[:1] == ["figures"] and depth == 2:
                return json.dumps(value, ensure_ascii=False)
            inner = [f"{' ' * depth}{json.dumps(key)}: {lines(item, depth + 1, [*path, key])}"
                     for key, item in value.items()]
            return "{\n" + ",\n".join(inner) + "}"
        if isinstance(value, list) and path and path[-1] == "rounds":
            return "[\n" + ",\n".join(" " * depth + json.dumps(item, ensure_ascii=False) for item in value) + "]"
        return json.dumps(value, ensure_ascii=False)

    return lines(data, 1, []) + "\n"
