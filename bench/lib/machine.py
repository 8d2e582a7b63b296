"""What a record was made on and with: the machine, the compiler, llama.cpp, hearth's commit, the models' digests."""

import hashlib
import os
import platform
import re
import subprocess

from . import server


def _output(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=server.REPOSITORY, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).strip()


def _file(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _llama_version():
    found = re.search(r"^VERSION=(\S+)", _file(os.path.join(server.REPOSITORY, "scripts", "deps.sh")), re.M)
    return f"the source inside llama-cpp-python {found[1]}" if found else "unknown"


def _system():
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', _file("/etc/os-release"), re.M)
    return found[1] if found else platform.system()


def describe():
    cpu = re.search(r"^model name\s*: (.*)", _file("/proc/cpuinfo"), re.M)
    memory = re.search(r"^MemTotal:\s*(\d+)", _file("/proc/meminfo"), re.M)
    commit = _output("git", "rev-parse", "HEAD")
    changed = _output("git", "status", "--porcelain", "--untracked-files=no", "--", "src", "bench", "scripts",
                      ":(exclude)bench/report")
    return {
        "cpu": cpu[1] if cpu else platform.processor() or platform.machine(),
        "cores": server.cores(),
        "ram_gib": round(int(memory[1]) / (1 << 20), 1) if memory else None,
        "system": _system(),
        "kernel": f"{platform.system()} {platform.release()}",
        "compiler": _output("cc", "--version").split("\n")[0],
        "python": platform.python_version(),
        "llama_cpp": _llama_version(),
        "llama_server": next(
            (line for line in _output(server.peer_path(), "--version").split("\n") if "version" in line), ""
        ),
        "hearth": _output(server.hearth_path(), "--version").split("\n")[0],
        "hearth_commit": commit + (" with changes" if changed else ""),
    }


def model(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return {"file": os.path.basename(path), "bytes": os.path.getsize(path), "sha256": digest.hexdigest()}


def short(found):
    """One line for a caption."""
    return (f"{found['cpu']}, {found['cores']} cores, {found['ram_gib']} GiB RAM, {found['system']}, kernel "
            f"{found['kernel'].split()[-1]}")
