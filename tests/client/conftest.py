"""Starts hearth and hands out clients.

HEARTH_BIN names the program (default build/hearth), HEARTH_MODELS the folder with the models. Servers that tests share
have one with random weights, which computes twenty times as fast as the one that tests with the mark `language` get.
`--engine sim` runs everything without a model; tests that need one are then left out. This is the default for a program that was
built with a sanitizer: what computes was not, and is slow beside it.
"""

import os
import sys

import openai
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "bench"))

import faulty  # noqa: E402
import findings  # noqa: E402
from lib import server as servers  # noqa: E402

pytest.register_assert_rewrite("ondisk")  # so that its assertions show values

# Also for programs that are started without lib/server.py: tests leave the user's own directory alone. Those that are
# about the disk name a directory with --kv-dir or a file with --session-db.
os.environ.update(servers.NO_DISK)
NEEDS_MODEL = "needs a real model"


def pytest_addoption(parser):
    parser.addoption("--engine", choices=("llama", "sim"),
                     default="sim" if servers.sanitizer() else "llama")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: more of what a shorter test does, too: `make test-long` runs it")
    config.addinivalue_line("markers", "llama: needs a real model")
    config.addinivalue_line("markers", "language: needs a model that speaks: its replies end, its calls are whole")
    config.addinivalue_line("markers", "tiny: needs one with random weights, which sanitizers hardly slow down")
    if servers.sanitizer():
        config.pluginmanager.register(findings.Findings(), "findings")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--engine") == "sim":
        skip = pytest.mark.skip(reason=NEEDS_MODEL)
        for item in items:
            if "llama" in item.keywords and not (servers.sanitizer() and "tiny" in item.keywords):
                item.add_marker(skip)


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    left_out = sum(NEEDS_MODEL in str(report.longrepr) for report in skipped)
    if left_out:
        terminalreporter.write_line(f"engine sim: {left_out} tests that need a real model are left out")


@pytest.fixture(scope="session")
def engine(pytestconfig):
    return pytestconfig.getoption("--engine")


def flags_of(engine, model):
    return ["--engine", "sim"] if engine == "sim" else ["-m", os.path.join(servers.models_dir(), f"{model}.gguf")]


@pytest.fixture(scope="session")
def engine_flags(engine):
    return flags_of(engine, "tiny")


@pytest.fixture(scope="session")
def language_flags(engine):
    return flags_of(engine, "smollm2")


def serve(*flags, **options):
    """A server with these flags, as a context manager. It computes on one thread unless they say otherwise: tests run
    side by side, and threads that share a core wait for each other."""
    threads = ["-t", "1"] if "-m" in flags and "-t" not in flags else []
    return servers.Server([servers.hearth_path(), "serve", *flags, *threads], **options)


def ended(ask, by_itself):
    """What `ask` makes of the first text that the model's reply to ends by itself. Where two tokens are about equally
    likely, how a batch was split decides between them, and one of them may send a small model rambling."""
    for text in ("Say yes.", "Say no.", "Hello!", "Good morning."):
        reply = ask(text)
        if by_itself(reply):
            break
    return reply


def sdk(server, **options):
    return openai.OpenAI(**{"base_url": f"http://127.0.0.1:{server.port}/v1", "api_key": "none", "max_retries": 0,
                            "timeout": 120, **options})


def shared(flags):
    """A server that tests share: four lanes."""
    return serve(*flags, "-c", "4096", "-np", "4", "--cache-ram", "256")


@pytest.fixture(scope="session")
def quick_server(engine_flags):
    # With random weights many tokens are about equally likely, so a split batch would change a reply.
    deterministic = ["--deterministic"] if "-m" in engine_flags else []
    with shared([*engine_flags, *deterministic]) as running, sdk(running) as running.sdk:
        yield running


@pytest.fixture(scope="session")
def language_server(language_flags):
    with shared(language_flags) as running, sdk(running) as running.sdk:
        yield running


@pytest.fixture
def server(request):
    """The server that most tests share."""
    language = request.node.get_closest_marker("language")
    return request.getfixturevalue("language_server" if language else "quick_server")


@pytest.fixture(scope="session")
def faulty_fs(tmp_path_factory):
    """The library that makes calls of a server's file system fail."""
    return faulty.library(tmp_path_factory.mktemp("faulty"), "faulty_fs")


@pytest.fixture
def client(server):
    return server.sdk


@pytest.fixture
def model(client):
    return client.models.list().data[0].id


@pytest.fixture
def chat(client, model):
    """Chat completions at temperature 0, with 16 tokens unless a test asks for something else."""
    def create(messages, **options):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return client.chat.completions.create(
            **{"model": model, "messages": messages, "temperature": 0, "max_tokens": 16, **options})
    return create
