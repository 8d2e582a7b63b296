"""Writes the files of the page as C arrays: embed.py OUT.c FILE…  Each has its path, type, and a digest as its ETag.

src/api/ui.h declares what is written. The page is / and the others are at their names."""

import hashlib
import os
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".js": "text/javascript; charset=utf-8"}


def main(out, files):
    rows, arrays = [], []
    for number, name in enumerate(files):
        with open(name, "rb") as file:
            data = file.read()
        base = os.path.basename(name)
        path = "/" if base == "index.html" else "/" + base
        tag = hashlib.sha256(data).hexdigest()[:16]
        lines = [", ".join(str(byte) for byte in data[at:at + 32]) for at in range(0, len(data), 32)]
        arrays.append(f"static const unsigned char file_{number}[] = {{\n" + ",\n".join(lines) + "};\n")
        rows.append(f'    {{"{path}", "{TYPES[os.path.splitext(base)[1]]}", "\\"{tag}\\"", file_{number}, {len(data)}}},\n')
    with open(out, "w", encoding="utf-8") as file:
        file.write("/* Made by src/ui/embed.py. */\n#include \"api/ui.h\"\n\n" + "".join(arrays)
                   + "\nconst struct hearth_ui_file hearth_ui_files[] = {\n" + "".join(rows) + "};\n"
                   + "const size_t hearth_ui_file_count = sizeof hearth_ui_files / sizeof hearth_ui_files[0];\n")


main(sys.argv[1], sys.argv[2:])
