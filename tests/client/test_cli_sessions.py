"""`hearth sessions`: looking at the database of conversations, forking, carrying them elsewhere and removing them. The
sessions come from imported files, so no server and no model is needed."""

import copy
import json
import os
import pty
import re
import select
import stat
import subprocess

import pytest

from lib import server as servers

MODEL = "ab" * 16


def run(*arguments, status=0, data=None, env=None):
    done = subprocess.run([servers.hearth_path(), "sessions", *map(str, arguments)], input=data,
                          stdin=subprocess.DEVNULL if data is None else None, capture_output=True, text=True,
                          timeout=120, env={**os.environ, "HEARTH_SESSION_DB": "none", **(env or {})})
    assert done.returncode == status, (done.stdout[-2000:], done.stderr[-2000:])
    return done


def complaint(*arguments, status=1, **options):
    """The one line on stderr of a command that fails."""
    done = run(*arguments, status=status, **options)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("hearth sessions: ")
    return lines[0]


def turn(number, user, reply, tokens=None, **more):
    """A turn of a file. Its items carry ids that are made of its own, as the server makes them."""
    one = {"id": f"{number:032x}", "status": "completed", "created_us": 1700000000000000 + number, "config": 0,
           "body": {"input": [{"type": "message", "role": "user", "content": user}],
                    "output": [{"type": "message", "id": f"msg_{number:032x}0001", "role": "assistant",
                                "content": [{"type": "output_text", "text": reply}]}],
                    "response": {"usage": {"total_tokens": 7}, "temperature": 0.1,
                                 "previous_response_id": f"resp_{number - 1:032x}" if number > 1 else None}}}
    if tokens:
        one.update(model=MODEL, base_tokens=tokens[0], tokens=tokens[1])
    return {**one, **more}


def config(system, **more):
    return {"system": [{"role": "system", "content": system}], "template": MODEL, **more}


def document(name, *turns, **session):
    return {"format": "hearth session", "version": 1, "session": {"name": name, **session},
            "configs": [config("Be brief.", tools=[{"type": "function", "function": {"name": "add"}}])],
            "turns": list(turns)}


WORK = document("work", turn(1, "Where is Bécs?", "In Austria.", (0, [1, 2, 3])),
                turn(2, "And Pozsony?", "In Slovakia.\nBratislava.", (3, [4, 5])), metadata={"topic": "cities"})


@pytest.fixture
def db(tmp_path):
    return tmp_path / "data" / "hearth.db"


def put(db, what, *arguments, status=0):
    return run("import", "-", "--db", db, *arguments, data=json.dumps(what), status=status)


def put_wrong(db, what):
    return complaint("import", "-", "--db", db, data=what if isinstance(what, str) else json.dumps(what))


def ls(db, *arguments, **options):
    return json.loads(run("ls", "--json", "--db", db, *arguments, **options).stdout)["sessions"]


def names(db):
    return [session["name"] for session in ls(db)]


def show(db, name):
    return json.loads(run("show", name, "--json", "--db", db).stdout)


def export(db, name, *arguments):
    return json.loads(run("export", name, "--db", db, *arguments).stdout)


# ---- the command line ----

def test_help():
    text = run("--help").stdout
    for word in ("ls", "show", "fork", "export", "import", "rm", "--db", "--key", "--owner", "--json", "--yes", "--as"):
        assert re.search(rf"^  {word}\b", text, re.M), word
    assert "--as" in run("import", "--help").stdout
    assert "--as" not in run("ls", "-h").stdout
    top = subprocess.run([servers.hearth_path(), "--help"], capture_output=True, text=True, check=True).stdout
    assert "hearth sessions" in top


def test_wrong_usage(db, tmp_path):
    assert "'show'" in complaint("shwo", status=2)
    assert "--help" in complaint(status=2)
    assert "--json" in complaint("ls", "--jsn", status=2)
    assert "--db" in complaint("ls", "--db", status=2)
    assert "usage" in complaint("rm", status=2)
    assert "usage" in complaint("fork", "one", status=2)
    assert "usage" in complaint("ls", "one", status=2)
    assert "--yes" in complaint("ls", "--yes", status=2)
    assert "hex" in complaint("ls", "--owner", "XY", "--db", db, status=2)
    assert "none" in complaint("ls")
    assert "no such database" in complaint("ls", "--db", db)
    assert not db.parent.exists()
    assert "not a regular file" in complaint("ls", "--db", tmp_path)


