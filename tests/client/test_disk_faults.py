"""A disk that is full, read-only, broken or damaged costs speed, never an answer.

Faults come from tests/support/faulty_fs.c, preloaded into the server, which therefore does its I/O on plain threads.
Damage is done to a directory that a server has written; each start over it must answer as a server without a cache.

HEARTH_DAMAGE is how many starts each random kind of damage gets (default 2).
"""

import contextlib
import functools
import os
import random
import shutil
import socket
import subprocess
import time

import pytest

import ondisk
from conftest import serve
from faulty import Faults
from ondisk import (QUICK_SIM, bad_files, content, disk, request, reused, serve_disk, state_files, wait_scanned, wait_until,
                  wait_written)
from lib import server as servers

# Prompts that are the same tokens for every server, whatever has become of its transcripts.
Talk = functools.partial(ondisk.Talk, foreign=True)
ROUNDS = int(os.environ.get("HEARTH_DAMAGE", "2"))
RECOVERY_S = 120


# ---------------------------------------------------------------------------------------------------- faults

@pytest.fixture
def faults(faulty_fs, tmp_path):
    (tmp_path / "kv").mkdir()
    return Faults(faulty_fs, tmp_path, tmp_path / "kv")


@pytest.fixture(scope="module")
def steady():
    """What replies must be."""
    with serve(*QUICK_SIM, "-c", "8192", "-np", "1", "--cache-ram", "0") as running:
        yield Steady(running)


class Steady:
    def __init__(self, running):
        self.client, self.known = running.client, {}

    def expect(self, messages, answer):
        key = repr(messages)
        if key not in self.known:
            self.known[key] = content(request(self.client, messages))
        assert content(answer) == self.known[key]


def broken_disk(directory, faults, *flags):
    return serve_disk("sim", directory, "--kv-io", "threads", *flags, scanned=False, env=faults.env)


def turn(running, talk, steady):
    messages = talk.ask()
    answer = request(running.client, messages)
    talk.hear(answer)
    steady.expect(messages, answer)
    return answer


def degraded(running):
    return [reason["condition"] for reason in running.client.get("/health")["reasons"]]


WRITING = ["write ENOSPC 1 0", "write EDQUOT 1 0", "write EIO 1 0", "sync EIO 1 0", "rename EIO 1 0", "open ENOSPC 1 0",
           "open EMFILE 1 0", "open EROFS 1 0", "write EIO 3 0"]


@pytest.mark.parametrize("rule", WRITING)
def test_writing_fails_and_recovers(rule, faults, steady, tmp_path):
    """Serving goes on, /health and /metrics say what is wrong, and it ends by itself when the disk is well again."""
    talk = Talk("writing", system_words=80)
    with broken_disk(tmp_path / "kv", faults) as running:
        turn(running, talk, steady)
        healthy = wait_written(running)
        assert healthy["hearth_disk_written_total"] > 0 and disk(running)["state"] == "ok"
        faults.set(rule)

        def fails():  # it may be well again in between: it tries once a second
            turn(running, talk, steady)
            state, metrics = disk(running), running.client.metrics()
            return (state["state"] == "failing" and state["trouble"] and metrics["hearth_disk_failing"] == 1 and
                    metrics["hearth_disk_io_errors_total"] > 0)

        wait_until(fails, "the tier says that it fails")
        assert faults.hits()
        expected = "kv_disk" if "ENOSPC" in rule or "EDQUOT" in rule else "kv_dir"
        wait_until(lambda: expected in degraded(running), "/health says what does not work")
        turn(running, talk, steady)
        faults.set()

        def recovers():
            turn(running, Talk(f"recovered {time.monotonic()}", system_words=40), steady)
            time.sleep(0.5)
            metrics = running.client.metrics()
            return metrics["hearth_disk_failing"] == 0 and \
                metrics["hearth_disk_written_total"] > healthy["hearth_disk_written_total"]

        wait_until(recovers, "writing goes on", RECOVERY_S)
        assert disk(running)["state"] == "ok"
        wait_until(lambda: degraded(running) == [], "/health says that it is over")
        assert running.client.metrics()["hearth_disk_bad_total"] == 0
    assert_whole(tmp_path / "kv")


@pytest.mark.parametrize("rule", ["mkdir EROFS 1 0", "unlink EIO 1 0", "touch EROFS 1 0", "list EIO 1 0",
                                  "write SHORT 1 0", "read SHORT 1 0", "write EINTR 1 1", "any EIO 1 0",
                                  "any EROFS 1 0"])
def test_other_calls_fail(rule, faults, steady, tmp_path):
    """Calls that need not stop the writing: right replies, during and after."""
    talk = Talk("others", system_words=80)
    with broken_disk(tmp_path / "kv", faults) as running:
        turn(running, talk, steady)
        wait_written(running)
        faults.set(rule)
        for number in range(3):
            turn(running, talk, steady)
            turn(running, Talk(f"others {number}", system_words=40), steady)
        faults.set()
        turn(running, talk, steady)
    with serve_disk("sim", tmp_path / "kv") as running:
        assert reused(turn(running, talk, steady)) > 0
    assert_whole(tmp_path / "kv")


