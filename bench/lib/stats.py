"""Medians, spreads, Markdown tables and reports."""

import itertools
import json
import math
import os
import random
import statistics


def median(values):
    return statistics.median(values) if values else None


def quantile(values, share):
    """By linear interpolation; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def middle_ratio(pairs):
    """The middle of over/under of all pairs, as Hodges and Lehmann (1963) estimate one: the median of the means of any
    two, here of logarithms. A few outliers do not move it, and it varies less than a median. None: some pair has no
    ratio, or there is no pair."""
    if not pairs or not all(over and under for over, under in pairs):
        return None
    logs = [math.log(over / under) for over, under in pairs]
    means = [(one + other) / 2 for one, other in itertools.combinations_with_replacement(logs, 2)]
    return math.exp(median(means))


def quartiles(values):
    return [quantile(values, share) for share in (0.25, 0.5, 0.75)]


def interval(rounds, statistic, times=400, inside=0.90):
    """Bootstrap over rounds: the range that holds `inside` of statistic(rounds drawn again with replacement). The same
    rounds give the same range. None for fewer than two rounds."""
    if len(rounds) < 2:
        return None
    draw = random.Random(len(rounds))
    found = sorted(filter(None, (statistic([draw.choice(rounds) for _ in rounds]) for _ in range(times))))
    if not found:
        return None
    return [quantile(found, (1 - inside) / 2), quantile(found, (1 + inside) / 2)]


def number(value, digits=2, unit=""):
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def table(header, rows):
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(["---"] + ["--:"] * (len(header) - 1)) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def save(path, text, data):
    """Writes a report: the text to `path`.md, the data to `path`.json."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1, ensure_ascii=False)
