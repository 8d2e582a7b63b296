"""Web pages, in a real browser (Chromium, HEARTH_CHROMIUM or one that is found): pages of other origins, and one whose
name was rebound to the server's address, can read nothing, start nothing and delete nothing; a page that was allowed can.

A page tries everything that pages can try, and posts what came of it to the server that it is from. What the server did
is asked of the server itself."""

import contextlib
import http.server
import json
import os
import shutil
import subprocess
import threading

import httpx
import pytest

from conftest import serve

CHROMIUM = os.environ.get("HEARTH_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")

# Only tests that need a browser; what a request is answered with is in tests/unit/origin_test.c, too.
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is here")

PAGE = """<!doctype html><title>page</title><body><script>
const target = TARGET, report = REPORT, told = {};
const chat = JSON.stringify({messages: [{role: "user", content: "Hello"}], max_tokens: 2});
const within = (promise) => Promise.race([promise, new Promise((_, no) => setTimeout(() => no(new Error("time")), 5000))]);
async function attempt(name, act) {
    try { told[name] = await within(act()); } catch (error) { told[name] = "error: " + error.message; }
}
const ask = (path, options) => async () => {
    const answer = await fetch(target + path, options);
    return answer.type === "opaque" ? "opaque" : answer.status + " " + await answer.text();
};
const load = (kind, path) => () => new Promise((yes, no) => {
    const element = document.createElement(kind);
    element.onload = () => yes("loaded");
    element.onerror = () => no(new Error("refused"));
    element[kind === "link" ? "href" : "src"] = target + path;
    if (kind === "link") element.rel = "stylesheet";
    document.body.append(element);
});
function form(path, type, name, value) {
    const frame = document.createElement("iframe"), made = document.createElement("form"), field = document.createElement("input");
    frame.name = "f" + Math.random(); document.body.append(frame);
    Object.assign(made, {action: target + path, method: "POST", enctype: type, target: frame.name});
    Object.assign(field, {name: name, value: value});
    made.append(field); document.body.append(made);
    return new Promise((yes) => { frame.onload = () => {
        try { yes("loaded: " + frame.contentDocument.body.textContent); } catch (error) { yes("loaded"); } }; made.submit(); });
}
const json = {"Content-Type": "application/json"};
async function answers() { // the server is there, at what was the page's own address
    for (let i = 0; i < 300; i++) {
        try { if ((await fetch("/health")).headers.get("X-Request-Id")) return; } catch { /* nobody is there */ }
        await new Promise((yes) => setTimeout(yes, 100));
    }
}
async function all() {
    if (report) await answers();
    await attempt("get", ask("/v1/models"));
    await attempt("health", ask("/health"));
    await attempt("sessions", ask("/v1/sessions"));
    await attempt("simple post", ask("/v1/chat/completions", {method: "POST", body: chat}));
    await attempt("json post", ask("/v1/chat/completions", {method: "POST", headers: json, body: chat}));
    await attempt("key", ask("/v1/models", {headers: {Authorization: "Bearer guess"}}));
    await attempt("no-cors get", ask("/v1/sessions", {mode: "no-cors"}));
    await attempt("no-cors post", ask("/v1/chat/completions", {method: "POST", mode: "no-cors", body: chat}));
    await attempt("credentials", ask("/v1/sessions", {credentials: "include"}));
    await attempt("delete", ask("/v1/sessions/diary", {method: "DELETE"}));
    await attempt("put", ask("/v1/sessions/diary", {method: "PUT", body: "{}"}));
    await attempt("create", ask("/v1/sessions", {method: "POST", body: JSON.stringify({name: "planted"})}));
    await attempt("xhr", () => new Promise((yes, no) => { const xhr = new XMLHttpRequest();
        xhr.open("GET", target + "/v1/sessions"); xhr.onload = () => yes(xhr.status + " " + xhr.responseText);
        xhr.onerror = () => no(new Error("refused")); xhr.send(); }));
    await attempt("events", () => new Promise((yes, no) => { const events = new EventSource(target + "/v1/responses/x");
        events.onopen = () => yes("open"); events.onerror = () => { events.close(); no(new Error("refused")); }; }));
    await attempt("socket", () => new Promise((yes, no) => { const socket = new WebSocket(target.replace("http", "ws") + "/v1/models");
        socket.onopen = () => yes("open"); socket.onerror = () => no(new Error("refused")); }));
    await attempt("beacon", async () => { navigator.sendBeacon(target + "/v1/chat/completions", chat); return "sent"; });
    await attempt("script", load("script", "/v1/models"));
    await attempt("image", load("img", "/v1/sessions"));
    await attempt("style", load("link", "/v1/models"));
    await attempt("text form", () => form("/v1/chat/completions", "text/plain", chat.slice(0, -1) + ', "x": "', '"}'));
    await attempt("multipart form", () => form("/v1/sessions", "multipart/form-data", "name", "planted"));
    await fetch(report + "/told", {mode: "no-cors", method: "POST", body: JSON.stringify(told)});
}
all();
</script>"""


