"""Boxes that share their state in a Redis, as clients see it: what one has computed another does not compute again; a
store that fails, forgets or lies costs speed, never an answer.

HEARTH_LIES is how many values each kind of lie is told about (default 4).
"""

import contextlib
import functools
import json
import os
import random
import subprocess
import threading

import pytest

import ondisk
from boxes import kill_in_mid_stream
from conftest import serve
from lib import server as servers
from ondisk import assert_same_reply, computed, content, model_flags, reasons, request, wait_scanned, wait_until
from store import PROGRAM, FakeStore, Proxy, Store, certificate, metric, wait_written

pytestmark = pytest.mark.skipif(not PROGRAM, reason="Redis is not installed")
# Prompts that are the same tokens for every box: boxes do not share how replies were sampled.
Talk = functools.partial(ondisk.Talk, foreign=True)
LIES = int(os.environ.get("HEARTH_LIES", "4"))
CUTS, KILLS = 4, 4


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as running:
        yield running


def box(store, *flags, model="sim", scheme="redis", **options):
    return serve(*model_flags(model), "-c", "8192", "-np", "2", "--cache-ram", "512", "--kv-remote", store.url(scheme),
                 *flags, **options)


def remote(running):
    return running.client.get("/health")["remote"]


def turn(running, talk, **options):
    answer = request(running.client, talk.ask(), **options)
    talk.hear(answer)
    return answer


# ---------------------------------------------------------------------------------------------------- sharing

def ways(*usual):
    """Models over RAM and over disk: the usual ones, and for `make test-long` the rest."""
    for model in ("sim", "tiny", "tiny-hybrid", "tiny-window"):
        for place in ("ram", "disk"):
            marks = [pytest.mark.llama] if model != "sim" else []
            if (model, place) not in usual:
                marks.append(pytest.mark.long)
            yield pytest.param(model, "zstd" if model == "tiny-window" else "none", place == "disk", marks=marks,
                               id=f"{model}-{place}")


@pytest.mark.parametrize("model, compress, disk", list(ways(
    ("sim", "ram"), ("sim", "disk"), ("tiny", "disk"), ("tiny-hybrid", "ram"), ("tiny-window", "disk"))))
def test_a_conversation_that_changes_the_box_with_every_turn(store, tmp_path, model, compress, disk):
    talk, new, spent, known = Talk("wanders"), 0, 0, 0
    folders = [["--kv-dir", str(tmp_path / f"kv{i}")] if disk else ["--kv-disk", "0"] for i in range(2)]
    with contextlib.ExitStack() as stack:
        boxes = [stack.enter_context(box(store, "--kv-compress", compress, *folder, model=model)) for folder in folders]
        alone = stack.enter_context(serve(*model_flags(model), "-c", "8192", "--cache-ram", "0"))
        for number in range(5):
            running = boxes[number % 2]
            messages = talk.ask()
            answer = request(running.client, messages)
            assert_same_reply(model, request(alone.client, messages), answer)
            talk.hear(answer)
            prompt = answer["usage"]["prompt_tokens"]
            new, spent, known = new + prompt - known, spent + computed(answer), prompt
            wait_written(running)
    assert spent <= 1.05 * new, (spent, new)


def test_what_is_there_is_not_sent_again(store):
    talk = Talk("twice", system_words=900)
    with box(store, "--kv-disk", "0") as first:
        messages = talk.ask()
        request(first.client, messages)
        wait_written(first)
        written = metric(first, "written_total")
    assert written > 4
    halted = store.keys("i")
    with box(store, "--kv-disk", "0") as second:
        store.halt()  # it is not asked in time, and the prompt is computed
        answer = request(second.client, messages)
        assert computed(answer) == answer["usage"]["prompt_tokens"]
        store.resume()
        wait_until(lambda: remote(second)["state"] == "ok", "the store is back", 60)
        request(second.client, [*messages, {"role": "assistant", "content": "So."}, talk.messages[-1]])
        wait_written(second)
        assert metric(second, "deduplicated_total") >= written - 2 and set(halted) <= set(store.keys("i"))


