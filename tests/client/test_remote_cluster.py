"""Boxes over a cluster of three Redis nodes: a conversation's blocks are spread over all of them, and a node that dies, or
slots that move, cost what was there.
"""

import contextlib
import functools
import shutil
import subprocess

import pytest

import ondisk
from conftest import serve
from lib import server as servers
from ondisk import computed, content, model_flags, request, wait_until
from store import PROGRAM, Store, wait_written

CLI = shutil.which("redis-cli")
pytestmark = pytest.mark.skipif(not (PROGRAM and CLI), reason="Redis is not installed")
# Prompts that are the same tokens for every box: boxes do not share how replies were sampled.
Talk = functools.partial(ondisk.Talk, foreign=True)


class Cluster:
    """Three primaries without replicas, a context manager."""

    def __init__(self, folder):
        self.folder, self.nodes = folder, []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for number in range(3):
                node = self.folder / f"node{number}"
                node.mkdir()
                self.nodes.append(stack.enter_context(Store(
                    node, "--cluster-enabled", "yes", "--cluster-config-file", str(node / "nodes.conf"),
                    "--cluster-port", str(servers.free_port()), "--cluster-node-timeout", "2000",
                    "--cluster-require-full-coverage", "no")))
            for number, node in enumerate(self.nodes):
                node.ask("CLUSTER", "ADDSLOTSRANGE", *[str(n) for n in self.range_of(number)])
            for node in self.nodes[1:]:
                first = self.nodes[0]
                bus = first.ask("CONFIG", "GET", "cluster-port")[1].decode()
                node.ask("CLUSTER", "MEET", "127.0.0.1", str(first.port), bus)
            for node in self.nodes:
                wait_until(lambda node=node: b"cluster_state:ok" in node.ask("CLUSTER", "INFO") and
                           b"cluster_known_nodes:3" in node.ask("CLUSTER", "INFO"), "the cluster has formed", 60)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind, value, trace):
        self.stack.close()

    @staticmethod
    def range_of(number):
        return number * 5461, 16383 if number == 2 else (number + 1) * 5461 - 1

    def url(self):
        return "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def move(self, source, target):
        """Moves all slots of a node to another one, with what is in them, as redis-cli does."""
        ids = [node.ask("CLUSTER", "MYID").decode() for node in (source, target)]
        subprocess.run([CLI, "--cluster", "reshard", f"127.0.0.1:{source.port}", "--cluster-from", ids[0], "--cluster-to",
                        ids[1], "--cluster-slots", "5461", "--cluster-pipeline", "100", "--cluster-yes"], check=True,
                       capture_output=True, timeout=240)


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


def test_a_conversation_is_spread_and_read_by_another_box(cluster):
    talks = [Talk(f"spread {number}", system_words=900) for number in range(4)]
    with box(cluster.url()) as first, box(cluster.url()) as second:
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


def test_slots_that_move_are_found_where_they_are(cluster):
    talks = [Talk(f"moves {number}", system_words=900) for number in range(3)]
    with box(cluster.url()) as running:
        for talk in talks:
            turn(running, talk)
        wait_written(running)
        cluster.move(cluster.nodes[2], cluster.nodes[0])
        assert not cluster.nodes[2].keys("s")
        for talk in talks:  # what is new goes to where the slots are
            turn(running, talk)
        wait_until(lambda: remote(running)["state"] == "ok", "it is well", 60)
        with box(cluster.url()) as second:
            for talk in talks:
                answer = request(second.client, talk.messages[:2])
                assert computed(answer) <= 2 and answer["hearth"]["reused"]["remote"] > 100, answer["hearth"]


@pytest.mark.parametrize("hosts, told", [("127.0.0.1:1,127.0.0.1:2/3", "no /DB"), ("127.0.0.1:1,:2", "HOST")])
def test_addresses_that_are_none(hosts, told):
    command = [servers.hearth_path(), "serve", "--engine", "sim", "--port", "0", "--kv-remote", f"redis://{hosts}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=servers.surroundings(), check=False)
    assert ended.returncode == 1 and told in ended.stderr, ended
