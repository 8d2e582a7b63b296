"""Keys: scopes, owners, limits, and what one key can learn of another."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time

import httpx
import openai
import pytest

import lazy
from conftest import sdk, serve, servers
from ondisk import wait_until

anthropic = lazy.module("anthropic")
ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
USER = {"role": "user", "content": "Hello"}
SECRET = "the heron nests behind the mill"


def ask(server, key, method, path, body=None, **headers):
    headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **headers}
    return httpx.request(method, f"http://127.0.0.1:{server.port}{path}", headers=headers, json=body, timeout=60)


def first_event(server, key):
    """What /events, which has no end, begins with."""
    with httpx.stream("GET", f"http://127.0.0.1:{server.port}/events", headers={"Authorization": f"Bearer {key}"},
                      timeout=60) as answer:
        text = ""
        for part in answer.iter_text():
            text += part
            if "\n\n" in text:
                return text
    return text


def chat(server, key, **more):
    return ask(server, key, "POST", "/v1/chat/completions", {"messages": [USER], "max_tokens": 2, **more})


def keyed(tmp_path, *lines, flags=()):
    """A server with a file of keys."""
    file = tmp_path / "keys"
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    return serve("--engine", "sim", "-c", "16384", "--api-key-file", str(file), *flags)


def test_scopes(tmp_path):
    with keyed(tmp_path, "asks scope=infer", "keeps scope=sessions", "both", "rules scope=admin") as server:
        allowed = {
            "asks": [("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("GET", "/v1/models"), ("GET", "/slots")],
            "keeps": [("GET", "/v1/sessions"), ("POST", "/v1/conversations"), ("GET", "/queue")],
            "both": [("POST", "/v1/chat/completions"), ("GET", "/v1/sessions"), ("GET", "/metrics"), ("GET", "/props")],
            "rules": [("POST", "/slots/0?action=erase"), ("GET", "/metrics")],
        }
        denied = {
            "asks": [("GET", "/v1/sessions"), ("POST", "/v1/conversations"), ("POST", "/slots/0?action=erase")],
            "keeps": [("POST", "/v1/chat/completions"), ("POST", "/v1/messages"), ("POST", "/v1/responses")],
            "both": [("POST", "/slots/0?action=erase"), ("POST", "/lora-adapters")],
            "rules": [("POST", "/v1/chat/completions"), ("GET", "/v1/sessions")],
        }
        body = {"messages": [USER], "max_tokens": 2, "content": "a"}
        for key, routes in allowed.items():
            for method, path in routes:
                sent = body if method == "POST" and path != "/v1/conversations" else None
                answer = ask(server, key, method, path, sent)
                assert answer.status_code == 200, (key, method, path, answer.text)
        for key, routes in denied.items():
            for method, path in routes:
                answer = ask(server, key, method, path, body if method == "POST" else None)
                assert answer.status_code == 403, (key, method, path, answer.text)
                assert "has no scope" in answer.json()["error"]["message"]
                assert answer.json()["error"]["type"] == "permission_error"
        assert chat(server, "both", session_id="diary").status_code == 200
        for more in ({"session_id": "diary"}, {"session_id": "mine"}):
            assert chat(server, "asks", **more).status_code == 403
        asks = sdk(server, api_key="asks")
        reply = asks.responses.create(model="any", input="Hello", max_output_tokens=2)
        assert reply.output and reply.store is False  # what the key could not ask for again is not kept
        for more in ({"store": True}, {"background": True}):
            with pytest.raises(openai.PermissionDeniedError, match="sessions"):
                asks.responses.create(model="any", input="Hello", max_output_tokens=2, **more)
        with pytest.raises(openai.PermissionDeniedError):
            sdk(server, api_key="keeps").chat.completions.create(model="any", messages=[USER])
        with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="keeps") as client:
            with pytest.raises(anthropic.PermissionDeniedError):
                client.messages.create(model="any", messages=[USER], max_tokens=2)


def test_a_thread_is_no_way_around_a_scope(tmp_path):
    with keyed(tmp_path, "asks name=ada scope=infer", "both name=ada") as server:
        def send(key, **thread):
            return ask(server, key, "POST", "/v1/messages", {
                "model": "any", "messages": [USER], "max_tokens": 2, "thread": thread})

        kept, loose = (send(key, type="create").json()["id"] for key in ("both", "asks"))
        assert send("both", type="continue", previous_message_id=kept).status_code == 200
        for key, thread in (("asks", kept), ("asks", loose), ("both", loose)):
            refused = send(key, type="continue", previous_message_id=thread)
            assert refused.status_code == 404, refused.text
            assert refused.json()["error"]["details"]["error_code"] == "thread_not_found"


def test_hashed_keys(tmp_path):
    """The program makes the lines; what reads the file, the log or /props has no key."""
    made = subprocess.run([servers.hearth_path(), "keys", "new", "name=ada", "scope=infer,sessions,admin"],
                          capture_output=True, text=True, check=True)
    fresh = made.stderr.strip()
    known = subprocess.run([servers.hearth_path(), "keys", "hash", "name=bo"], input="old-key\n", capture_output=True,
                           text=True, check=True).stdout.strip()
    assert re.fullmatch(r"sha256:[0-9a-f]{16}:[0-9a-f]{64} name=bo", known) and fresh not in made.stdout
    with keyed(tmp_path, made.stdout.strip(), known, flags=("--log-level", "debug")) as server:
        for key in (fresh, "old-key"):
            assert chat(server, key).status_code == 200
        for key in ("", "old-ke", "old-key2", known.split()[0], "x" * 20000):
            assert chat(server, key).status_code in (401, 431)
        told = ask(server, fresh, "GET", "/props").text + ask(server, fresh, "GET", "/metrics").text + server.log()
        assert fresh not in told and "old-key" not in told and "sha256:" not in told
        assert "key=ada" in server.log()


def test_no_line_is_made_that_the_file_would_not_have():
    for command in ("new", "hash"):
        for settings in (("name=a", "name=b"), ("rpm=5", "name=a", "rpm=5"), ("rpm=0",), ("name=a b",), ("x" * 600,)):
            made = subprocess.run([servers.hearth_path(), "keys", command, *settings], input="key\n", capture_output=True,
                                  text=True)
            assert made.returncode == 1 and made.stdout == "" and made.stderr.startswith("hearth keys: "), settings


def test_an_empty_key_is_an_error():
    for flags, env in ((["--api-key", ""], {}), (["--api-key", ", "], {}), ([], {"HEARTH_API_KEY": ""}),
                       ([], {"LLAMA_API_KEY": "secret"}),
                       (["--api-key-file", "/dev/null"], {}), (["--host", "0.0.0.0"], {}),
                       (["--host", "::"], {}), (["--host", ""], {}), (["--host", "0"], {}), (["--cors-origin", "*"], {}),
                       (["--allow-host", "llm.lan:8080"], {}), (["--cors-origin", "https://*.example"], {})):
        done = subprocess.run([servers.hearth_path(), "serve", "--engine", "sim", "--port", "0", *flags], timeout=60,
                              env=servers.surroundings(env), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.count("hearth: ") == 1, (flags, done.stderr)


@pytest.mark.parametrize("address", ["0.0.0.0", "0"])
def test_a_network_address_without_a_key(address):
    """Only when it is said; the banner has the address as it is, and names that are not known stay outside."""
    port = servers.free_port()
    command = [servers.hearth_path(), "serve", "--engine", "sim", "--host", address, "--port", str(port), "--insecure"]
    with subprocess.Popen(command, env=servers.surroundings(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as process:
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "listening" in line:
                    break
            assert f"http://{address}:{port} (every address of this machine), without a key" in lines[-1]
            assert any("warn" in line and "--insecure" in line for line in lines)
            for host, status in (("127.0.0.1", 200), (f"0.0.0.0:{port}", 200), ("llm.lan", 403), ("192.0.2.7", 403)):
                answer = httpx.get(f"http://127.0.0.1:{port}/v1/models", headers={"Host": host}, timeout=60)
                assert answer.status_code == status, host
        finally:
            process.terminate()
            process.stdout.read()


def test_a_host_that_is_none():
    """What cannot be listened on is not said to be open to the network, which --insecure would not mend."""
    for host in ("[::1]", "127.0.0.1:80", "http://127.0.0.1", "no.such.name.invalid"):
        done = subprocess.run([servers.hearth_path(), "serve", "--engine", "sim", "--port", "0", "--host", host],
                              env=servers.surroundings(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 1 and f"--host {host}: " in done.stderr and "insecure" not in done.stderr


def test_a_name_owns_through_rotation(tmp_path):
    flags = ("--session-db", str(tmp_path / "db"))

    def runs(*lines):
        return keyed(tmp_path, *lines, flags=flags)

    def sees(server, key):
        names = {one["id"] for one in ask(server, key, "GET", "/v1/sessions").json()["data"]}
        reply = ask(server, key, "GET", f"/v1/responses/{stored}")
        assert (reply.status_code == 200) == ("diary" in names)
        return "diary" in names

    with runs("first", "other") as server:  # no names yet
        stored = sdk(server, api_key="first").responses.create(model="any", input=SECRET, max_output_tokens=2).id
        assert ask(server, "first", "POST", "/v1/sessions", {"name": "diary"}).status_code == 200
        assert sees(server, "first") and not sees(server, "other")
    with runs("first name=ada", "other name=bo") as server:
        assert sees(server, "first") and not sees(server, "other")
    with runs("second name=ada", "third name=ada", "other name=bo", "first") as server:
        assert sees(server, "second") and sees(server, "third") and not sees(server, "other")
    with runs("other name=bo", "second") as server:  # its key alone is not her
        assert not sees(server, "second") and not sees(server, "other")
    with runs("fourth name=ada") as server:
        assert sees(server, "fourth") and ask(server, "second", "GET", "/v1/sessions").status_code == 401
    with runs("other name=bo") as server:
        assert not sees(server, "other")


def test_what_a_key_has_alone_stays_its_own(tmp_path):
    """Lines that come and go give nobody what another key has said and computed, named or not."""
    flags = ("--session-db", str(tmp_path / "db"))

    def has(server, key, name):
        answer = ask(server, key, "GET", f"/v1/sessions/{name}").status_code
        cached = chat(server, key, messages=[{"role": "user", "content": SECRET}]).json()["usage"]
        assert answer in (200, 404)
        assert (answer == 200) == (cached["prompt_tokens_details"]["cached_tokens"] > 0)
        return answer == 200

    def reload(server, *lines):
        (tmp_path / "keys").write_text("\n".join(lines) + "\n")
        before = server.log().count("reload: ")
        server.process.send_signal(signal.SIGHUP)
        while server.log().count("reload: ") == before:
            time.sleep(0.05)

    with keyed(tmp_path, "a-key name=ada", flags=flags) as server:
        assert chat(server, "a-key", session_id="diary", messages=[{"role": "user", "content": SECRET}]).status_code == 200
        assert has(server, "a-key", "diary")
        reload(server, "a-key name=ada", "b-key")
        assert has(server, "a-key", "diary") and ask(server, "b-key", "GET", "/v1/sessions/diary").status_code == 404
        reload(server, "b-key")
        assert not has(server, "b-key", "diary")
        reload(server, "c-key name=cy")
        assert not has(server, "c-key", "diary")
        reload(server, "b2-key name=ada")
        assert has(server, "b2-key", "diary")
    (tmp_path / "db").unlink()
    with keyed(tmp_path, "x-key", flags=flags) as server:
        assert chat(server, "x-key", session_id="diary").status_code == 200
    for lines in (("y-key",), ("z-key name=zed",), ("x-key", "y-key"), ("y-key",)):
        with keyed(tmp_path, *lines, flags=flags) as server:
            for key in (line.split()[0] for line in lines):
                sees = ask(server, key, "GET", "/v1/sessions/diary").status_code
                assert sees == (200 if key == "x-key" else 404), (lines, key)


def test_requests_a_minute_with_the_sdks(tmp_path):
    """A minute's worth is there at once; whoever asks for more waits as long as the answer says, and succeeds."""
    with keyed(tmp_path, "fast rpm=60", "free") as server:
        first = chat(server, "fast")
        assert first.headers["x-ratelimit-limit-requests"] == "60"
        assert first.headers["x-ratelimit-remaining-requests"] == "59"
        assert re.fullmatch(r"\d+ms|[\d.]+s", first.headers["x-ratelimit-reset-requests"])
        assert "x-ratelimit-limit-tokens" not in first.headers
        assert "x-ratelimit-limit-requests" not in chat(server, "free").headers
        refused = first
        while refused.status_code == 200:
            refused = chat(server, "fast")
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 0 < int(refused.headers["retry-after-ms"]) <= 1000 and refused.headers["retry-after"] == "1"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(openai.RateLimitError):
            while True:
                sdk(server, api_key="fast").chat.completions.create(model="any", messages=[USER], max_tokens=2)
        patient = sdk(server, api_key="fast", max_retries=5)
        assert patient.chat.completions.create(model="any", messages=[USER], max_tokens=2).choices
        with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="fast", max_retries=5) as client:
            for _ in range(2):
                raw = client.messages.with_raw_response.create(model="any", messages=[USER], max_tokens=2)
                assert raw.headers["anthropic-ratelimit-requests-limit"] == "60"
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
                                    raw.headers["anthropic-ratelimit-requests-reset"])
        assert ask(server, "fast", "GET", "/v1/models").headers["x-ratelimit-limit-requests"] == "60"  # costs nothing