def test_a_file_that_is_no_database_is_left_alone(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("a shopping list, which is long enough")
    assert "no database of hearth's" in complaint("ls", "--db", notes)
    assert "no database of hearth's" in complaint("import", "-", "--db", notes, data=json.dumps(WORK))
    assert notes.read_text() == "a shopping list, which is long enough"
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_where(tmp_path):
    home = {"HEARTH_SESSION_DB": "", "XDG_DATA_HOME": str(tmp_path / "data")}
    run("import", "-", data=json.dumps(WORK), env=home)
    assert (tmp_path / "data" / "hearth" / "hearth.db").exists()
    assert "work" in run("ls", env=home).stdout
    assert "work" in run("ls", env={"HEARTH_SESSION_DB": str(tmp_path / "data" / "hearth" / "hearth.db")}).stdout
    home = {"HEARTH_SESSION_DB": "", "XDG_DATA_HOME": "", "HOME": str(tmp_path)}
    run("import", "-", data=json.dumps(WORK), env=home)
    assert (tmp_path / ".local" / "share" / "hearth" / "hearth.db").exists()
    assert stat.S_IMODE((tmp_path / ".local" / "share" / "hearth" / "hearth.db").stat().st_mode) == 0o600


# ---- ls and show ----

def test_ls(db):
    put(db, WORK)
    put(db, document("other", turn(1, "first", "1"),
                     turn(2, "ignored", "2", body={"input": [{"type": "function_call_output", "call_id": "c",
                                                              "output": "x"}], "output": []})))
    put(db, document("empty"))
    empty, other, work = ls(db)
    assert [s["name"] for s in (empty, other, work)] == ["empty", "other", "work"]  # last used first
    assert (work["turns"], work["tokens"], work["text"]) == (2, 5, "And Pozsony?")
    assert work["metadata"] == {"topic": "cities"} and work["owner"] is None and work["used"] >= work["created"] > 0
    assert (other["turns"], other["tokens"], other["text"]) == (2, 0, "first")
    assert (empty["turns"], empty["text"]) == (0, "")
    lines = run("ls", "--db", db).stdout.splitlines()
    assert lines[0].split() == ["NAME", "TURNS", "TOKENS", "USED", "ASKED", "LAST"]
    assert [line.split()[0] for line in lines[1:]] == ["empty", "other", "work"]
    assert lines[3].split()[:3] == ["work", "2", "5"] and lines[3].endswith("And Pozsony?")
    assert {line.index(word) for line, word in zip(lines, ("ASKED", "", "first", "And"))} >= {lines[0].index("ASKED")}


def test_ls_of_none(db):
    put(db, WORK)
    run("rm", "work", "--db", db)
    assert ls(db) == []
    assert "no sessions" in run("ls", "--db", db).stdout


def test_show(db):
    calls = [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Let me add."}]},
             {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}]
    result = [{"type": "function_call_output", "call_id": "c1", "output": "42"}]
    put(db, document("sums", turn(1, "Add.", "", body={"input": [], "output": calls}),
                     turn(2, "", "", status="incomplete", body={"input": result, "output": WORK["turns"][0]["body"]["output"]})))
    text = run("show", "sums", "--db", db).stdout
    assert text.startswith("sums: 2 turns, last used ")
    for part in ("system\n  Be brief.\n", "tools\n  add\n", "assistant thinks\n  Let me add.\n",
                 'assistant calls add\n  {"a": 1}\n', "result of add\n  42\n", "assistant\n  In Austria.\n",
                 "(incomplete)"):
        assert part in text, (part, text)
    found = show(db, "sums")
    assert [item["type"] for item in found["items"]] == ["reasoning", "function_call", "function_call_output", "message"]
    assert found["config"] == WORK["configs"][0] and found["turns"] == 2


def test_text_cannot_command_the_terminal(db):
    evil = "\x1b[2J\x07evil\u202eme\u0000\r"
    put(db, document("evil", turn(1, evil, evil)))
    for command in (("ls",), ("show", "evil")):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", run(*command, "--db", db).stdout)
    assert show(db, "evil")["items"][0]["content"] == evil


def test_names_that_are_not_there(db):
    put(db, WORK)
    assert "no session 'wrk', did you mean 'work'?" in complaint("show", "wrk", "--db", db)
    assert not re.search(r"[\x00-\x1f]", complaint("show", "a\x1b[2J", "--db", db))
    assert "'nothing'" in complaint("fork", "nothing", "new", "--db", db)
    assert "'nothing'" in complaint("rm", "work", "nothing", "--db", db)
    assert names(db) == ["work"]  # all or none


# ---- fork and rm ----

def test_fork(db):
    put(db, WORK)
    assert "'main-2'" in run("fork", "work", "main-2", "--db", db).stdout
    assert show(db, "main-2")["items"] == show(db, "work")["items"]
    assert "already" in complaint("fork", "work", "main-2", "--db", db)
    assert "control" in complaint("fork", "work", "a\nb", "--db", db)
    assert json.loads(run("fork", "work", "main-3", "--json", "--db", db).stdout) == {
        "name": "main-3", "forked": "work", "turns": 2}


def test_rm_leaves_what_others_go_on_from(db):
    put(db, WORK)
    run("fork", "work", "copy", "--db", db)
    before = show(db, "copy")["items"]
    assert json.loads(run("rm", "work", "work", "--json", "--db", db).stdout) == {"sessions": 1, "turns": 0}
    assert names(db) == ["copy"] and show(db, "copy")["items"] == before
    assert ls(db)[0]["text"] == "And Pozsony?"
    text = run("rm", "copy", "--db", db).stdout
    assert "2 turns" in text and "model" in text
    assert names(db) == []


def test_what_is_removed_is_gone_from_the_file(db):
    secret = "the secret plan " * 40
    put(db, document("plan", turn(1, secret, secret)))
    put(db, WORK)
    run("rm", "plan", "--db", db)
    assert names(db) == ["work"]
    left = b"".join(path.read_bytes() for path in db.parent.iterdir())
    assert b"secret plan" not in left


def test_rm_asks(db):
    put(db, WORK)
    for answer, left in ((b"n\n", ["work"]), (b"\x04", ["work"]), (b"y\n", [])):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(servers.hearth_path(), ["hearth", "sessions", "rm", "work", "--db", str(db)])
        shown = b""
        while b"[y/N]" not in shown:
            assert select.select([terminal], [], [], 30)[0]
            shown += os.read(terminal, 4096)
        assert b"1 session with 2 turns" in shown
        os.write(terminal, answer)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(terminal)
        assert (status, names(db)) == (1 if left else 0, left)


# ---- export and import ----

def same(document):
    """A document with its ids in the order in which they come, and without what is new in each session."""
    text = json.dumps({**document, "session": document["session"].get("metadata")})
    for number, one in enumerate(document["turns"]):
        text = text.replace(one["id"], f"id-{number}")
    return json.loads(text)


def test_round_trip(db, tmp_path):
    put(db, WORK)
    first = export(db, "work")
    assert same(first) == same(WORK)
    assert {one["id"] for one in first["turns"]}.isdisjoint(one["id"] for one in WORK["turns"])
    other = tmp_path / "other.db"
    put(other, first)
    assert same(export(other, "work")) == same(WORK)
    assert ls(other)[0]["tokens"] == 5


def test_files(db, tmp_path):
    put(db, WORK)
    file = tmp_path / "work.json"
    assert "2 turns" in run("export", "work", file, "--db", db).stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == export(db, "work", "-")
    assert "already (--as" in complaint("import", file, "--db", db)
    assert "'again'" in run("import", file, "--as", "again", "--db", db).stdout
    assert json.loads(run("import", file, "--as", "third", "--json", "--db", db).stdout) == {"name": "third", "turns": 2}
    assert sorted(names(db)) == ["again", "third", "work"]
    assert "cannot write" in complaint("export", "work", tmp_path / "no" / "file", "--db", db)
    assert "cannot read" in complaint("import", tmp_path / "absent", "--db", db)
    assert sorted(os.listdir(tmp_path)) == ["data", "work.json"]


def test_ids_in_what_was_said_stay(db):
    mention = f"resp_{1:032x} and {1:032x}"
    put(db, document("ids", turn(1, mention, mention), turn(2, "next", "x")))
    found = export(db, "ids")
    first, second = found["turns"]
    assert first["body"]["input"][0]["content"] == mention
    assert first["body"]["output"][0]["content"][0]["text"] == mention
    assert first["body"]["output"][0]["id"] == f"msg_{first['id']}0001"
    assert second["body"]["response"]["previous_response_id"] == f"resp_{first['id']}"


def test_configs_are_there_once(db):
    many = document("many", *(turn(i, f"q{i}", "a", config=i % 2) for i in range(1, 7)))
    many["configs"].append(config("Be long."))
    put(db, many)
    found = export(db, "many")
    assert len(found["configs"]) == 2
    assert [found["configs"][one["config"]] for one in found["turns"]] == [config("Be long."), WORK["configs"][0]] * 3


def test_what_was_running_has_failed(db):
    put(db, document("open", turn(1, "a", "b", status="in_progress"), turn(2, "c", "d", status="cancelled")))
    assert [one["status"] for one in export(db, "open")["turns"]] == ["failed", "cancelled"]


def test_wrong_files(db):
    def changed(**change):
        other = copy.deepcopy(WORK)
        other["turns"][1].update(change)
        return other

    put(db, document("kept", turn(1, "a", "b")))
    assert "not an exported session" in put_wrong(db, "")
    assert "not an exported session" in put_wrong(db, "{")
    assert "not an exported session" in put_wrong(db, "[]")
    assert "not an exported session" in put_wrong(db, {"format": "else"})
    assert "version" in put_wrong(db, {**WORK, "version": 2})
    assert "name" in put_wrong(db, {**WORK, "session": {}})
    assert "turns" in put_wrong(db, {**WORK, "turns": 1})
    assert "'a\tb'" not in put_wrong(db, {**WORK, "session": {"name": "a\tb"}})
    assert "256" in put_wrong(db, {**WORK, "session": {"name": "x" * 300}})
    for change, word in (({"id": "x"}, "id"), ({"id": f"{1:032x}"}, "id"), ({"status": "well"}, "status"),
                         ({"status": None}, "status"), ({"body": None}, "items"), ({"body": {"input": []}}, "items"),
                         ({"config": 7}, "config"), ({"tokens": 1}, "tokens"), ({"tokens": [-1]}, "tokens"),
                         ({"tokens": [1 << 40]}, "tokens"), ({"tokens": ["1"]}, "tokens"),
                         ({"base_tokens": -1}, "tokens"), ({"model": "x"}, "tokens")):
        assert word in put_wrong(db, changed(**change)), change
        assert names(db) == ["kept"], change
    assert len(export(db, "kept")["turns"]) == 1


def test_tokens_that_do_not_fit_are_not_believed(db):
    """They begin behind more tokens than the turn before has."""
    put(db, document("gap", turn(1, "a", "b", (0, [1, 2])), turn(2, "c", "d", (9, [3]))))
    assert ls(db)[0]["tokens"] == 0


def test_owners(db):
    """Two keys of a server, each with a session of this name."""
    one, two = "1" * 32, "2" * 32
    put(db, WORK, "--owner", one)
    put(db, document("work", turn(1, "mine", "yes")), "--owner", two)
    assert {session["owner"] for session in ls(db)} == {one, two}
    assert "OWNER" in run("ls", "--db", db).stdout
    assert "--owner" in complaint("show", "work", "--db", db)
    assert "mine" in run("show", "work", "--owner", "2", "--db", db).stdout
    assert [session["turns"] for session in ls(db, "--owner", "11")] == [2]
    assert "32" in complaint("import", "-", "--owner", "2", "--db", db, data="", status=2)
    run("rm", "work", "--owner", two, "--db", db)
    assert [session["owner"] for session in ls(db)] == [one]


def test_encrypted(db, tmp_path):
    key, other = tmp_path / "key", tmp_path / "other"
    for path in (key, other):
        path.write_bytes(os.urandom(32))
        path.chmod(0o600)
    run("import", "-", "--db", db, "--key", key, data=json.dumps(WORK))
    assert ls(db, "--key", key)[0]["text"] == "And Pozsony?"
    assert ls(db, env={"HEARTH_KV_KEY": str(key)})[0]["name"] == "work"
    content = b"".join(path.read_bytes() for path in db.parent.iterdir())
    assert b"Pozsony" not in content and b"work" not in content
    assert "key" in complaint("ls", "--db", db)
    assert "key" in complaint("ls", "--db", db, "--key", other)
    assert len(ls(db, "--key", key)) == 1


def test_backup_and_recover(db):
    """A database whose first page is gone is neither moved nor begun anew, and gives back what it has."""
    put(db, WORK)
    copy, saved = db.with_name("copy.db"), db.with_name("saved.db")
    assert str(copy) in run("backup", copy, "--db", db).stdout
    assert "exists" in complaint("backup", copy, "--db", db)
    assert [one["name"] for one in ls(copy)] == ["work"]
    with open(db, "r+b") as file:
        file.write(bytes(4096))
    before = db.read_bytes()
    assert "no database of hearth's" in complaint("ls", "--db", db)
    assert "--to" in complaint("recover", db, status=2)
    found = json.loads(run("recover", db, "--to", saved, "--json").stdout)
    assert (found["turns"], found["sessions"], found["lost_turns"], found["shorter"]) == (2, 1, 0, 0)
    assert db.read_bytes() == before
    assert "And Pozsony?" in run("show", "work", "--db", saved).stdout
    assert "there already" in complaint("recover", db, "--to", saved)
    assert f"{db.parent}: it is not a regular file" in complaint("recover", db.parent, "--to", db.with_name("other.db"))
    assert not list(db.parent.glob("*.bad-*"))


def test_restore_needs_a_name(db):
    put(db, WORK)
    assert "--all" in complaint("restore", "--db", db, status=2)
    assert "1 session" in run("restore", "work", "--db", db).stdout
    assert "0 sessions" in run("restore", "--all", "--db", db).stdout
    assert ls(db, "--expired") == []
    assert "no session" in complaint("restore", "nobody", "--db", db)
