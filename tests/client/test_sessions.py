"""Sessions of real clients, recorded elsewhere and sent again (bench/sessions.py): what is computed, against what is new."""

import os

import pytest

from agents import CLASSES, tiny_flags
from conftest import serve
from lib import server as servers
from lib import sessions
from sessions import Replay, Run

LIMITS = {"tiny": 1.05, "tiny-hybrid": 1.10, "tiny-window": 1.10}
RECORDED = sessions.load(os.path.join(servers.REPOSITORY, "bench", "sessions", "hermes.jsonl"))


@pytest.mark.parametrize("lanes", ["1", "4"])
@pytest.mark.parametrize("model", CLASSES)
def test_recorded_sessions(model, lanes):
    ratios = {}
    for session in RECORDED:
        run = Run("hearth", model, int(lanes), session.name)
        with serve(*tiny_flags(model), "-np", lanes, "--cache-ram", "2048") as running:
            Replay(running.client, session, max_tokens=4).play(run)
        assert run.requests == len(session.requests) and not run.errors
        ratios[session.name] = round(run.ratio, 3)
    assert max(ratios.values()) <= LIMITS[model], ratios
