"""What a server says of its command line, its environment and its context when it starts."""

import os
import struct
import subprocess

import httpx
import pytest

from conftest import serve
from lib import server as servers
from ondisk import wait_until

SIM = ["--engine", "sim"]


def said(*flags, **variables):
    with serve(*SIM, *flags, env=variables) as running:
        wait_until(lambda: "  disk  " in running.log(), "the banner is printed")
        return running.log()


def test_a_command_line_of_llama_server():
    log = said("-c", "16k", "-fa", "-np", "auto", "-ngl", "99", "--mlock", "--no-mmap", "--jinja", "--no-webui",
               "--cache-reuse", "256", "--slot-prompt-similarity", "0.5", "--metrics")
    assert "context  16384 tokens" in log and ", 4 lanes" in log
    assert "--no-webui: " not in log  # it is honoured
    assert "info  --cache-reuse: accepted, " in log
    assert "info  --slot-prompt-similarity: accepted, " in log
    assert "--mlock: " not in log and "--metrics" not in log
    assert "warn  --mlock has no effect: the simulated engine computes nothing" in log


def test_defaults_of_requests():
    given = {"typical": 0.5, "repeat_last_n": 32, "presence_penalty": 0.25, "frequency_penalty": -0.25, "top_n_sigma": 2,
             "xtc_probability": 0.5, "xtc_threshold": 0.25, "dynatemp_range": 0.5, "dynatemp_exp": 2, "dry_base": 1.5,
             "dry_multiplier": 0.75, "dry_allowed_length": 3, "dry_penalty_last_n": 128}
    named = {"typical": "typical_p", "dynatemp_exp": "dynatemp_exponent"}
    flags = [word for name, value in given.items() for word in ("--" + name.replace("_", "-"), str(value))]
    with serve(*SIM, *flags, "--ignore-eos") as running:
        settings = httpx.get(f"http://127.0.0.1:{running.port}/props", timeout=30).json()
        settings = settings["default_generation_settings"]["params"]
    assert {name: settings[named.get(name, name)] for name in given} == given
    assert settings["ignore_eos"] is True


def recommending(path, **values):
    """A copy of the small model whose file recommends how to sample. What is put in front of its metadata keeps the
    alignment of what follows."""
    def entry(name, kind, value):
        return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value
    added = b"".join(entry(f"general.sampling.{name}".encode(), 5 if isinstance(value, int) else 6,
                           struct.pack("<i" if isinstance(value, int) else "<f", value)) for name, value in values.items())
    room = len(entry(b"test.filler", 8, struct.pack("<Q", 0)))
    filler = b"x" * (-(len(added) + room) % 32)
    added += entry(b"test.filler", 8, struct.pack("<Q", len(filler)) + filler)
    with open(os.path.join(servers.models_dir(), "tiny.gguf"), "rb") as file:
        head, rest = file.read(24), file.read()
    count, = struct.unpack("<Q", head[16:])
    path.write_bytes(head[:16] + struct.pack("<Q", count + len(values) + 1) + added + rest)
    return str(path)


@pytest.mark.llama
def test_the_model_recommends_how_to_sample(tmp_path):
    """What was given wins; what no request could ask for is left out."""
    model = recommending(tmp_path / "m.gguf", temp=0.25, top_k=7, top_p=0.5, min_p=9.0, penalty_repeat=1.5)
    with serve("-m", model, "-c", "512", "--top-p", "0.75") as running:
        settings = httpx.get(f"http://127.0.0.1:{running.port}/props", timeout=30).json()
        log = running.log()
    settings = settings["default_generation_settings"]["params"]
    wanted = {"temperature": 0.25, "top_k": 7, "top_p": 0.75, "min_p": pytest.approx(0.05), "repeat_penalty": 1.5}
    assert {name: settings[name] for name in wanted} == wanted
    assert "--temp is 0.25, which the model's file recommends" in log


def test_variables_that_are_none():
    log = said("-c", "4096", HEARTH_CTXSIZE="8192", LLAMA_ARG_PORT="1", HEARTH_CACHE="/tmp")
    assert "warn  environment: HEARTH_CTXSIZE is not an option: did you mean HEARTH_CTX_SIZE?" in log
    assert "warn  environment: LLAMA_ARG_PORT is not read: set HEARTH_PORT" in log
    assert "HEARTH_CACHE" not in log


@pytest.mark.parametrize("flags, line", [
    (["--slot-save-path", "x"], "hearth: --slot-save-path: not needed, state is kept in --kv-dir"),
    (["-hf", "someone/model"], "hearth: -hf: hearth fetches nothing: "),
    (["--ctx-szie", "1"], "hearth: unknown option --ctx-szie, did you mean --ctx-size?"),
])
def test_refused_before_anything_is_loaded(flags, line):
    done = subprocess.run([servers.hearth_path(), "serve", *SIM, *flags], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and done.stderr.startswith(line) and done.stdout == ""


@pytest.mark.parametrize("size, missing", [
    ("8k", "too small for Codex (16384), Claude Code (24576) and Hermes (64000): give -c 64k"),
    ("32k", "too small for Hermes (64000): give -c 64k"),
    ("64k", None),
])
def test_the_banner_says_which_agents_have_too_little(size, missing):
    log = said("-c", size)
    assert (missing in log) if missing else ("too small" not in log)


def test_devices():
    done = subprocess.run([servers.hearth_path(), "serve", "--list-devices"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip()


def free_memory_gib():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:")) / 2**20


@pytest.mark.llama
@pytest.mark.skipif(free_memory_gib() < 8, reason="scripts/run.sh takes a large context where memory is free")
def test_make_run_serves_a_context_for_agents():
    variables = servers.surroundings({"HEARTH_BIN": servers.hearth_path(), "PORT": str(servers.free_port()), "MODEL": "",
                                      "HEARTH_CACHE": os.path.dirname(servers.models_dir())})
    script = os.path.join(servers.REPOSITORY, "scripts", "run.sh")
    with subprocess.Popen([script], env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        try:
            said = [next(line for line in run.stdout if line.startswith("  context")), run.stdout.readline()]
        finally:
            run.terminate()
    assert said[0] == "  context  65536 tokens (trained with 8192), 4 lanes\n"
    assert said[1].startswith("           agents can start, ")
