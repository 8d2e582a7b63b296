"""`hearth kv`: looking at the state directory, checking it, cleaning it up, and carrying conversations elsewhere. Most
tests make their directory with make_kv, without a server or a model; the last ones have a server at work in it."""

import json
import os
import pty
import re
import shutil
import stat
import subprocess

import pytest

from ondisk import serve_disk, state_files, wait_written
from lib import server as servers

SYSTEM = "system*40"
ALICE, BOB, OTHER = f"{SYSTEM},alice*60", f"{SYSTEM},bob*50", "other*20"


def run(*arguments, status=0, data=None, env=None, binary=False):
    done = subprocess.run([servers.hearth_path(), "kv", *map(str, arguments)], input=data,
                          stdin=subprocess.DEVNULL if data is None else None, capture_output=True, text=not binary,
                          timeout=120, env={**os.environ, **(env or {})})
    assert done.returncode == status, (done.stdout[-2000:], done.stderr[-2000:])
    return done


def kv(directory, *arguments, **options):
    return run(*arguments, "--kv-dir", directory, **options)


def kv_json(directory, *arguments, **options):
    return json.loads(kv(directory, *arguments, "--json", **options).stdout)


def conversations(directory, *arguments):
    return [c for model in kv_json(directory, "ls", *arguments)["models"] for c in model["conversations"]]


def complaint(*arguments, status=1, **options):
    """The one line on stderr of a command that fails."""
    done = run(*arguments, status=status, **options)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("hearth kv: ")
    return lines[0]


def make(directory, *arguments):
    maker = os.path.join(os.path.dirname(os.path.abspath(servers.hearth_path())), "tests", "support", "make_kv")
    subprocess.run([maker, *map(str, arguments[:-1]), directory, *arguments[-1]], check=True)
    return directory


@pytest.fixture
def three(tmp_path):
    """Two conversations over one system prompt, and another one."""
    return make(tmp_path / "kv", [ALICE, BOB, OTHER])


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


# ---- the command line ----

def test_help():
    text = run("--help").stdout
    for word in ("ls", "stat", "verify", "gc", "rm", "export", "import", "--kv-dir", "--kv-key", "--budget", "--yes"):
        assert re.search(rf"^  {word}\b", text, re.M), word
    assert "--budget" in run("gc", "-h").stdout
    assert "--budget" not in run("ls", "--help").stdout
    top = subprocess.run([servers.hearth_path(), "--help"], capture_output=True, text=True, check=True).stdout
    assert "hearth kv" in top


