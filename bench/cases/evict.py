"""More state than RAM: conversations that return after eviction, and a fan-out with room for two whole copies.

The budget is so many times what one conversation holds by itself, measured with hearth before the first round; both
servers get it as --cache-ram.
"""

import math
import tempfile

from lib import scenarios
from lib.case import HEARTH, MIB
from cases.long_context import await_quiet
from cases.recompute import Scenario, play, summed


class Budgeted(Scenario):
    copies = 2.0
    disk = True
    _copy_bytes = {}    # by case and cell: of one conversation

    def copy_bytes(self, plan, cell):
        key = (self.name, plan.quick, cell)
        if key not in self._copy_bytes:
            with plan.start(HEARTH, cell, self.ctx_tokens, 2048) as running:
                before = running.client.metrics()
                first = next(type(self).play(plan.pick(1.0, 0.4)))
                running.client.chat(first.messages, self.max_tokens, ignore_eos=True)
                after = await_quiet(running.client)
            self._copy_bytes[key] = sum(
                after[name] - before[name] for name in ("hearth_page_bytes", "hearth_snapshot_bytes"))
        return self._copy_bytes[key]

    def round(self, plan, cell, kind, number, running=None):
        copy = self.copy_bytes(plan, cell)
        budget = max(1, math.ceil(self.copies * copy / MIB))
        turns = type(self).play(plan.pick(1.0, 0.4))
        with tempfile.TemporaryDirectory(prefix="hearth-evict-") as folder:
            extra = ["--kv-dir", folder, "--kv-disk", "8192"] if kind == HEARTH and self.disk else []
            with plan.start(kind, cell, self.ctx_tokens, budget, extra) as running:
                out = summed(*play(running.client, turns, self.max_tokens))
        return {**out, "budget_mib": budget, "copy_bytes": copy}

    def section(self, cells):
        """With what the budget came to: a state that weighs little is held more often by the least there is, 1 MiB."""
        held = []
        for result in cells.values():
            found = result["rounds"][-1][HEARTH]
            held.append(f"{result['label']} {found['budget_mib'] * MIB / found['copy_bytes']:.1f}")
        return f"{super().section(cells)}\n\nWhole conversations that RAM holds: {'; '.join(held)}."


class Eviction(Budgeted):
    """Eviction and return: six conversations, RAM for two and a half

    Six conversations that share nothing, each visited three times in turn. hearth also has a disk.
    """
    name, group, play = "eviction", "memory", scenarios.separate
    copies = 2.5


class FanOut(Budgeted):
    """Fan-out: twelve conversations over one system prompt, RAM for two whole copies

    Visited twice. No disk: what RAM holds is all there is.
    """
    name, group, play = "fan-out", "memory", scenarios.fan_out
    disk = False


CASES = [Eviction(), FanOut()]
