"""Runs hermes-agent as its users do, with a home of its own and nothing reachable but the server under test.

HEARTH_HERMES names the program (`pip install hermes-agent[anthropic]==0.19.0` in an environment of its own: it pins its
dependencies). One shot is a process per turn, as with `hermes chat -Q -q …` and `--resume ID`; a Terminal is the
interactive program, which also asks for titles and reviews a session in the background.
"""

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import fcntl

# Everything that would leave the machine fails at once.
NOWHERE = "http://127.0.0.1:9"
ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[=>()][0-9A-B]?|\r")


def program():
    path = os.environ.get("HEARTH_HERMES")
    return path if path and os.path.exists(path) else None


def merge(into, other):
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value
    return into


class Hermes:
    """A user's installation. `config` is merged over the settings below."""

    def __init__(self, home, port, config=None):
        if not program():
            raise RuntimeError("HEARTH_HERMES must name the program of hermes-agent")
        self.home, self.port = str(home), port
        folder = os.path.join(self.home, ".hermes")
        os.makedirs(folder, exist_ok=True)
        settings = merge({
            "model": {"default": "hearth", "provider": "custom", "base_url": f"http://127.0.0.1:{port}/v1",
                      "api_key": "none"},
            "security": {"tirith_enabled": False, "allow_lazy_installs": False},
            "agent": {"environment_probe": False},
            "lsp": {"enabled": False},
            "display": {"interface": "cli"},
        }, config or {})
        with open(os.path.join(folder, "config.yaml"), "w", encoding="utf-8") as file:
            json.dump(settings, file)  # JSON is YAML
        with open(os.path.join(folder, ".update_check"), "w", encoding="utf-8") as file:
            json.dump({"ts": time.time(), "behind": 0, "rev": None}, file)

    def _environment(self):
        keep = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return {**keep, "HOME": self.home, "HERMES_HOME": os.path.join(self.home, ".hermes"), "TERM": "xterm-256color",
                "LC_ALL": "C.UTF-8", "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "ALL_PROXY": NOWHERE,
                "NO_PROXY": "127.0.0.1,localhost", "COLUMNS": "120", "LINES": "50"}

    def ask(self, text, folder, session=None, flags=("--yolo",), timeout_s=180):
        """One turn in a process of its own. Returns the answer and the session's id."""
        command = [program(), "chat", "-Q", *(["--resume", session] if session else []), "-q", text, *flags]
        done = subprocess.run(command, cwd=folder, env=self._environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout_s)
        found = re.search(r"session_id: (\S+)", done.stderr)
        if done.returncode != 0 or not found:
            raise RuntimeError(f"hermes ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout.strip(), found[1]

    def shot(self, text, folder, timeout_s=180):
        """`hermes -z`: a prompt in, an answer out."""
        done = subprocess.run([program(), "-z", text], cwd=folder, env=self._environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout_s)
        if done.returncode != 0:
            raise RuntimeError(f"hermes ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout.strip()

    def terminal(self, folder, session=None, flags=("--yolo",)):
        return Terminal([program(), "--cli", *(["--resume", session] if session else []), *flags], folder,
                        self._environment())


class Terminal:
    """The interactive program behind a pseudo-terminal; a context manager."""

    def __init__(self, command, folder, environment):
        self.screen = ""
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            try:
                os.chdir(folder)
                os.execve(command[0], command, environment)
            finally:
                os._exit(127)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.close()

    def read(self, seconds):
        """Takes in what is printed for a while."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                try:
                    data = os.read(self._fd, 1 << 16)
                except OSError:
                    return
                if b"\x1b[6n" in data:  # where is the cursor?
                    os.write(self._fd, b"\x1b[1;1R")
                self.screen += ANSI.sub("", data.decode("utf-8", "replace"))

    def wait(self, condition, timeout_s=60):
        """Until `condition()` holds; what is printed meanwhile is taken in."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(self.screen[-3000:])
            self.read(0.1)

    def wait_text(self, text, timeout_s=60):
        """Until `text` is printed after what was there before this call."""
        start = len(self.screen)
        self.wait(lambda: text in self.screen[start:], timeout_s)

    def type(self, text, enter=True):
        os.write(self._fd, text.encode())
        self.read(0.3)
        if enter:
            os.write(self._fd, b"\r")

    def key(self, data):
        os.write(self._fd, data)

    def close(self, timeout_s=15):
        """Leaves the program: politely, then not."""
        if self._pid is None:
            return
        deadline = time.monotonic() + timeout_s
        try:
            self.type("/exit")
        except OSError:
            pass
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            self.read(0.1)
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
        self._pid = None
        os.close(self._fd)
