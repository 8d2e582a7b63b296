"""Many clients at once, as they see it: SDKs that are told to come back, deadlines, classes, progress, and an operator who
changes keys and settings while requests run. On sim, whose speed is the same everywhere."""

import concurrent.futures
import json
import os
import pty
import signal

import httpx
import openai
import pytest

import lazy
from conftest import sdk, serve
from lib import server as servers
from lib.client import HttpError, events
from ondisk import wait_until

anthropic = lazy.module("anthropic")
SIM = ("--engine", "sim", "-c", "32768")
USER = {"role": "user", "content": "Tell me about the weather, at length."}
WAIT_S = 60


def logged(running, *texts):
    """The log's line that holds all of these."""
    return wait_until(lambda: next((line for line in running.log().splitlines() if all(text in line for text in texts)), None),
                 f"a line with {texts} in\n{running.log()}")


def claude(running, **options):
    return anthropic.Anthropic(**{"base_url": f"http://127.0.0.1:{running.port}", "api_key": "none", "max_retries": 0,
                                  "timeout": 120, **options})


@pytest.fixture(scope="module")
def narrow():
    """One lane, and one request may wait."""
    with serve(*SIM, "-np", "1", "--queue", "1") as running:
        yield running


def burst(count, ask):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(ask, i) for i in range(count)]]


def chat_outcome(client, text, max_tokens=40):
    try:
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}],
                                               max_tokens=max_tokens,
                                               extra_body={"ignore_eos": True})
        return reply.usage.completion_tokens
    except openai.APIStatusError as error:
        return error


def test_too_many_get_429(narrow):
    with sdk(narrow) as client:
        outcomes = burst(8, lambda i: chat_outcome(client, f"{i}: {USER['content']}", 200))
    refused = [outcome for outcome in outcomes if not isinstance(outcome, int)]
    assert refused and len(refused) < 8
    for error in refused:
        assert isinstance(error, openai.RateLimitError)
        assert error.status_code == 429 and error.code == "rate_limit_exceeded"
        assert 1 <= int(error.response.headers["retry-after"]) <= 60
    assert "wait" in logged(narrow, " 429 ", "end=failed error=")


def test_openai_sdk_is_served_in_the_end(narrow):
    with sdk(narrow, max_retries=20) as client:
        outcomes = burst(8, lambda i: chat_outcome(client, f"{i} again: {USER['content']}"))
    assert outcomes == [40] * 8


def test_anthropic_sdk_is_served_in_the_end(narrow):
    def ask(i):
        with claude(narrow, max_retries=20) as client:
            reply = client.messages.create(model="m", max_tokens=40, extra_body={"ignore_eos": True},
                                           messages=[{"role": "user", "content": f"{i}, {USER['content']}"}])
            return reply.usage.output_tokens
    assert burst(6, ask) == [40] * 6


def test_anthropic_sees_a_rate_limit(narrow):
    def ask(i):
        try:
            with claude(narrow) as client:
                client.messages.create(model="m", max_tokens=200, extra_body={"ignore_eos": True},
                                       messages=[{"role": "user", "content": f"{i}. {USER['content']}"}])
        except anthropic.APIStatusError as error:
            return error
    refused = [error for error in burst(8, ask) if error]
    assert refused
    for error in refused:
        assert isinstance(error, anthropic.RateLimitError)
        assert error.body["error"]["type"] == "rate_limit_error" and error.request_id.startswith("req_")


@pytest.fixture(scope="module")
def wide():
    with serve(*SIM, "-np", "2", "--request-timeout", "120") as running:
        yield running


def long_text(words):
    return " ".join(f"word{i}" for i in range(words))


