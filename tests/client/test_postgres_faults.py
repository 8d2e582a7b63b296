"""A PostgreSQL that is slow, silent, full, taken over, reached by TLS or killed: nothing that was acknowledged is lost, what
needs it is told to come back, and what does not is served.

HEARTH_KILLS is how often the database, and a box, is killed in mid-turn (default 3).
"""

import contextlib
import http.client
import os
import random
import shutil
import socket
import subprocess
import threading
import time

import pytest

import store as redis
from boxes import box, fails, kill_in_mid_stream, refuses, respond, status_of, two
from lib import server as servers
from lib.client import HttpError
from lib.text import Text
from ondisk import reasons, wait_until
from postgres import BIN, MISSING, Postgres

pytestmark = pytest.mark.skipif(not BIN, reason=MISSING)
KILLS = int(os.environ.get("HEARTH_KILLS", "3"))
HI = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def own():
    with Postgres() as running:
        yield running


def at(port, query=""):
    return f"postgresql://hearth@127.0.0.1:{port}/postgres{query}"


def both(*calls):
    """Carries them out side by side; what they return."""
    found = [None] * len(calls)

    def run(number):
        found[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


# ---------------------------------------------------------------------------------------------------- slow, silent, full

def test_a_slow_database_is_waited_for(own):
    def talk(running):
        answer = respond(running, "First.")
        for number in range(2):
            answer = respond(running, f"Thing {number}.", previous_response_id=answer["id"])
        return answer["status"]

    with redis.Proxy(own, delay_s=0.03) as proxy, contextlib.ExitStack() as stack:
        boxes = two(stack, at(proxy.port))
        assert all(both(*[lambda running=running: talk(running) for running in boxes for _ in range(2)]))
        assert boxes[0].client.post("/v1/chat/completions", HI)["choices"]


def test_a_silent_database_holds_nothing_else_up(own):
    with box(own.url()) as running:
        answer = respond(running, "Hello.")
        own.halt()
        waiting = [threading.Thread(target=lambda: refused.append(fails(running, "/v1/responses", {
            "model": "any", "input": "And?", "max_output_tokens": 4, "previous_response_id": answer["id"]})), daemon=True)
            for _ in range(12)]
        refused = []
        for thread in waiting:
            thread.start()
        for _ in range(3):
            assert running.client.post("/v1/chat/completions", HI)["choices"]
        assert any(thread.is_alive() for thread in waiting), "chats do not wait for the database"
        for thread in waiting:
            thread.join()
        assert [(status, int(wait) > 0) for status, _, wait in refused] == [(503, True)] * 12
        assert all(body["error"]["message"] for _, body, _ in refused)
        assert "session_db" in reasons(running)
        own.resume()
        wait_until(lambda: status_of(running, "And?", previous_response_id=answer["id"]) == 200, "it goes on")


def test_a_full_database_is_read(own):
    with box(own.url()) as running:
        answer = respond(running, "Hello.")
        own.sql("CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file'; END $$;"
                "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON hearth.turns EXECUTE FUNCTION full_disk()")
        status, body, wait = fails(running, "/v1/responses", {"model": "any", "input": "And?", "max_output_tokens": 4,
                                                              "previous_response_id": answer["id"]})
        assert status == 503 and body["error"]["message"] and int(wait) > 0
        assert "cannot be written" in reasons(running)["session_disk"]
        assert running.client.get(f"/v1/responses/{answer['id']}")["id"] == answer["id"]
        assert running.client.post("/v1/chat/completions", HI)["choices"]
        loose = {"model": "any", "input": "And?", "max_output_tokens": 4, "previous_response_id": answer["id"], "store": False}
        assert running.client.post("/v1/responses", loose)["id"]
        own.sql("DROP TRIGGER full_disk ON hearth.turns")
        assert status_of(running, "And?", previous_response_id=answer["id"]) == 200
        wait_until(lambda: "session_disk" not in reasons(running), "it is well again")


@pytest.mark.skipif(not shutil.which("pgbouncer"), reason="PgBouncer is not installed")
def test_a_pool_of_transactions_is_refused(own, tmp_path):
    """PgBouncer in its mode `session` is as good as the server; in `transaction` locks would be lost."""
    def pool(mode):
        port = servers.free_port()
        (tmp_path / mode).write_text(f"[databases]\npostgres = host=127.0.0.1 port={own.port} user=hearth\n[pgbouncer]\n"
                                     f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
                                     f"pool_mode = {mode}\nuser = nobody\n")
        running = subprocess.Popen(["pgbouncer", str(tmp_path / mode)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   preexec_fn=servers._die_with_parent)
        stack.callback(running.wait)
        stack.callback(running.kill)
        wait_until(lambda: is_open(port), "it listens")
        return at(port)

    def is_open(port):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True

    with contextlib.ExitStack() as stack:
        assert "pool_mode = session" in refuses(pool("transaction"))
        with box(pool("session")) as running:
            assert respond(running, "Hello.")["id"] and reasons(running) == {}


def test_a_standby_is_told(own):
    with contextlib.closing(own.standby()) as other, box(at(other.port)) as running:
        assert "address of the primary" in reasons(running)["session_db"]
        assert running.client.post("/v1/chat/completions", HI)["choices"]


# ---------------------------------------------------------------------------------------------------- another server, TLS

def test_a_failover_keeps_what_was_acknowledged(own):
    with contextlib.closing(own.standby()) as other, contextlib.ExitStack() as stack:
        url = f"postgresql://hearth@127.0.0.1:{own.port},127.0.0.1:{other.port}/postgres?target_session_attrs=read-write"
        boxes, said = two(stack, url), []
        for number in range(6):
            previous = {"previous_response_id": said[-1]} if said else {}
            said.append(respond(boxes[number % 2], f"Thing {number}.", **previous)["id"])
        own.kill()
        assert status_of(boxes[0], "And?", previous_response_id=said[-1]) == 503
        assert boxes[0].client.post("/v1/chat/completions", HI)["choices"]
        other.promote()
        for running in boxes:
            wait_until(lambda: status_of(running, "And?", previous_response_id=said[-1]) == 200, "it goes on with the other")
            assert [running.client.get(f"/v1/responses/{identity}")["id"] for identity in said] == said


def test_a_reply_outlives_a_restart_of_the_database(own):
    """It is stored when the database is back, once."""
    with box(own.url(), "--sim-speed", "1") as running:
        first = respond(running, "Hello.")
        asked = {"model": "any", "input": "Talk.", "max_output_tokens": 60, "previous_response_id": first["id"]}
        found = []
        talk = threading.Thread(target=lambda: found.append(running.client.post("/v1/responses", asked)))
        talk.start()
        wait_until(lambda: running.client.metrics()["hearth_lanes_busy"] > 0 or found, "it is computed")
        own.kill()
        wait_until(lambda: running.client.metrics()["hearth_lanes_busy"] == 0, "it was computed")
        assert not found
        own.start()
        talk.join()
        assert own.sql("SELECT count(*) FROM hearth.turns") == [["2"]]
        wait_until(lambda: status_of(running, "And?", previous_response_id=found[0]["id"]) == 200, "it goes on with it")


@pytest.fixture
def certificates(tmp_path):
    """Of an authority, and of a server on this machine that it has signed: ca.pem, other.pem (another authority's),
    server.pem, server.key."""
    def run(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=tmp_path)

    for name in ("ca", "other"):
        run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
            "-out", f"{name}.pem")
    run("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=database", "-keyout", "server.key", "-out", "server.req")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    run("x509", "-req", "-in", "server.req", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-out",
        "server.pem", "-extfile", "names")
    return tmp_path


def test_tls_is_verified(certificates):
    with Postgres() as own:
        for name in ("server.key", "server.pem"):
            placed = os.path.join(own.data, name)
            with open(certificates / name) as text, open(placed, "w") as out:
                out.write(text.read())
            os.chmod(placed, 0o600)
            os.chown(placed, os.stat(own.data).st_uid, os.stat(own.data).st_gid)
        own.stop()
        own.settings += ["ssl=on", "ssl_cert_file=server.pem", "ssl_key_file=server.key"]
        own.start()
        with box(at(own.port, f"?sslmode=verify-full&sslrootcert={certificates / 'ca.pem'}")) as running:
            assert respond(running, "Hello.")["id"]
            assert own.sql("SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
                           " WHERE application_name = 'hearth' AND NOT ssl") == [["0"]]
        for query, told in [(f"&sslrootcert={certificates / 'other.pem'}", "certificate verify failed"),
                            (f"&sslrootcert={certificates / 'missing.pem'}", "does not exist")]:
            assert told in refuses(at(own.port, "?sslmode=verify-full" + query))


# ---------------------------------------------------------------------------------------------------- kills

@pytest.mark.parametrize("kills", [KILLS, pytest.param(100, marks=pytest.mark.long)])
def test_no_turn_that_was_acknowledged_is_lost(own, kills):
    """The database is killed again and again while two boxes talk."""
    with contextlib.ExitStack() as stack:
        boxes, said, others, stop = two(stack, own.url()), [], set(), threading.Event()

        def talk(number):
            previous = {}
            while not stop.is_set():
                try:
                    answer = respond(boxes[number % 2], "On with it.", **previous)
                except (OSError, http.client.HTTPException, HttpError) as error:
                    others.update([str(error)] if getattr(error, "status", 503) != 503 else [])
                    time.sleep(0.02)  # a 503, or a connection: a client would try again
                    continue
                said.append((answer["id"], answer["status"], previous.get("previous_response_id")))
                previous = {"previous_response_id": answer["id"]} if len(said) % 20 else {}

        threads = [threading.Thread(target=talk, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(kills):
            before = len(said)
            wait_until(lambda: len(said) > before + 5, f"they talk: {others}")
            time.sleep(random.random() * 0.2)
            own.kill()
            own.start()
        before = len(said)
        wait_until(lambda: len(said) > before + 5, "they talk again")
        stop.set()
        for thread in threads:
            thread.join()
        assert not others

        def is_back():
            with contextlib.suppress(HttpError):
                return boxes[0].client.get(f"/v1/responses/{said[0][0]}")

        wait_until(is_back, "this box has its database again")
        for identity, status, previous in said:
            found = boxes[0].client.get(f"/v1/responses/{identity}")
            assert found["previous_response_id"] == previous and found["status"] == status


@pytest.mark.skipif(not redis.PROGRAM, reason="Redis is not installed")
@pytest.mark.parametrize("kills", [KILLS, pytest.param(100, marks=pytest.mark.long)])
def test_a_box_is_killed_in_mid_stream(own, tmp_path, kills):
    """SIGKILL at a random moment of a reply: the client asks the other box, which goes on with the conversation and
    computes what is new in it."""
    pick, new, spent, heard, known, previous = random.Random(kills), 0, 0, 0, 0, {}
    with redis.Store(tmp_path) as shared:
        flags = ("--kv-disk", "0", "--kv-min-tokens", "0", "--kv-remote", shared.url())
        with box(own.url(), *flags) as steady:
            for number in range(kills):
                asked = {"model": "any", "input": Text(f"killed {number}").words(60), "max_output_tokens": 24, "temperature": 0, **previous}
                most = pick.randrange(2, 20)
                with box(own.url(), *flags) as doomed:
                    heard += kill_in_mid_stream(doomed, "/v1/responses", asked, most)
                answer = steady.client.post("/v1/responses", asked)
                usage = answer["usage"]
                spent += usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
                new, known = new + usage["input_tokens"] - known, usage["input_tokens"] + usage["output_tokens"]
                previous = {"previous_response_id": answer["id"]} if number % 10 < 9 else {}
                known = known if previous else 0
    assert heard > kills / 2 and spent <= 1.05 * new, (spent, new, heard)
