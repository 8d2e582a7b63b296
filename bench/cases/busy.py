"""Decode speed while other programs use the cores, as when an agent compiles what it has written."""

import contextlib
import os
import subprocess
import sys

from lib.case import Measure

from .throughput import Throughput, decode_speed, together, whole_speed


@contextlib.contextmanager
def busy_cores():
    """A program on each core that never waits."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


class Busy(Throughput):
    """Decode speed beside busy programs

    One reply at a time, while a program without pause runs on each core: tokens per second, and generated tokens with the
    prompt's and all waiting. Cores are shared fairly, so about half of the speed is left to hope for.
    """
    name, group = "busy", "throughput"
    lanes, classes = (1,), ("pages",)
    rounds, quick_rounds = (3, 5), (2, 2)
    measures = {
        "decode": Measure("decode", "tokens/s", True),
        "whole": Measure("generated, short prompts and all", "tokens/s", True),
        "alone": Measure("decode, nothing beside", "tokens/s", True),
    }

    def round(self, plan, cell, kind, number, running=None):
        tokens = plan.pick(64, 32)
        running.client.wait_idle()
        alone, _ = together(running.port, ("alone", number), 1, 8, tokens)
        with busy_cores():
            beside, _ = together(running.port, ("busy", number), 1, 8, tokens)
        return {"values": {"decode": decode_speed(beside), "whole": whole_speed(beside), "alone": decode_speed(alone)}}

    def plots(self, cells):
        return []


CASES = [Busy()]