def test_tokens_a_minute(tmp_path):
    with keyed(tmp_path, "few tpm=6000") as server:
        body = {"messages": [{"role": "user", "content": "the rooms of the museum " * 10}]}
        used, answer = 0, chat(server, "few", **body)
        while answer.status_code == 200:
            used += answer.json()["usage"]["total_tokens"]
            assert int(answer.headers["x-ratelimit-remaining-tokens"]) <= 6000
            answer = chat(server, "few", **body)
        assert answer.status_code == 429 and "tokens a minute" in answer.json()["error"]["message"]
        assert used >= 6000
        reply = sdk(server, api_key="few", max_retries=8).chat.completions.create(model="any", max_tokens=2, **body)
        assert reply.choices


def test_tokens_stored(tmp_path):
    with keyed(tmp_path, "small stored=20", "large") as server:
        client = sdk(server, api_key="small")
        first = client.responses.create(model="any", input="the rooms of the museum " * 10, max_output_tokens=2)
        with pytest.raises(openai.RateLimitError) as caught:
            client.responses.create(model="any", input="more", max_output_tokens=2)
        assert caught.value.code == "storage_limit_exceeded"
        assert caught.value.response.headers["x-should-retry"] == "false"
        for path in ("/v1/sessions", "/v1/conversations"):
            assert ask(server, "small", "POST", path, {}).status_code == 429
        assert client.responses.create(model="any", input="more", max_output_tokens=2, store=False)
        assert sdk(server, api_key="large").responses.create(model="any", input="more", max_output_tokens=2)
        client.responses.delete(first.id)
        conversation = client.conversations.create(items=[{"role": "user", "content": " ".join(map(str, range(1000, 1300)))}])
        with pytest.raises(openai.RateLimitError):  # what no model has seen counts, too
            client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "more"}])
        client.conversations.delete(conversation.id)
        assert client.responses.create(model="any", input="more", max_output_tokens=2)


