"""Boxes that share a PostgreSQL, and what tests say to them."""

import contextlib
import http.client
import json
import subprocess

import httpx

from conftest import serve
from lib import server as servers
from ondisk import model_flags


def box(url, *flags, model="sim", **options):
    return serve(*model_flags(model), "-c", "8192", "-np", "2", "--cache-ram", "256", "--session-db", url, *flags, **options)


def two(stack, url, *flags):
    return [stack.enter_context(box(url, "--kv-disk", "0", *flags)) for _ in range(2)]


def respond(running, text, **more):
    return running.client.post("/v1/responses", {"model": "any", "input": text, "max_output_tokens": 8, "temperature": 0, **more})


def fails(running, path, body):
    """The status, the body and Retry-After of a request that is refused."""
    connection = http.client.HTTPConnection(running.client.host, running.client.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    with contextlib.closing(connection):
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.getheader("Retry-After")


def status_of(running, text, **more):
    return fails(running, "/v1/responses", {"model": "any", "input": text, "max_output_tokens": 4, **more})[0]


def kill_in_mid_stream(doomed, path, body, lines):
    """Kills a box when so many lines of a reply have come. Whether they have: it may end before."""
    heard = False
    with contextlib.suppress(httpx.HTTPError), \
            httpx.stream("POST", f"http://127.0.0.1:{doomed.port}{path}", json={**body, "stream": True}, timeout=60) as stream:
        for count, _ in enumerate(stream.iter_lines()):
            if count >= lines:
                heard = True
                doomed.kill()
                break
    doomed.kill()
    return heard


def refuses(url, *flags):
    """What a server that must not start says."""
    done = subprocess.run([servers.hearth_path(), "serve", "--engine", "sim", "--port", "0", "--session-db", url, *flags],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode not in (0, 124), done.stderr
    return done.stderr
