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
    assert ">10<" in figures.fill("<!-- figure:alternating.pages.1.ttft.ratio fives -->…<!-- /figure -->", DATA)
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
    page.write_text(marks.format("10.0").replace(".ratio", ".low"), encoding="utf-8")
    assert "at least 10, here 12.3" in figures.compare_with_pages(DATA["figures"])
    assert "off" not in figures.compare_with_pages(DATA["figures"])
    page.write_text(marks.format("20.0").replace(".ratio", ".low"), encoding="utf-8")
    assert "at least 20, here 12.3   38 % less" in figures.compare_with_pages(DATA["figures"])


def rounds(pairs):
    return {
        "label": "pages, 1 lane",
        "seconds": 1,
        "rounds": [
            {"hearth": {"values": {"m": mine}}, "llama-server": {"values": {"m": peer}}} for mine, peer in pairs
        ],
    }


def test_ratio_is_the_middle_of_the_rounds_and_above_one_when_hearth_is_ahead():
    lower = kinds.figure(Measure("m", "ms"), "m", rounds([(1, 10), (2, 20), (3, 30)]))
    assert (lower["hearth"], lower["peer"], lower["ratio"]) == (2, 20, 10)
    assert (lower["low"], lower["high"]) == (10, 10)
    higher = kinds.figure(Measure("m", "tokens/s", True), "m", rounds([(30, 10), (30, 10)]))
    assert higher["ratio"] == 3 and higher["spread"] == 0
    assert kinds.figure(Measure("m"), "m", rounds([(1, 10)])).get("spread") is None


def test_a_machine_that_changes_between_rounds_changes_no_ratio():
    """Half as fast in every other round: in each hearth takes two thirds of the time."""
    drifting = rounds([(2 * speed, 3 * speed) for speed in (1, 2, 1, 2, 1, 2, 9)])
    found = kinds.figure(Measure("m", "ms"), "m", drifting)
    assert found["ratio"] == found["low"] == found["high"] == 1.5
    outlier = kinds.figure(Measure("m", "ms"), "m", rounds([(2, 3)] * 6 + [(2, 300)]))
    assert outlier["ratio"] == 1.5


def test_nothing_done_in_a_round_has_no_ratio():
    found = kinds.figure(Measure("m", "tokens/s", True), "m", rounds([(0, 5), (0, 5), (10, 5)]))
    assert found["ratio"] is None and (found["hearth"], found["peer"]) == (0, 5)


def test_rounds_that_one_server_missed_are_not_paired():
    result = rounds([(1, 10), (2, 10), (1, 10)])
    del result["rounds"][1]["llama-server"]
    found = kinds.figure(Measure("m", "ms"), "m", result)
    assert (found["ratio"], found["rounds"]) == (10, 3)


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