@pytest.mark.parametrize("disk", [False, True], ids=["ram", "disk"])
def test_a_receipt_tells_the_tier(store, tmp_path, disk):
    """What another box has written is `remote`; what this box's disk has, too, is `disk`."""
    folder = ["--kv-dir", str(tmp_path / "kv")] if disk else ["--kv-disk", "0"]
    talk = Talk("tiers", system_words=900)
    with box(store, *folder) as first:
        request(first.client, talk.ask())
        wait_written(first)
        assert request(first.client, talk.messages)["hearth"]["reused"]["live"] > 100
    with box(store, "--kv-disk", "0") as second:
        answer = request(second.client, talk.messages)
        receipt, report = answer["hearth"], second.client.get("/requests?limit=1")["data"][0]
        assert receipt["reused"]["disk"] == 0 and receipt["reused"]["remote"] > 100, receipt
        assert sum(receipt["reused"].values()) + receipt["computed"] == answer["usage"]["prompt_tokens"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == sum(receipt["reused"].values())
        assert report["tokens"]["reused"] == receipt["reused"]
        assert second.client.metrics()["hearth_prompt_reused_remote_tokens_total"] == receipt["reused"]["remote"]
        told = second.client.post("/v1/messages", {"messages": talk.messages[1:], "system": talk.messages[0]["content"],
                                                   "max_tokens": 4, "model": "any"})
        assert "remote" in told["hearth"]["reused"]
    with box(store, *folder) as again:
        if disk:
            wait_scanned(again)  # until then the store has what the disk has not told of
        receipt = request(again.client, talk.messages)["hearth"]
        assert receipt["reused"]["disk" if disk else "remote"] > 100, receipt
        assert receipt["reused"]["remote" if disk else "disk"] == 0, receipt


def test_a_slow_store_is_told(store):
    """Values that are long on the way are what `hearth why` says the request waited for."""
    talk = Talk("slow", system_words=900)
    with box(store, "--kv-disk", "0") as first:
        request(first.client, talk.ask())
        wait_written(first)
    with Proxy(store, delay_s=0.15) as proxy, box(proxy, "--kv-disk", "0") as second:
        receipt = request(second.client, talk.messages)["hearth"]
        report = second.client.get("/requests?limit=1")["data"][0]
    assert receipt["reused"]["remote"] > 100, receipt
    assert report["verdicts"][0]["cause"] == "slow_store", report
    assert f"the state of {receipt['reused']['remote']:,} tokens" in report["verdicts"][0]["text"], report


@pytest.mark.parametrize("scheme", ["redis", "unix", "rediss"])
def test_ways_to_the_store(tmp_path, scheme):
    """With a password, by TCP, by a socket in a file, and with TLS."""
    pair, trust = None, []
    if scheme == "rediss":
        pair = certificate(tmp_path)
        trust = ["--kv-remote-ca", pair[0]]
    talk = Talk("ways", system_words=600)
    with Store(tmp_path, pair=pair, password=None if scheme == "unix" else "secret") as store:
        with box(store, *trust, scheme=scheme) as first:
            request(first.client, talk.ask())
            wait_written(first)
            assert remote(first)["state"] == "ok" and "secret" not in first.log()
        with box(store, *trust, scheme=scheme) as second:
            answer = request(second.client, talk.messages)
            assert computed(answer) <= 2, answer["hearth"]


@pytest.mark.parametrize("signed", [False, True], ids=["by a stranger", "for another host"])
def test_a_store_whose_certificate_is_not_trusted(tmp_path, signed):
    pair = certificate(tmp_path, "elsewhere")
    trust = ["--kv-remote-ca", pair[0]] if signed else []
    with Store(tmp_path, pair=pair) as store, box(store, *trust, scheme="rediss") as running:
        assert remote(running)["state"] == "failing" and "certificate" in reasons(running)["kv_remote"]
        assert request(running.client, Talk("untrusted").ask())["usage"]["completion_tokens"] > 0


# ---------------------------------------------------------------------------------------------------- failures

def served(running, talk):
    """A request is answered, and soon."""
    answer = turn(running, talk)
    assert answer["usage"]["completion_tokens"] > 0
    return answer


def test_a_store_that_is_not_there(tmp_path):
    with Store(tmp_path) as store:
        store.kill()
        with box(store) as running:
            assert "refused" in reasons(running)["kv_remote"] and "again by itself" in reasons(running)["kv_remote"]
            talk = Talk("nobody", system_words=600)
            served(running, talk)
            store.start()
            wait_until(lambda: remote(running)["state"] == "ok", "it is found", 60)
            assert reasons(running) == {}
            served(running, talk)
            wait_written(running)
            assert store.keys("i")


def test_a_store_that_dies_and_returns_empty(store):
    talk = Talk("dies", system_words=600)
    with box(store) as running:
        served(running, talk)
        wait_written(running)
        store.kill()
        for _ in range(3):
            served(running, talk)
        assert running.log().count("remote: ") <= 3, running.log()
        store.start()
        wait_until(lambda: remote(running)["state"] == "ok", "it is back", 60)
        served(running, Talk("dies again", system_words=600))
        wait_written(running)
        assert store.keys("i")


def test_a_store_that_hangs(store):
    with box(store, "--kv-remote-timeout", "200") as running:
        store.halt()
        served(running, Talk("hangs", system_words=600))
        assert "no answer within 200 ms" in reasons(running)["kv_remote"]
        store.resume()
        wait_until(lambda: remote(running)["state"] == "ok", "it answers", 60)


def empty(words):
    """What a store without anything answers."""
    return {b"HGETALL": b"*0\r\n", b"SMEMBERS": b"*0\r\n", b"HSCAN": b"*2\r\n$1\r\n0\r\n*0\r\n", b"GET": b"$-1\r\n", b"HGET": b"$-1\r\n", b"SET": b"+OK\r\n"}.get(words[0], b":0\r\n")


@pytest.mark.parametrize("nonsense, told", [
    (b"+more\r\n" * 3, ""), (b"*4294967295\r\n", "Multi-bulk length out of range"), (b"*1\r\n" * 100000, "nesting"),
    (b"$300000000\r\n" + bytes(300000000), "longer"), (b"?what\r\n", "Protocol error"), (b"-\x1b[31m\xff\r\n", "")],
    ids=["more than asked for", "many elements", "deep", "long", "no reply", "an error"])
def test_a_store_that_talks_nonsense(nonsense, told):
    """An answer without sense costs the connection, never the server."""
    with FakeStore(lambda words: nonsense if words[0] in (b"HGETALL", b"HSCAN") else empty(words)) as store:
        with serve("--engine", "sim", "-c", "8192", "--kv-remote", store.url, "--kv-remote-timeout", "20000") as running:
            for name in ("one", "two", "three"):
                served(running, Talk(name, system_words=600))
            wait_until(lambda: not told or told in reasons(running).get("kv_remote", ""), "it is told", 120)


@pytest.mark.long
def test_a_store_that_is_lost_while_writing_is_tried_again():
    """The store refuses to write; the one put that tries it again is lost with its connection: another one follows."""
    told, sets, later = threading.Event(), [], []

    def answer(words):
        if words[0] != b"SET":
            return empty(words)
        if not told.is_set():  # several are on their way at once
            sets.append(words)
            return b"-OOM full\r\n"
        later.append(words)
        return None if len(later) == 1 else b"+OK\r\n"

    with FakeStore(answer) as store, serve("--engine", "sim", "-c", "8192", "--kv-remote", store.url) as running:
        numbers = iter(range(1000))

        def asked(puts, n):
            served(running, Talk(f"tried {next(numbers)}", system_words=600))
            return len(puts) >= n

        wait_until(lambda: asked(sets, 1), "it is written to")
        wait_until(lambda: "takes no new state" in reasons(running).get("kv_remote", ""), "it refuses")
        told.set()
        wait_until(lambda: asked(later, 1), "it is tried again", 60)
        wait_until(lambda: asked(later, 2), "it is tried once more", 60)
        wait_until(lambda: remote(running)["state"] == "ok", "it is well", 60)


@pytest.mark.parametrize("user", ["", ":guess@"], ids=["none", "wrong"])
def test_a_wrong_password(tmp_path, user):
    with Store(tmp_path, password="another") as store:
        with serve("--engine", "sim", "-c", "4096", "--kv-remote", f"redis://{user}127.0.0.1:{store.port}") as running:
            told = reasons(running)["kv_remote"]
            assert "password stands in --kv-remote" in told and "guess" not in running.log()
            served(running, Talk("password"))


def test_a_wrong_scheme_or_server_is_told(tmp_path):
    def told(url, *flags):
        with serve("--engine", "sim", "-c", "4096", "--kv-disk", "0", "--kv-remote", url, "--kv-remote-timeout", "200", *flags) as running:
            served(running, Talk("scheme", system_words=60))
            log = [line for line in running.log().splitlines() if "remote: redis" in line or "remote: a node" in line]
            assert len(log) == 1, log
            return reasons(running)["kv_remote"]

    pair = certificate(tmp_path)
    with Store(tmp_path) as plain:
        assert "begins with redis://" in told(plain.url("rediss"))
        assert "no cluster (give one address)" in told(f"{plain.url()},127.0.0.1:{plain.port}")
        assert "leave it out" in told(f"redis://:guess@127.0.0.1:{plain.port}")
    with Store(tmp_path, pair=pair) as encrypted:
        assert "begins with rediss://" in told(encrypted.url())
    with FakeStore(lambda words: b"-ERR unknown command '%b', with args beginning with: '%b'\r\n" % tuple(words[:2])) as sentinel:
        assert "Sentinel" in told(sentinel.url)


def test_a_user_with_too_few_rights(store):
    """What it must not do is told until it may; with the rights of docs/cluster.md it may do all."""
    store.ask("ACL", "SETUSER", "hearth", "on", ">secret", "~hearth:*", "+@all", "-get")
    running_flags = ("--kv-disk", "0", "--kv-min-tokens", "0")
    url, talks = f"redis://hearth:secret@127.0.0.1:{store.port}", [Talk(name, system_words=600) for name in ("rights", "more")]
    with box(store, *running_flags) as first:
        for talk in talks:
            served(first, talk)
        wait_written(first)
    words = [servers.hearth_path(), "kv", "verify", "--kv-remote", url]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60, env=servers.surroundings(), check=False)
    assert told.returncode == 1 and "cannot be read" in told.stdout and "NOPERM" in told.stderr, told
    assert store.keys("s")
    items = store.keys("i")
    store.ask("ACL", "SETUSER", "hearth", "+@all", "-object", "-exists")
    subprocess.run([*words[:2], "gc", *words[3:]], check=True, timeout=60, env=servers.surroundings(), stdout=subprocess.DEVNULL)
    assert items and store.keys("i") == items  # it is not known that something was evicted
    store.ask("ACL", "SETUSER", "hearth", "+@all", "-get")
    with serve(*model_flags("sim"), "-c", "8192", "--kv-remote", url, *running_flags) as running:
        request(running.client, talks[0].messages[:-1])
        assert "cannot be read: NOPERM" in reasons(running)["kv_remote"] and "docs/cluster.md" in reasons(running)["kv_remote"]
        store.ask("ACL", "SETUSER", "hearth", "reset", "on", ">secret", "~hearth:*", "+@read", "+@write", "-@dangerous", "+@connection",
                  "+info", "+cluster|slots")
        answer = request(running.client, talks[1].messages[:-1])
        assert answer["hearth"]["reused"]["remote"] > 100, answer["hearth"]
        wait_until(lambda: reasons(running) == {}, "it may read")
        served(running, Talk("rights, too", system_words=60))
        wait_written(running)
        assert metric(running, "written_total") > 0 and reasons(running) == {}
    words = [servers.hearth_path(), "kv", "--kv-remote", url]
    for command in (["stat"], ["verify"], ["gc"], ["rm", "--all", "--yes"]):
        subprocess.run([*words[:2], *command, *words[2:]], check=True, timeout=60, env=servers.surroundings(), stdout=subprocess.DEVNULL)
    assert store.keys("s") == []