def test_reading_fails(faults, steady, tmp_path):
    """What cannot be read is computed, and is still there when the disk is well again."""
    talk = Talk("reading", system_words=200)
    with broken_disk(tmp_path / "kv", faults) as running:
        turn(running, talk, steady)
        wait_written(running)
    with broken_disk(tmp_path / "kv", faults) as running:
        wait_scanned(running)
        faults.set("read EIO 1 0")
        answer = turn(running, talk, steady)
        assert reused(answer) == 0
        assert "read" in faults.hits()
        metrics = running.client.metrics()
        assert metrics["hearth_disk_io_errors_total"] > 0
        assert metrics["hearth_disk_bad_total"] == 0
        faults.set()
    with broken_disk(tmp_path / "kv", faults) as running:
        wait_scanned(running)
        assert reused(turn(running, talk, steady)) > 0


@pytest.fixture
def default_faults(faulty_fs, tmp_path):
    """Of the default directory: one that is named and cannot be used at the start ends it (test_paths.py)."""
    (tmp_path / "hearth" / "kv").mkdir(parents=True)
    return Faults(faulty_fs, tmp_path, tmp_path / "hearth" / "kv")


def broken_default(faults, tmp_path):
    env = {**faults.env, "HEARTH_KV_DIR": "", "XDG_CACHE_HOME": str(tmp_path)}
    return serve(*QUICK_SIM, "-c", "8192", "-np", "2", "--cache-ram", "512", "--kv-disk", "8192", "--kv-io",
                 "threads", env=env)


@pytest.mark.parametrize("rule", ["open", "read", "write", "sync", "rename", "mkdir", "unlink", "list", "any"])
def test_the_nth_call_fails(rule, default_faults, steady, tmp_path):
    """One fault at each of the first calls of a server's life, then of a longer one: it serves, and right."""
    talk = Talk("nth", system_words=60, asked_words=10)
    for nth in (1, 2, 3, 5, 9, 20):
        default_faults.set(f"{rule} EIO {nth} 1")
        with broken_default(default_faults, tmp_path) as running:
            turn(running, talk, steady)
            if len(talk.messages) > 12:
                talk = Talk(f"nth {nth}", system_words=60, asked_words=10)
    default_faults.set()
    with broken_default(default_faults, tmp_path) as running:
        wait_scanned(running)
        turn(running, talk, steady)
        assert running.client.metrics()["hearth_disk_bad_total"] == 0
    assert_whole(tmp_path / "hearth" / "kv")


@pytest.mark.parametrize("rule", ["any EIO 1 0", "any EROFS 1 0", "open EACCES 1 0", "write ENOSPC 1 0", "list EIO 1 0"])
def test_a_start_on_a_broken_disk(rule, default_faults, steady, tmp_path):
    default_faults.set(rule)
    with broken_default(default_faults, tmp_path) as running:
        turn(running, Talk("broken start"), steady)
        assert disk(running)["state"] in ("off", "failing", "scanning", "ok")


def assert_whole(directory):
    done = subprocess.run([servers.hearth_path(), "kv", "verify", "--kv-dir", str(directory)],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert not bad_files(directory)


# ---------------------------------------------------------------------------------------------------- damage

@pytest.fixture(scope="module")
def written(tmp_path_factory, steady):
    """A directory as a server has left it, and the conversations that it was written for."""
    folder = tmp_path_factory.mktemp("written")
    talks = [Talk(f"damage {number}", system_words=120, asked_words=60) for number in range(5)]
    with serve_disk("sim", folder, "--page-tokens", "64", "--kv-min-tokens", "64") as running:
        for _ in range(2):
            for talk in talks:
                turn(running, talk, steady)
        wait_written(running)
    assert len(state_files(folder)) >= 20
    return folder, talks


class Damaged:
    """A copy of the directory, with what is done to it."""

    def __init__(self, written, tmp_path, steady):
        self.folder, self.steady = tmp_path / "kv", steady
        shutil.copytree(written[0], self.folder)
        self.talks = written[1]
        self.files = sorted(path for path in state_files(self.folder))

    def replay(self, least_bad, most_bad, holds=True):
        """A server over it says what it must, quarantines the damaged files if they hold anything, a line for each, and
        needs nothing done."""
        with serve_disk("sim", self.folder, "--page-tokens", "64", "--kv-min-tokens", "64") as running:
            for talk in self.talks:
                for end in range(2, len(talk.messages) + 1, 2):
                    messages = talk.messages[:end]
                    self.steady.expect(messages, request(running.client, messages))
            bad = int(running.client.metrics()["hearth_disk_bad_total"])
            assert least_bad <= bad <= most_bad, bad_lines(running)
            assert len(bad_lines(running)) == bad, running.log()[-4000:]
            assert len(bad_files(self.folder)) == (min(bad, 64) if holds else 0)
            assert disk(running)["state"] == "ok"
            wait_written(running)
            return bad


def bad_lines(running):
    return [line for line in running.log().splitlines() if " warn " in line and "is not used" in line]


@pytest.fixture
def damaged(written, tmp_path, steady):
    return Damaged(written, tmp_path, steady)


def flip(path, bit):
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ (1 << bit % 8)]))


