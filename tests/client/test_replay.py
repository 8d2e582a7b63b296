"""hearth replay: traces go in, what each policy computes comes out."""

import json
import subprocess

from lib import server as servers


def session(number, turns):
    requests = [{"t": 20 * i, "in": 64 * (10 + 10 * i) + 5, "stop": "tool_use", "api_time": 3, "blocks": [[1, 10 + 10 * i]]}
                for i in range(turns)]
    return {"id": str(number), "block_size": 64, "tool_tokens": 128, "system_tokens": 64, "requests": requests}


def replay(*args):
    done = subprocess.run([servers.hearth_path(), "replay", *map(str, args)], capture_output=True, text=True, timeout=60)
    return done


def test_replay(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(session(i, 8)) + "\n" for i in range(12)))
    done = replay(trace, "--cache-tokens", "20k", "--concurrency", 6, "--json", "--svg", tmp_path / "out.svg")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["requests"] == 96
    assert found["prompt_tokens"] == 12 * sum(64 * (10 + 10 * i) + 5 for i in range(8))
    shares = {name: policy["computed_share"] for name, policy in found["policies"].items()}
    assert set(shares) == {"hearth", "lru", "gdsf", "belady", "infinite"}
    assert shares["infinite"] <= shares["belady"] <= min(shares["hearth"], shares["lru"], shares["gdsf"]) <= 1
    assert "<svg" in (tmp_path / "out.svg").read_text()
    table = replay(trace, "--cache-tokens", "20k", "--concurrency", 6, "--policy", "lru").stdout
    assert "belady" in table and "gdsf" not in table
    assert f"{100 * shares['lru']:.2f} %" in table


def test_disk(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(session(i, 8)) + "\n" for i in range(12)))
    shape = (trace, "--ram", "512M", "--concurrency", 6, "--policy", "lru", "--disk-read", "1g", "--disk-write", "1g")
    ram, both, sum_of_both = (json.loads(replay(*shape, *more, "--json").stdout)["policies"] for more in (
        (), ("--disk", "2G"), ("--disk", "2G", "--cache-tokens", "25k")))
    assert "disk" not in ram["lru"] and ram["lru"]["read_seconds"] == 0
    assert both["lru"]["disk"]["read_bytes"] > 0 and both["lru"]["disk"]["written_bytes"] > 0
    assert both["lru"]["seconds"] < ram["lru"]["seconds"]
    for found in (ram, both, sum_of_both):
        assert found["infinite"]["seconds"] <= found["belady"]["seconds"] <= found["lru"]["seconds"]
    assert both["belady"]["computed_tokens"] <= sum_of_both["belady"]["computed_tokens"]
    table = replay(*shape, "--disk", "2G", "--svg", tmp_path / "out.svg").stdout
    assert "READ s" in table and "DISK in / out" in table
    assert f"{both['lru']['computed_share']:.1%}".replace("%", " %") in (tmp_path / "out.svg").read_text()


def test_mistakes(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("no trace\n")
    assert "trace.jsonl:1: " in replay(trace).stderr
    trace.write_text(json.dumps(session(0, 1)))
    for args in (["--policy", "best"], ["--ram", "much"], ["--model-shape", "round"], ["--part", "2/2"],
                 ["--disk", "some"], ["--disk-read", "0"], ["--disk-write", "fast"], ["--import", "x"]):
        done = replay(trace, *args)
        assert done.returncode == 2 and args[1] in done.stderr
