"""What the process may do once it serves, and what its files look like."""

import os
import pathlib
import signal
import stat

import httpx
import pytest

from conftest import serve
from ondisk import disk, wait_until

SIM = ["--engine", "sim", "-c", "4096"]


def is_confined(running):
    """Not where the kernel cannot, or in a build with sanitizers; the server says which."""
    return "info  confined: " in running.log()


def confinement(process):
    """Of each thread: may it get new privileges, is there a filter?"""
    for status in pathlib.Path(f"/proc/{process.pid}/task").glob("*/status"):
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        yield fields["NoNewPrivs"].strip(), fields["Seccomp"].strip()


def ask(running):
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4}
    reply = httpx.post(f"http://127.0.0.1:{running.port}/v1/chat/completions", json=body, timeout=60,
                       headers={"Authorization": "Bearer sk-first"})
    return reply.json()["choices"][0]["message"]["content"]


def test_every_thread_is_confined():
    with serve(*SIM) as running:
        if not is_confined(running):
            pytest.skip("this kernel or this build does not confine")
        assert ask(running)
        assert set(confinement(running.process)) == {("1", "2")}


def test_confinement_can_be_turned_off():
    with serve(*SIM, "--confine", "off") as running:
        assert set(confinement(running.process)) == {("0", "0")}
        assert "not confined (--confine off)" in running.log()


def reload(running, line):
    running.process.send_signal(signal.SIGHUP)
    wait_until(lambda: line in running.log(), f"'{line}' is logged")


def test_a_reload_that_points_outside_changes_nothing(tmp_path):
    secret, own = tmp_path / "home" / "id_ed25519", tmp_path / "etc"
    secret.parent.mkdir()
    own.mkdir()
    secret.write_text("sk-of-somebody-else\n")
    (own / "keys").write_text("sk-first\n")
    (own / "hearth.conf").write_text(f"api-key-file = {own}/keys\n")
    with serve(*SIM, "--config", str(own / "hearth.conf")) as running:
        if not is_confined(running):
            pytest.skip("this kernel or this build does not confine")
        (own / "hearth.conf").write_text(f"api-key-file = {secret}\n")
        reload(running, f"reload: --api-key-file: cannot read {secret}: Permission denied (the process is confined")
        assert "nothing was changed" in running.log()
        assert ask(running)


def test_a_file_that_took_the_place_of_another_is_read_again(tmp_path):
    """Editors and deployments write beside a file and rename."""
    keys = tmp_path / "keys"
    keys.write_text("sk-first\n")
    with serve(*SIM, "--api-key-file", str(keys)) as running:
        assert ask(running)
        (tmp_path / "keys.new").write_text("sk-first\nsk-second\n")
        (tmp_path / "keys.new").rename(keys)
        reload(running, "reload: 2 keys")


def test_what_is_written_is_the_users_own(tmp_path):
    before = os.umask(0)
    try:
        with serve(*SIM, "--kv-dir", str(tmp_path / "kv"), "--session-db", str(tmp_path / "data" / "sessions.db"),
                   "--kv-min-tokens", "1", "--page-tokens", "16") as running:
            running.client.post("/v1/responses", {"model": "sim", "input": "word " * 100, "max_output_tokens": 16})
            wait_until(lambda: list((tmp_path / "kv").rglob("*.page")), "a page is written")
            paths = [path for folder in ("kv", "data") for path in (tmp_path / folder, *(tmp_path / folder).rglob("*"))]
            modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in paths if path.exists()}
    finally:
        os.umask(before)
    assert len(modes) > 8
    assert {path: oct(mode) for path, mode in modes.items() if mode not in (0o600, 0o700)} == {}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_the_default_directory_may_be_a_link(tmp_path):
    """To another disk, say."""
    (tmp_path / "hearth").mkdir()
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "hearth" / "kv").symlink_to(tmp_path / "elsewhere")
    with serve(*SIM, env={"HEARTH_KV_DIR": "", "XDG_CACHE_HOME": str(tmp_path)}) as running:
        assert disk(running)["state"] in ("ok", "scanning")
