#!/usr/bin/env python3
"""A PostgreSQL server of a test's own, in a temporary folder; postgres refuses to run as root, so it runs as another
user then. HEARTH_POSTGRES names the folder of another version's programs.

As a program: postgres.py COMMAND… runs the command with HEARTH_TEST_PG, the URL of a server that lives as long. 77 (a
test that is skipped) where PostgreSQL is not installed.
"""

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse


def _bin():
    if os.environ.get("HEARTH_POSTGRES"):
        return os.environ["HEARTH_POSTGRES"]
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), key=lambda path: int(path.split("/")[4]))
    path = shutil.which("postgres")
    return os.path.dirname(found[-1]) if found else os.path.dirname(path) if path else None


BIN = _bin()
MISSING = "PostgreSQL is not installed (scripts/setup.sh servers)"


def _user():
    for name in ["postgres", "nobody"]:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
    raise RuntimeError("there is no user that postgres could run as")


def _free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


class Postgres:
    """A running server, a context manager. `settings` are lines of postgresql.conf."""

    def __init__(self, settings=(), password=None):
        self.folder = tempfile.mkdtemp(prefix="hearth-pg-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.data, self.port, self.password, self.process = os.path.join(self.folder, "data"), _free_port(), password, None
        # It ends with this process, whatever ends that.
        self.drop = ["setpriv", "--pdeathsig", "KILL"]
        if os.getuid() == 0:
            user = _user()
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.drop += ["--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
        secret = os.path.join(self.folder, "secret")
        with open(secret, "w") as out:
            out.write((password or "") + "\n")
        os.chmod(secret, 0o644)
        init = [*self.drop, os.path.join(BIN, "initdb"), "-D", self.data, "-U", "hearth", "-E", "UTF8", "--locale=C",
                "--no-sync", "--no-instructions", *(["-A", "scram-sha-256", f"--pwfile={secret}"] if password else ["-A", "trust"])]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=self.folder)
        self.settings = ["fsync=off", "shared_buffers=16MB", "max_connections=60", "listen_addresses=127.0.0.1", *settings,
                         f"unix_socket_directories={self.folder}"]
        self.start()

    def start(self):
        command = [*self.drop, os.path.join(BIN, "postgres"), "-D", self.data, "-p", str(self.port)]
        for setting in self.settings:
            command += ["-c", setting]
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder)
        deadline = time.monotonic() + 30
        while not self.answers():
            assert time.monotonic() < deadline and self.process.poll() is None, self.log()
            time.sleep(0.05)

    def log(self):
        with open(os.path.join(self.folder, "log"), errors="replace") as log:
            return log.read()[-4000:]

    def answers(self):
        ready = [os.path.join(BIN, "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", "hearth", "-d", "postgres"]
        return subprocess.run(ready).returncode == 0

    def url(self, database="postgres", password=True):
        secret = ":" + urllib.parse.quote(self.password, safe="") if self.password and password else ""
        return f"postgresql://hearth{secret}@127.0.0.1:{self.port}/{database}"

    def sql(self, text, database="postgres"):
        """What a statement gives: rows of columns, as text."""
        command = [os.path.join(BIN, "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-c", text]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [line.split("|") for line in done.stdout.splitlines()]

    def database(self, name):
        """The URL of a new database."""
        self.sql(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def kill(self):
        """As a crash of the server does: its processes are gone at once."""
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + 30
        while _group(self.data) and time.monotonic() < deadline:  # its children end when they see it
            time.sleep(0.02)

    def halt(self):
        """It says nothing any more, until resume()."""
        for process in _group(self.data):
            os.kill(process, signal.SIGSTOP)

    def resume(self):
        for process in _group(self.data):
            os.kill(process, signal.SIGCONT)

    def standby(self):
        """Another server that has what this one acknowledges, from now on, and can take over: promote()."""
        other = Postgres.__new__(Postgres)
        other.folder = tempfile.mkdtemp(prefix="hearth-pg-", dir=os.path.dirname(self.folder))
        other.data, other.port, other.password, other.drop = os.path.join(other.folder, "data"), _free_port(), self.password, self.drop
        shutil.chown(other.folder, *[os.stat(self.folder).st_uid, os.stat(self.folder).st_gid])
        other.settings = [*self.settings[:-1], f"unix_socket_directories={other.folder}"]
        copy = [*self.drop, os.path.join(BIN, "pg_basebackup"), "-D", other.data, "-R", "-c", "fast", "--no-sync", "-d", self.url() + "?application_name=standby"]
        subprocess.run(copy, check=True, stdin=subprocess.DEVNULL, cwd=other.folder)
        other.start()
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.sql("SELECT pg_reload_conf()")
        return other

    def promote(self):
        self.sql("ALTER SYSTEM RESET synchronous_standby_names")
        self.sql("SELECT pg_promote()")

    def close(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)  # immediate
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.close()


def _group(data):
    """Processes that still use a data folder: a new server refuses to start beside them."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cwd"):
        try:
            if os.readlink(path) == data:
                found.append(int(path.split("/")[2]))
        except OSError:
            pass
    return found


def main():
    if not BIN:
        print(MISSING)
        return 77
    with Postgres() as server:
        return subprocess.run(sys.argv[1:], env={**os.environ, "HEARTH_TEST_PG": server.url()}).returncode


if __name__ == "__main__":
    sys.exit(main())
