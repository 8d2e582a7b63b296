"""What the machinery costs: bench/micro (hearth-micro), which is run here and whose lines are kept."""

import json
import os
import subprocess
import tempfile

from lib import server, stats
from lib.case import HEARTH, Case, Cell, Measure
from lib.svg import Plot

PAGE_TOKENS = 256  # hearth's own; others are rows of the table
PROMPT_TOKENS = 32000
IN_RAM = {"class": "pages", "state": "ram"}
PLAIN = {**IN_RAM, "page_tokens": PAGE_TOKENS}
JUDGED = {"match-plan": {**PLAIN, "cpu_caches": "random"}, "match-plan-cold": {**PLAIN, "cpu_caches": "cold"}}


def program():
    return os.environ.get("HEARTH_MICRO") or os.path.join(os.path.dirname(server.hearth_path()), "bench", "micro",
                                                          "hearth-micro")


def time_text(ns):
    for limit, unit, name in ((1e3, 1, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if ns < limit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns / 1e9:.3g} s"


class Micro(Case):
    """The cost of the machinery

    Medians of `hearth-micro` (bench/micro), which runs the parts of hearth by themselves: match and plan, insert,
    evict and forget against what is stored; export and import of state on real models; what a batch costs beside its
    computation; and the memory of a page beyond its bytes. *match+plan* of a prompt of 32,000 tokens against the
    largest store is also a figure of its own: with another prompt each time (random), and with the processor's caches
    emptied before (cold). *state* says where the pages are. They have 256 tokens, as by default, where nothing else is
    said.
    """
    name, group = "micro", "cost"
    servers = (HEARTH,)
    rounds = (1, 1)
    limit_s = 900
    measures = {"match-plan": Measure("match + plan, 32,000 tokens, largest store", "µs", compared=False),
                "match-plan-cold": Measure("the same, the processor's caches empty", "µs", compared=False)}

    def cells(self, plan):
        return [Cell("pages", 1)]

    def round(self, plan, cell, kind, number, running=None):
        with tempfile.TemporaryDirectory(prefix="hearth-micro-") as folder:
            path = os.path.join(folder, "lines.json")
            command = [program(), "--json", path, "--models", server.models_dir(), *plan.pick([], ["--quick"])]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self.limit_s)
            if done.returncode != 0:
                raise RuntimeError(f"{os.path.basename(command[0])} ended with {done.returncode}: {done.stderr[-400:]}")
            with open(path, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        values = {}
        for measure, wanted in JUDGED.items():
            found = [
                line for line in lines if line["name"] == "match+plan" and wanted.items() <= line["params"].items()
                and line["params"]["tokens"] <= PROMPT_TOKENS
            ]
            if found:
                largest = max(found, key=lambda line: (line["params"]["pages"], line["params"]["tokens"]))
                values[measure] = largest["median_ns"] / 1000
        return {"values": values, "lines": lines}

    @staticmethod
    def _lines(cells):
        return [line for result in cells.values() for line in result["rounds"][-1][HEARTH]["lines"]]

    def section(self, cells):
        """Matching as one table of stored pages by prompt tokens; the rest line by line."""
        lines = self._lines(cells)
        blocks = [_match_table(lines, name) for name in ("match", "match+plan")]
        rows = []
        for line in lines:
            params = ", ".join(f"{name} {value}" for name, value in line["params"].items())
            if line["name"] in ("match", "match+plan"):
                continue
            if "median_ns" in line:
                rows.append(
                    [
                        f"{line['name']}: {params}",
                        *(time_text(line[name]) for name in ("median_ns", "p10_ns", "p90_ns")),
                    ]
                )
            else:
                rows.append([f"{line['name']}: {params}", f"{line['value']:.4g} {line['unit']}", "", ""])
        figures = [
            [measure.title, *(f"{result['rounds'][-1][HEARTH]['values'][name]:.1f} µs" for result in cells.values())]
            for name, measure in self.measures.items()
            if all(name in result["rounds"][-1][HEARTH]["values"] for result in cells.values())
        ]
        return "\n\n".join(
            [stats.table(["", "median"], figures), *filter(None, blocks), stats.table(["", "median", "p10", "p90"], rows)]
        )

    def plots(self, cells):
        lines = [line for line in self._lines(cells) if "median_ns" in line and PLAIN.items() <= line["params"].items()]
        return [plot for plot in (_match_plot(lines, "tokens", "pages"), _match_plot(lines, "pages", "tokens"),
                                  _store_plot(lines)) if plot]


def _match_table(lines, name):
    """Of stored pages by prompt tokens, in RAM; "" without lines."""
    match = {
        (line["params"]["page_tokens"], line["params"]["pages"], line["params"]["tokens"]): line["median_ns"]
        for line in lines
        if line["name"] == name and {**IN_RAM, "cpu_caches": "random"}.items() <= line["params"].items()
    }
    if not match:
        return ""
    tokens = sorted({count for _, _, count in match})
    rows = []
    for size, pages in sorted({(size, pages) for size, pages, _ in match}, key=lambda row: (-row[0], row[1])):
        times = (match.get((size, pages, count)) for count in tokens)
        rows.append([f"{pages:,}" + ("" if size == PAGE_TOKENS else f", of {size} tokens"),
                     *("" if time is None else time_text(time) for time in times)])
    return stats.table([f"{name} (random): stored pages", *(f"{each:,} tokens" for each in tokens)], rows)


def _point(line, axis):
    return (line["params"][axis], *(line[name] / 1000 for name in ("median_ns", "p10_ns", "p90_ns")))


def _match_plot(lines, axis, other):
    """match+plan against one axis, at the largest of the other."""
    lines = [line for line in lines if line["name"] == "match+plan" and {axis, other} <= line["params"].keys()]
    if len({line["params"][axis] for line in lines}) < 2:
        return None
    names = {"tokens": "prompt tokens", "pages": "stored pages"}
    largest = max(line["params"][other] for line in lines)
    plot = Plot(f"match + plan against {names[axis]} ({largest:,} {names[other]})", names[axis], "µs", True, True)
    for cache in sorted({line["params"]["cpu_caches"] for line in lines}):
        plot.line(cache, sorted(_point(line, axis) for line in lines
                                if line["params"]["cpu_caches"] == cache and line["params"][other] == largest))
    return f"micro-{axis}.svg", plot, plot.title + "; median, p10 to p90."


def _store_plot(lines):
    plot = Plot("Operations against what is stored", "stored pages", "µs", True, True)
    for name in ("insert", "evict", "forget"):
        found = [line for line in lines if line["name"] == name and "pages" in line["params"]]
        longest = max((line["params"].get("tokens", 0) for line in found), default=0)
        plot.line(name, sorted(_point(line, "pages") for line in found if line["params"].get("tokens", 0) == longest))
    if not any(len(points) > 1 for _, points, _ in plot.lines):
        return None
    return "micro-store.svg", plot, "What one operation costs; median, p10 to p90."


CASES = [Micro()]
