"""A path that was given and cannot be used ends the start; a default one is told by the log and by /health."""

import concurrent.futures
import os
import subprocess

import pytest

from conftest import serve
from lib import server as servers
from ondisk import reasons, wait_until
from test_transport import make_certificate

SIM = ["--engine", "sim", "-c", "4096"]

# Files that are read, directories and files that are written; with what each needs besides.
READ = ["--config", "--api-key-file", "--kv-key", "--script", "--chat-template-file"]
LOADED = ["--model", "--lora"]
CAUSES = {"--config": ("mine", "a line is an option"), "--api-key-file": ("# none", "holds no key"),
          "--kv-key": ("short", "holds 5 bytes"), "--script": ("mine", "line 1"),
          "--chat-template-file": (" ", "holds no template"), "--model": ("mine", "is not a GGUF file"),
          "--lora": ("mine", "is not a GGUF file"), "--ssl-cert-file": ("mine", "no start line"),
          "--ssl-key-file": ("mine", "cannot take the key")}
WRITTEN = ["--kv-dir", "--session-db"]


def places(folder):
    """What can be wrong with a path, and the reason that is given for it."""
    (folder / "directory").mkdir()
    (folder / "file").write_text("")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "gone").symlink_to(folder / "nowhere")
    (folder / "pipe").touch()
    return {
        "missing": (folder / "missing", "No such file or directory"),
        "directory": (folder / "directory", "Is a directory"),
        "below a file": (folder / "file" / "name", "Not a directory"),
        "a link to nothing": (folder / "gone", "No such file or directory"),
        "a link to itself": (folder / "loop", "Too many levels of symbolic links"),
        "too long": (folder / ("x" * 300), "File name too long"),
    }


def refusal(*flags, **variables):
    environment = {**os.environ, **variables}
    done = subprocess.run([servers.hearth_path(), "serve", "--port", "0", *flags], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60, env=environment)
    lines = [line for line in done.stderr.splitlines() if line.startswith("hearth:")]
    assert done.returncode == 1 and len(lines) == 1 and done.stdout == "", done.stderr
    return lines[0]


@pytest.mark.parametrize("option", READ + LOADED)
def test_a_file_that_cannot_be_read(tmp_path, option):
    flags = SIM if option in READ else ["-m", os.path.join(servers.models_dir(), "tiny.gguf")]
    for name, (path, reason) in places(tmp_path).items():
        line = refusal(*flags, option, str(path))
        assert str(path) in line and reason in line, name
        variable = "HEARTH_" + option[2:].upper().replace("-", "_")
        if option != "--model":  # the flag wins
            assert refusal(*flags, **{variable: str(path)}) == line, name


def test_what_never_ends_and_what_never_begins(tmp_path):
    """A device without an end, and a pipe that nothing writes into; one that something writes into is a file. Each is waited
    for, so the options are tried side by side."""
    def tried(option):
        assert refusal(*SIM, option, "/dev/zero") == (
            f"hearth: {option}: cannot read /dev/zero: it is longer than 64 MiB: is it the right file?")
        pipe = tmp_path / option.strip("-")
        os.mkfifo(pipe)
        assert refusal(*SIM, option, str(pipe)) == (
            f"hearth: {option}: cannot read {pipe}: it is a pipe, and nothing writes into it")
        with subprocess.Popen(["sh", "-c", 'sleep 1; exec 3> "$0"; sleep 1; printf "\\0" >&3', str(pipe)]) as writer:
            assert refusal(*SIM, option, str(pipe)) == f"hearth: {option}: {pipe} is no text"
            assert writer.wait(30) == 0

    options = ["--config", "--api-key-file", "--script", "--chat-template-file"]
    with concurrent.futures.ThreadPoolExecutor(len(options)) as pool:
        assert list(pool.map(tried, options)) == [None] * len(options)