def test_requests_at_once(tmp_path):
    """As many run as may; the next one is told when to come, and comes through when one has ended."""
    with keyed(tmp_path, "two running=2", "free") as server:
        client = sdk(server, api_key="two")
        streams = [client.chat.completions.create(model="any", messages=[USER], max_tokens=15000, stream=True,
                                                  extra_body={"ignore_eos": True}) for _ in range(2)]
        for stream in streams:
            next(iter(stream))
        refused = chat(server, "two")
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(refused.headers["retry-after"]) >= 1 and int(refused.headers["retry-after-ms"]) > 0
        assert chat(server, "free").status_code == 200
        streams.pop().close()
        patient = sdk(server, api_key="two", max_retries=20)
        assert patient.chat.completions.create(model="any", messages=[USER], max_tokens=2).choices
        streams.pop().close()


def test_limits_are_read_again(tmp_path):
    with keyed(tmp_path, "fast rpm=2 name=ada", "free") as server:
        assert [chat(server, "fast").status_code for _ in range(3)] == [200, 200, 429]
        (tmp_path / "keys").write_text("fast rpm=100000 name=ada\nfree\n")
        server.process.send_signal(signal.SIGHUP)
        for _ in range(600):
            if chat(server, "fast").status_code == 200:
                break
            time.sleep(0.1)
        else:
            pytest.fail("the limit has stayed")
        assert chat(server, "fast").headers["x-ratelimit-limit-requests"] == "100000"