def test_wrong_usage(tmp_path):
    assert "'stat'" in complaint("stats", status=2)
    assert "--help" in complaint(status=2)
    assert "--json" in complaint("ls", "--jsn", status=2)
    assert "--kv-dir" in complaint("ls", "--kv-dir", status=2)
    assert "MiB" in complaint("gc", "--budget", "much", status=2)
    assert "MiB" in complaint("gc", "--budget", "-1", status=2)
    assert "usage" in complaint("export", "abc", status=2)
    assert "usage" in complaint("ls", "abc", status=2)
    assert "--all" in complaint("rm", status=2)
    assert "--all" in complaint("rm", "abc", "--all", status=2)
    assert "--yes" in complaint("ls", "--yes", status=2)
    assert "no such directory" in complaint("ls", "--kv-dir", tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    assert "none" in complaint("ls", env={"HEARTH_KV_DIR": "none"})


def test_where(three, tmp_path):
    home = tmp_path / "cache"
    (home / "hearth").mkdir(parents=True)
    shutil.move(three, home / "hearth" / "kv")
    expected = json.loads(run("ls", "--json", "--kv-dir", home / "hearth" / "kv").stdout)["models"]
    assert json.loads(run("ls", "--json", f"--kv-dir={home}/hearth/kv").stdout)["models"] == expected
    assert json.loads(run("ls", "--json", env={"HEARTH_KV_DIR": str(home / "hearth" / "kv")}).stdout)[
        "models"] == expected
    elsewhere = {"HEARTH_KV_DIR": "", "XDG_CACHE_HOME": str(home)}
    assert json.loads(run("ls", "--json", env=elsewhere).stdout)["models"] == expected


def test_refuses_a_directory_of_other_things(tmp_path):
    home = tmp_path / "home"
    (home / "pictures").mkdir(parents=True)
    home.chmod(0o755)
    assert "other things" in complaint("import", "-", "--kv-dir", home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o755


# ---- ls and stat ----

def test_ls_json(three):
    found = kv_json(three, "ls")
    assert found["dir"] == str(three)
    (model,) = found["models"]
    assert model["about"] == "test" and len(model["model"]) == 32
    assert model["files"] == len(state_files(three)) and model["damaged"] == 0
    other, bob, alice = model["conversations"]  # newest first
    assert [other["tokens"], bob["tokens"], alice["tokens"]] == [20, 90, 100]
    assert other["text"].startswith("other says") and other["shared_bytes"] == 0 and other["own_text"] == ""
    assert alice["text"] == bob["text"] and alice["text"].startswith("system says")
    assert bob["own_text"].startswith("bob says") and alice["own_text"].startswith("alice says")
    assert alice["shared_bytes"] == bob["shared_bytes"] > 0
    assert model["bytes"] == other["own_bytes"] + bob["own_bytes"] + alice["own_bytes"] + bob["shared_bytes"]
    assert alice["hits"] in (3, 0) and bob["hits"] == 0  # 0: no attributes here
    assert 3500 < bob["used"] - alice["used"] < 3700
    assert all(c["complete"] and c["snapshots"] == 1 for c in (alice, bob, other))
    assert all(len(c["id"]) == 8 and c["name"].startswith(c["id"]) for c in (alice, bob, other))


def test_ls_text(three):
    lines = kv(three, "ls").stdout.splitlines()
    assert "3 conversations" in lines[0] and "test" in lines[0]
    assert lines[1].split() == ["ID", "TOKENS", "OWN", "SHARED", "USED", "HITS", "SNAPS", "BEGINS", "WITH"]
    assert len(lines) == 5
    column = lines[1].index("BEGINS")
    assert [line[column:].split()[0] for line in lines[2:]] == ["other", "system", "system"]
    assert "| bob says" in lines[3] and "| alice says" in lines[4]


def test_a_longer_one_takes_the_place_of_its_beginning(tmp_path):
    directory = make(tmp_path / "kv", [ALICE, f"{ALICE},more*100", f"{ALICE},more*100,again*7"])
    (one,) = conversations(directory)
    assert one["tokens"] == 207 and one["snapshots"] == 3 and one["shared_bytes"] == 0


def test_conversations_end_at_blocks_too(tmp_path):
    """32 tokens are two blocks: what begins behind them is another conversation only if it leaves the first."""
    directory = make(tmp_path / "kv", ["head*32", "head*32,one*16", "head*32,two*32", "head*20"])
    assert sorted(c["tokens"] for c in conversations(directory)) == [48, 64]
    assert all(c["complete"] for c in conversations(directory))


def test_what_is_missing_in_between_is_said(three):
    before = {c["tokens"]: c for c in conversations(three)}
    pages = sorted(path for path in state_files(three) if path.endswith(".page"))
    incomplete = 0
    for path in pages:  # each page belongs to somebody, who notices
        with open(path, "rb") as file:
            content = file.read()
        os.unlink(path)
        now = conversations(three)
        if sorted(c["tokens"] for c in now) == sorted(before):
            assert any(not c["complete"] for c in now)
            incomplete += 1
            assert "(incomplete)" in kv(three, "ls").stdout
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o600)
    assert incomplete >= len(pages) / 2
    assert all(c["complete"] for c in conversations(three))


def test_words_of_another_conversation_are_not_shown(tmp_path):
    """The second leaves the first inside its first page, whose words are then not its own."""
    directory = make(tmp_path / "kv", ["head*3,first*20", "head*3,second*20"])
    first, second = sorted(conversations(directory), key=lambda c: c["used"])
    assert first["text"].startswith("head says") and first["own_text"].startswith("first says")
    assert second["text"] == "" and second["own_text"].startswith("second says")
    assert first["complete"] and second["complete"]
    assert "… | second says" in kv(directory, "ls").stdout


def test_text_of_a_prompt_cannot_command_the_terminal(tmp_path):
    directory = make(tmp_path / "kv", ["\x1b[2J\x07evil\r\n\u202eme*20"])
    line = kv(directory, "ls").stdout.splitlines()[2]
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", line)
    assert "evil me" in line
    assert conversations(directory)[0]["text"].startswith("\x1b[2J")  # JSON escapes it


def test_two_models(three):
    make(three, "-m", "second", "-p", 8, [OTHER])
    found = kv_json(three, "ls")["models"]
    assert sorted(model["about"] for model in found) == ["second", "test"]
    totals = kv_json(three, "stat")
    assert totals["total"]["files"] == len(state_files(three)) == sum(m["files"] for m in totals["models"])
    assert totals["total"]["conversations"] == 4 and totals["total"]["snapshots"] == 4
    assert totals["total"]["tokens"] == 40 + 60 + 50 + 20 + 20
    assert totals["bad"]["files"] == 0 and totals["free_bytes"] > 0
    assert totals["budget_bytes"] == (totals["free_bytes"] + totals["total"]["bytes"]) // 5 or totals["budget_bytes"] > 0
    assert kv_json(three, "stat", "--budget", "3")["budget_bytes"] == 3 << 20
    assert kv_json(three, "stat", env={"HEARTH_KV_DISK": "7"})["budget_bytes"] == 7 << 20
    text = kv(three, "stat").stdout
    assert "second" in text and "budget" in text and "free" in text


def test_an_empty_directory(tmp_path):
    directory = tmp_path / "kv"
    directory.mkdir(mode=0o700)
    assert kv_json(directory, "ls")["models"] == []
    assert "empty" in kv(directory, "ls").stdout
    assert kv_json(directory, "stat")["total"]["files"] == 0
    assert kv_json(directory, "verify")["files"] == 0
    assert kv_json(directory, "gc")["removed_files"] == 0
    assert kv_json(directory, "rm", "--all")["removed_files"] == 0


# ---- verify ----

def damage(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 4]))