@pytest.mark.parametrize("option", sorted(CAUSES))
def test_what_a_file_holds_is_not_what_is_meant(tmp_path, option):
    """The line names the option, the file and the cause, however long the path is."""
    text, cause = CAUSES[option]
    flags = ["-m", os.path.join(servers.models_dir(), "tiny.gguf")] if option in LOADED else SIM
    if option in ("--ssl-cert-file", "--ssl-key-file"):
        certificate, key = make_certificate(tmp_path, "server")
        flags = SIM + (["--ssl-key-file", key] if option == "--ssl-cert-file" else ["--ssl-cert-file", certificate])
    folder = tmp_path.joinpath(*["d" * 200] * 5)
    folder.mkdir(parents=True)
    for path in tmp_path / "it", folder / "it":
        path.write_text(text)
        path.chmod(0o600)
        line = refusal(*flags, option, str(path))
        assert cause in line
        assert option == "--config" or (line.startswith(f"hearth: {option}: ") and "/it" in line)
    line = refusal(*flags, option, "/" + "x" * 5000)
    assert line.startswith(f"hearth: {option}: ") and line.endswith("File name too long") and len(line) < 600


@pytest.mark.parametrize("option", WRITTEN)
def test_a_place_that_cannot_be_written(tmp_path, option):
    wrong = places(tmp_path)
    for name in ["below a file", "a link to itself", "too long"] + (["directory"] if option == "--session-db" else []):
        path, reason = wrong[name]
        line = refusal(*SIM, option, str(path))
        assert str(path) in line and any(
            why in line for why in (reason, "not a regular file", "a symbolic link")), name
    line = refusal(*SIM, option, str(tmp_path / "file" / "deeper" / "still"))
    assert "Not a directory" in line or "No such file" in line
    line = refusal(*SIM, option, "/sys/hearth/deeper/still")
    assert "No such file" not in line  # which is only what follows from why it cannot be made


@pytest.mark.parametrize("option", READ + LOADED + WRITTEN)
def test_an_empty_path(option):
    line = refusal(*SIM, option, "")
    assert line.startswith(f"hearth: {option}") and "empty" in line


