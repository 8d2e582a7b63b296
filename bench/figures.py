#!/usr/bin/env python3
"""Fills the figures in README.md and docs/ from bench/report/report.json.

    bench/figures.py                      writes them
    bench/figures.py --check              says what differs; exit status 1 if anything does
    bench/figures.py --against FILE       compares the ratios that are printed with another report.json
"""

import argparse
import os
import sys

from lib import figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--against", metavar="FILE")
    options = parser.parse_args()
    if options.against:
        print(figures.compare_with_pages(figures.load(options.against)["figures"]))
        return 0
    if not os.path.exists(figures.REPORT):
        print("there is no bench/report/report.json", file=sys.stderr)
        return 1
    data, wrong = figures.load(), 0
    for page in figures.pages():
        with open(page, encoding="utf-8") as file:
            text = file.read()
        try:
            filled = figures.fill(text, data)
        except figures.Missing as missing:
            print(f"{os.path.basename(page)}: the report has no {missing}", file=sys.stderr)
            wrong += 1
            continue
        if filled == text:
            continue
        if options.check:
            print(f"{os.path.basename(page)} does not say what the report says: run bench/figures.py", file=sys.stderr)
            wrong += 1
        else:
            with open(page, "w", encoding="utf-8") as file:
                file.write(filled)
            print(f"{os.path.basename(page)}: written")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