def test_a_store_that_takes_nothing_more(store):
    """Full, or a read-only replica: what it has is read."""
    talk = Talk("before", system_words=600)
    with box(store) as first:
        served(first, talk)
        wait_written(first)
    store.ask("CONFIG", "SET", "maxmemory", "1")
    store.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    with box(store) as running:
        answer = request(running.client, talk.ask())
        assert answer["hearth"]["computed"] < 400, answer["hearth"]
        served(running, Talk("full", system_words=900))
        wait_until(lambda: "maxmemory-policy" in reasons(running).get("kv_remote", ""), "it is told")


def test_a_read_only_replica(store):
    store.ask("REPLICAOF", "127.0.0.1", str(servers.free_port()))
    with box(store) as running:
        served(running, Talk("replica", system_words=600))
        wait_until(lambda: "primary" in reasons(running).get("kv_remote", ""), "it is told")


def test_values_that_are_gone(store):
    """The store's own policy may take any value at any time."""
    talk = Talk("gone", system_words=900)
    with box(store, "--kv-disk", "0") as first:
        served(first, talk)
        wait_written(first)
    pick = random.Random(1)
    with box(store, "--kv-disk", "0", "--cache-ram", "1") as running:
        for _ in range(3):
            for key in pick.sample(store.keys("s") + store.keys("i"), 3):
                store.ask("DEL", key)
            expected = request(running.client, talk.ask(), cache_prompt=False)
            assert_same_reply("sim", expected, request(running.client, talk.messages))
            talk.hear(expected)
            wait_written(running)
        assert remote(running)["state"] == "ok"


