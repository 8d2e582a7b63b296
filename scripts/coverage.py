"""Prints what `llvm-cov export` says of src/: coverage.py FILE LEAST ROOT

Lines by room, the files of which less than nine tenths are reached with the functions that nothing calls, and last, in a
line of its own, "lines of src/: N of M, P %". Exits with 1 if P is less than LEAST.
"""

import collections
import json
import os
import sys


def main():
    report, least, root = sys.argv[1], float(sys.argv[2]), os.path.realpath(sys.argv[3])
    with open(report) as file:
        data = json.load(file)["data"][0]
    files, rooms = {}, collections.defaultdict(lambda: [0, 0])
    for entry in data["files"]:
        name = os.path.relpath(os.path.realpath(entry["filename"]), root)
        if name.startswith("src/"):
            lines = entry["summary"]["lines"]
            files[name] = (lines["covered"], lines["count"])
    # A static function stands once for every program that it is linked into: one call of any counts.
    calls, spans = collections.Counter(), {}
    for function in data["functions"]:
        name = os.path.relpath(os.path.realpath(function["filenames"][0]), root)
        key = (name, function["regions"][0][0])
        calls[key] += function["count"]
        spans[key] = (function["name"].rsplit(":", 1)[-1], function["regions"][0][2] - function["regions"][0][0] + 1)
    for name, (covered, count) in files.items():
        room = rooms[os.path.dirname(name).split("/")[1]]
        room[0] += covered
        room[1] += count
    for name in sorted(files, key=lambda name: files[name][1] - files[name][0], reverse=True):
        covered, count = files[name]
        if covered < 0.9 * count:
            print(f"{100 * covered / count:5.1f} %  {count - covered:5d} not reached  {name}")
            for (file, line), called in sorted(calls.items()):
                if file == name and not called:
                    print(f"                              {line}: {spans[file, line][0]}, {spans[file, line][1]} lines")
    print()
    for room in sorted(rooms):
        covered, count = rooms[room]
        print(f"{100 * covered / count:5.1f} %  {covered:6d} of {count:6d}  src/{room}")
    covered = sum(room[0] for room in rooms.values())
    count = sum(room[1] for room in rooms.values())
    print(f"lines of src/: {covered} of {count}, {100 * covered / count:.1f} %")
    return 1 if not count or 100 * covered / count < least else 0


if __name__ == "__main__":
    sys.exit(main())
