"""Figures in README.md and docs/: each stands between marks that say where in bench/report/report.json it comes from.

    <!-- figure:alternating.pages.1.ttft.ratio .1f -->12.3<!-- /figure -->

The path is a figure's and one of its fields (hearth, peer, ratio, low, high, spread), or `machine.NAME`; behind it
stands how it is printed, as in Python's format(), or `fives`: rounded down to a multiple of five, for a bound that is
to hold in other runs, too. `<!-- table:NAME -->` … `<!-- /table -->` holds a whole table
(TABLES).
"""

import glob
import json
import os
import re

from . import machine, server, stats

FIGURE = re.compile(r"(<!-- figure:(\S+)(?: (\S+))? -->)(.*?)(<!-- /figure -->)", re.S)
TABLE = re.compile(r"(<!-- table:(\S+) -->\n)(.*?)(<!-- /table -->)", re.S)
REPORT = os.path.join(server.REPOSITORY, "bench", "report", "report.json")
REPRODUCED_WITHIN = 0.15
RATIOS = (".ratio", ".low")  # low: printed as a bound

# Rows of the README's table: what it says, and which figure it is.
RECORD_ROWS = (
    ("Three conversations in turn, one lane", "alternating.pages.1"),
    ("The same on a sliding-window model", "alternating.window.1"),
    ("The same on a hybrid model", "alternating.hybrid.1"),
    ("A conversation with sub-agents", "sub-agents.pages.1"),
    ("Title requests in between", "side-prompts.pages.1"),
    ("Two branches in turn, hybrid", "branches.hybrid.1"),
    ("A loop of tool turns on 13,745 tokens, hybrid", "tool-turns.hybrid.1"),
    ("After a restart", "restart.pages.1"),
    ("More conversations than RAM; only hearth has a disk", "eviction.pages.1"),
    ("Twelve conversations, RAM for two", "fan-out.pages.1"),
)


def _record_table(data):
    rows = []
    for text, path in RECORD_ROWS:
        ratio, ttft = (data["figures"].get(f"{path}.{name}") for name in ("recompute", "ttft"))
        if ratio and ttft:
            rows.append([text, f"{ratio['hearth']:.2f}", stats.number(ratio["peer"], 2), f"{ttft['hearth']:.0f}",
                         stats.number(ttft["peer"], 0)])
    return (
        stats.table(
            [
                "",
                "recompute ratio: hearth",
                "llama-server",
                "time to first token, ms: hearth",
                "llama-server",
            ],
            rows,
        )
        + "\n"
    )


TABLES = {"record": _record_table}


def printed():
    """Cells with a ratio that the pages print: "alternating.pages.1"."""
    found = {path for _, path in RECORD_ROWS}
    for text in _texts():
        found |= {path.rsplit(".", 2)[0] for _, path, _, _, _ in FIGURE.findall(text) if path.endswith(RATIOS)}
    return found


def _texts():
    for page in pages():
        with open(page, encoding="utf-8") as file:
            yield file.read()


class Missing(Exception):
    pass


def load(path=REPORT):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def pages():
    return [os.path.join(server.REPOSITORY, "README.md"),
            *sorted(glob.glob(os.path.join(server.REPOSITORY, "docs", "*.md")))]


def value(data, path):
    if path.startswith("machine."):
        name = path.split(".", 1)[1]
        return machine.short(data["machine"]) if name == "short" else data["machine"][name]
    figure, _, field = path.rpartition(".")
    found = data["figures"].get(figure, {}).get(field)
    if found is None:
        raise Missing(path)
    return found


def _text(data, path, how):
    found = value(data, path)
    return f"{5 * (found // 5):.0f}" if how == "fives" else format(found, how or "")


def fill(text, data):
    """The text with what the report says between the marks. Raises Missing for a path that the report does not have."""
    text = FIGURE.sub(lambda found: found[1] + _text(data, found[2], found[3]) + found[5], text)
    return TABLE.sub(lambda found: found[1] + TABLES[found[2]](data) + found[4], text)


def compare_with_pages(found):
    """The ratios that the pages print, against `found` figures of another run: text, a line each."""
    lines = []
    for page, text in zip(pages(), _texts()):
        said = [(path, before) for _, path, _, shown, _ in FIGURE.findall(text)
                if (path.endswith(RATIOS) or path.split(".")[-2:] in (["recompute", "hearth"], ["recompute", "peer"]))
                and (before := _number(shown)) is not None]
        for _, name, shown, _ in TABLE.findall(text):
            said += _said_in_table(shown) if name == "record" else []
        lines += [f"{os.path.basename(page)}: {_compared(path, before, found)}" for path, before in said]
    return "\n".join(["What README.md and docs/ say, and what was measured here:", *lines] if lines else [])


def _compared(path, before, found):
    """One printed ratio beside what was found. `low` is printed as a bound, which the ratio is to keep."""
    figure, _, field = path.rpartition(".")
    bound = field == "low"
    now = found.get(figure, {}).get("ratio" if bound else field)
    said = f"{path}: {'at least ' if bound else ''}{before:g}"
    if now is None:
        return f"{said}, not measured here"
    if bound:
        return f"{said}, here {now:.3g}" + (f"   {100 * (1 - now / before):.0f} % less" if now < before else "")
    off = abs(now / before - 1)
    far = "" if off <= REPRODUCED_WITHIN else f"   more than {100 * REPRODUCED_WITHIN:.0f} % off"
    return f"{said}, here {now:.3g} ({100 * off:.0f} %){far}"


def _number(shown):
    """None: nothing was measured yet, and a dash stands there."""
    try:
        return float(shown)
    except ValueError:
        return None


def _said_in_table(shown):
    out, paths = [], dict(RECORD_ROWS)
    for line in shown.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in paths:
            for field, cell in (("recompute.hearth", 1), ("recompute.peer", 2)):
                if (before := _number(cells[cell])) is not None:
                    out.append((f"{paths[cells[0]]}.{field}", before))
    return out
