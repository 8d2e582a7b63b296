"""A crowd of clients that are slow, silent or gone, each on a connection of its own, in a process of its own.

    IDLE         connects and says nothing
    HEAD, BODY   sends half a request, then a byte each second
    HALF         asks, closes its side, takes the answer, and comes again
    RESET        asks and resets the connection at once, and comes again
    PIPELINE     sends sixteen requests at once and takes the answers, again every ten seconds
    NEVER        asks for a large answer again each second and takes nothing

Whoever is cut off comes again a second later, as programs do."""

import contextlib
import multiprocessing
import os
import random
import resource
import select
import socket
import struct
import time

KINDS = ("idle", "head", "body", "half", "reset", "pipeline", "never")
SHARES = {"idle": 0.3, "head": 0.15, "body": 0.2, "half": 0.08, "reset": 0.02, "pipeline": 0.1, "never": 0.15}
RESET = struct.pack("ii", 1, 0)
CONNECTS_AT_ONCE = 200


def _request(path, more=""):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nA: "
BODY = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{"
HEALTH, LARGE = _request("/health"), _request("/metrics")


class Client:
    __slots__ = ("kind", "sock", "due_s")

    def __init__(self, kind, due_s):
        self.kind, self.sock, self.due_s = kind, None, due_s


class Crowd:
    def __init__(self, port, count, spread_s):
        start = time.monotonic()
        kinds = [kind for kind in KINDS for _ in range(round(SHARES[kind] * count))]
        random.Random(1).shuffle(kinds)
        self.port, self.epoll = port, select.epoll()
        self.clients = [Client(kind, start + spread_s * n / count) for n, kind in enumerate(kinds)]
        self.by_fd, self.cut_off, self.open = {}, 0, 0

    def _close(self, client, now_s, wait_s):
        if client.sock is not None:
            del self.by_fd[client.sock.fileno()]
            client.sock.close()
            client.sock = None
            self.open -= 1
        client.due_s = now_s + wait_s

    def _connect(self, client, now_s):
        sock = socket.socket()
        if client.kind == "never":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", self.port))
        client.sock = sock
        self.by_fd[sock.fileno()] = client
        self.open += 1
        self.epoll.register(sock, select.EPOLLOUT)
        client.due_s = now_s + 3600

    def _send(self, client, data):
        try:
            client.sock.send(data)
        except BlockingIOError:
            pass

    def _act(self, client, now_s):
        """What the kind does when its time has come, once it is connected."""
        if client.kind in ("head", "body"):
            self._send(client, b"a")
        elif client.kind == "pipeline":
            self._send(client, 16 * HEALTH)
        elif client.kind == "never":
            self._send(client, LARGE)
        client.due_s = now_s + (10 if client.kind == "pipeline" else 1)

    def _connected(self, client, now_s):
        self.epoll.modify(client.sock, 0 if client.kind == "never" else select.EPOLLIN)
        if client.kind == "reset":
            self._send(client, HEALTH)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._close(client, now_s, 1)
            return
        first = {"head": HEAD, "body": BODY, "half": HEALTH}.get(client.kind)
        if first:
            self._send(client, first)
        if client.kind == "half":
            client.sock.shutdown(socket.SHUT_WR)
        client.due_s = now_s + (3600 if client.kind in ("idle", "half") else 1)

    def _event(self, client, events, now_s):
        try:
            if events & select.EPOLLOUT and not events & (select.EPOLLERR | select.EPOLLHUP):
                self._connected(client, now_s)
            elif events & select.EPOLLIN and client.sock.recv(65536):
                return
            else:
                self.cut_off += client.kind != "half"
                self._close(client, now_s, 1)
        except OSError:
            self.cut_off += 1
            self._close(client, now_s, 1)

    def turn(self):
        now_s, connects = time.monotonic(), 0
        for client in self.clients:
            if client.due_s > now_s:
                continue
            try:
                if client.sock is not None:
                    self._act(client, now_s)
                elif connects < CONNECTS_AT_ONCE:
                    connects += 1
                    self._connect(client, now_s)
            except OSError:
                self.cut_off += 1
                self._close(client, now_s, 1)
        for fd, events in self.epoll.poll(0.05, 4096):
            if fd in self.by_fd:
                self._event(self.by_fd[fd], events, now_s)


def _run(port, count, spread_s, pipe):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(5)  # the server and whoever measures it come first
    crowd = Crowd(port, count, spread_s)
    while True:
        crowd.turn()
        if pipe.poll():
            if pipe.recv() == "end":
                return
            pipe.send({"open": crowd.open, "cut_off": crowd.cut_off})


@contextlib.contextmanager
def gathered(port, count, spread_s):
    """The crowd, all of which has tried to connect after `spread_s`; yields a function that asks how it is."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_run, args=(port, count, spread_s, theirs), daemon=True)
    process.start()

    def ask():
        ours.send("ask")
        return ours.recv()

    try:
        yield ask
    finally:
        ours.send("end")
        process.join()
