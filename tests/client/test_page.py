"""The page at GET /, in Debian's Chromium: what it shows, and that it stays quiet: no errors, no violated policy."""

import json
import os
import re
import threading

import httpx
import pytest

import browser
import page_load
from conftest import serve
from ondisk import wait_until

pytestmark = pytest.mark.skipif(not browser.CHROMIUM, reason="no Chromium is here")

SIM = ("--engine", "sim", "-c", "65536", "-np", "4")
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.Browser(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture
def page(chromium):
    """A browser whose page has said nothing yet, and must say nothing."""
    chromium.trouble.clear()
    chromium.size(1440, 900)
    yield chromium
    trouble = list(chromium.trouble)
    chromium.open("about:blank")
    assert not trouble


def chat(url, text, system="You are a coding agent.", agent="test-agent/1.0", key=None, **fields):
    head = {"User-Agent": agent, **({"Authorization": f"Bearer {key}"} if key else {})}
    answer = httpx.post(url + "/v1/chat/completions", headers=head, timeout=120, json={
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}], "max_tokens": 8, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def at(server):
    return f"http://127.0.0.1:{server.port}"


def rows(page, table):
    return page.run(f"[...document.querySelectorAll('{table} tbody tr')].map((row) => row.innerText)")


def test_the_files_are_small_and_have_a_policy():
    with serve(*SIM) as server:
        total = 0
        for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
            answer = httpx.get(at(server) + path)
            assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert httpx.get(at(server) + path, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
            total += len(answer.content)
        assert total < 100 * 1024


@pytest.mark.parametrize("flag", (("--ui", "off"), ("--no-ui",)))
def test_it_can_be_turned_off(flag):
    with serve(*SIM, *flag) as server:
        for path in ("/", "/page.js"):
            answer = httpx.get(at(server) + path)
            assert answer.status_code == 404 and "--ui off" in answer.json()["error"]["message"]
        assert httpx.get(at(server) + "/api/hello").status_code == 200


def test_a_running_prefill_moves(page):
    with serve(*SIM) as server:
        page.open(at(server) + "/")
        page.wait("document.querySelector('#link').textContent === 'live'")
        page.wait(f"document.body.innerText.includes('ANTHROPIC_BASE_URL={at(server)} ')")  # nothing has happened yet: what to do
        asked = threading.Thread(target=chat, args=(at(server), "word " * 9000))
        asked.start()
        bar = "Number(document.querySelector('.lane [role=progressbar]').getAttribute('aria-valuenow'))"
        first = page.wait(f"{bar} > 0 && {bar} < 100 && {bar}")
        assert page.wait(f"{bar} > {first} && {bar}") > first
        asked.join()
        page.wait("document.querySelector('.waste').innerText.includes('test-agent/1.0')")


def test_it_finds_the_cause_of_a_miss(page):
    """A date in the system text: the worst client is on top, with the line and the option that cures it."""
    rules = page_load.RULES
    with serve(*SIM) as server:
        page.open(at(server) + "/")
        for minute in range(3):
            chat(at(server), "Hello", f"You are an agent.\nToday: 2026-11-25 10:{minute:02d}\n{rules}", "cron-agent/1.0")
            chat(at(server), "Hello", rules, "steady-agent/2.0")
        page.wait("document.querySelectorAll('.waste tbody tr').length === 2")
        page.wait("document.querySelector('.waste tbody tr').innerText.includes('in 2 of 3 requests')")
        worst = rows(page, ".waste")[0]
        assert "cron-agent/1.0" in worst and "Today: 2026-11-25 10:02" in worst and "--strip-line '^Today:'" in worst
        page.click("cron-agent/1.0")
        page.wait("document.querySelectorAll('.recent tbody tr').length === 3")
        page.run("document.querySelector('.recent tbody a').focus()")
        page.press("ArrowDown")
        page.press("ArrowUp")
        page.press("Enter")
        page.wait("document.querySelectorAll('mark').length === 2")
        marks = page.run("[...document.querySelectorAll('mark')].map((mark) => mark.textContent)")
        assert marks == ["1", "2"]
        assert "Copy" in page.text() and page.run("location.hash.startsWith('#request/req_')")
        page.press("Escape")
        page.wait("document.querySelector('.recent')")


def test_hostile_text_is_text(page):
    agent = HOSTILE.replace(" ", "")
    with serve(*SIM) as server:
        for text in ("one", "two"):
            chat(at(server), f"{text} {HOSTILE} " * 40, f"{text} {HOSTILE}\n" + page_load.RULES + text, agent,
                 session_id=f"{HOSTILE} {'session' * 20}")
        page.open(at(server) + "/")
        page.wait("document.querySelectorAll('.waste tbody tr').length > 0")
        assert "<script>" in rows(page, ".waste")[0] and "onerror" in page.text()
        page.size(400, 800)
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        page.size(1440, 900)
        page.run("location.hash = '#recent'")
        page.wait("document.querySelectorAll('.recent tbody tr').length === 2")
        page.run("document.querySelector('.recent tbody a').click()")
        page.wait("document.querySelector('pre.text')")
        assert "<script>" in page.text()
        assert page.run("document.querySelectorAll('main img, main script').length") == 0
        assert "owned" not in page.run("document.title")


def test_it_survives_a_restart(page):
    with serve(*SIM) as server:
        port = server.port
        chat(at(server), "Hello", session_id="trip")
        page.open(at(server) + "/#conversations")
        page.wait("document.querySelector('#link').textContent === 'live'")
        page.click("Fork trip")  # a dialog is no reason to give up
    page.wait("document.querySelector('#link').textContent.startsWith('no connection')")
    with serve(*SIM, port=port) as server:
        page.wait("document.querySelector('#link').textContent === 'live'")
        chat(at(server), "Hello again", agent="later-agent/1.0")
        page.click("Cancel")
        page.run("location.hash = '#now'")
        page.wait("document.querySelector('.waste')?.innerText.includes('later-agent/1.0')")
        assert "test-agent/1.0" not in page.text()  # the server does not know of it any more


def test_with_keys_it_asks_for_one(page):
    """Two keys: each sees its own."""
    with serve(*SIM, "--api-key", "k-olga,k-petr") as server:
        chat(at(server), "Hello", agent="olga-agent/1.0", key="k-olga")
        chat(at(server), "Hello", agent="petr-agent/1.0", key="k-petr")
        assert httpx.get(at(server) + "/events").status_code == 401
        page.open(at(server) + "/")
        page.wait("document.querySelector('dialog').open")
        assert "agent/1.0" not in page.text()
        page.click("Cancel")
        page.click("Enter a key")
        page.type("dialog input", "wrong")
        page.click("Open")
        page.wait("document.querySelector('dialog .bad').textContent")
        page.type("dialog input", "k-olga")
        page.click("Open")
        page.wait("document.querySelector('#link').textContent === 'live'")
        page.wait("document.querySelector('.waste').innerText.includes('olga-agent/1.0')")
        assert page.run("localStorage.length") == 0


def test_a_stream_ends_with_its_reader_and_with_the_server():
    with serve(*SIM) as server:
        with httpx.stream("GET", at(server) + "/events", timeout=60) as stream:
            lines = stream.iter_lines()
            first = json.loads(next(lines)[len("data: "):])
            assert first["server"]["lanes"] == 4 and len(first["lanes"]) == 4 and first["requests"] == []
            chat(at(server), "Hello")
            seen = []
            for line in lines:
                if line.startswith("data: ") and (seen := json.loads(line[len("data: "):])["requests"]):
                    break
            assert seen[0]["client"] == "test-agent/1.0" and "server" not in json.loads(line[len("data: "):])
        assert httpx.head(at(server) + "/events").status_code == 200
        many = [httpx.Client(timeout=60) for _ in range(65)]
        try:
            answers = [one.send(one.build_request("GET", at(server) + "/events"), stream=True) for one in many]
            assert [one.status_code for one in answers].count(503) >= 1
        finally:
            for one in many:
                one.close()


def test_a_conversation_is_forked_warmed_and_deleted(page):
    with serve(*SIM) as server:
        chat(at(server), "Hello", session_id="trip")
        page.open(at(server) + "/#conversations")
        page.click("Fork trip")
        page.type("dialog input", "trip by train")
        page.click("Fork", "dialog button")
        page.wait("document.querySelectorAll('.tree tbody tr').length === 2")
        assert rows(page, ".tree")[1].lstrip().startswith("└")
        page.click("Warm trip by train")
        page.wait("document.querySelector('main [role=status]').textContent.includes('tokens were there')")
        page.click("Delete trip by train")
        page.click("Delete", "dialog button")
        page.wait("document.querySelectorAll('.tree tbody tr').length === 1")
        names = [one["id"] for one in httpx.get(at(server) + "/v1/sessions").json()["data"]]
        assert names == ["trip"]


def test_chat_shows_the_receipt_and_goes_on_in_a_session(page):
    with serve(*SIM) as server:
        page.open(at(server) + "/#chat/walk")
        for turn in (1, 2):
            page.type("textarea", f"Question {turn} {HOSTILE} " + "about mountains and lakes " * 20)
            page.press("Enter")
            page.wait(f"document.querySelectorAll('.receipt').length === {turn}")
        told = page.run("[...document.querySelectorAll('.receipt')].map((one) => one.innerText)")
        assert "computed" in told[0] and "first token" in told[0] and "from the engine" in told[1]
        page.open("about:blank")
        page.open(at(server) + "/#chat/walk")
        page.wait("document.querySelectorAll('.turn.user').length === 2")
        assert "<script>" in page.text()
        assert page.run("document.querySelectorAll('main img, main script').length") == 0


def test_a_key_has_trends_of_its_own(page, tmp_path):
    """All requests are not its to see: the page makes the minutes of the ones that are."""
    keys = tmp_path / "keys"
    keys.write_text("k-olga name=olga\nk-ivan name=ivan\n")
    keys.chmod(0o600)
    with serve(*SIM, "--api-key-file", str(keys)) as server:
        for key, count in (("k-olga", 3), ("k-ivan", 2)):
            for i in range(count):
                httpx.post(at(server) + "/v1/chat/completions", headers={"Authorization": f"Bearer {key}"}, timeout=60,
                           json={"messages": [{"role": "user", "content": f"Number {i}."}], "max_tokens": 2})
        page.open(at(server) + "/#trends")
        page.run("sessionStorage.setItem('hearth-key', 'k-olga'); location.reload()")
        page.wait("document.querySelectorAll('.chart').length === 4")
        page.wait("[...document.querySelectorAll('.chart output')].some((one) => one.textContent.includes('requests 3'))")


def test_trends_have_the_hour(page):
    with serve(*SIM) as server:
        chat(at(server), "Hello")
        minutes = httpx.get(at(server) + "/trends").json()["data"]
        assert len(minutes) == 60 and sum(one["requests"] for one in minutes) == 1
        page.open(at(server) + "/#trends")
        page.wait("document.querySelectorAll('.chart').length === 5")
        assert "slowest of a hundred" in page.text()
        page.run("document.querySelector('[role=slider]').focus()")
        before = page.run("document.activeElement.getAttribute('aria-valuetext')")
        page.press("ArrowLeft")
        assert page.run("document.activeElement.getAttribute('aria-valuetext')") != before


def contrast(one, other):
    """Of two colours as #rgb or #rrggbb. Source: WCAG 2.2, relative luminance and contrast ratio."""
    def luminance(colour):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[i:i + 2], 16) / 255 for i in (0, 2, 4)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_meet_aa():
    """Of both themes, as the style sheet has them: 4.5 to 1 for text on whatever it stands on."""
    css = open(os.path.join(os.path.dirname(__file__), "..", "..", "src", "ui", "page.css"), encoding="utf-8").read()
    themes = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)]
    assert len(themes) == 2
    for theme in themes:
        for text, grounds in (("text", ("bg", "card", "wash")), ("soft", ("bg", "card", "wash")),
                              ("accent", ("bg", "card", "wash")), ("bad", ("bg", "card")), ("on-accent", ("accent",))):
            for ground in grounds:
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground, theme)
        assert set(re.findall(r"[^-]color: var\(--([\w-]+)\)", css)) <= {"text", "soft", "accent", "bad", "on-accent"}


