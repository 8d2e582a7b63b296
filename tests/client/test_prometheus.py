"""contrib/grafana and contrib/prometheus against Prometheus itself: rules, their tests, the configuration, /metrics; and
every expression of the board and of the rules against a hearth that is scraped. Left out where Prometheus is not
installed (scripts/setup.sh servers)."""

import json
import math
import pathlib
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request

import pytest

from conftest import serve
from lib import server as servers

CONTRIB = pathlib.Path(servers.REPOSITORY) / "contrib"
RULES = CONTRIB / "prometheus" / "hearth.rules.yml"
pytestmark = pytest.mark.skipif(not shutil.which("promtool") or not shutil.which("prometheus"),
                                reason="prometheus is not installed")


def promtool(*arguments, **options):
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize("arguments", [
    ("check", "rules", RULES), ("test", "rules", CONTRIB / "prometheus" / "hearth.rules.test.yml"),
    ("check", "config", CONTRIB / "prometheus" / "prometheus.yml")], ids=lambda arguments: " ".join(arguments[:2]))
def test_promtool(arguments):
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions():
    """Those of every panel, with a name."""
    board = json.loads((CONTRIB / "grafana" / "hearth.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    return [(f"{panel['title']} {target['refId']}", target["expr"]) for panel in board["panels"]
            for target in panel.get("targets", [])]


def query(prometheus, expression):
    url = f"http://127.0.0.1:{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)["data"]["result"]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """A hearth with something of everything, and the port of the Prometheus that scrapes it."""
    folder = tmp_path_factory.mktemp("prometheus")
    with serve("--engine", "sim", "-np", "2", "-c", "16384", "--cache-ram", "1", "--kv-dir", str(folder / "kv"),
               "--kv-disk", "64") as server:
        config = (CONTRIB / "prometheus" / "prometheus.yml").read_text()
        config = config.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}").replace("15s", "1s")
        (folder / "prometheus.yml").write_text(config)
        shutil.copy(RULES, folder)
        port = servers.free_port()
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                 f"--web.listen-address=127.0.0.1:{port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield server, port
        finally:
            process.terminate()
            process.wait(60)


def ask(server, text):
    server.client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 8,
                                                "ignore_eos": True})


def test_every_panel_has_data(scraped):
    server, port = scraped
    wanted = [(name, expression.replace("$job", ".+").replace("$__rate_interval", "30s"))
              for name, expression in expressions()]
    assert len(wanted) > 30 and not [name for name, expression in wanted if "$" in expression]
    end, number = time.monotonic() + 120, 0
    while wanted and time.monotonic() < end:
        for _ in range(4):  # state of the first goes to disk and comes back
            ask(server, f"{number % 5} " + "word " * 1500)
            number += 1
        try:
            wanted = [(name, expression) for name, expression in wanted
                      if all(math.isnan(float(one["value"][1])) for one in query(port, expression))]
        except OSError:
            pass  # it is still starting
    assert not wanted
    models = query(port, "count by (model) (hearth_ttft_seconds_count)")
    assert [one["metric"]["model"] for one in models] == ["sim"]


def test_rules_are_evaluated(scraped):
    """Every metric that a rule names is there, and no alert is about a server that does well."""
    server, port = scraped
    ask(server, "word " * 10)
    names = set(re.findall(r"\b(hearth_[a-z_]+)", "\n".join(
        line for line in RULES.read_text().splitlines() if "description" not in line)))
    end = time.monotonic() + 60
    missing = names
    while missing and time.monotonic() < end:
        try:
            missing = {name for name in missing if not query(port, name)}
        except OSError:
            pass
    assert not missing
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=60) as answer:
        (group,) = json.load(answer)["data"]["groups"]
    assert len(group["rules"]) == RULES.read_text().count("- alert:")
    assert all(rule["health"] in ("ok", "unknown") and rule["state"] != "firing" for rule in group["rules"])


def test_metrics_are_well_formed(scraped):
    """promtool reads all of /metrics. It also has opinions on names: the counters of microseconds are older than the
    histograms, and llama-server's names are as dashboards made for it know them."""
    server, _ = scraped
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    done = promtool("check", "metrics", input=text)
    assert "error while linting" not in done.stderr
    for line in done.stderr.splitlines():
        assert re.match(r"hearth_\w+_us_total metric names should not contain abbreviated units|"
                        r"llamacpp:\w+ metric names should not contain ':'", line), line


def test_labels_are_bounded():
    """A client's names make no new series. (Two are there only while something runs or waits: by class and by key.)"""
    with serve("--engine", "sim", "-np", "2") as server:
        def series():
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
                return {line.rsplit(" ", 1)[0] for line in answer.read().decode().splitlines()
                        if line and line[0] != "#" and not re.match("hearth_requests_(running|waiting)", line)}
        ask(server, "word")
        before = series()
        for i in range(20):
            body = {"messages": [{"role": "user", "content": f"{i}"}], "max_tokens": 1, "model": f"model-{i}",
                    "user": f"user-{i}"}
            request = urllib.request.Request(
                f"http://127.0.0.1:{server.port}/v1/chat/completions", json.dumps(body).encode(),
                {"Content-Type": "application/json", "User-Agent": f"agent-{i}", "x-session-id": f"session-{i}"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
        assert series() == before
