#!/usr/bin/env python3
"""Records sessions of hermes-agent into bench/sessions, for the case `sessions` to replay.

Hermes runs as its users run it, in a project of its own under /srv; the model's part is written down below and spoken
by a stand-in server (lib/scripted.py), so that a recording depends on Hermes alone. What names this machine is
replaced. HEARTH_HERMES names the program.

    HEARTH_HERMES=…/bin/hermes bench/record.py [session …]
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile

from lib import sessions
from lib.hermes import Hermes
from lib.record import Recorder
from lib.scripted import Scripted, call
from lib.server import REPOSITORY
from lib.text import Text

CLIENT = "hermes-agent 0.19.0"
PROJECT = "/srv/museum"
CHAT = "/chat/completions"
TITLE = {"when": {"tools": False, "last": "User: "}, "reply": "Museum catalogue project", "times": 0, "wait_s": 1.5}
REVIEW = {"when": {"last": "Review the conversation"}, "reply": "Nothing to save.", "times": 0, "wait_s": 1.5}

CATALOGUE = '''"""The museum's catalogue: objects, rooms and loans."""

from dataclasses import dataclass, field


@dataclass
class Item:
    number: int
    name: str
    room: str
    notes: list = field(default_factory=list)


class Catalogue:
    def __init__(self):
        self.items = {}

    def add(self, item):
        if item.number in self.items:
            raise ValueError(f"number {item.number} is taken")
        self.items[item.number] = item

    def in_room(self, room):
        return [item for item in self.items.values() if item.room == room]
'''
LOANS = '''"""Loans to other museums."""


class Loans:
    def __init__(self, catalogue):
        self.catalogue, self.out = catalogue, {}

    def lend(self, number, borrower, days):
        if number in self.out:
            raise ValueError(f"{number} is lent to {self.out[number][0]}")
        self.out[number] = (borrower, days)

    def overdue(self, day):
        return sorted(number for number, (_, days) in self.out.items() if days < day)