def test_a_hidden_tab_closes_its_stream(page):
    """Another tab in front of it: the page asks for nothing more, and goes on when it is seen again."""
    with serve(*SIM) as server:
        def streams():
            return server.client.metrics()["hearth_feed_streams"]
        page.open(at(server) + "/")
        page.wait("document.getElementById('link').textContent === 'live'")
        assert streams() == 1
        uncover = page.covered()
        page.wait("document.hidden && document.getElementById('link').textContent === 'paused'")
        wait_until(lambda: streams() == 0, "the stream is closed")
        uncover()
        page.wait("!document.hidden && document.getElementById('link').textContent === 'live'")
        assert streams() == 1


def test_the_keyboard_is_enough(page):
    with serve(*SIM) as server:
        chat(at(server), "Hello")
        page.open(at(server) + "/")
        page.press("Tab")
        assert page.run("document.activeElement.textContent") == "Skip to the content"
        page.press("Tab")
        page.press("ArrowRight")
        assert page.run("document.activeElement.textContent") == "Recent"
        page.press("Enter")
        page.wait("document.querySelectorAll('.recent tbody tr').length === 1")
        assert page.run("document.querySelector('[aria-current=page]').textContent") == "Recent"
        names = page.run("[...document.querySelectorAll('input, select, textarea')].every((one) => one.labels.length > 0)")
        assert names