@contextlib.contextmanager
def talking(running):
    """While a reply is written that does not end."""
    connection, response = running.client.open(
        "POST", "/v1/completions", {"prompt": "Go on.", "max_tokens": 7000, "ignore_eos": True, "stream": True})
    try:
        assert response.readline()
        yield
    finally:
        connection.close()


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("damage", [True, False], ids=["damaged", "gone"])
def test_why_values_could_not_be_used(store, damage, busy):
    """What did not verify is told apart from what the store has removed, also where it was read while another request
    ran."""
    talk = Talk("damaged", system_words=900)
    with box(store, "--kv-disk", "0") as first:
        served(first, talk)
        wait_written(first)
    for key in store.keys("s"):
        value = bytearray(store.ask("GET", key))
        value[len(value) // 2] ^= 1
        store.ask(*(("SET", key, bytes(value)) if damage else ("DEL", key)))
    with box(store, "--kv-disk", "0") as running:
        with contextlib.ExitStack() as stack:
            if busy:
                stack.enter_context(talking(running))
            request(running.client, talk.ask())
        report = wait_until(lambda: next((one for one in running.client.get("/requests?limit=9")["data"]
                                          if one["endpoint"] == "/v1/chat/completions"), None), "it is kept")
    verdict = report["verdicts"][0]
    assert verdict["cause"] == ("restore_failed" if damage else "evicted"), report
    assert abs(verdict["tokens"] - talk.known_tokens) <= talk.known_tokens / 10, (verdict, talk.known_tokens)
    assert ("from the store that boxes share" in verdict["text"]) == (not damage), verdict
    assert damage or "--kv-remote-ttl" in verdict["advice"], verdict


def test_values_expire_after_their_last_use(store):
    talk = Talk("expires", system_words=600)
    with box(store, "--kv-remote-ttl", "100") as running:
        served(running, talk)
        wait_written(running)
        keys = store.keys("s") + store.keys("i")
        assert all(0 < store.ask("TTL", key) <= 100 for key in keys)
    for key in keys:
        store.ask("EXPIRE", key, 20)
    with box(store, "--kv-remote-ttl", "8") as running:  # an item is touched when an eighth of its time has passed
        request(running.client, talk.messages)
        wait_until(lambda: request(running.client, talk.messages) and store.ask("TTL", keys[0]) <= 8, "it is touched")


def test_a_forgotten_session_leaves_the_store(store, tmp_path):
    with box(store, "--session-db", str(tmp_path / "sessions.db")) as running:
        talk = Talk("private", system_words=900)
        running.client.post("/v1/chat/completions", {"messages": talk.ask(), "max_tokens": 8, "session_id": "diary"})
        wait_written(running)
        assert len(store.keys("i")) > 3
        running.client.delete("/v1/sessions/diary")
        wait_until(lambda: not store.keys("s") and not store.keys("i"), "all of it is gone")


@pytest.mark.parametrize("model, words, cut", [
    ("sim", 900, 60000), pytest.param("tiny", 9000, 3 << 19, marks=pytest.mark.llama)], ids=["a chunk", "several chunks"])
def test_a_connection_that_is_reset_in_mid_value(store, model, words, cut):
    """Whatever of a value had come is dropped, the prompt is computed, and the store is used again."""
    talk, pick = Talk("cut", system_words=words), random.Random(2)
    flags = ("--kv-disk", "0", "--page-tokens", "16384" if model == "tiny" else "256", "-c", "16384")
    with box(store, *flags, model=model) as first:
        truth = content(request(first.client, talk.ask()))
        wait_written(first)
    with Proxy(store) as proxy:
        for _ in range(CUTS):
            with box(proxy, *flags, model=model) as second:
                proxy.cut = pick.randrange(20, cut)
                assert content(request(second.client, talk.messages)) == truth
                if proxy.cuts > 0:
                    wait_until(lambda: "kv_remote" in reasons(second) or remote(second)["state"] == "ok", "it is told")
                    wait_until(lambda: remote(second)["state"] == "ok", "it is back", 60)
                    assert second.log().count(" warn  remote: redis://") <= 2, second.log()
                proxy.cut = None
        assert proxy.cuts > 0


def test_a_failover_to_another_node(store, tmp_path):
    """The address leads to a replica that has become the primary, as a name or a proxy of a failover does."""
    (tmp_path / "second").mkdir()
    talk = Talk("failover", system_words=600)
    with Store(tmp_path / "second") as other, Proxy(store) as proxy, box(proxy, "--kv-disk", "0") as running:
        other.ask("REPLICAOF", "127.0.0.1", str(store.port))
        served(running, talk)
        wait_written(running)
        wait_until(lambda: sorted(other.keys("i")) == sorted(store.keys("i")), "the replica has all of it")
        other.ask("REPLICAOF", "NO", "ONE")
        proxy.store = other
        store.kill()
        served(running, talk)
        wait_until(lambda: remote(running)["state"] == "ok", "the new primary is found", 60)
        with box(proxy, "--kv-disk", "0") as second:
            assert request(second.client, talk.messages[:2])["hearth"]["reused"]["remote"] > 100


# ---------------------------------------------------------------------------------------------------- kills

@pytest.mark.parametrize("kills", [KILLS, pytest.param(100, marks=pytest.mark.long)])
def test_a_box_is_killed_in_mid_stream(store, kills):
    """SIGKILL at a random moment of a reply: the client asks the other box again, which computes what is new."""
    pick, new, spent, heard = random.Random(kills), 0, 0, 0
    flags = ("--kv-disk", "0", "--kv-min-tokens", "0")
    with box(store, *flags) as steady:
        for number in range(kills):
            talk = Talk(f"killed {number}", system_words=300)
            with box(store, *flags) as doomed:
                known = turn(doomed, talk)["usage"]["prompt_tokens"]
                wait_written(doomed)  # what was acknowledged is in the store
                messages, most = talk.ask(), pick.randrange(1, 40)
                body = {"messages": messages, "max_tokens": 64, "temperature": 0}
                heard += kill_in_mid_stream(doomed, "/v1/chat/completions", body, most)
            answer = request(steady.client, messages)
            new, spent = new + answer["usage"]["prompt_tokens"] - known, spent + computed(answer)
            assert answer["usage"]["completion_tokens"] > 0
    assert heard > kills / 2 and spent <= 1.05 * new + 2 * kills, (spent, new, heard)


@pytest.mark.parametrize("kills", [KILLS, pytest.param(100, marks=pytest.mark.long)])
def test_the_store_is_killed_again_and_again(store, kills):
    """SIGKILL at random moments while clients talk to two boxes in turn: no request fails, and each reply is the right
    one."""
    pick, ended, wrong, served_by_store, asked = random.Random(kills), threading.Event(), [], [], []
    flags = ("--kv-disk", "0", "--kv-min-tokens", "0")
    with box(store, *flags) as one, box(store, *flags) as two, \
            serve(*model_flags("sim"), "-c", "8192", "--cache-ram", "0") as alone:
        boxes = [one, two]

        def talks(number):
            turns = 0
            while not ended.is_set() or turns < 2:
                talk = Talk(f"survives {number} {turns}", system_words=200)
                try:
                    for step in range(3):
                        answer = turn(boxes[(number + step) % 2], talk)
                        asked.append(number)
                        served_by_store.append(answer["hearth"]["reused"]["remote"])
                    if content(request(alone.client, talk.messages[:-1])) != content(answer):
                        wrong.append(talk.messages)
                except Exception as error:  # noqa: BLE001
                    wrong.append(error)
                    return
                turns += 1

        threads = [threading.Thread(target=talks, args=[number]) for number in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(kills):
            victim = pick.choice(boxes)
            wait_until(lambda: remote(victim)["state"] == "ok", "the store is used", 60)
            written = metric(victim, "written_total") + pick.randrange(6)
            wait_until(lambda: metric(victim, "written_total") >= written or not any(t.is_alive() for t in threads), "it is written to", 60)
            store.kill()
            store.start()
        ended.set()
        for thread in threads:
            thread.join()
        print(f"{kills} kills, {len(asked)} requests, {sum(served_by_store)} tokens from the store")
        assert wrong == [] and remote(one) is not None and remote(two) is not None


# ---------------------------------------------------------------------------------------------------- many agents

@pytest.mark.parametrize("router, most", [("affinity", 1.05), ("random", 1.10)])
def test_twelve_agents_over_two_boxes(store, router, most):
    """What both boxes compute together, over what no box has seen: the tokens behind the longest beginning that a prompt
    has in common with any before it, and its last one, which is always computed."""
    pick, least, spent, seen = random.Random(5), 0, 0, []
    talks = [Talk(f"agent {number}", system_words=500) for number in range(12)]
    with contextlib.ExitStack() as stack:
        boxes = [stack.enter_context(box(store, "--kv-disk", "0", "--kv-min-tokens", "0")) for _ in range(2)]
        for _ in range(3):
            for number in pick.sample(range(12), 12):
                running, talk = boxes[number % 2 if router == "affinity" else pick.randrange(2)], talks[number]
                answer = turn(running, talk)
                wait_written(running)
                spent += computed(answer)
                tokens = running.client.tokenize(running.client.apply_template(talk.messages))
                prompt = answer["usage"]["prompt_tokens"]
                known = max((len(os.path.commonprefix([tokens[:prompt - 1], before])) for before in seen), default=0)
                least += prompt - known
                seen.append(tokens[:prompt])
    print(f"{router}: {spent} tokens computed by two boxes of {least} that are new: {spent / least:.3f}")
    assert spent <= most * least, (spent, least)


# ---------------------------------------------------------------------------------------------------- trust

def test_sealed_values_tell_nothing_and_another_key_finds_nothing(store, tmp_path):
    talk = Talk("sealed", system_words=600)
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(os.urandom(32))
        (tmp_path / name).chmod(0o600)
    with box(store, "--kv-disk", "0", "--kv-key", str(tmp_path / "one")) as first:
        assert "can choose" not in first.log()
        request(first.client, talk.ask())
        wait_written(first)
        names = store.keys("i")
    word = talk.messages[0]["content"].split()[3].encode()
    assert not any(word in value for key in names for value in store.ask("HVALS", key))
    with box(store, "--kv-disk", "0", "--kv-key", str(tmp_path / "two")) as other:
        answer = request(other.client, talk.messages)
        assert computed(answer) == answer["usage"]["prompt_tokens"]
    with box(store, "--kv-disk", "0", "--kv-key", str(tmp_path / "one")) as same:
        assert computed(request(same.client, talk.messages)) <= 2
    with box(store, "--kv-disk", "0") as plain:
        assert "can choose" in plain.log()
        assert computed(request(plain.client, talk.messages)) > 100


def lie(store, kind, pick):
    """Makes one value of the store another one."""
    key = pick.choice(store.keys("i") + store.keys("s"))
    other = pick.choice(store.keys("i" if b":i:" in key else "s"))
    if b":i:" in key:
        fields = store.ask("HGETALL", key)
        at = 2 * pick.randrange(len(fields) // 2)
        value, strange = fields[at + 1], store.ask("HVALS", other)[0]
        put = functools.partial(store.ask, "HSET", key, fields[at])
    else:
        value, strange = store.ask("GET", key), store.ask("GET", other)
        put = functools.partial(store.ask, "SET", key)
    flip = bytearray(value)
    flip[pick.randrange(len(flip))] ^= 1 << pick.randrange(8)
    put({"a flipped bit": bytes(flip), "another value": strange, "cut short": value[:pick.randrange(len(value))],
         "longer": value + b"\0more", "nothing": b""}[kind])


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("kind", ["a flipped bit", "another value", "cut short", "longer", "nothing"])
def test_a_store_that_lies(store, tmp_path, kind, sealed):
    """Whatever one value is, replies are the right ones, and the value is mended."""
    talk, pick = Talk("lies", system_words=60), random.Random(kind)
    flags = ["--kv-disk", "0", "--kv-min-tokens", "0", "--page-tokens", "16"]
    if sealed:
        (tmp_path / "key").write_bytes(os.urandom(32))
        (tmp_path / "key").chmod(0o600)
        flags += ["--kv-key", str(tmp_path / "key")]
    with box(store, *flags) as first:
        truth = request(first.client, talk.ask(), max_tokens=4)
        wait_written(first)
    bad = 0
    for _ in range(LIES):
        lie(store, kind, pick)
        with box(store, *flags) as running:
            assert content(request(running.client, talk.messages, max_tokens=4)) == content(truth)
            wait_written(running)
            bad += metric(running, "bad_total")
    assert bad > 0
    with box(store, *flags) as running:  # what did not verify was written again
        assert computed(request(running.client, talk.messages, max_tokens=4)) <= 2


# ---------------------------------------------------------------------------------------------------- hearth kv

def kv(store, command, *args, status=0, json_too=True):
    """What `hearth kv` says of the store: the object of --json, and its lines."""
    words = [servers.hearth_path(), "kv", command, *args, "--kv-remote", "-"]
    env = {**servers.surroundings(), "HEARTH_KV_REMOTE": store.url()}
    told = subprocess.run([*words, *(["--json"] if json_too else [])], capture_output=True, text=True, timeout=60, env=env,
                          check=False)
    assert told.returncode == status, told
    return json.loads(told.stdout) if json_too and told.stdout else told.stdout + told.stderr


def test_hearth_kv_shows_and_cleans_the_store(tmp_path):
    talks = [Talk("shown", system_words=600), Talk("another", system_words=600)]
    with Store(tmp_path, password="secret") as store:
        assert kv(store, "ls")["models"] == [] and "is empty" in kv(store, "ls", json_too=False)
        with box(store, "--kv-disk", "0") as running:
            for talk in talks:
                request(running.client, talk.ask(), max_tokens=1)
            wait_written(running)
        store.ask("SET", "hearth:not-ours", "1")
        store.ask("SET", "hearth:" + "0" * 32 + ":i:{" + "1" * 32 + "}", "not a hash")
        listed = kv(store, "ls")
        assert "secret" not in json.dumps(listed) and listed["store"].startswith("redis://127.0.0.1")
        [model] = listed["models"]
        conversations = model["conversations"]
        assert len(conversations) == 2 and all(one["complete"] and one["tokens"] > 500 for one in conversations), listed
        assert conversations[0]["id"] in kv(store, "ls", json_too=False)
        totals = kv(store, "stat")
        assert totals["total"]["conversations"] == 2 and totals["memory_bytes"] > totals["total"]["bytes"] > 0
        assert "maxmemory" not in kv(store, "stat", json_too=False)
        checked = kv(store, "verify")
        assert checked["good"] == checked["items"] == model["files"] and checked["damaged"] == 0
        removed, stays = sorted(conversations, key=lambda one: one["own_bytes"] == 0)  # they share a beginning
        assert kv(store, "rm", removed["id"], "--yes")["removed_bytes"] == removed["own_bytes"] > 0
        assert [one["id"] for one in kv(store, "ls")["models"][0]["conversations"]] == [stays["id"]]
        with box(store, "--kv-disk", "0") as running:  # the other one is whole
            receipts = [request(running.client, talk.messages, max_tokens=1)["hearth"] for talk in talks]
            assert min(receipt["computed"] for receipt in receipts) <= 2, receipts
            wait_written(running)
        key = store.keys("s")[0]
        store.ask("SETRANGE", key, 10, "damage")
        assert kv(store, "verify", status=1)["damaged"] == 1 and key not in store.keys("s")
        store.ask("DEL", store.keys("s")[0])
        assert kv(store, "verify")["evicted"] == 1
        assert kv(store, "gc")["removed_headers"] == 1 and kv(store, "verify")["evicted"] == 0
        kept, left = [key.replace(b":i:", b":e:") for key in store.keys("i") if b":" + b"0" * 32 not in key][:2]
        for key in kept, left:  # beside an index that is there, and beside one that the store has evicted
            store.ask("RESTORE", key, 0, store.ask("DUMP", key), "REPLACE", "IDLETIME", 1000)
        store.ask("DEL", left.replace(b":e:", b":i:"))
        kv(store, "gc")
        assert kept in store.keys("e") and left not in store.keys("e")
        kv(store, "rm", "--all", "--yes")
        assert kv(store, "ls")["models"] == [] and store.keys("s") == [] and store.ask("EXISTS", "hearth:not-ours")


def test_hearth_kv_says_why_a_store_cannot_be_shown(store):
    words = [servers.hearth_path(), "kv", "ls", "--kv-remote"]
    for url, told in (("http://x", "begins with redis://"), (f"redis://127.0.0.1:{servers.free_port()}", "refused"),
                      (f"redis://:guess@127.0.0.1:{store.port}", "password")):
        ended = subprocess.run([*words, url], capture_output=True, text=True, timeout=60, env=servers.surroundings(),
                               check=False)
        assert ended.returncode == 1 and told in ended.stderr and "guess" not in ended.stderr, ended


# ---------------------------------------------------------------------------------------------------- the command line

@pytest.mark.parametrize("url, told", [
    ("http://127.0.0.1", "begins with redis://"), ("redis://", "HOST"), ("redis://host:0", "HOST"),
    ("redis://secret@host", "PASSWORD"), ("redis://:secret@host:99999", "PASSWORD"), ("redis://[::1", "HOST"),
    ("redis://host/db", "/DB"), ("unix://", "unix:///PATH"), ("redis://:se%zzcret@host", "%XX")])
def test_addresses_that_are_none(url, told):
    command = [servers.hearth_path(), "serve", "--engine", "sim", "--port", "0", "--kv-remote", url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=servers.surroundings(), check=False)
    assert ended.returncode == 1 and told in ended.stderr and "--kv-remote" in ended.stderr
    assert "secret" not in ended.stderr