def test_verify_finds_everything(three):
    assert kv_json(three, "verify")["good"] == len(state_files(three))
    assert "good" in kv(three, "verify").stdout
    paths = sorted(state_files(three))
    damage(paths[0], 300)        # header
    damage(paths[1], 4096 + 11)  # payload
    with open(paths[2], "r+b") as file:
        file.truncate(4096)
    with open(paths[3], "r+b") as file:
        file.truncate(0)
    with open(paths[4], "ab") as file:
        file.write(b"x")
    shutil.copyfile(paths[6], paths[5])  # whole, with another one's name
    os.unlink(paths[7])
    os.mkdir(paths[7])
    os.unlink(paths[8])
    os.symlink(paths[9], paths[8])
    os.unlink(paths[10])
    os.mkfifo(paths[10])
    quarantined = [*paths[:6], paths[7]]
    bad = [*quarantined, paths[8], paths[10]]  # a link and a pipe are removed, there is nothing in them to look at
    done = kv(three, "verify", status=1)
    assert len(done.stderr.splitlines()) == len(bad)
    for path in bad:
        assert not os.path.lexists(path)
        assert os.path.basename(path) in done.stderr
    assert f"{len(bad)} damaged" in done.stdout
    assert len(os.listdir(three / "bad")) == len(quarantined)
    again = kv_json(three, "verify")
    assert again["damaged"] == 0 and again["good"] == again["files"] == len(paths) - len(bad)
    assert kv_json(three, "stat")["bad"]["files"] == len(quarantined)


def test_ls_of_damaged_files_changes_nothing(three):
    path = sorted(state_files(three))[0]
    damage(path, 300)
    (model,) = kv_json(three, "ls")["models"]
    assert model["damaged"] == 1
    assert "(damaged)" in kv(three, "ls").stdout
    assert os.path.exists(path)


