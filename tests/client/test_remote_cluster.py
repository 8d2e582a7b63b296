"""Boxes over a cluster of Redis nodes: a conversation's blocks are spread over all of them, and a node that dies, or slots
that move, cost what was there at most.
"""

import contextlib
import functools
import json
import subprocess

import pytest

import ondisk
from conftest import serve
from lib import server as servers
from ondisk import computed, content, model_flags, request, wait_until
from store import PROGRAM, Store, certificate, wait_written

pytestmark = pytest.mark.skipif(not PROGRAM, reason="Redis is not installed")
# Prompts that are the same tokens for every box: boxes do not share how replies were sampled.
Talk = functools.partial(ondisk.Talk, foreign=True)


class Cluster:
    """Three primaries, a context manager; with a pair of (certificate, key) all of them, and the bus, by TLS."""

    def __init__(self, folder, pair=None):
        self.folder, self.nodes, self.pair = folder, [], pair

    def _start(self, *flags):
        node = self.folder / f"node{len(self.nodes)}"
        node.mkdir()
        port = bus = servers.free_port()
        while bus == port:  # nothing listens on either yet
            bus = servers.free_port()
        tls = ["--tls-cluster", "yes", "--tls-replication", "yes"] if self.pair else []
        self.nodes.append(self.stack.enter_context(Store(
            node, "--cluster-enabled", "yes", "--cluster-config-file", str(node / "nodes.conf"),
            "--cluster-port", str(bus), "--cluster-node-timeout", "1000",
            "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0", *tls, *flags, port=port, pair=self.pair)))
        return self.nodes[-1]

    def _meet(self):
        """All nodes know each other."""
        first, known = self.nodes[0], f"cluster_known_nodes:{len(self.nodes)}".encode()
        bus = first.ask("CONFIG", "GET", "cluster-port")[1].decode()
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", str(first.port), bus)
        for node in self.nodes:
            wait_until(lambda node=node: b"cluster_state:ok" in node.ask("CLUSTER", "INFO") and
                       known in node.ask("CLUSTER", "INFO"), "the cluster has formed", 60)

    def __enter__(self):
        with contextlib.ExitStack() as self.stack:
            for number in range(3):
                self._start().ask("CLUSTER", "ADDSLOTSRANGE", str(number * 5461),
                                  str(16383 if number == 2 else (number + 1) * 5461 - 1))
            self._meet()
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, kind, value, trace):
        self.stack.close()

    def add_replica(self, primary):
        replica = self._start("--cluster-replica-validity-factor", "0")
        self._meet()
        replica.ask("CLUSTER", "REPLICATE", primary.ask("CLUSTER", "MYID"))
        wait_until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"), "it replicates", 60)
        return replica

    def url(self, seeds=None):
        """Of all nodes, or of the first ones: they name the others."""
        return ("rediss://" if self.pair else "redis://") + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:seeds])

    def keys(self, kind):
        return [key for node in self.nodes for key in node.keys(kind)]

    @staticmethod
    def begin_move(source, target):
        """The slots of a node that hold something are on their way to another one, with all that is in them; the slots."""
        slots = {source.ask("CLUSTER", "KEYSLOT", key) for key in source.ask("KEYS", "*")}
        for slot in slots:
            target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
            source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.ask("CLUSTER", "MYID"))
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000))
        assert slots and not source.ask("KEYS", "*")
        return slots

    def end_move(self, slots, target):
        for slot in slots:
            for node in [target, *[node for node in self.nodes if node is not target]]:
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.ask("CLUSTER", "MYID"))


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as running:
        yield running


def box(url, *flags):
    return serve(*model_flags("sim"), "-c", "8192", "-np", "2", "--cache-ram", "512", "--kv-disk", "0", "--kv-min-tokens",
                 "0", "--kv-remote", url, *flags)


def remote(running):
    return running.client.get("/health")["remote"]


def turn(running, talk):
    answer = request(running.client, talk.ask())
    talk.hear(answer)
    return answer


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_conversation_is_spread_and_read_by_another_box(tmp_path, tls):
    talks = [Talk(f"spread {number}", system_words=900) for number in range(4)]
    pair = certificate(tmp_path) if tls else None
    trust = ["--kv-remote-ca", pair[0]] if tls else []
    # One node is enough; the others are at ports of their own here, which a confined box would not connect to.
    with Cluster(tmp_path, pair) as cluster, box(cluster.url(), *trust) as first, \
            box(cluster.url(1), "--confine", "off", *trust) as second:
        assert remote(first)["state"] == "ok", first.log()
        for talk in talks:
            turn(first, talk)
        wait_written(first)
        assert all(node.keys("s") for node in cluster.nodes)
        for talk in talks:
            answer = request(second.client, talk.messages[:-1])
            assert computed(answer) <= 2 and answer["hearth"]["reused"]["remote"] > 100, answer["hearth"]
        wait_written(second)
        assert second.client.metrics()["hearth_remote_bad_total"] == 0
        new, spent, known = 0, 0, 0
        for number in range(6):  # and on, from box to box
            answer = turn([first, second][number % 2], talks[0])
            new, spent, known = new + answer["usage"]["prompt_tokens"] - known, spent + computed(answer), \
                answer["usage"]["prompt_tokens"]
            wait_written([first, second][number % 2])
    assert spent <= 1.05 * new, (spent, new)