def test_deadline_before_the_first_token(wide):
    """What cannot be answered in time is told so once: the SDK does not have it computed again."""
    prompt = [{"role": "user", "content": long_text(3000)}]
    with sdk(wide, max_retries=3) as client:
        before = wide.client.metrics()["hearth_requests_total"]
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="m", messages=prompt, max_tokens=5, extra_body={"deadline_ms": 3000})
        assert caught.value.status_code == 504 and caught.value.code == "deadline_exceeded"
        assert wide.client.metrics()["hearth_requests_total"] == before + 1
    with claude(wide, max_retries=3) as client, pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model="m", max_tokens=5, messages=prompt + [{"role": "assistant", "content": "a"}],
                               extra_headers={"X-Request-Deadline-Ms": "300"})
    assert caught.value.status_code == 504 and caught.value.body["error"]["type"] == "timeout_error"
    for deadline in ("3000 ms", " 300 ms"):
        logged(wide, " 504 ", "end=deadline", deadline)


def test_deadline_cuts_a_reply_off(wide):
    with sdk(wide) as client:
        reply = client.chat.completions.create(model="m", messages=[USER], max_tokens=10000,
                                               extra_body={"deadline_ms": 5000, "ignore_eos": True})
        assert reply.choices[0].finish_reason == "length"
        assert 0 < reply.usage.completion_tokens < 10000
        assert reply.model_extra["hearth"]["deadline"] is True
        response = client.responses.create(model="m", input="Hello", store=False,
                                           extra_body={"deadline_ms": 5000, "ignore_eos": True})
        assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    with claude(wide) as client:
        message = client.messages.create(model="m", max_tokens=10000, messages=[USER],
                                         extra_body={"deadline_ms": 5000, "ignore_eos": True})
        assert message.stop_reason == "max_tokens"


