"""contrib/haproxy in front of two boxes: conversations stay where they are, a box that ends costs no request."""

import collections
import concurrent.futures
import contextlib
import os
import re
import shutil
import signal
import subprocess

import httpx
import pytest

from conftest import serve
from lib import server as servers
from ondisk import wait_until

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")
CONFIGURATION = os.path.join(servers.REPOSITORY, "contrib", "haproxy", "hearth.cfg")


@contextlib.contextmanager
def balanced(folder, *boxes):
    """The configuration as it is, but for ports and addresses; the base URL."""
    port = servers.free_port()
    with open(CONFIGURATION, encoding="utf-8") as file:
        text = file.read().replace("bind :8000", f"bind 127.0.0.1:{port}").replace("inter 2s", "inter 100ms")
    addresses = iter(boxes)
    text, count = re.subn(r"10\.0\.0\.\d:8080", lambda _: f"127.0.0.1:{next(addresses).port}", text)
    assert count == len(boxes)
    path = folder / "haproxy.cfg"
    path.write_text(text)
    process = subprocess.Popen(["haproxy", "-db", "-f", str(path)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, preexec_fn=servers._die_with_parent)
    url = f"http://127.0.0.1:{port}"

    def ready():
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/health").status_code == 200

    try:
        wait_until(ready, "haproxy listens")
        yield url
    finally:
        process.kill()
        process.wait()


def box(**options):
    return serve("--engine", "sim", "-c", "4096", "-np", "4", **options)


def chat(url, text, headers=None, **more):
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def where(boxes):
    """Of each box the number of requests that it has computed."""
    return [running.client.metrics()["hearth_requests_total"] for running in boxes]


def test_the_configuration_is_valid_as_it_is():
    assert subprocess.run(["haproxy", "-c", "-f", CONFIGURATION], check=False, capture_output=True).returncode == 0


SYSTEM = "You help."


def texts(number):
    """The messages of a conversation that grows, without anything that names it."""
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in range(number + 1):
        messages += [{"role": "user", "content": f"turn {turn}"}, {"role": "assistant", "content": "So."}]
    return messages[:-1]


def turn_of(kind, name, turn):
    """Path, body and headers of a turn of the conversation `name`."""
    messages = texts(turn)
    messages[1] = {"role": "user", "content": f"This is {name}."}
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
    asked = {"messages": [{"role": "user", "content": f"turn {turn}"}], "max_tokens": 4}
    return {
        "session_id": ("/v1/chat/completions", {**asked, "session_id": name}, {}),
        "x-session-id": ("/v1/chat/completions", asked, {"x-session-id": name}),
        "prompt_cache_key": ("/v1/responses", {"input": f"turn {turn}", "max_output_tokens": 4, "store": False,
                                               "prompt_cache_key": name}, {}),
        "texts": ("/v1/chat/completions", {"messages": messages, "max_tokens": 4, "user": str(turn)}, {}),
        "parts": ("/v1/chat/completions", {"temperature": turn / 10, "messages": parts, "max_tokens": 4}, {}),
        "Messages": ("/v1/messages", {"model": "m", "max_tokens": 4, "system": SYSTEM, "messages": parts[1:]}, {}),
        "items": ("/v1/responses", {"store": False, "max_output_tokens": 4, "input": messages[1:]}, {}),
    }[kind]


@pytest.mark.parametrize("kind", ["session_id", "x-session-id", "prompt_cache_key", "texts", "parts", "Messages", "items"])
def test_a_conversation_stays_on_its_box(tmp_path, kind):
    with box() as first, box() as second, balanced(tmp_path, first, second) as url:
        homes = collections.Counter()
        for number in range(6):
            before = where((first, second))
            for turn in range(2):
                path, body, headers = turn_of(kind, f"talk {number}", turn)
                answer = httpx.post(url + path, json=body, headers=headers, timeout=60)
                assert answer.status_code == 200, answer.text
            spread = [after - earlier for after, earlier in zip(where((first, second)), before)]
            assert sorted(spread) == [0, 2], (number, spread)
            homes[spread.index(2)] += 1
        assert len(homes) == 2, homes  # both boxes are used


@pytest.mark.parametrize("stream", [False, True])
def test_what_one_box_has_is_asked_of_that_box(tmp_path, stream):
    """A response, or a conversation, that is named and nothing else."""
    with box() as first, box() as second, balanced(tmp_path, first, second) as url:
        homes = collections.Counter()

        def ask(body):
            body = {"max_output_tokens": 4, "stream": stream, **body}
            answer = httpx.post(f"{url}/v1/responses", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            named = answer.headers["x-hearth-id"]
            assert named.startswith("resp_") and named in answer.text
            return named

        for number in range(8):
            before = where((first, second))
            one = ask({"input": f"This is talk {number}."})
            two = ask({"input": "Go on.", "previous_response_id": one})
            ask({"input": "And on.", "previous_response_id": two, "prompt_cache_key": f"another {number}"})
            spread = [after - earlier for after, earlier in zip(where((first, second)), before)]
            assert sorted(spread) == [0, 3], (number, spread)
            homes[spread.index(3)] += 1
            assert httpx.get(f"{url}/v1/responses/{two}/input_items").status_code == 200
            assert httpx.delete(f"{url}/v1/responses/{one}").status_code == 200
        assert len(homes) == 2, homes
        for _ in range(4):
            talk = httpx.post(f"{url}/v1/conversations", json={}, timeout=60).json()["id"]
            ask({"input": "Hello.", "conversation": talk})
            ask({"input": "Again.", "conversation": {"id": talk}})
            assert len(httpx.get(f"{url}/v1/conversations/{talk}/items").json()["data"]) == 4


def test_a_box_that_drains_ends_its_streams_and_gets_nothing_new(tmp_path):
    with box() as first, box() as second, balanced(tmp_path, first, second) as url:
        pool = concurrent.futures.ThreadPoolExecutor(8)

        def stream(number):
            body = {"messages": [{"role": "user", "content": f"stream {number}"}], "max_tokens": 100, "stream": True,
                    "ignore_eos": True, "session_id": f"stream{number}"}
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
                return answer.status_code, "".join(answer.iter_text()).strip().endswith("[DONE]")

        streams = [pool.submit(stream, number) for number in range(6)]
        wait_until(lambda: sum(where((first, second))) >= 6, "all streams run")
        first.process.send_signal(signal.SIGTERM)
        answers = [pool.submit(chat, url, f"new {number}", None, session_id=f"new{number}") for number in range(12)]
        assert all(answer.result() for answer in answers)
        assert all(one.result() == (200, True) for one in streams)


def test_a_box_that_dies_costs_no_new_request(tmp_path):
    with box() as first, box() as second, balanced(tmp_path, first, second) as url:
        for number in range(4):
            chat(url, "before", session_id=f"before{number}")
        first.kill()
        for number in range(12):
            chat(url, "after", session_id=f"after{number}")
