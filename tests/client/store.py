"""A redis-server of a test's own, and the few words that tests say to it.

Debian's redis-tools holds the server under the name of redis-check-rdb: what it does depends on the name it is given.
HEARTH_REDIS names another program that speaks the protocol.
"""

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

from lib import server as servers
from ondisk import wait_until


PROGRAM = os.environ.get("HEARTH_REDIS") or shutil.which("redis-server") or shutil.which("redis-check-rdb")


def certificate(folder, host="127.0.0.1"):
    """The files of a certificate of its own and its key."""
    pair = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}",
                    *(["-addext", f"subjectAltName=IP:{host}"] if host[0].isdigit() else []), "-out", pair[0], "-keyout",
                    pair[1]], check=True, capture_output=True)
    return pair


class Store:
    """A running redis-server, a context manager; TLS with a pair of (certificate, key)."""

    def __init__(self, folder, *flags, port=None, pair=None, password=None):
        self.port, self.password, self.folder = port or servers.free_port(), password, str(folder)
        self.path = os.path.join(self.folder, "redis.sock")
        listen = ["--port", str(self.port)]
        if pair:
            listen = ["--port", "0", "--tls-port", str(self.port), "--tls-cert-file", pair[0], "--tls-key-file", pair[1],
                      "--tls-auth-clients", "no", "--tls-ca-cert-file", pair[0]]
        self.command = ["redis-server", *listen, "--unixsocket", self.path, "--bind", "127.0.0.1", "--save", "", "--dir",
                        self.folder, *(["--requirepass", password] if password else []), *flags]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, executable=PROGRAM, stdout=subprocess.DEVNULL, preexec_fn=servers._die_with_parent)
        deadline = time.monotonic() + 20
        while True:
            try:
                assert self.ask("PING") == b"PONG"
                return
            except OSError:
                assert time.monotonic() < deadline and self.process.poll() is None, "redis-server does not start"
                time.sleep(0.02)

    def url(self, scheme="redis"):
        if scheme == "unix":
            return f"unix://{self.path}"
        return f"{scheme}://{':' + self.password + '@' if self.password else ''}127.0.0.1:{self.port}"

    def halt(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.process.send_signal(signal.SIGCONT)
        self.kill()

    def ask(self, *words):
        """One command, over the socket in the file; its reply as bytes, int, None or list; an error is a ValueError."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(self.path)
            stream = connection.makefile("rwb")
            for command in [*([["AUTH", self.password]] if self.password else []), words]:
                command = [word if isinstance(word, bytes) else str(word).encode() for word in command]
                stream.write(b"*%d\r\n" % len(command))
                for word in command:
                    stream.write(b"$%d\r\n%b\r\n" % (len(word), word))
                stream.flush()
                reply = _read(stream)
            return reply

    def keys(self, kind):
        """kind: i (the indexes of blocks) or s (the chunks)."""
        return sorted(self.ask("KEYS", f"hearth:*:{kind}:*"))


def metric(running, name):
    return running.client.metrics()[f"hearth_remote_{name}"]


def wait_written(running):
    """Waits until the store has what is to be written."""
    last = []

    def quiet():
        last.append((metric(running, "queued_bytes"), metric(running, "written_total"),
                     metric(running, "deduplicated_total"), metric(running, "dropped_total")))
        return len(last) > 10 and last[-1][0] == 0 and len(set(last[-10:])) == 1

    wait_until(quiet, "all is written")


class FakeStore:
    """Answers each command with what `answer` makes of its words: bytes, or None, which closes the connection."""

    def __init__(self, answer):
        self.answer, self.listener = answer, socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=[self.listener.accept()[0]], daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as stream:
            while True:
                words = _read(stream)
                answer = b"+PONG\r\n" if words == [b"PING"] else self.answer(words)
                if answer is None:
                    return
                connection.sendall(answer)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.listener.close()


class Proxy:
    """Stands between boxes and a store, a context manager: what the store says comes `delay_s` later, and after `cut`
    bytes of it (counted from where `cut` was set) the connection is reset."""

    def __init__(self, store, delay_s=0):
        self.store, self.delay_s, self.cut, self.cuts = store, delay_s, None, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, scheme="redis"):
        return f"{scheme}://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.store.port))
            except OSError:
                return
            threading.Thread(target=self._copy, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, True), daemon=True).start()

    def _copy(self, source, target, answers):
        try:
            while chunk := source.recv(1 << 16):
                if answers and self.delay_s:
                    time.sleep(self.delay_s)
                if answers and self.cut is not None:
                    chunk, self.cut = chunk[:self.cut], self.cut - len(chunk)
                    if self.cut <= 0:
                        self.cut, self.cuts = None, self.cuts + 1
                        target.sendall(chunk)
                        target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        break
                target.sendall(chunk)
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _read(stream):
    line = stream.readline()
    mark, rest = line[:1], line[1:-2]
    if mark == b"+":
        return rest
    if mark == b"-":
        raise ValueError(rest.decode())
    if mark == b":":
        return int(rest)
    if mark == b"$":
        return None if int(rest) < 0 else stream.read(int(rest) + 2)[:-2]
    return [_read(stream) for _ in range(int(rest))]
