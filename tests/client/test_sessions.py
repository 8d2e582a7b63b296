"""Sessions of real clients, recorded elsewhere and sent again (bench/lib/replay.py): what is computed, against what is new."""

import dataclasses
import os

import pytest

from museum import CLASSES, tiny_flags
from conftest import serve
from lib import server as servers
from lib import sessions
from lib.replay import Replay

LIMITS = {"tiny": 1.05, "tiny-hybrid": 1.10, "tiny-window": 1.10}
RECORDED = sessions.load(os.path.join(servers.REPOSITORY, "bench", "sessions", "hermes.jsonl"))


HELD = [*((model, "chat", lanes) for model in CLASSES for lanes in ("1", "4")),
        ("tiny-hybrid", "messages", "4"), ("tiny-window", "responses", "4")]
# Each model, dialect and number of lanes once, and the beginning of a session; `make test-long` has all of all of them.
ONCE = [("tiny", "chat", "1", "two"), ("tiny-hybrid", "messages", "4", "resumed"), ("tiny-window", "responses", "4", "edits")]
BEGINNING = 8


@pytest.mark.parametrize("model, dialect, lanes, name", ONCE)
def test_the_beginning_of_a_session(model, dialect, lanes, name):
    play(model, dialect, lanes, [dataclasses.replace(session, requests=session.requests[:BEGINNING])
                                 for session in RECORDED if session.name == name])


@pytest.mark.long
@pytest.mark.parametrize("model, dialect, lanes", HELD)
def test_recorded_sessions(model, dialect, lanes):
    play(model, dialect, lanes, RECORDED)


def play(model, dialect, lanes, recorded):
    """As they were recorded; and as the same client says them in the other dialects: in Messages with marks that move
    with every request, in Responses with nothing stored."""
    ratios = {}
    assert recorded
    for session in recorded:
        with serve(*tiny_flags(model), "-np", lanes, "--cache-ram", "2048") as running:
            replay = Replay(running.client, session, 4, dialect)
            replay.play()
        assert replay.ledger.requests == len(session.requests) and not replay.errors, replay.errors
        ratios[session.name] = round(replay.ledger.ratio, 3)
    assert max(ratios.values()) <= LIMITS[model], ratios
