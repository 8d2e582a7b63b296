"""TLS with certificates made here, and sockets in the file system: with the real SDK, curl, httpx and hearth's own
client."""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time

import httpx
import openai
import pytest

from lib import server as servers

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "temperature": 0}


class Program:
    """A server on sim whose address is what it prints."""

    def __init__(self, tmp_path, *flags):
        self.log_path = tmp_path / "log"
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [servers.hearth_path(), "serve", "--engine", "sim", "-c", "8192", *flags], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True, env=servers.surroundings())
        line = self.process.stdout.readline()
        if " is listening on " not in line:
            self.process.kill()
            raise AssertionError(self.log())
        self.url = line.rsplit(" ", 1)[1].strip()

    def log(self):
        return self.log_path.read_text(encoding="utf-8")

    def log_says(self, text):
        for _ in range(400):
            if text in self.log():
                return True
            time.sleep(0.05)
        return False

    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0
        self.process.stdout.close()


def make_certificate(folder, name, *more):
    """A self-signed certificate of 127.0.0.1 and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", key,
                    "-out", cert, "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
                    *(more or ["-nodes"])], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return cert, key


def tls(tmp_path, cert, key, *flags):
    return Program(tmp_path, "--port", "0", "--ssl-cert-file", str(cert), "--ssl-key-file", str(key), *flags)


def trusting(*certs):
    context = ssl.create_default_context()
    for cert in certs:
        context.load_verify_locations(cert)
    return context


def name_served(running, context):
    """Whose certificate a new connection sees."""
    with socket.create_connection(("127.0.0.1", running.port()), timeout=60) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            return dict(part[0] for part in secure.getpeercert()["subject"])["commonName"]


def test_sdk_over_tls(tmp_path):
    cert, key = make_certificate(tmp_path, "first")
    with tls(tmp_path, cert, key, "--api-key", "secret") as running:
        assert running.url.startswith("https://127.0.0.1:")
        with openai.OpenAI(base_url=running.url + "/v1", api_key="secret", max_retries=0,
                           http_client=httpx.Client(verify=trusting(cert))) as client:
            model = client.models.list().data[0].id
            whole = client.chat.completions.create(model=model, **HELLO)
            parts = client.chat.completions.create(model=model, stream=True, **HELLO)
            assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
        with pytest.raises(httpx.ConnectError):  # nobody whom this client trusts
            httpx.get(running.url + "/health")
        answer = subprocess.run([servers.hearth_path(), "top", "--once", "--url", running.url, "--api-key", "secret",
                                 "--cacert", str(cert)], capture_output=True, text=True, timeout=60)
        assert answer.returncode == 0, answer.stderr
        answer = subprocess.run([servers.hearth_path(), "chat", "--url", running.url, "--key", "secret", "Hello!"],
                                capture_output=True, text=True, timeout=60,
                                env={**os.environ, "HEARTH_CACERT": str(cert)})
        assert answer.returncode == 0, answer.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_versions_and_protocols(tmp_path):
    cert, key = make_certificate(tmp_path, "first")
    with tls(tmp_path, cert, key) as running:
        for protocols, wanted in ((["http/1.1"], "http/1.1"), (["h2", "http/1.1"], "http/1.1"), ([], None)):
            context = trusting(cert)
            if protocols:
                context.set_alpn_protocols(protocols)
            with socket.create_connection(("127.0.0.1", running.port()), timeout=60) as plain:
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                    assert secure.selected_alpn_protocol() == wanted
                    assert secure.version() == "TLSv1.3"
        only_h2, old = trusting(cert), trusting(cert)
        only_h2.set_alpn_protocols(["h2"])
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        for context in (only_h2, old):
            with pytest.raises(OSError):
                name_served(running, context)
        with pytest.raises((OSError, http.client.HTTPException)):  # no TLS at all
            plain = http.client.HTTPConnection("127.0.0.1", running.port(), timeout=60)
            plain.request("GET", "/health")
            plain.getresponse()
        assert name_served(running, trusting(cert)) == "first"


def test_an_answer_right_behind_another_is_whole(tmp_path):
    """A body that cannot be read comes while the 100 (Continue) that asks for it is written: the answer that ends the
    connection is not taken for written, too."""
    cert, key = make_certificate(tmp_path, "first")
    with tls(tmp_path, cert, key) as running:
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", running.port()), timeout=60) as plain, \
                    trusting(cert).wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                secure.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode())
                secure.sendall(b"no size\r\n")
                with secure.makefile("rb") as lines:
                    answer = lines.read()
            assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 Bad Request\r\n"), answer
            json.loads(answer.rsplit(b"\r\n\r\n", 1)[1])


def test_a_client_that_leaves_a_long_answer_is_gone(tmp_path):
    """No client closes only half of TLS: its connection ends at once, whatever is still to be sent."""
    cert, key = make_certificate(tmp_path, "first")
    body = json.dumps({"messages": [{"role": "user", "content": "word " * 1000000}]}).encode()
    with tls(tmp_path, cert, key) as running, \
            socket.create_connection(("127.0.0.1", running.port()), timeout=60) as plain, \
            trusting(cert).wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        secure.sendall(b"POST /apply-template HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert secure.recv(12) == b"HTTP/1.1 200"
        with contextlib.suppress(OSError):  # the rest of the answer comes instead of the server's end
            secure.unwrap()
        with socket.socket(fileno=secure.detach()) as rest, contextlib.suppress(ConnectionResetError):
            rest.settimeout(30)
            while rest.recv(1 << 20):
                pass


def test_reload(tmp_path):
    """Connections keep the certificate that they began with, their streams go on; new ones see the new one."""
    cert, key = make_certificate(tmp_path, "first")
    second, second_key = make_certificate(tmp_path, "second")
    both = trusting(cert, second)
    first_pem = cert.read_bytes()
    with tls(tmp_path, cert, key) as running, httpx.Client(base_url=running.url, verify=both, timeout=60) as client:
        body = {**HELLO, "max_tokens": 4000, "stream": True}
        with client.stream("POST", CHAT, json=body) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            both_before = trusting(cert, second)
            cert.write_bytes(second.read_bytes())
            key.write_bytes(second_key.read_bytes())
            running.process.send_signal(signal.SIGHUP)
            assert running.log_says("reload: 0 keys")
            assert name_served(running, both_before) == "second"
            assert [line for line in lines if line][-1] == "data: [DONE]"
        cert.write_bytes(first_pem)  # which is not that of the key now
        running.process.send_signal(signal.SIGHUP)
        assert running.log_says("nothing was changed")
        assert f"the key in {key} is not that of the certificate in {cert}" in running.log()
        assert name_served(running, both_before) == "second"
        assert client.get("/health").status_code == 200


def test_a_certificate_that_is_a_link(tmp_path):
    """As certbot has it: what is named is a link in one directory to a file in another, and a new one is another link."""
    live, archive = tmp_path / "live", tmp_path / "archive"
    live.mkdir()
    archive.mkdir()
    made = [make_certificate(archive, name) for name in ("first", "second")]
    cert, key = live / "cert.pem", live / "key.pem"

    def link(targets):
        for path, target in zip((cert, key), targets):
            path.unlink(missing_ok=True)
            path.symlink_to(target)

    both = trusting(made[0][0], made[1][0])
    link(made[0])
    with tls(tmp_path, cert, key) as running:
        assert name_served(running, both) == "first"
        link(made[1])
        running.process.send_signal(signal.SIGHUP)
        assert running.log_says("reload: 0 keys")
        assert name_served(running, both) == "second"


def test_times_of_a_certificate(tmp_path):
    """Clients refuse one that has expired and tell nobody else: so does the log, at the start and when it is read again."""
    cert, key = make_certificate(tmp_path, "first")
    request, expired = tmp_path / "request", tmp_path / "expired.pem"
    subprocess.run(["openssl", "req", "-new", "-key", key, "-subj", "/CN=first", "-out", request], check=True,
                   stdin=subprocess.DEVNULL, capture_output=True)
    sign = ["openssl", "x509", "-req", "-in", request, "-signkey", key, "-out", expired]
    for times in (["-days", "-1"], ["-not_before", "20200101000000Z", "-not_after", "20200201000000Z"]):
        if subprocess.run([*sign, *times], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
            break
    with tls(tmp_path, expired, key) as running:
        assert running.log_says(f"the certificate in {expired} has expired")
    again = tmp_path / "again"
    again.mkdir()
    with tls(again, cert, key) as running:
        assert name_served(running, trusting(cert)) == "first" and "expired" not in running.log()
        cert.write_bytes(expired.read_bytes())
        running.process.send_signal(signal.SIGHUP)
        assert running.log_says(f"the certificate in {cert} has expired")


@pytest.mark.parametrize("case", ["missing", "no key", "no certificate", "other key", "passphrase", "not PEM"])
def test_what_cannot_be_used_is_an_error(tmp_path, case):
    cert, key = make_certificate(tmp_path, "first")
    other = make_certificate(tmp_path, "other")[1]
    if case == "passphrase":
        cert, key = make_certificate(tmp_path, "locked", "-passout", "pass:word")
    (tmp_path / "text").write_text("not PEM", encoding="ascii")
    flags, words = {
        "missing": ([tmp_path / "none", key], [str(tmp_path / "none"), "No such file"]),
        "no key": ([cert, None], ["without --ssl-key-file"]),
        "no certificate": ([None, key], ["without --ssl-cert-file"]),
        "other key": ([cert, other], [f"the key in {other} is not that of the certificate in {cert}"]),
        "passphrase": ([cert, key], [str(key), "passphrase"]),
        "not PEM": ([tmp_path / "text", key], [str(tmp_path / "text")]),
    }[case]
    named = [text for flag, path in zip(("--ssl-cert-file", "--ssl-key-file"), flags) if path
             for text in (flag, str(path))]
    done = subprocess.run([servers.hearth_path(), "serve", "--engine", "sim", "--port", "0", *named],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          env=servers.surroundings())
    assert done.returncode == 1
    for word in words:
        assert word in done.stderr.splitlines()[-1]


def metric(running, name):
    connection = http.client.HTTPConnection("127.0.0.1", running.port(), timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    for line in text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise KeyError(name)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_request_that_timed_out_gives_its_lane_back(tmp_path, stream):
    """The SDK closes its connection while nothing is written to it; the reply would take minutes."""
    with Program(tmp_path, "--port", "0", "-np", "1") as running:
        with openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0, timeout=0.5) as client:
            long = {**HELLO, "model": "sim", "max_tokens": 7000}
            if stream:
                reply = client.chat.completions.create(stream=True, **long)
                next(iter(reply))
                reply.close()
            else:
                with pytest.raises(openai.APITimeoutError):
                    client.chat.completions.create(**long)
        start = time.monotonic()
        while metric(running, "hearth_http_dropped_total") == 0:
            time.sleep(0.005)
        print(f"noticed after {1000 * (time.monotonic() - start):.0f} ms")
        # its lane is the only one
        assert httpx.post(running.url + CHAT, json=HELLO, timeout=60).status_code == 200


def test_half_closed_request_is_answered(tmp_path):
    """As `nc -N` sends it: a reply that begins long after the client has closed its side."""
    with Program(tmp_path, "--port", "0") as running, \
            socket.create_connection(("127.0.0.1", running.port()), timeout=60) as client:
        body = json.dumps({**HELLO, "max_tokens": 60}).encode()
        client.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as lines:
            answer = lines.read()
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert b"HTTP/1.1 200 OK\r\n" in answer
        assert json.loads(answer.rsplit(b"\r\n\r\n", 1)[1])["usage"]["completion_tokens"] > 0


def test_socket_in_the_file_system(tmp_path):
    path = tmp_path / "socket"
    url = f"unix:{path}"
    with Program(tmp_path, "--host", url) as running:
        assert running.url == url
        assert os.stat(path).st_mode & 0o7777 == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
            assert client.post(CHAT, json=HELLO).json()["usage"]["completion_tokens"] > 0
            with openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=client) as sdk:
                assert sdk.models.list().data
        health = subprocess.run(["curl", "-sS", "--unix-socket", str(path), "http://localhost/health"],
                                capture_output=True, text=True, timeout=60, check=True)
        assert "ok" in health.stdout
        # A port that is forwarded here (ssh -L, a proxy) is reached by pages whose name was rebound.
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://evil.example:8080") as page:
            for headers in ({}, {"Origin": "http://evil.example:8080"}):
                assert page.get("/v1/models", headers=headers).status_code == 403
        for tool in (["chat", "--url", url, "Hello!"], ["top", "--url", url, "--once"]):
            done = subprocess.run([servers.hearth_path(), *tool], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
        second = subprocess.run([servers.hearth_path(), "serve", "--engine", "sim", "--host", url], text=True,
                                stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=servers.surroundings())
        assert second.returncode == 1 and "in use by another program" in second.stderr
    assert not path.exists()
    killed = Program(tmp_path, "--host", url)
    killed.process.kill()
    killed.process.wait()
    killed.process.stdout.close()
    assert path.exists()
    with Program(tmp_path, "--host", url, "--host-mode", "0660"):
        assert os.stat(path).st_mode & 0o7777 == 0o660
