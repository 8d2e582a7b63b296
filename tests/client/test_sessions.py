"""Sessions of real clients, recorded elsewhere and sent again (bench/sessions.py): what is computed, against what is new."""

import os

import pytest

from museum import CLASSES, tiny_flags
from conftest import serve
from lib import server as servers
from lib import sessions
from sessions import Replay, Run

LIMITS = {"tiny": 1.05, "tiny-hybrid": 1.10, "tiny-window": 1.10}
RECORDED = sessions.load(os.path.join(servers.REPOSITORY, "bench", "sessions", "hermes.jsonl"))


HELD = [*((model, "chat", lanes) for model in CLASSES for lanes in ("1", "4")),
        ("tiny-hybrid", "messages", "4"), ("tiny-window", "responses", "4")]


@pytest.mark.parametrize("model, dialect, lanes", HELD)
def test_recorded_sessions(model, dialect, lanes):
    """As they were recorded; and as the same client says them in the other dialects: in Messages with marks that move
    with every request, in Responses with nothing stored."""
    ratios = {}
    for session in RECORDED:
        run = Run("hearth", model, int(lanes), session.name)
        with serve(*tiny_flags(model), "-np", lanes, "--cache-ram", "2048") as running:
            Replay(running.client, session, 4, dialect).play(run)
        assert run.requests == len(session.requests) and not run.errors, run.errors
        ratios[session.name] = round(run.ratio, 3)
    assert max(ratios.values()) <= LIMITS[model], ratios
