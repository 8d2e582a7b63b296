"""What README.md and docs/ print about speed is what the report in the tree says."""

import copy
import json
import os
import subprocess

import pytest

from lib import case as kinds
from lib import figures
from lib.case import Measure

def _committed():
    """Whether the report is the one that the pages were written from, and not one that was measured here since."""
    if not os.path.exists(figures.REPORT):
        return False
    changed = subprocess.run(["git", "status", "--porcelain", "--", figures.REPORT], cwd=os.path.dirname(figures.REPORT),
                             capture_output=True, text=True, check=False)
    return changed.stdout.strip() == ""


COMMITTED = _committed()


@pytest.mark.skipif(not COMMITTED, reason="there is no record in the tree, or one of another run")
@pytest.mark.parametrize("path", figures.pages(), ids=os.path.basename)
def test_pages_agree_with_the_report(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert figures.fill(text, figures.load()) == text, "run bench/figures.py"


def test_marks_are_whole():
    """A mark that is opened is closed, so that none is overlooked."""
    for path in figures.pages():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        assert text.count("<!-- figure:") == len(figures.FIGURE.findall(text)) == text.count("<!-- /figure -->"), path


DATA = {"machine": {"cpu": "a", "cores": 2, "ram_gib": 4.0, "system": "s", "kernel": "Linux 6"},
        "figures": {"alternating.pages.1.ttft": {"hearth": 100.0, "peer": 1234.5, "ratio": 12.345}}}


def test_fill():
    text = ("It is <!-- figure:alternating.pages.1.ttft.ratio .1f -->9<!-- /figure --> times, on "
            "<!-- figure:machine.cores -->?<!-- /figure -->.")
    filled = figures.fill(text, DATA)
    assert filled == ("It is <!-- figure:alternating.pages.1.ttft.ratio .1f -->12.3<!-- /figure --> times, on "
                      "<!-- figure:machine.cores -->2<!-- /figure -->.")
    assert figures.fill(filled, DATA) == filled
    other = copy.deepcopy(DATA)
    other["figures"]["alternating.pages.1.ttft"]["ratio"] = 3
    assert figures.fill(filled, other) != filled
    with pytest.raises(figures.Missing):
        figures.fill("<!-- figure:none.of.these -->1<!-- /figure -->", DATA)


def test_what_is_not_measured_yet_is_not_compared(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    marks = "<!-- figure:alternating.pages.1.ttft.ratio .1f -->{}<!-- /figure -->"
    page.write_text(marks.format("–") + marks.format("…"), encoding="utf-8")
    monkeypatch.setattr(figures, "pages", lambda: [str(page)])
    assert figures.compare_with_pages(DATA["figures"]) == ""
    page.write_text(marks.format("12.0"), encoding="utf-8")
    assert "12, here 12.3 (3 %)" in figures.compare_with_pages(DATA["figures"])


def rounds(pairs):
    return {
        "label": "pages, 1 lane",
        "seconds": 1,
        "rounds": [
            {"hearth": {"values": {"m": mine}}, "llama-server": {"values": {"m": peer}}} for mine, peer in pairs
        ],
    }


def test_ratio_is_of_medians_and_above_one_when_hearth_is_ahead():
    lower = kinds.figure(Measure("m", "ms"), "m", rounds([(1, 10), (2, 30), (3, 20)]))
    assert (lower["hearth"], lower["peer"], lower["ratio"]) == (2, 20, 10)
    assert (lower["low"], lower["high"]) == (pytest.approx(20 / 3, rel=1e-5), 15)
    higher = kinds.figure(Measure("m", "tokens/s", True), "m", rounds([(30, 10), (30, 10)]))
    assert higher["ratio"] == 3 and higher["spread"] == 0
    assert kinds.figure(Measure("m"), "m", rounds([(1, 10)])).get("spread") is None


def test_pooled_measures_are_quantiles_of_all_samples():
    """Two rounds of a hundred samples: the slow ones are all in the second."""
    result = rounds([(0, 0), (0, 0)])
    for number, each in enumerate(result["rounds"]):
        each["hearth"]["times"] = [1] * 100 if number == 0 else [1] * 90 + [2] * 10
        each["llama-server"]["times"] = [4] * 100
    found = kinds.figure(Measure("m", "ms", pooled=("times", 0.99)), "m", result)
    assert (found["hearth"], found["peer"], found["ratio"], found["rounds"]) == (2, 4, 2, 2)
    assert (found["low"], found["high"]) == (2, 4)
    assert kinds.figure(Measure("m", "ms", pooled=("times", 0.5)), "m", result)["ratio"] == 4


def test_exact_measures_count_their_worst_round():
    found = kinds.figure(Measure("m", exact=True), "m", rounds([(1.0, 2.0), (1.1, 3.0)]))
    assert (found["hearth"], found["peer"], found["kind"]) == (1.1, 3.0, "exact")


def test_interval_of_many_rounds_is_bootstrapped_and_repeats():
    result = rounds([(1 + n % 3 / 10, 10) for n in range(9)])
    one, two = (kinds.figure(Measure("m", "ms"), "m", json.loads(json.dumps(result))) for _ in range(2))
    assert one == two and one["low"] <= one["ratio"] <= one["high"]
