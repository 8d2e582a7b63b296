"""Counts the test cases of one run: count.py DIRECTORY

Reads Meson's testlog.json and pytest's JUnit files. A cmocka program tells how many of its cases passed; any other test
counts as one. A program that ends badly without having named a failed case (a crash, a time-out, a sanitizer's finding)
counts as one failure. Prints the failures and, last and alone, "N passed, N failed"; exits with 1 if there are any.
"""

import json
import pathlib
import re
import sys
import xml.etree.ElementTree

CMOCKA = re.compile(r"^\[  (PASSED |FAILED |SKIPPED)\s*\] (\d+) test\(s\)", re.M)
FAILED_CASE = re.compile(r"^\[  FAILED  \] (?!\d+ test)(\S+)", re.M)


def count_meson(path):
    passed = failed = skipped = 0
    failures = []
    for line in path.read_text().splitlines():
        test = json.loads(line)
        text = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
        cases = {"PASSED": 0, "FAILED": 0, "SKIPPED": 0}
        for word, number in CMOCKA.findall(text):
            cases[word.strip()] += int(number)
        good = test["result"] in ("OK", "EXPECTEDFAIL", "SKIP")
        if not any(cases.values()):
            word = "SKIPPED" if test["result"] == "SKIP" else "PASSED" if good else "FAILED"
            cases[word] = 1
        elif not good and cases["FAILED"] == 0:
            cases["FAILED"] = 1
        if not good:
            names = sorted(set(FAILED_CASE.findall(text))) or [test["result"].lower()]
            failures += [f"{test['name']}: {name}" for name in names]
        passed += cases["PASSED"]
        failed += cases["FAILED"]
        skipped += cases["SKIPPED"]
    return passed, failed, skipped, failures


def count_junit(path):
    passed = failed = skipped = 0
    failures = []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            failures.append(f"{case.get('classname')}.{case.get('name')}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped, failures


def main():
    directory = pathlib.Path(sys.argv[1])
    counts = [count_meson(path) for path in sorted(directory.glob("testlog.json"))]
    counts += [count_junit(path) for path in sorted(directory.glob("*.xml"))]
    passed, failed, skipped = (sum(count[i] for count in counts) for i in range(3))
    for count in counts:
        for failure in count[3]:
            print(f"failed: {failure}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