'''


def make_project():
    shutil.rmtree(PROJECT, ignore_errors=True)
    os.makedirs(os.path.join(PROJECT, "notes"))
    # The project file makes it a project: Hermes then wants edits to be verified.
    files = {"pyproject.toml": '[project]\nname = "museum"\nversion = "1"\n', "catalogue.py": CATALOGUE, "loans.py": LOANS, "README.md": "# Museum\n\n" + Text("readme").words(250)}
    for number in range(12):
        files[f"notes/room-{number:02d}.md"] = f"# Room {number}\n\n" + Text("room", number).words(500) + "\n"
    for name, text in files.items():
        with open(os.path.join(PROJECT, name), "w", encoding="utf-8") as file:
            file.write(text)


def read(name):
    return call("read_file", path=f"{PROJECT}/{name}")


def run(command):
    return call("terminal", command=command)


def answered(recorder, count):
    """Waits for this: `count` chat completions have come, and all have ended."""
    return lambda: len(recorder.of(CHAT)) >= count and not recorder.open()


def edits(play):
    """A file is written and tested in a terminal session; the title is asked for during the second turn; the client's
    nudges to verify are gone in the next turn; a review of the session runs beside the turn after that, whose tool loop is
    interrupted by a message."""
    play.start([
        TITLE, REVIEW,
        {"when": {"last": "take you look"}, "reply": "I read both modules and the notes of the first room.\n"
         + read("catalogue.py") + "\n" + read("loans.py") + "\n" + read("notes/room-00.md")},
        {"when": {"last": "# Room 0"}, "reply": Text("edits", 1).words(120)},
        {"when": {"last": "overdue report"}, "reply": "I start with the report itself.\n" + call(
            "write_file", path=f"{PROJECT}/report.py", content='"""Overdue loans, as text."""\n\n\ndef report(loans, day):'
            '\n    return "\\n".join(f"{number}: {loans.out[number][0]}" for number in loans.overdue(day))\n')},
        {"when": {"last": "bytes_written"}, "reply": run("grep -c overdue loans.py report.py")},
        {"when": {"last": "exit_code"}, "reply": "The report is in report.py. " + Text("edits", 2).words(60)},
        {"when": {"last": "[System: You edited code"}, "reply": run("python3 -c 'import report; print(report.report)' | cut -c1-16")},
        {"when": {"last": "exit_code"}, "reply": "It imports and runs. " + Text("edits", 3).words(40)},
        {"when": {"last": "[System: You edited code"}, "reply": "There is no test suite. " + Text("edits", 7).words(30)},
        {"when": {"last": "name the rooms"}, "reply": read("notes/room-01.md")},
        {"when": {"last": "# Room 1"}, "reply": Text("edits", 4).words(80)},
        {"when": {"last": "slow check"}, "reply": run("sleep 20; echo done")},
        {"when": {"last": "Never mind"}, "reply": "I have stopped. " + Text("edits", 5).words(30)},
        {"when": {"last": "last word"}, "reply": Text("edits", 6).words(40)},
    ])
    with play.hermes().terminal(PROJECT) as terminal:
        terminal.wait_text("❯")
        terminal.read(1)
        terminal.type("Please take you look at the two modules and the first room, and tell me what this is.")
        terminal.wait(lambda: len(play.recorder.of(CHAT)) >= 3)  # the title is on its way
        terminal.read(0.3)
        terminal.type("Now add an overdue report in a file of its own.")
        terminal.wait(answered(play.recorder, 9))
        terminal.read(1)
        terminal.type("Good. Now name the rooms that the second note is about.")
        terminal.wait(answered(play.recorder, 12))
        terminal.read(1)
        terminal.type("Run the slow check.")
        terminal.wait(answered(play.recorder, 13))
        terminal.read(2)
        terminal.type("Never mind, stop that.")
        terminal.wait(answered(play.recorder, 14))
        terminal.read(1)
        terminal.type("Thanks. Your last word on the project?")
        terminal.wait(answered(play.recorder, 15))


def resumed(play):
    """A process per turn, each resuming the session; one reply is cut by the limit and continued; one command needs an
    approval, which is asked for by a side request."""
    play.start([
        {"when": {"tools": False, "last": "<command>"}, "reply": "APPROVE", "times": 0},
        {"when": {"last": "first two rooms"}, "reply": read("notes/room-02.md") + "\n" + read("notes/room-03.md")},
        {"when": {"last": "# Room 3"}, "reply": Text("resumed", 1).words(150), "finish": "length"},
        {"when": {"last": "truncated"}, "reply": Text("resumed", 2).words(80)},
        {"when": {"last": "draft"}, "reply": "I make a draft.\n" + run("mkdir -p draft && echo one > draft/one && ls draft")},
        {"when": {"last": "one"}, "reply": Text("resumed", 3).words(60)},
        {"when": {"last": "Delete"}, "reply": run("rm -rf draft && ls | wc -l")},
        {"when": {"last": "exit_code"}, "reply": "The draft is gone. " + Text("resumed", 4).words(30)},
        {"when": {"last": "And room 4"}, "reply": read("notes/room-04.md")},
        {"when": {"last": "# Room 4"}, "reply": Text("resumed", 5).words(90)},
    ])
    hermes = play.hermes()
    _, session = hermes.ask("What do the notes say about the first two rooms after the entrance?", PROJECT, flags=())
    for text in ("Make a folder for a draft.", "Delete the draft again.", "And room 4?"):
        hermes.ask(text, PROJECT, session, flags=())


def two(play):
    """Two sessions over the same system prompt and tools take turns, a process per turn."""
    play.start([
        *({"when": {"last": f"of room {number}?"}, "reply": f"Room {number}.\n" + read(f"notes/room-{number:02d}.md")}
          for number in range(5, 11)),
        *({"when": {"last": f"# Room {number}"}, "reply": Text("two", number).words(110)} for number in range(5, 11)),
    ])
    hermes, ids = play.hermes(), [None, None]
    for turn in range(3):
        for which in range(2):
            _, ids[which] = hermes.ask(f"What is to be seen in the notes of room {5 + 2 * turn + which}?", PROJECT,
                                       ids[which])


def reviewed(play):
    """Twelve rounds of tools in one turn; then a background review of the whole session runs beside the next turn, and
    at the end the history is compacted."""
    play.start([
        REVIEW,
        {"when": {"last": "every note"}, "reply": read("notes/room-00.md")},
        *({"when": {"last": f"# Room {number}"}, "reply": f"Next.\n" + read(f"notes/room-{number + 1:02d}.md")}
          for number in range(10)),
        {"when": {"last": "# Room 10"}, "reply": run("wc -l notes/room-11.md")},
        {"when": {"last": "exit_code"}, "reply": Text("reviewed", 1).words(200)},
        {"when": {"last": "shortest"}, "reply": "I count.\n" + run("wc -w notes/*.md | sort -n | head -3")},
        {"when": {"last": "exit_code"}, "reply": Text("reviewed", 2).words(80)},
        {"when": {"tools": False}, "reply": "## Active Task\nNone.\n\n## Goal\nKnow the notes.\n\n" + Text("sum").words(300),
         "times": 0},
        {"when": {"last": "compare"}, "reply": Text("reviewed", 3).words(60)},
        {"when": {"last": "longest"}, "reply": run("wc -w notes/*.md | sort -n | tail -3")},
        {"when": {"last": "exit_code"}, "reply": Text("reviewed", 4).words(60)},
    ])
    config = {"auxiliary": {"title_generation": {"enabled": False}}}
    with play.hermes(config).terminal(PROJECT) as terminal:
        terminal.wait_text("❯")
        terminal.read(1)
        terminal.type("Read every note, one after the other, and then sum them up.")
        terminal.wait(lambda: len(play.recorder.of(CHAT)) >= 14, 120)  # the review is on its way
        terminal.read(0.3)
        terminal.type("Which is the shortest?")
        terminal.wait(answered(play.recorder, 16))
        terminal.read(1)
        terminal.type("Please compare the first two.")
        terminal.wait(answered(play.recorder, 17))
        terminal.read(1)
        terminal.type("/compress")
        terminal.wait(answered(play.recorder, 18))
        terminal.read(1)
        terminal.type("And which is the longest?")
        terminal.wait(answered(play.recorder, 20))


SESSIONS = {scenario.__name__: scenario for scenario in (edits, resumed, two, reviewed)}


class Play:
    """One recording: a stand-in, the recorder before it, a home."""

    def __init__(self, home):
        self.home, self.recorder, self._scripted = home, None, None

    def start(self, script):
        self._scripted = Scripted(script)
        self.recorder = Recorder(self._scripted.port)

    def hermes(self, config=None):
        return Hermes(self.home, self.recorder.port, config)

    def stop(self):
        unused = [entry["when"] for entry in self._scripted.unused()]
        if unused:
            print(f"  not used of the script: {unused}", file=sys.stderr)
        self.recorder.__exit__(None, None, None)
        self._scripted.__exit__(None, None, None)


def record(name):
    make_project()
    with tempfile.TemporaryDirectory() as home:
        play = Play(home)
        SESSIONS[name](play)
        play.stop()
        neutral = [(home, "/home/visitor"), (platform.release(), "6.1.0"),
                   (f"127.0.0.1:{play.recorder.port}", "127.0.0.1:8080")]
        about = " ".join(SESSIONS[name].__doc__.split())
        session = sessions.from_exchanges(name, CLIENT, about, play.recorder.exchanges, neutral)
    print(f"{name}: {len(session.requests)} requests", file=sys.stderr)
    return session


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("session", nargs="*", help=f"default: all ({', '.join(SESSIONS)})")
    parser.add_argument("--out", default=os.path.join(REPOSITORY, "bench", "sessions", "hermes.jsonl"))
    options = parser.parse_args()
    sessions.save([record(name) for name in options.session or SESSIONS], options.out)
    shutil.rmtree(PROJECT, ignore_errors=True)


if __name__ == "__main__":
    main()