def test_another_version_is_left_alone(three):
    files = len(state_files(three))
    make(three, "-n", ["else*50"])
    (model,) = kv_json(three, "ls")["models"]
    assert model["other_version"] == len(state_files(three)) - files > 0
    assert len(model["conversations"]) == 3
    done = kv_json(three, "verify")
    assert done["other_version"] == model["other_version"] and done["good"] == files
    assert "(other version)" in kv(three, "ls").stdout


# ---- gc ----

def test_gc_keeps_the_newest(three):
    half = kv_json(three, "stat")["total"]["bytes"]
    assert half < 1 << 20
    make(three, "-p", 256, "-m", "large", [f"big{i}*2000" for i in range(6)])  # about a MiB each
    done = kv_json(three, "gc", "--budget", "3")
    assert done["bytes"] <= 3 << 20 and done["removed_files"] > 0 and done["budget_bytes"] == 3 << 20
    assert done["files"] == len(state_files(three))
    left = [c for c in conversations(three) if c["complete"] and c["tokens"] == 2000]
    assert left and all(c["text"].startswith(("big5", "big4")) for c in left)
    assert "removed 0 files" in kv(three, "gc").stdout


def test_gc_removes_leftovers(three):
    (folder,) = [path for path in three.iterdir() if re.fullmatch("[0-9a-f]{32}", path.name)]
    (folder / "tmp" / "1-left").write_bytes(b"half")
    damage(sorted(state_files(three))[0], 300)
    kv(three, "verify", status=1)
    before = kv_json(three, "stat")
    assert before["drafts"]["files"] == 1 and before["bad"]["files"] == 1
    done = kv_json(three, "gc")
    assert done["removed_drafts"] == 1 and done["removed_bad"] == 1 and done["removed_files"] == 0
    after = kv_json(three, "stat")
    assert after["drafts"]["files"] == 0 and after["bad"]["files"] == 0
    kv(three, "gc", "--budget", "0")
    assert kv_json(three, "ls")["models"] == []


# ---- rm ----

def test_rm_leaves_what_is_shared(three):
    bob = next(c for c in conversations(three) if c["tokens"] == 90)
    done = kv_json(three, "rm", bob["id"])
    assert done["conversations"] == 1 and done["removed_bytes"] == bob["own_bytes"]
    left = conversations(three)
    assert sorted(c["tokens"] for c in left) == [20, 100] and all(c["complete"] for c in left)
    alice = next(c for c in left if c["tokens"] == 100)
    other = next(c for c in left if c["tokens"] == 20)
    assert alice["shared_bytes"] == 0  # nobody else is left over the system prompt
    kv(three, "rm", alice["name"], other["id"][:6], "--yes")
    assert conversations(three) == [] and state_files(three) == {}


def test_rm_of_several_takes_what_only_they_share(three):
    ids = [c["id"] for c in conversations(three) if c["tokens"] > 20]
    kv(three, "rm", *ids, ids[0])
    assert [c["tokens"] for c in conversations(three)] == [20]
    assert kv_json(three, "stat")["total"]["tokens"] == 20


def test_rm_says_what_stays(tmp_path):
    """The second leaves the first inside its last page, which therefore stays."""
    directory = make(tmp_path / "kv", ["head*20", "head*18,tail*20"])
    first = next(c for c in conversations(directory) if c["tokens"] == 20)
    done = kv(directory, "rm", first["id"])
    assert "goes on from inside" in done.stderr
    assert next(c for c in conversations(directory) if c["tokens"] == 38)["complete"]


def test_rm_of_unknown_ones(three):
    files = state_files(three)
    ids = [c["id"] for c in conversations(three)]
    assert "no conversation" in complaint("rm", "zzzz", "--kv-dir", three)
    assert "no conversation" in complaint("rm", ids[0], "ffff" * 8, "--kv-dir", three)
    assert "no model" in complaint("rm", "--model", "zz", "--kv-dir", three)
    assert "no conversation" in complaint("rm", "", "--kv-dir", three)
    assert state_files(three) == files