def routes():
    """Methods and paths of the server's own table."""
    with open(os.path.join(ROOT, "src", "api", "dispatch.c"), encoding="utf-8") as file:
        found = re.findall(r'\{"([A-Z]+)", "(/[^"]*)"', file.read())
    assert len(found) > 50
    return found


def test_a_key_learns_nothing_of_another(tmp_path):
    """Every route, with the ids of the other."""
    with keyed(tmp_path, "a-key name=ada", "b-key name=bo", "root name=root scope=admin,infer,sessions",
               flags=("--log-level", "debug")) as server:
        ada = sdk(server, api_key="a-key")
        response = ada.responses.create(model="any", input=SECRET, max_output_tokens=2)
        conversation = ada.conversations.create(items=[{"role": "user", "content": SECRET}])
        item = ada.conversations.items.list(conversation.id).data[0]
        reply = ada.chat.completions.create(model="any", messages=[{"role": "user", "content": SECRET}], max_tokens=2,
                                            extra_body={"session_id": "ada-diary"})
        assert reply.choices
        ids = {"/v1/sessions/*": ["ada-diary", conversation.id], "/v1/responses/*": [response.id],
               "/v1/conversations/*": [conversation.id, "ada-diary"]}
        tried = 0
        for method, route in routes():
            at = next((prefix for prefix in ids if route.startswith(prefix)), None)
            for name in ids[at] if at else []:
                path = route.replace("*", name, 1).replace("*", item.id)
                body = {"items": [{"role": "user", "content": "x"}], "metadata": {}} if method == "POST" else None
                answer = ask(server, "b-key", method, path, body)
                nobodys = name[:-1] + ("0" if name[-1] != "0" else "1")
                unknown = ask(server, "b-key", method, path.replace(name, nobodys), body)
                assert answer.status_code == unknown.status_code == 404, (method, path, answer.text)
                assert SECRET not in answer.text
                tried += 1
        assert tried >= 20
        for path in sorted({route for method, route in routes() if method == "GET" and "*" not in route}
                           - {"/", "/page.js", "/page.css"}):  # the page, which is the same for everybody
            text = first_event(server, "b-key") if path == "/events" else ask(server, "b-key", "GET", path).text
            for of_ada in (SECRET, "ada", response.id, conversation.id):
                assert of_ada not in text, (path, text)
        bo = sdk(server, api_key="b-key")
        for more in ({"previous_response_id": response.id}, {"conversation": conversation.id}):
            with pytest.raises((openai.NotFoundError, openai.BadRequestError), match="not found|no conversation"):
                bo.responses.create(model="any", input="Go on", max_output_tokens=2, **more)
        # A session of that name is another one; the same prompt finds nothing that was computed for her.
        again = bo.chat.completions.create(model="any", messages=[{"role": "user", "content": SECRET}], max_tokens=2,
                                           extra_body={"session_id": "ada-diary"})
        assert again.usage.prompt_tokens_details.cached_tokens == 0
        assert SECRET not in json.dumps(again.model_dump().get("hearth", {}))
        assert ada.conversations.items.list(conversation.id).data[0].id == item.id
        assert ada.responses.retrieve(response.id).id == response.id
        everything = ask(server, "root", "GET", "/metrics").text
        assert 'hearth_key_requests_total{key="ada"}' in everything and 'key="bo"' in everything
        own = ask(server, "b-key", "GET", "/metrics").text
        assert 'key="bo"' in own and "hearth_prompt_computed_tokens_total" not in own