@pytest.mark.parametrize("number", range(ROUNDS))
def test_flipped_bits_in_headers(damaged, number):
    """Another bit in each file; over the rounds every place of a header has its turn."""
    chance = random.Random(f"headers {number}")
    for path in damaged.files:
        flip(path, chance.randrange(0, 8 * 128))
    damaged.replay(len(damaged.files) // 2, len(damaged.files))


@pytest.mark.parametrize("number", range(ROUNDS))
def test_flipped_bits_anywhere(damaged, number):
    chance = random.Random(f"anywhere {number}")
    for path in damaged.files:
        flip(path, chance.randrange(0, 8 * os.path.getsize(path)))
    damaged.replay(1, len(damaged.files))


@pytest.mark.parametrize("number", range(ROUNDS))
def test_truncated(damaged, number):
    """At every boundary of 4 KiB, from none to the last; and one byte short."""
    for index, path in enumerate(damaged.files):
        size = os.path.getsize(path)
        steps = size // 4096 + 1
        at = (index + number) % steps * 4096
        os.truncate(path, min(at, size - 1) if index % 5 else size - 1)
    damaged.replay(len(damaged.files) // 2, len(damaged.files))


def test_longer_than_they_should_be(damaged):
    for path in damaged.files:
        with open(path, "ab") as file:
            file.write(b"\0" * 100)
    damaged.replay(1, len(damaged.files))


def test_emptied(damaged):
    for path in damaged.files:
        os.truncate(path, 0)
    assert damaged.replay(len(damaged.files), len(damaged.files)) == len(damaged.files)


def test_swapped(damaged):
    """Files under each other's names: whole, and not what the name says."""
    for one, other in zip(damaged.files[::2], damaged.files[1::2]):
        os.rename(one, one + ".swap")
        os.rename(other, one)
        os.rename(one + ".swap", other)
    damaged.replay(2, len(damaged.files))


def test_random_bytes(damaged):
    chance = random.Random("bytes")
    for path in damaged.files:
        with open(path, "wb") as file:
            file.write(chance.randbytes(chance.randrange(1, 40000)))
    damaged.replay(len(damaged.files), len(damaged.files))


def replace_with_directory(path):
    os.mkdir(path)
    with open(os.path.join(path, "inside"), "w", encoding="ascii") as file:
        file.write("something")


def replace_with_link(path):
    os.symlink("/etc/passwd", path)


def replace_with_own_link(path):
    shutil.copy(path + ".old", path + ".elsewhere")
    os.symlink(path + ".elsewhere", path)


def replace_with_dangling_link(path):
    os.symlink("nowhere", path)


def replace_with_fifo(path):
    os.mkfifo(path)


def replace_with_socket(path):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")  # paths of sockets are short
        finally:
            os.close(folder)


@pytest.mark.parametrize("replace", [replace_with_directory, replace_with_link, replace_with_own_link,
                                     replace_with_dangling_link, replace_with_fifo, replace_with_socket])
def test_replaced(damaged, replace):
    for path in damaged.files:
        os.rename(path, path + ".old")
        replace(path)
        os.unlink(path + ".old")
    damaged.replay(len(damaged.files), len(damaged.files), replace is replace_with_directory)
    if replace is replace_with_link:
        assert os.path.getsize("/etc/passwd") > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_owned_by_somebody_else(damaged):
    for path in damaged.files:
        os.chown(path, 12345, 12345)
    damaged.replay(len(damaged.files), len(damaged.files))


def test_another_version_of_the_format(damaged):
    """A newer hearth's files are none of ours: left where they are, and not used. Bytes 8 to 11 are the version."""
    for path in damaged.files:
        with open(path, "r+b") as file:
            file.seek(8)
            file.write((999).to_bytes(4, "little"))
    damaged.replay(0, len(damaged.files))


def test_damaged_transcripts(damaged):
    found = [os.path.join(base, name) for base, _, names in os.walk(damaged.folder) for name in names
             if name.startswith("transcripts.db")]
    assert found
    chance = random.Random("transcripts")
    for path in found:
        with open(path, "r+b") as file:
            file.write(chance.randbytes(max(100, os.path.getsize(path) // 2)))
    damaged.replay(0, 0)


def test_the_directory_is_swept_from_outside(damaged):
    """Files that go while a server runs are misses."""
    with serve_disk("sim", damaged.folder, "--page-tokens", "64", "--kv-min-tokens", "64") as running:
        for path in state_files(damaged.folder):
            os.unlink(path)
        for talk in damaged.talks:
            damaged.steady.expect(talk.messages, request(running.client, talk.messages))
        assert running.client.metrics()["hearth_disk_bad_total"] == 0
