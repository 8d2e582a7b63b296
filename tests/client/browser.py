"""Drives Debian's Chromium through the DevTools protocol over a pipe: what a test of the page needs, and no more.

Source: https://chromedevtools.github.io/devtools-protocol/ (--remote-debugging-pipe: messages end with a NUL)."""

import base64
import fcntl
import json
import os
import queue
import shutil
import subprocess
import threading

CHROMIUM = os.environ.get("HEARTH_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")

# Waits in the page until an expression is true, and gives its value.
WAIT = """new Promise((yes, no) => { const end = Date.now() + %d; (function look() { let value; try { value = (%s); } catch {}
    if (value) yes(value); else if (Date.now() > end) no(new Error('waited in vain')); else setTimeout(look, 20); })(); })"""


class Browser:
    """A browser with one page. `trouble` is what its console said that is an error: exceptions, violated policies."""

    def __init__(self, place, width=1440, height=900, dark=False):
        there, out = os.pipe()
        back, into = os.pipe()
        read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (there, into))

        def pass_pipes():
            os.dup2(read, 3)
            os.dup2(write, 4)

        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={place}"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, pass_fds=(3, 4, read, write), preexec_fn=pass_pipes)
        for fd in (there, into, read, write):
            os.close(fd)
        self.out, self.back = os.fdopen(out, "wb", 0), os.fdopen(back, "rb", 0)
        self.answers, self.number, self.lock, self.trouble, self.session = {}, 0, threading.Lock(), [], None
        threading.Thread(target=self.listen, daemon=True).start()
        pages = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        target = pages[0]["targetId"] if pages else self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height)
        self.dark(dark)

    def listen(self):
        text = b""
        while chunk := self.back.read(1 << 16):
            *messages, text = (text + chunk).split(b"\0")
            for message in messages:
                self.heard(json.loads(message))
        for answer in list(self.answers.values()):
            answer.put({"error": {"message": "the browser has gone"}})

    def heard(self, message):
        params = message.get("params", {})
        if "id" in message:
            self.answers[message["id"]].put(message)
        elif message["method"] == "Runtime.exceptionThrown":
            self.trouble.append(json.dumps(params["exceptionDetails"]))
        elif message["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.trouble.append(json.dumps(params["args"]))
        # A connection that is refused, or an answer 401, is no fault of the page: "network".
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error" and params["entry"]["source"] != "network":
            self.trouble.append(params["entry"]["text"])

    def call(self, method, **params):
        with self.lock:
            self.number += 1
            number, answer = self.number, queue.Queue()
            self.answers[number] = answer
            whole = {"id": number, "method": method, "params": params}
            if self.session:
                whole["sessionId"] = self.session
            self.out.write(json.dumps(whole).encode() + b"\0")
        told = answer.get(timeout=120)
        del self.answers[number]
        assert "error" not in told, (method, told)
        return told["result"]

    def covered(self, by="about:blank"):
        """Another tab stands in front of the page; what is returned takes it away."""
        page, self.session = self.session, None
        front = self.call("Target.createTarget", url=by)["targetId"]
        self.session = page

        def uncover():
            self.session = None
            self.call("Target.closeTarget", targetId=front)
            self.session = page
            self.call("Page.bringToFront")
        return uncover

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression, or what its promise comes to."""
        told = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in told, (script, told["exceptionDetails"])
        return told["result"].get("value")

    def wait(self, expression, seconds=30):
        """Until the expression is true, also where the page is loaded meanwhile: what waited in it is gone then."""
        try:
            return self.run(WAIT % (seconds * 1000, expression))
        except AssertionError as error:
            if "navigated" in str(error):
                return self.wait(expression, seconds)
            shown = self.run("document.body.innerText")
            raise AssertionError(f"never true: {expression}\nconsole: {self.trouble}\n{shown[:3000]}") from error

    def text(self):
        return self.run("document.body.innerText")

    def click(self, text, kind="button, a"):
        """What has this text, or this label."""
        self.wait(f"""(() => {{ const found = [...document.querySelectorAll({json.dumps(kind)})].find((one) =>
            one.textContent.trim() === {json.dumps(text)} || one.getAttribute('aria-label') === {json.dumps(text)});
            found?.click(); return Boolean(found); }})()""")

    def type(self, selector, text):
        """Fills a field as if it was typed."""
        self.wait(f"document.querySelector({json.dumps(selector)})")
        self.run(f"""(() => {{ const field = document.querySelector({json.dumps(selector)}); field.focus();
            field.value = {json.dumps(text)}; field.dispatchEvent(new Event('input', {{bubbles: true}})); }})()""")

    def press(self, name, modifiers=0):
        """A key: Tab, Enter, Escape, ArrowDown…"""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        key = {"key": name, "code": name, "windowsVirtualKeyCode": codes[name], "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key, **({"text": "\r"} if name == "Enter" else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, dark):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def picture(self, path, whole=False):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.session = None
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