PICTURES = os.path.join(os.path.dirname(__file__), "..", "..", "build", "screenshots")


def test_views_fit_and_have_their_pictures(page):
    """At 1440 and 400 pixels, in light and dark: nothing sticks out. The pictures are in build/screenshots."""
    with serve(*SIM) as server:
        threads = page_load.begin(at(server), turns=2, tokens=8)
        page.open(at(server) + "/")
        page.wait("document.querySelectorAll('.waste tbody tr').length >= 3", 90)
        for view, shown in (("now", ".lane"), ("recent", ".recent a"), ("request", ".verdict"), ("conversations", ".acts"),
                            ("trends", ".chart"), ("chat/api-cleanup", ".turn")):
            page.run(f"location.hash = '#{view}'" if view != "request" else "document.querySelector('.recent tbody a').click()")
            page.wait(f"document.querySelector('{shown}')")
            for width, height in ((1440, 900), (400, 800)):
                page.size(width, height)
                for dark in (False, True):
                    page.dark(dark)
                    page.picture(f"{PICTURES}/{view.split('/')[0]}-{width}-{'dark' if dark else 'light'}.png")
                assert page.run("document.documentElement.scrollWidth <= innerWidth"), (view, width)
            page.dark(False)
        for thread in threads:
            thread.join()