def test_off_is_no_path(tmp_path):
    """What turns a place off is "none"; "off" would be a directory or a file of that name."""
    said = "'off' is no path: none turns it off, ./off is a path"
    config = tmp_path / "hearth.conf"
    config.write_text("kv-dir = off\n")
    assert refusal(*SIM, "--config", str(config)) == f"hearth: {config}:1: kv-dir: {said}"
    for option in WRITTEN:
        assert refusal(*SIM, option, "off") == f"hearth: {option}: {said}"
    assert refusal(*SIM, HEARTH_SESSION_DB="off") == f"hearth: HEARTH_SESSION_DB: {said}"
    for command in (["kv", "ls", "--kv-dir", "off"], ["sessions", "ls", "--db", "off"]):
        done = subprocess.run([servers.hearth_path(), *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (1, f"hearth {command[0]}: {command[2]}: {said}\n")
    assert not (tmp_path / "off").exists()


@pytest.mark.parametrize("variable", ["HEARTH_KV_KEY", "HEARTH_API_KEY_FILE", "HEARTH_SSL_CERT_FILE",
                                      "HEARTH_SSL_KEY_FILE"])
def test_what_protects_is_not_left_out_for_an_unset_variable(variable):
    """Encryption, keys and TLS: a server without them is not what is meant."""
    assert refusal(*SIM, **{variable: ""}) == f"hearth: {variable} is given and empty (an unset variable?)"


def test_a_path_in_a_file_is_meant_too(tmp_path):
    path, reason = places(tmp_path)["missing"]
    config = tmp_path / "hearth.conf"
    config.write_text("kv-dir =\n")
    assert refusal(*SIM, "--config", str(config)) == f"hearth: {config}:1: kv-dir: the path is empty"
    config.write_text(f"script = {path}\n")
    line = refusal(*SIM, "--config", str(config))
    assert line == f"hearth: --script: cannot read {path}: {reason}"


def test_a_file_that_nobody_may_read(tmp_path):
    path = tmp_path / "keys"
    path.write_text("sk-1\n")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert "Permission denied" in refusal(*SIM, "--api-key-file", str(path))


def test_a_directory_of_somebody_else(tmp_path):
    """Others' rights are taken from a directory of hearth's; one with other things in it is not touched."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o777)
    (tmp_path / "mine" / "letter").write_text("")
    assert "holds other things than hearth's" in refusal(*SIM, "--kv-dir", str(tmp_path / "mine"))
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 12345, 12345)
        assert "belongs to user 12345" in refusal(*SIM, "--kv-dir", str(tmp_path / "theirs"))


def test_default_places_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    away = {"HEARTH_KV_DIR": "", "HEARTH_SESSION_DB": "", "XDG_CACHE_HOME": str(tmp_path / "file"),
            "XDG_DATA_HOME": str(tmp_path / "file")}
    with serve(*SIM, env=away) as running:
        told = reasons(running)
        assert set(told) == {"kv_dir", "session_db"}
        for message in told.values():
            assert str(tmp_path / "file") in message and message in running.log()


def test_a_default_cache_of_somebody_else(tmp_path):
    folder = tmp_path / "hearth" / "kv"
    folder.mkdir(parents=True)
    (folder / "letter").write_text("")
    folder.chmod(0o777)
    with serve(*SIM, env={"HEARTH_KV_DIR": "", "XDG_CACHE_HOME": str(tmp_path)}) as running:
        assert "holds other things than hearth's" in reasons(running)["kv_dir"]
    assert [path.name for path in folder.iterdir()] == ["letter"]


def test_a_budget_that_holds_no_page(tmp_path):
    with serve("--engine", "sim", "-c", "131072", "--kv-dir", str(tmp_path), "--kv-disk", "1", "--page-tokens",
               "65536") as running:
        assert "cannot hold a page" in reasons(running)["kv_disk"]
    with serve(*SIM, "--kv-dir", str(tmp_path), "--kv-disk", "1") as running:
        assert reasons(running) == {}


def test_options_without_effect(tmp_path):
    with serve(*SIM, "--kv-dir", "none", "--kv-compress", "zstd", "--speculate", "off", "--draft-tokens", "4",
               env={"HEARTH_SESSION_TTL": "7"}) as running:
        wait_until(lambda: "is listening" in running.log(), "the banner is printed")
        warned = [line.split("warn  ", 1)[1] for line in running.log().splitlines() if "has no effect" in line]
    assert warned == ["--draft-tokens has no effect: --speculate is off",
                      "--kv-compress has no effect: nothing is kept on disk",
                      "--session-ttl has no effect: sessions are kept in memory"]


@pytest.mark.parametrize("text, line, what", [
    ("{{ a", 1, "Expected }}"),
    ("a\nb\n{% endif %}", 3, "Unknown statement: endif"),
    ("{{ a }}\n{{ b }}\n\n{% frob x %}\n{{ c }}\n", 4, "Unknown statement: frob"),
    ("{% if a %}\n{% endif %}\n{% for a in b %}\n{% if a %}\n{% endif %}\n", 3, "a block has no end"),
    ("one\n{% set x = %}\n", 2, "Unexpected token"),
    ("{{ a }}\n{{ a $ }}", 2, "unexpected character: $"),
    ("{{ a }}\n{# never closed", 2, "missing end of comment"),
])
@pytest.mark.parametrize("option", ["--chat-template-file", "--chat-template"])
def test_a_template_that_does_not_compile(tmp_path, option, text, line, what):
    path = tmp_path / "chat.jinja"
    path.write_text(text)
    given = str(path) if option == "--chat-template-file" else text
    said = refusal(*SIM, option, given)
    assert f"line {line}: " in said and what in said
    assert (str(path) if option == "--chat-template-file" else option) in said


@pytest.mark.parametrize("text, said", [
    ("one\n{{ raise_exception('never') }}", "line 2: never"),
    ("{% for m in messages %}\n\n{{ m.content | frob }}\n{% endfor %}", "line 3: Unknown (built-in) filter 'frob'"),
    ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}{{ raise_exception('no') }}{% endif %}"
     "{% endfor %}", None),
])
def test_a_template_that_fails_on_every_prompt(tmp_path, text, said):
    path = tmp_path / "chat.jinja"
    path.write_text(text)
    with serve(*SIM, "--chat-template-file", str(path)) as running:
        told = [line for line in running.log().splitlines() if "fails on every prompt" in line]
        assert len(told) == (said is not None)
        assert said is None or (" warn " in told[0] and f"{path} fails on every prompt that was tried: {said}" in told[0])