def test_a_node_dies_and_returns(cluster):
    talks = [Talk(f"dies {number}", system_words=900) for number in range(3)]
    with box(cluster.url()) as running, serve(*model_flags("sim"), "-c", "8192", "--cache-ram", "0") as alone:
        for talk in talks:
            turn(running, talk)
        wait_written(running)
        cluster.nodes[1].kill()
        for talk in talks:
            answer = turn(running, talk)
            assert content(answer) == content(request(alone.client, talk.messages[:-1]))
        wait_until(lambda: f":{cluster.nodes[1].port}: " in remote(running).get("trouble", ""), "it is told", 60)
        cluster.nodes[1].start()
        wait_until(lambda: remote(running)["state"] == "ok", "it is back", 90)
        for talk in talks:
            assert turn(running, talk)["usage"]["completion_tokens"] > 0


def test_a_replica_takes_over(cluster):
    replica = cluster.add_replica(cluster.nodes[1])
    talks = [Talk(f"fails over {number}", system_words=900) for number in range(3)]
    with box(cluster.url()) as first, box(cluster.url()) as second:
        for talk in talks:
            turn(first, talk)
        wait_written(first)
        wait_until(lambda: sorted(replica.keys("s")) == sorted(cluster.nodes[1].keys("s")), "the replica has it")
        cluster.nodes[1].kill()
        wait_until(lambda: b"role:master" in replica.ask("INFO", "replication"), "it takes over", 60)
        wait_until(lambda: remote(second)["state"] == "ok", "it is found", 60)
        for talk in talks:
            answer = request(second.client, talk.messages[:-1])
            assert computed(answer) <= 2 and answer["hearth"]["reused"]["remote"] > 100, answer["hearth"]


def test_slots_that_move_are_found_where_they_are(cluster, tmp_path):
    """The first request after a move is answered from where the state is now, without a look at the map before; and what
    is forgotten is gone there."""
    talks = [Talk(f"moves {number}", system_words=900) for number in range(3)]
    with box(cluster.url(), "--session-db", str(tmp_path / "db")) as first, box(cluster.url()) as second:
        for number, talk in enumerate(talks):
            talk.hear(request(first.client, talk.ask(), session_id=f"talk {number}"))
        wait_written(first)
        slots = cluster.begin_move(cluster.nodes[2], cluster.nodes[0])
        answer = request(second.client, talks[0].messages[:-1])  # they are on their way
        assert computed(answer) <= 2 and answer["hearth"]["reused"]["remote"] > 100, answer["hearth"]
        cluster.end_move(slots, cluster.nodes[0])
        for talk in talks[1:]:
            answer = request(second.client, talk.messages[:-1])
            assert computed(answer) <= 2 and answer["hearth"]["reused"]["remote"] > 100, answer["hearth"]
        cluster.end_move(cluster.begin_move(cluster.nodes[1], cluster.nodes[0]), cluster.nodes[0])
        wait_written(second)
        for number in range(3):
            first.client.delete(f"/v1/sessions/talk {number}".replace(" ", "%20"))
        wait_until(lambda: not cluster.keys("s"), "what was deleted is gone")
        assert remote(first)["state"] == remote(second)["state"] == "ok"


def test_hearth_kv_reaches_all_nodes(cluster):
    def kv(command, *args, status=0):
        words = [servers.hearth_path(), "kv", command, *args, "--json", "--kv-remote", cluster.url(1)]
        told = subprocess.run(words, capture_output=True, text=True, timeout=60, env=servers.surroundings(), check=False)
        assert told.returncode == status, told
        return json.loads(told.stdout)

    talks = [Talk(f"shown {number}", system_words=900) for number in range(2)]
    with box(cluster.url()) as running:
        for talk in talks:
            turn(running, talk)
        wait_written(running)
    assert all(node.keys("s") for node in cluster.nodes)
    [model] = kv("ls")["models"]
    assert len(model["conversations"]) == 2 and all(one["complete"] for one in model["conversations"]), model
    assert kv("stat")["memory_bytes"] > kv("stat")["total"]["bytes"] > 0
    checked = kv("verify")
    assert checked["good"] == checked["items"] == model["files"]
    for node in cluster.nodes:
        node.ask("SETRANGE", node.keys("s")[0], 10, "damage")
    assert kv("verify", status=1)["damaged"] == 3 and kv("verify")["damaged"] == 0
    for node in cluster.nodes:
        node.ask("DEL", node.keys("s")[0])
    assert kv("gc")["removed_headers"] == 3
    kv("rm", "--all", "--yes")
    assert kv("ls")["models"] == [] and cluster.keys("s") == cluster.keys("i") == []
    cluster.nodes[1].kill()
    told = subprocess.run([servers.hearth_path(), "kv", "ls", "--kv-remote", cluster.url()], capture_output=True, text=True,
                          timeout=60, env=servers.surroundings(), check=False)
    assert told.returncode == 1 and f":{cluster.nodes[1].port}" in told.stderr, told


@pytest.mark.parametrize("hosts, told", [("127.0.0.1:1,127.0.0.1:2/3", "no /DB"), ("127.0.0.1:1,:2", "HOST")])
def test_addresses_that_are_none(hosts, told):
    command = [servers.hearth_path(), "serve", "--engine", "sim", "--port", "0", "--kv-remote", f"redis://{hosts}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=servers.surroundings(), check=False)
    assert ended.returncode == 1 and told in ended.stderr, ended
