"""Recorded sessions of hermes-agent, sent again (lib/replay.py), on models that read long prompts quickly."""

import glob
import os

from lib import server, sessions
from lib.case import Case, Cell, Measure
from lib.replay import Replay

FILE = os.path.join(server.REPOSITORY, "bench", "sessions", "hermes.jsonl")
TEMPLATE = "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja"
QUICK = 2


def template():
    """A chat template that prints tools, the same for both; it comes with the source that llama-server is built from."""
    cache = os.environ.get("HEARTH_CACHE") or os.path.expanduser("~/.cache/hearth")
    found = glob.glob(os.path.join(cache, "src", "*", "llama.cpp", "models", "templates", TEMPLATE))
    if not found:
        raise RuntimeError(f"{TEMPLATE} is not among llama.cpp's templates")
    return found[0]


class Sessions(Case):
    """Recorded Hermes sessions

    Chat completions that hermes-agent asked for, with its 14,700 tokens of system text and tools, sent in their order;
    requests that overlapped overlap again, so that what is computed may differ a little from run to run.
    """
    name = "sessions"
    measures = {
        "recompute": Measure("recompute ratio", digits=3),
        "computed": Measure("prompt tokens computed", digits=0, compared=False),
    }
    classes = ("pages", "window", "hybrid")
    long = True
    limit_s = 400

    def cells(self, plan):
        names = [session.name for session in sessions.load(FILE)]
        names = names[:QUICK] if plan.quick else names
        return [Cell(memory, lanes, name, True) for memory in self.classes
                for lanes in plan.pick(self.lanes, (1,)) for name in names if lanes == 1 or memory == "hybrid"]

    def round(self, plan, cell, kind, number, running=None):
        session = next(found for found in sessions.load(FILE) if found.name == cell.variant)
        with plan.start(kind, cell, 98304, 4096, ["--jinja", "--chat-template-file", template()]) as running:
            replay = Replay(running.client, session, 8)
            replay.play()
        if replay.errors:
            raise RuntimeError("; ".join(replay.errors[:3]))
        return {"values": {"recompute": replay.ledger.ratio, "computed": replay.ledger.computed},
                "requests": [[new, computed] for _, new, computed, _ in replay.rows]}


CASES = [Sessions()]