def test_progress(wide):
    """Chunks that the SDK takes for chunks, with llama-server's account in them."""
    with sdk(wide) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": long_text(2500)}], max_tokens=3, stream=True,
            extra_body={"return_progress": True})
        chunks = list(stream)
    told = [chunk.model_extra["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk.model_extra]
    assert len(told) >= 2
    assert all(chunk.choices for chunk in chunks)
    processed = [progress["processed"] for progress in told]
    assert processed == sorted(processed) and processed[-1] == told[-1]["total"]
    assert all(set(progress) == {"total", "cache", "processed", "time_ms"} for progress in told)


def test_progress_is_a_comment_elsewhere(wide):
    """Events that their APIs do not know are not sent; the SDKs' stream helpers see what they always see."""
    with claude(wide) as client:
        with client.messages.stream(model="m", max_tokens=4, messages=[{"role": "user", "content": long_text(1500)}],
                                    extra_body={"return_progress": True}) as stream:
            assert stream.get_final_message().usage.output_tokens > 0
    with sdk(wide) as client:
        with client.responses.stream(model="m", input=long_text(1400), store=False, max_output_tokens=4,
                                     extra_body={"return_progress": True}) as stream:
            assert list(stream)[-1].type == "response.incomplete"
    with httpx.stream("POST", f"http://127.0.0.1:{wide.port}/v1/messages", timeout=120,
                      json={"model": "m", "max_tokens": 2, "stream": True, "return_progress": True,
                            "messages": [{"role": "user", "content": long_text(1600)}]}) as response:
        assert "\n: progress " in response.read().decode()


def test_tiers_and_classes(wide):
    with sdk(wide) as client:
        reply = client.chat.completions.create(model="m", messages=[USER], max_tokens=2, service_tier="flex")
        assert reply.service_tier == "flex" and reply.model_extra["hearth"]["class"] == "background"
        reply = client.chat.completions.create(model="m", messages=[USER], max_tokens=2,
                                               extra_headers={"X-Hearth-Priority": "side"})
        assert reply.model_extra["hearth"]["class"] == "side"
        response = client.responses.create(model="m", input="Hi", background=True, max_output_tokens=8)
        response = wait_until(lambda: (lambda now: now if now.status != "in_progress" and now.status != "queued" else None)(
            client.responses.retrieve(response.id)), "the response's end")
        assert response.model_extra["hearth"]["class"] == "background"
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="m", messages=[USER], extra_body={"priority": "urgent"})
        assert caught.value.param == "priority"


def test_slots_and_queue(narrow):
    body = {"messages": [USER], "max_tokens": 2000, "ignore_eos": True, "stream": True, "priority": "side"}
    first, response = narrow.client.open("POST", "/v1/chat/completions", body)
    next(events(response))
    second = None
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waits = pool.submit(narrow.client.open, "POST", "/v1/chat/completions",
                            {**body, "messages": [{"role": "user", "content": "Other"}], "return_progress": True})
        queue = wait_until(lambda: (lambda now: now if now["requests"] and now["waiting"] == 1 else None)(narrow.client.get("/queue")), "a queue")
        assert queue["requests"][0]["class"] == "side"
        slot = narrow.client.get("/slots")[0]
        assert slot["is_processing"] and slot["hearth"]["state"] == "decode" and slot["hearth"]["class"] == "side"
        assert slot["hearth"]["request_id"].startswith("req_") and slot["params"]["stream"] is True
        with pytest.raises(HttpError) as caught:
            narrow.client.get("/slots?fail_on_no_slot=1")
        assert caught.value.status == 503
        first.close()
        second, _ = waits.result(WAIT_S)
        second.close()
    wait_until(narrow.client.idle, "an idle lane")
    assert len(narrow.client.get("/slots?fail_on_no_slot=1")) == 1


# ---- an operator ----

def key_status(running, key):
    return httpx.get(f"http://127.0.0.1:{running.port}/v1/models", headers={"Authorization": f"Bearer {key}"},
                     timeout=WAIT_S).status_code


def test_reload(tmp_path):
    """SIGHUP: other keys, level and timeout; what runs goes on; a file with a mistake changes nothing."""
    keys, config = tmp_path / "keys", tmp_path / "hearth.conf"
    keys.write_text("# who may\nold name=olga weight=2\nstays name=sam class=side\n")
    config.write_text(f"api-key-file = {keys}\nctx-size = 8192\nlog-level = info\n")
    with serve("--engine", "sim", "--config", str(config)) as running:
        assert [key_status(running, key) for key in ("old", "stays", "new")] == [200, 200, 401]
        with sdk(running, api_key="old") as client:
            stream = client.chat.completions.create(model="m", messages=[USER], max_tokens=150, stream=True,
                                                    extra_body={"ignore_eos": True})
            next(iter(stream))
            keys.write_text("stays name=sam class=side\nnew name=nina\n")
            config.write_text(f"api-key-file = {keys}\nctx-size = 4096\nlog-level = debug\nrequest-timeout = 5\n")
            running.process.send_signal(signal.SIGHUP)
            logged(running, "reload: 2 keys")
            assert [key_status(running, key) for key in ("old", "stays", "new")] == [401, 200, 200]
            chunks = list(stream)
            assert chunks[-1].choices[0].finish_reason == "length"
        logged(running, "--ctx-size has changed, which takes effect at the next start")
        logged(running, "the log level is debug now, no longer info")
        with sdk(running, api_key="new") as client:
            reply = client.chat.completions.create(model="m", messages=[USER], max_tokens=4000,
                                                   extra_body={"ignore_eos": True})
            assert reply.model_extra["hearth"]["deadline"] is True
        logged(running, "key=nina", "end=deadline")
        keys.write_text("stays name=sam\nother weight=heavy\n")
        running.process.send_signal(signal.SIGHUP)
        line = logged(running, "nothing was changed")
        assert f"{keys}:2: weight=heavy" in line
        assert [key_status(running, key) for key in ("stays", "new", "other")] == [200, 200, 401]
        keys.write_text("")
        running.process.send_signal(signal.SIGHUP)
        logged(running, f"{keys} holds no key", "nothing was changed")
        assert key_status(running, "new") == 200
        config.write_text("prot = 80\n")
        running.process.send_signal(signal.SIGHUP)
        logged(running, f"{config}:1: unknown option prot, did you mean port?", "nothing was changed")
        config.write_text("ctx-size = 4096\n")  # no keys would let everybody in
        running.process.send_signal(signal.SIGHUP)
        logged(running, "no keys any more")
        wait_until(lambda: running.log().count("reload: 2 keys, 3 options") == 2, "the keys that stay, counted")
        assert key_status(running, "nobody") == 401


def test_queue_is_tuned(tmp_path):
    config = tmp_path / "hearth.conf"
    config.write_text("queue = 100\n")
    with serve(*SIM, "-np", "1", "--config", str(config)) as running:
        config.write_text("queue = 1\n")
        running.process.send_signal(signal.SIGHUP)
        logged(running, "options have changed")
        with sdk(running) as client:
            outcomes = burst(6, lambda i: chat_outcome(client, f"{i}: {USER['content']}", 200))
        assert any(not isinstance(outcome, int) for outcome in outcomes)


def test_drain_says_so(tmp_path):
    """SIGTERM: running requests end, /health and new ones are 503 with Retry-After; a second SIGTERM ends at once."""
    with serve(*SIM, "--grace", "60") as running:
        body = {"messages": [USER], "max_tokens": 200, "ignore_eos": True, "stream": True}
        connection, response = running.client.open("POST", "/v1/chat/completions", body)
        chunks = events(response)
        next(chunks)
        longer, held = running.client.open("POST", "/v1/chat/completions", {**body, "max_tokens": 20000})
        next(events(held))
        running.process.send_signal(signal.SIGTERM)
        base = f"http://127.0.0.1:{running.port}"
        health = wait_until(lambda: (lambda now: now if now.status_code == 503 else None)(httpx.get(base + "/health",
                                                                                               timeout=WAIT_S)),
                       "a 503")
        assert health.json()["status"] == "draining"
        refused = httpx.post(base + "/v1/chat/completions", json=body, timeout=WAIT_S)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert json.loads(refused.text)["error"]["type"] == "server_error"
        assert list(chunks)[-1]["choices"][0]["finish_reason"] == "length"
        connection.close()
        longer.close()
        held.close()
        assert running.process.wait(WAIT_S) == 0
    with serve(*SIM, "--grace", "600") as running:
        connection, response = running.client.open("POST", "/v1/chat/completions", {**body, "max_tokens": 20000})
        next(events(response))
        running.process.send_signal(signal.SIGTERM)
        logged(running, "stopping")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(WAIT_S) == 128 + signal.SIGTERM
        connection.close()


def test_gone_clients_are_told_of(wide):
    connection, response = wide.client.open("POST", "/v1/chat/completions",
                                            {"messages": [USER], "max_tokens": 5000, "ignore_eos": True, "stream": True},
                                            {"X-Session-Id": "left alone"})
    next(events(response))
    connection.close()
    response.close()
    line = logged(wide, " 499 ", "end=gone")
    assert "session=left?alone" in line
    assert int(line.split(" generated=")[1].split()[0]) > 0  # what was computed for it


@pytest.mark.parametrize("under_nohup", (False, True))
def test_a_closed_terminal(under_nohup, tmp_path):
    """SIGHUP reads settings; that of a terminal that is closed ends the server, unless it was to be ignored."""
    config, port = tmp_path / "hearth.conf", servers.free_port()
    config.write_text(f"engine = sim\nport = {port}\n")
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if under_nohup else signal.SIG_DFL)
        os.execv(servers.hearth_path(), ["hearth", "serve", "--config", str(config)])
    try:
        seen = b""
        while b"is listening" not in seen:
            seen += os.read(terminal, 4096)
        os.kill(pid, signal.SIGHUP)
        while b"reload:" not in seen:
            seen += os.read(terminal, 4096)
        os.close(terminal)
        if under_nohup:
            config.write_text(config.read_text() + "api-key = k\n")
            os.kill(pid, signal.SIGHUP)
            wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=WAIT_S).status_code == 401,
                  "a key")
            os.kill(pid, signal.SIGTERM)
        ended = wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, "its end")
        pid = 0
        assert ended
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