class Site:
    """A web server with the page above, and what the page has told it."""

    def __init__(self, target="", report=""):
        self.target, self.report, self.told = target, report, None
        self.opened, self.done = threading.Event(), threading.Event()
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, body):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                page = PAGE.replace("TARGET", json.dumps(site.target)).replace("REPORT", json.dumps(site.report))
                self.answer(page.encode() if self.path == "/" else b"")
                site.opened.set()

            def do_POST(self):
                site.told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(b"")
                site.done.set()

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def __exit__(self, *_):
        self.close()


@contextlib.contextmanager
def opened(url, place):
    """A browser with this page."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
               "--disable-background-networking", f"--user-data-dir={place}",
               "--host-resolver-rules=MAP *.test 127.0.0.1", url]
    browser = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        browser.terminate()
        try:
            browser.wait(20)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait()


def browse(site, host, place):
    """What the page says after it was opened from this host."""
    with opened(f"http://{host}:{site.port}/", place):
        assert site.done.wait(120), "the page has told nothing"
    return site.told


@pytest.fixture
def guarded():
    """A server with one session, for which nobody needs a key."""
    with serve("--engine", "sim", "-c", "4096", "-np", "2", "--log-level", "debug") as server:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
            assert client.post("/v1/sessions", json={"name": "diary"}).status_code == 200
            yield server, client


def numbers(client):
    """What the server has done so far."""
    lines = client.get("/metrics").text.splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line and not line.startswith("#")}


def assert_untouched(client):
    names = {session["id"] for session in client.get("/v1/sessions").json()["data"]}
    assert names == {"diary"}
    now = numbers(client)
    assert now["hearth_prompt_computed_tokens_total"] == 0 and now["hearth_generated_tokens_total"] == 0
    assert now["hearth_http_forbidden_total"] >= 10


@pytest.mark.parametrize("host", ["evil.test", "localhost"])
def test_a_page_of_another_origin_does_nothing(guarded, tmp_path, host):
    """Also one of another port of this machine."""
    server, client = guarded
    with Site(f"http://127.0.0.1:{server.port}") as site:
        told = browse(site, host, tmp_path)
    assert len(told) == 21
    for name, result in told.items():
        # An opaque answer, and the load of a frame, tell the page nothing: they are the same for every answer.
        if name == "beacon":
            assert result == "sent"
        elif name.startswith("no-cors"):
            assert result == "opaque" or result.startswith("error"), name
        elif name.endswith("form"):
            assert result == "loaded" or result.startswith("error"), name
        else:
            assert result.startswith("error"), (name, result)
    assert_untouched(client)


def test_a_page_whose_name_was_rebound_does_nothing(tmp_path):
    """The page's server goes and hearth comes in its place, as after its name has changed its address: for the browser
    they are one origin, and only the name that it asks by gives the page away."""
    with Site() as ear:
        site = Site(report=f"http://127.0.0.1:{ear.port}")
        with opened(f"http://evil.test:{site.port}/", tmp_path):
            assert site.opened.wait(120)
            site.close()
            with serve("--engine", "sim", "-c", "4096", port=site.port) as server:
                client = httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60)
                assert client.post("/v1/sessions", json={"name": "diary"}).status_code == 200
                assert ear.done.wait(120), "the page has told nothing"
                for name in ("get", "health", "sessions", "simple post", "json post", "delete", "put", "create", "xhr"):
                    assert ear.told[name].startswith("403 "), (name, ear.told[name])
                    assert "--allow-host evil.test" in ear.told[name] and "diary" not in ear.told[name]
                assert_untouched(client)


def test_an_allowed_page_may(tmp_path):
    with Site() as site:
        with serve("--engine", "sim", "-c", "4096", "--cors-origin", f"http://good.test:{site.port}") as server:
            with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
                assert client.post("/v1/sessions", json={"name": "diary"}).status_code == 200
                site.target = f"http://127.0.0.1:{server.port}"
                told = browse(site, "good.test", tmp_path)
                for name in ("get", "health", "sessions", "simple post", "json post", "delete", "xhr", "key"):
                    assert told[name].startswith("200"), (name, told[name])
                assert told["create"].startswith("200") and "planted" in client.get("/v1/sessions").text
                assert "diary" not in client.get("/v1/sessions").text


def test_pages_of_this_machine_may_when_they_are_let_in(tmp_path):
    with Site() as site, serve("--engine", "sim", "-c", "4096", "--cors-origin", "localhost") as server:
        site.target = f"http://127.0.0.1:{server.port}"
        told = browse(site, "localhost", tmp_path)
        assert told["json post"].startswith("200") and told["sessions"].startswith("200")


def test_with_a_key_a_page_has_none(tmp_path):
    with Site() as site, serve("--engine", "sim", "-c", "4096", "--api-key", "secret") as server:
        site.target = f"http://127.0.0.1:{server.port}"
        told = browse(site, "evil.test", tmp_path)
        for name in ("get", "health", "sessions", "json post", "delete", "key"):
            assert told[name].startswith("error"), (name, told[name])
        client = httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers={"Authorization": "Bearer secret"})
        now = numbers(client)
        assert now["hearth_generated_tokens_total"] == 0
