"""Libraries that are loaded into a server to make its calls fail, or to answer for others: tests/support/faulty_*.c, names.c."""

import os
import subprocess

from lib import server as servers


def library(directory, name):
    path = directory / f"{name}.so"
    source = os.path.join(servers.REPOSITORY, "tests", "support", f"{name}.c")
    subprocess.run([os.environ.get("CC", "cc"), "-D_GNU_SOURCE", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror",
                    "-I", os.path.join(servers.REPOSITORY, "tests"), "-shared", "-fPIC", "-o", str(path), source,
                    "-ldl"], check=True)
    return str(path)


class Faults:
    """Rules for a server's file system; see faulty_fs.c."""

    def __init__(self, preload, tmp_path, directory):
        self.control = str(tmp_path / "faults")
        self.env = {"HEARTH_CONFINE": "off",  # the library keeps its accounts in files of its own
                    "LD_PRELOAD": preload, "FAULTY_DIR": os.path.realpath(directory), "FAULTY_CONTROL": self.control,
                    "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}

    def set(self, *rules):
        with open(self.control + ".new", "w", encoding="ascii") as file:
            file.write("".join(f"{rule}\n" for rule in rules))
        os.rename(self.control + ".new", self.control)

    def hits(self):
        try:
            with open(self.control + ".hits", encoding="ascii") as file:
                return file.read().split()
        except FileNotFoundError:
            return []