def test_rm_model_and_all(three):
    make(three, "-m", "second", [OTHER])
    second = next(m["model"] for m in kv_json(three, "ls")["models"] if m["about"] == "second")
    (three / second / "transcripts.db").write_bytes(b"what was said")
    kv(three, "rm", "--model", second[:10])
    assert [m["about"] for m in kv_json(three, "ls")["models"]] == ["test"]
    assert not (three / second).exists()
    damage(sorted(state_files(three))[0], 300)
    kv(three, "verify", status=1)
    kv(three, "rm", "--all", "--yes")
    assert sorted(os.listdir(three)) in (["bad", "lock"], ["lock"])
    assert not os.path.exists(three / "bad") or os.listdir(three / "bad") == []


def on_a_terminal(answer, *arguments):
    """Output and status of a command at a terminal, where `answer` is typed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(servers.hearth_path(), [servers.hearth_path(), "kv", *map(str, arguments)])
    os.write(terminal, answer)
    output = b""
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:
            break
        if not more:
            break
        output += more
    os.close(terminal)
    return output.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_rm_all_leaves_what_only_has_such_a_name(three):
    """Thumbnails and the like stand in directories that are named by a digest, too."""
    album = three / ("0123456789abcdef" * 2)
    (album / "ab").mkdir(parents=True)
    for path in album / "picture.jpg", album / "ab" / "picture.jpg":
        path.write_text("mine")
    kv(three, "rm", "--all", "--yes")
    kv(three, "gc", "--budget", "0")
    assert {path.name for path in three.iterdir() if path.is_dir()} == {album.name}
    for path in album / "picture.jpg", album / "ab" / "picture.jpg":
        assert path.read_text() == "mine"


def test_rm_asks_on_a_terminal(three):
    files = state_files(three)
    text, status = on_a_terminal(b"n\n", "rm", "--all", "--kv-dir", three)
    assert "[y/N]" in text and status == 1 and state_files(three) == files
    text, status = on_a_terminal(b"\n", "rm", conversations(three)[0]["id"], "--kv-dir", three)
    assert "[y/N]" in text and status == 1 and state_files(three) == files
    text, status = on_a_terminal(b"y\n", "rm", "--all", "--kv-dir", three)
    assert status == 0 and state_files(three) == {}


def test_progress_on_a_terminal_only(three):
    text, status = on_a_terminal(b"", "verify", "--kv-dir", three)
    assert status == 0 and "verifying [" in text and "100 %" in text
    assert kv(three, "verify").stderr == ""


# ---- export and import ----

def test_export_and_import(three, tmp_path):
    alice = next(c for c in conversations(three) if c["tokens"] == 100)
    parcel, elsewhere = tmp_path / "alice", tmp_path / "elsewhere"
    exported = kv_json(three, "export", alice["id"], parcel)
    assert exported["tokens"] == 100 and exported["complete"] and exported["files"] == alice["pages"] + alice["snapshots"]
    assert stat.S_IMODE(parcel.stat().st_mode) == 0o600
    done = kv_json(elsewhere, "import", parcel)
    assert done["new"] == alice["pages"] + alice["snapshots"] and done["known"] == done["damaged"] == 0
    (copy,) = conversations(elsewhere)
    assert copy["name"] == alice["name"] and copy["complete"] and copy["text"] == alice["text"]
    theirs, ours = state_files(elsewhere), state_files(three)
    by_name = {os.path.relpath(path, three): path for path in ours}
    for path in theirs:
        with open(path, "rb") as one, open(by_name[os.path.relpath(path, elsewhere)], "rb") as other:
            assert one.read() == other.read()
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert kv_json(elsewhere, "ls")["models"][0]["about"] == "test"
    again = kv_json(elsewhere, "import", parcel)
    assert again["new"] == 0 and again["known"] == done["new"]
    assert "0 new files" in kv(three, "import", parcel).stdout
    assert kv_json(elsewhere, "verify")["good"] == done["new"]
    # through a pipe, the other one: what it shares is there already
    bob = next(c for c in conversations(three) if c["tokens"] == 90)
    stream = kv(three, "export", bob["id"], "-", binary=True)
    assert b"exported" in stream.stderr
    done = json.loads(kv(elsewhere, "import", "-", "--json", data=stream.stdout, binary=True).stdout)
    assert done["known"] > 0 and done["new"] > 0
    assert sorted(c["tokens"] for c in conversations(elsewhere)) == [90, 100]


def test_export_leaves_no_half_file(three, tmp_path):
    some = conversations(three)[0]["id"]
    (tmp_path / "out").mkdir()
    assert "cannot write" in complaint("export", some, tmp_path / "out" / "no" / "file", "--kv-dir", three)
    assert "no conversation" in complaint("export", "zz", tmp_path / "out" / "file", "--kv-dir", three)
    alice = next(c for c in conversations(three) if c["tokens"] == 100)
    for path in state_files(three):
        damage(path, 4096)  # the first byte of what the state is
    assert "damaged" in complaint("export", alice["id"], tmp_path / "out" / "file", "--kv-dir", three)
    assert os.listdir(tmp_path / "out") == []


def test_import_believes_nothing(three, tmp_path):
    alice = next(c for c in conversations(three) if c["tokens"] == 100)
    parcel = tmp_path / "parcel"
    kv(three, "export", alice["id"], parcel)
    whole = parcel.read_bytes()
    names = {os.path.relpath(path, three): open(path, "rb").read() for path in state_files(three)}

    def attempt(content, number):
        parcel.write_bytes(content)
        elsewhere = tmp_path / f"to{number}"
        done = subprocess.run([servers.hearth_path(), "kv", "import", parcel, "--kv-dir", elsewhere],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 1), done.stderr
        for path in state_files(elsewhere) if elsewhere.exists() else []:
            with open(path, "rb") as file:
                assert file.read() == names[os.path.relpath(path, elsewhere)]
        if elsewhere.exists():
            assert not [1 for folder, _, files in os.walk(elsewhere) if os.path.basename(folder) == "tmp" and files]
        return done

    for number, length in enumerate([0, 1, 63, 64, 80, 96, 200, 4096, len(whole) // 2, len(whole) - 32, len(whole) - 1]):
        done = attempt(whole[:length], number)
        assert done.returncode == 1 and done.stderr.startswith("hearth kv: ")
    for number in range(40):  # one bit here and there: never a wrong file, and never silence
        content = bytearray(whole)
        at = number * 7919 % len(whole) if number > 12 else number * 9
        content[at] ^= 1 << number % 8
        done = attempt(bytes(content), f"bit{number}")
        assert done.returncode == 1 or at < 64 or done.stdout.startswith("imported")
    for number, junk in enumerate([b"GGUF" + bytes(100), bytes(5000), os.urandom(5000), whole[:64] + os.urandom(500)]):
        assert attempt(junk, f"junk{number}").returncode == 1


def test_encrypted(tmp_path, key):
    directory = make(tmp_path / "kv", "-k", key, [ALICE, BOB])
    (model,) = kv_json(directory, "ls")["models"]
    assert model["conversations"] == [] and model["sealed"]["files"] == model["files"] > 0
    assert "(sealed)" in kv(directory, "ls").stdout
    assert b"alice" not in b"".join(open(path, "rb").read() for path in state_files(directory))
    found = conversations(directory, "--kv-key", key)
    assert [c["tokens"] for c in found] == [90, 100]
    other_key = tmp_path / "other-key"
    other_key.write_bytes(os.urandom(32))
    other_key.chmod(0o600)
    assert conversations(directory, "--kv-key", other_key) == []
    assert kv_json(directory, "verify")["sealed"] == model["files"]
    assert kv_json(directory, "verify", "--kv-key", key)["good"] == model["files"]
    assert kv_json(directory, "verify", "--kv-key", other_key)["sealed"] == model["files"]
    parcel, elsewhere = tmp_path / "parcel", tmp_path / "elsewhere"
    kv(directory, "export", found[0]["id"], parcel, "--kv-key", key)
    assert b"bob" not in parcel.read_bytes()
    refused = kv_json(elsewhere, "import", parcel, status=1)
    assert refused["new"] == 0 and refused["sealed"] > 0
    assert kv_json(elsewhere, "import", parcel, "--kv-key", other_key, status=1)["new"] == 0
    assert kv_json(elsewhere, "import", parcel, "--kv-key", key)["new"] == refused["sealed"]
    assert run("ls", "--kv-dir", directory, env={"HEARTH_KV_KEY": str(key)}).stdout.count("alice says") == 1
    damage(sorted(state_files(directory))[0], 4096 + 5)
    assert kv_json(directory, "verify", status=1)["damaged"] == 1  # also without the key
    key.chmod(0o644)
    assert str(key) in complaint("ls", "--kv-dir", directory, "--kv-key", key)


def test_compressed(tmp_path):
    directory = make(tmp_path / "kv", "-z", [ALICE])
    plain = make(tmp_path / "plain", [ALICE])
    assert sum(state_files(directory).values()) < sum(state_files(plain).values())
    assert kv_json(directory, "verify")["good"] == len(state_files(directory))
    (one,) = conversations(directory)
    kv(directory, "export", one["id"], tmp_path / "parcel")
    assert kv_json(tmp_path / "elsewhere", "import", tmp_path / "parcel")["new"] == len(state_files(directory))


# ---- with a server ----

def ask(running, user, system="You are a helpful assistant. " * 80):
    return running.client.post("/v1/chat/completions", {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
        "temperature": 0, "max_tokens": 24})


def test_while_a_server_uses_it(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    with serve_disk("sim", here) as running:
        for user in ("I am Alice.", "I am Bob.", "I am Carol."):
            ask(running, user)
        wait_written(running)
        found = conversations(here)
        assert len(found) == 3 and all(c["complete"] for c in found)
        assert kv_json(here, "verify")["damaged"] == 0
        for one in found:
            kv(here, "export", one["id"], tmp_path / one["id"])
            kv(there, "import", tmp_path / one["id"])
        first = found[-1]
        kv(here, "rm", found[0]["id"])
        kv(here, "gc", "--budget", "0")
        kv(here, "rm", "--all")
        assert state_files(here) == {}
        assert ask(running, "I am Dave.")["choices"]  # serving went on
        assert running.client.get("/health")["status"] == "ok"
    assert first["name"] in [c["name"] for c in conversations(there)]
    # a server over what was carried there knows the conversations
    with serve_disk("sim", there) as running:
        reply = ask(running, "I am Bob.")
        assert reply["hearth"]["computed"] < reply["usage"]["prompt_tokens"] / 10


def documented():
    """The commands in docs/disk.md, in their order."""
    with open(os.path.join(servers.REPOSITORY, "docs", "disk.md"), encoding="utf-8") as file:
        return [line for block in re.findall(r"^```sh\n(.*?)^```", file.read(), re.M | re.S) for line in block.splitlines()]


def test_documented_commands_work(three, tmp_path):
    """As they stand, but for the ID and the model, which are this directory's, and the other machine, which is none."""
    found = documented()
    assert len(found) >= 12
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "hearth").symlink_to(os.path.abspath(servers.hearth_path()))
    (tools / "ssh").write_text(f"#!/bin/sh\nshift\nHEARTH_KV_DIR={tmp_path / 'desktop'} exec \"$@\"\n")
    (tools / "ssh").chmod(0o755)
    environment = {**os.environ, "HEARTH_KV_DIR": str(three), "PATH": f"{tools}:{os.environ['PATH']}"}
    for command in found:
        if command.startswith("hearth serve"):
            command = command.replace("-m model.gguf", "--engine sim").replace("hearth.key", f"{tmp_path}/hearth.key")
            with servers.Server([servers.hearth_path(), *command.split()[1:], "--kv-dir", str(three)]):
                continue
        if not state_files(three):  # they have cleaned up
            make(three, [ALICE, BOB, OTHER])
        one = next(c for c in conversations(three) if c["tokens"] != 20)["id"]
        command = re.sub(r"\b(96f05ea5|de2d0e3b)\b", one, command)
        command = command.replace("ea56a380", kv_json(three, "ls")["models"][0]["model"][:8])
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, env=environment, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout or "umask" in command, command
    assert 90 in [c["tokens"] for c in conversations(tmp_path / "desktop")]