def test_what_needs_a_key(tmp_path):
    with keyed(tmp_path, "a-key", "root scope=admin") as server:
        for method, route in routes():
            answer = ask(server, None, method, route.replace("*", "x"))
            if route in ("/", "/page.css", "/page.js"):  # the files of the page hold no data
                assert answer.status_code == 200 and str(tmp_path) not in answer.text
            elif route in ("/api/hello", "/health", "/v1/health"):
                assert answer.status_code == 200 and "/" not in answer.text
            else:
                assert answer.status_code == 401, (method, route)
        for key in (None, "a-key"):
            assert ask(server, key, "GET", "/health").json() == {"status": "ok"}
        assert "disk" in ask(server, "root", "GET", "/health").json()
        ids = [ask(server, "a-key", "GET", "/v1/models").headers["x-request-id"] for _ in range(3)]
        assert len({one[:8] for one in ids}) == 3  # they tell nothing of the requests in between


def test_deletions_are_logged(tmp_path):
    with keyed(tmp_path, "a-key name=ada", "b-key") as server:
        client = sdk(server, api_key="a-key")
        response = client.responses.create(model="any", input="Hi", max_output_tokens=2)
        assert chat(server, "a-key", session_id="diary").status_code == 200
        conversation = client.conversations.create()
        client.responses.delete(response.id)
        client.conversations.delete(conversation.id)
        assert ask(server, "a-key", "DELETE", "/v1/sessions/diary").status_code == 200
        assert ask(server, "b-key", "DELETE", "/v1/sessions/diary").status_code == 404
        log = server.log()
        for line in (f"deleted response={response.id} turns=1 key=ada", "deleted session=diary turns=1 key=ada",
                     f"deleted conversation={conversation.id} turns=0 key=ada"):
            assert log.count(line) == 1, line
        assert log.count(" deleted ") == 3


