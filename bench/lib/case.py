"""What a case of the record is, and how its rounds become figures.

A case measures cells: a memory class, a number of lanes, sometimes a variant. A cell is measured in rounds; a round
asks hearth and llama-server the same, one after the other, and gives one number for each measure and server. Of the
rounds:

    value      the median of the rounds, for each server; of a pooled measure, a quantile of all rounds' samples
    ratio      how many times better hearth is, above 1 it is ahead: the middle of the rounds' own ratios, since both
               servers meet the same machine in a round, and another one minutes later (stats.middle_ratio); of exact
               and pooled measures the ratio of the two values
    interval   of the ratio: five rounds or more, bootstrap over rounds (90 %); fewer, the smallest and the largest
    spread     half of the interval, relative to the ratio: what another run of the record may differ by

A measure is exact (a count, the same on every machine) or timed. Of exact ones the worst round counts, for both.
"""

import dataclasses
import os

from . import gguf, server, stats

HEARTH, PEER = server.HEARTH, server.PEER
BOTH = (HEARTH, PEER)

# Memory class: the model it is shown on, and the one for long prompts.
CLASSES = {"pages": "smollm2", "window": "gemma3-270m", "hybrid": "hybrid", "snapshot": "mamba", "opaque": "opaque"}
LONG = {"pages": "tiny", "window": "tiny-window", "hybrid": "tiny-hybrid"}
QUICK_CLASSES = ("pages", "window", "hybrid")
BOOTSTRAP_FROM = 5

MIB = 1 << 20
SAFE_S = 2.0  # what is older is on disk, hearth promises


@dataclasses.dataclass(frozen=True)
class Measure:
    title: str
    unit: str = ""
    higher_is_better: bool = False
    exact: bool = False
    digits: int = 1
    compared: bool = True  # False: a number of hearth's that llama-server has no counterpart of, or of another kind
    pooled: tuple = None   # (key of the samples that a round keeps, quantile)


@dataclasses.dataclass(frozen=True)
class Cell:
    memory: str           # a memory class
    lanes: int = 1
    variant: str = ""
    long: bool = False    # on the class's model for long prompts

    @property
    def key(self):
        return ".".join(filter(None, (self.memory, str(self.lanes), self.variant)))

    @property
    def label(self):
        lanes = f"{self.lanes} lane{'s' if self.lanes > 1 else ''}"
        return ", ".join(filter(None, (self.memory, lanes, self.variant)))


class Plan:
    """What the command line asked for, and the servers' common settings."""

    def __init__(self, quick=False, threads=None, classes=None, lanes=None, own_models=None):
        self.quick, self.threads = quick, threads or server.cores()
        self.classes, self.lanes, self.own_models = classes, lanes, own_models or {}
        self._models = {}
        self.used_models, self.flags = {}, {}

    def pick(self, full, quick):
        return quick if self.quick else full

    def model(self, cell):
        name = (LONG if cell.long else CLASSES).get(cell.memory, CLASSES[cell.memory])
        path = self.own_models.get(cell.memory) or os.path.join(server.models_dir(), f"{name}.gguf")
        if path not in self._models:
            self._models[path] = gguf.Model(path)
        self.used_models.setdefault(os.path.basename(path), path)
        return self._models[path]

    def start(self, kind, cell, ctx_tokens=8192, cache_mib=None, extra=(), env=None):
        running = server.start(kind, self.model(cell), cell.lanes, ctx_tokens, cache_mib, self.threads, extra, env)
        self.flags[kind] = _flags(running.command)
        return running


def _flags(command):
    """The command line without what belongs to one machine and moment, and with names for what belongs to one cell."""
    out, name = [HEARTH if command[0] == server.hearth_path() else PEER], None
    for word in command[1:]:
        if name in ("-m", "-np"):
            out[-1] += " MODEL" if name == "-m" else " LANES"
        elif name not in ("--host", "--port", "--kv-dir") and word not in ("--host", "--port", "--kv-dir"):
            out.append(os.path.basename(word) if word.endswith(".jinja") else word)
        name = word
    return " ".join(out)


class Case:
    """A subclass is one case. Its docstring is what the report says about it: a title line, then text."""

    name = ""
    group = ""
    in_record = True        # False: only when it is named
    servers = BOTH
    measures = {}
    classes = tuple(CLASSES)
    lanes = (1, 4)
    long = False
    rounds = (1, 3)         # the fewest, the most
    quick_rounds = (1, 1)
    limit_s = 300           # a round of one server is given up then
    both_alive = False      # both live for a round; round() is given one, and the other one is halted

    def cells(self, plan):
        if plan.quick and plan.lanes is None:
            return [Cell(memory, lanes, long=self.long) for memory in self.classes for lanes in self.lanes
                    if memory == "pages" or (lanes == self.lanes[0] and (memory in QUICK_CLASSES or plan.classes))]
        return [Cell(memory, lanes, long=self.long) for memory in self.classes for lanes in self.lanes]

    def selected(self, plan):
        return [cell for cell in self.cells(plan) if (not plan.classes or cell.memory in plan.classes)
                and (not plan.lanes or cell.lanes in plan.lanes)]

    def most_rounds(self, plan):
        return (self.quick_rounds if plan.quick else self.rounds)[1]

    def fewest_rounds(self, plan):
        return (self.quick_rounds if plan.quick else self.rounds)[0]

    def open(self, plan, cell, kind):
        """A running server for the cell; only with `both_alive`."""
        raise NotImplementedError

    def warm_up(self, plan, cell, running):
        """What is done before the first round, with `both_alive`."""

    def round(self, plan, cell, kind, number, running=None):
        """Returns {"values": {measure: number}, …}; more keys are kept as they are in the report's data."""
        raise NotImplementedError

    # ---- what is said about it

    @property
    def title(self):
        return (self.__doc__ or self.name).strip().split("\n")[0]

    @property
    def about(self):
        lines = (self.__doc__ or "").strip().split("\n")[1:]
        return "\n".join(line.strip() for line in lines).strip()

    def section(self, cells):
        """Markdown behind the title and the text. `cells`: {key: result} in order."""
        return standard_tables(self, cells)

    def plots(self, cells):
        """[(file name without folder, drawing, caption)]"""
        return []