def test_a_key_keeps_its_share_of_the_disk(tmp_path):
    """A key that floods the disk pushes out state of its own and none of another key's, across restarts, too."""
    try:
        os.setxattr(tmp_path, "user.hearth.test", b"1")
    except OSError:
        pytest.skip(f"{tmp_path} has no extended attributes, which say whose a file is")

    @contextlib.contextmanager
    def served():
        flags = ["--sim-speed", "100", "--kv-dir", str(tmp_path / "kv"), "--kv-disk", "1", "--kv-min-tokens", "0"]
        with keyed(tmp_path, "quiet-key", "loud-key", "root scope=admin", flags=flags) as server:
            wait_until(lambda: ask(server, "root", "GET", "/health").json()["disk"]["state"] != "scanning",
                       "the directory has been looked at")
            yield server

    def cached(server, key, about):
        words = f"{about}: " + "which page was torn out? " * 120
        usage = chat(server, key, messages=[{"role": "user", "content": words}]).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]

    with served() as server:
        assert cached(server, "quiet-key", "mill") < 0.1
    with served() as server:
        for i in range(20):
            cached(server, "loud-key", i)
    with served() as server:
        assert cached(server, "quiet-key", "mill") > 0.9
        assert cached(server, "loud-key", 0) < 0.5  # its first page has the tokens that all of them begin with