# ---- figures

def _rounds(measure, name, result, kind):
    """What the rounds say: numbers, or lists of samples; None where a round has none."""
    found = [each.get(kind, {}) for each in result["rounds"]]
    return [each.get(measure.pooled[0]) if measure.pooled else each.get("values", {}).get(name) for each in found]


def _known(values):
    return [value for value in values if value is not None]


def _of_rounds(measure, values):
    """One number of what the rounds say."""
    if not values:
        return None
    if measure.pooled:
        return stats.quantile([sample for each in values for sample in each], measure.pooled[1])
    if measure.exact:
        return min(values) if measure.higher_is_better else max(values)
    return stats.median(values)


def _ratio(measure, pairs):
    """Of rounds as (hearth's, llama-server's)."""
    if not measure.exact and not measure.pooled:
        turned = [(mine, peer) if measure.higher_is_better else (peer, mine) for mine, peer in pairs]
        return stats.middle_ratio(turned)
    mine, peer = (_of_rounds(measure, values) for values in zip(*pairs))
    over, under = (mine, peer) if measure.higher_is_better else (peer, mine)
    return over / under if over and under else None


def _rounded(value):
    return None if value is None else float(f"{value:.6g}")


def figure(measure, name, result):
    """One measure of one cell as a dictionary; None when nobody measured it."""
    rounds = [_rounds(measure, name, result, kind) for kind in BOTH]
    mine, peer = (_known(values) for values in rounds)
    if not mine and not peer:
        return None
    out = {"hearth": _rounded(_of_rounds(measure, mine)), "peer": _rounded(_of_rounds(measure, peer)),
           "unit": measure.unit, "kind": "exact" if measure.exact else "timed", "rounds": len(mine)}
    if not measure.compared:
        return out
    pairs = [pair for pair in zip(*rounds) if None not in pair]
    out["ratio"] = _rounded(_ratio(measure, pairs)) if pairs else None
    if out["ratio"] is None or measure.exact or len(pairs) < 2:
        return out
    if len(pairs) >= BOOTSTRAP_FROM:
        found = stats.interval(pairs, lambda drawn: _ratio(measure, drawn))
    else:
        each = _known(_ratio(measure, [pair]) for pair in pairs)
        found = [min(each), max(each)]
    out["low"], out["high"] = _rounded(found[0]), _rounded(found[1])
    out["spread"] = _rounded((found[1] - found[0]) / 2 / out["ratio"])
    return out


def figures(case, cells):
    """{path: figure} of a case: "alternating.pages.1.ttft"."""
    out = {}
    for key, result in cells.items():
        for name, measure in case.measures.items():
            found = figure(measure, name, result)
            if found:
                out[f"{case.name}.{key}.{name}"] = found
    return out


def widest_spread(case, result):
    """Of the timed measures of a cell; infinity while there are too few rounds to tell."""
    found = [figure(measure, name, result) for name, measure in case.measures.items()
             if measure.compared and not measure.exact]
    found = [each for each in found if each and each.get("ratio") is not None]
    if not found:
        return 0.0
    return max(each.get("spread", float("inf")) for each in found)


# ---- Markdown

def show_ratio(found):
    if found.get("ratio") is None:
        return "–"
    text = f"{found['ratio']:.2f}"
    if "low" in found:
        text += f" ({found['low']:.2f}–{found['high']:.2f})"
    return text


def show_spread(found):
    return "exact" if found["kind"] == "exact" else f"±{100 * found['spread']:.0f} %" if "spread" in found else "–"


def standard_table(case, cells, name):
    measure = case.measures[name]
    rows = []
    for result in cells.values():
        found = figure(measure, name, result)
        if not found:
            continue
        row = [result["label"], stats.number(found["hearth"], measure.digits)]
        if measure.compared and PEER in case.servers:
            row += [stats.number(found["peer"], measure.digits), show_ratio(found), show_spread(found)]
        rows.append([*row, found["rounds"]])
    if not rows:
        return ""
    title = f"{measure.title}{', ' + measure.unit if measure.unit else ''}"
    header = [title, "hearth"]
    if measure.compared and PEER in case.servers:
        header += ["llama-server", "times better", "spread"]
    return stats.table([*header, "rounds"], rows)


def standard_tables(case, cells):
    return "\n\n".join(filter(None, (standard_table(case, cells, name) for name in case.measures)))
