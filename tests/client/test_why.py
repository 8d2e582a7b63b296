"""Why requests were slow: each cause is produced on purpose, and the server's verdict names it with what it cost.

All against the sim engine, whose speed is known: a prompt token takes a millisecond, a reply's token 20; a tenth of
that where only tokens are counted.
"""

import ctypes
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import pytest

import faulty
from conftest import serve
from lib import server as servers
from ondisk import QUICK_SIM, kept, wait_scanned, wait_until

RULES = "\n".join(f"Rule {i}: never touch file number {i * 7919} without asking first." for i in range(40))
SYSTEM = "You are an agent.\nBe careful with files.\nToday: {}\n" + RULES
FIRST = "Look at all of the files in this folder and tell me what you see in each of them."


@pytest.fixture(scope="module")
def sim():
    with serve("--engine", "sim", "-np", "1", "-c", "16384", "--cache-ram", "256") as server:
        yield server


@pytest.fixture(scope="module")
def quick():
    """A template that prints tools and calls, and the speed at which only tokens count."""
    template = os.path.join(os.path.dirname(__file__), "thinking.jinja")
    with serve(*QUICK_SIM, "-np", "1", "-c", "16384", "--cache-ram", "256", "--chat-template-file", template) as server:
        yield server


def url(server):
    return f"http://127.0.0.1:{server.port}"


def get(server, path, status=200):
    try:
        with urllib.request.urlopen(url(server) + path, timeout=60) as answer:
            assert answer.status == status
            return json.load(answer)
    except urllib.error.HTTPError as error:
        assert error.code == status, error.read()
        return json.load(error)


def ask(server, messages, client="test-agent/1.0 (why)", **body):
    """A chat; returns its reply and what is kept of it, without verdicts that a busy machine may add."""
    request = urllib.request.Request(
        url(server) + "/v1/chat/completions",
        json.dumps({"messages": messages, "max_tokens": 4, "temperature": 0, **body}).encode(),
        {"Content-Type": "application/json", "User-Agent": client})
    with urllib.request.urlopen(request, timeout=120) as answer:
        identity = answer.headers["X-Request-Id"]
        reply = json.load(answer)["choices"][0]["message"]
    report = kept(server, identity)
    report["verdicts"] = [verdict for verdict in report["verdicts"] if verdict["cause"] not in ("preparing", "workers")]
    return reply, report


def cause(report):
    return report["verdicts"][0]["cause"] if report["verdicts"] else None


def about(verdict, tokens):
    """Within a tenth."""
    assert abs(verdict["tokens"] - tokens) <= tokens / 10, (verdict, tokens)


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def begin(server, name, **body):
    """A conversation of one turn, with a head that no other one has."""
    history = [system(SYSTEM.format(name)), user(FIRST)]
    reply, report = ask(server, history, **body)
    return [*history, reply], report


def tools(*names):
    return [{"type": "function", "function": {
        "name": name, "description": f"What {name} does is told in this sentence, which is long enough to be seen.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string", "description": f"of {name}"}}}}}
        for name in names]


def test_a_new_conversation(sim):
    _, report = begin(sim, "the first")
    assert report["reason"] == "cold"
    assert cause(report) == "new_conversation"
    assert report["client"] == "test-agent/1.0"
    about(report["verdicts"][0], report["tokens"]["computed"])


def test_a_new_conversation_over_what_all_begin_with(sim):
    """System text and tools are reused, and nothing behind them is in both: that is no divergence."""
    shared = [system(SYSTEM.format("shared by all"))]
    ask(sim, [*shared, user("One of them. " + FIRST)], tools=tools("read_file"))
    _, report = ask(sim, [*shared, user("Another one. " + FIRST)], tools=tools("read_file"))
    assert report["reason"] == "cold" and report["verdicts"] == [], report
    assert report["tokens"]["computed"] < 100


def test_another_question_goes_on_from_what_is_known(sim):
    history, _ = begin(sim, "another question")
    ask(sim, [*history, user("What is in the first of them?")])
    _, report = ask(sim, [*history, user("No: in the last of them?")])
    assert report["reason"] == "extended" and report["verdicts"] == [], report


def test_a_good_turn_has_no_verdict(sim):
    history, _ = begin(sim, "good")
    _, report = ask(sim, [*history, user("Go on.")])
    assert report["reason"] == "extended"
    assert report["verdicts"] == []


def test_a_volatile_line(sim):
    history, before = begin(sim, "2026-11-24 10:00")
    history[0] = system(SYSTEM.format("2026-11-25 11:30"))
    _, report = ask(sim, [*history, user("Go on.")])
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "volatile_line"
    assert "line 3 of the system text" in verdict["text"] and "Today: 2026-11-25 11:30" in verdict["text"]
    assert "--strip-line '^Today:'" in verdict["advice"]
    about(verdict, before["tokens"]["prompt"] - report["divergence"]["token"])
    # What the verdict says of the fix is true.
    with serve("--engine", "sim", "-np", "1", "--strip-line", "^Today:") as server:
        history, _ = begin(server, "2026-11-24 10:00")
        history[0] = system(SYSTEM.format("2026-11-25 11:30"))
        _, fixed = ask(server, [*history, user("Go on.")])
    assert fixed["reason"] == "extended" and fixed["verdicts"] == []
    about(verdict, report["tokens"]["computed"] - fixed["tokens"]["computed"])


def test_two_volatile_lines(sim):
    """Each alone would save only what stands before the other: both are proposed, and both together save it."""
    text = "You are an agent.\nIt's {} o'clock.\n" + RULES + "\nOpen files: {}\nAnswer briefly, and never guess at a name."

    def turns(server):
        history = [system(text.format(10, 3)), user(FIRST)]
        reply, _ = ask(server, history)
        return ask(server, [system(text.format(11, 7)), user(FIRST), reply, user("Go on.")])[1]
    report = turns(sim)
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "volatile_line", report
    options = shlex.split(re.match(r"`(.*?)` would have saved", verdict["advice"])[1])
    assert options == ["--strip-line", "^It.s", "--strip-line", "^Open files:"]
    with serve("--engine", "sim", "-np", "1", *options) as server:
        fixed = turns(server)
    assert fixed["reason"] == "extended" and fixed["verdicts"] == []
    about(verdict, report["tokens"]["computed"] - fixed["tokens"]["computed"])


def test_many_volatile_lines(sim):
    names = ("Time", "Load", "Battery", "Open files", "Branch")

    def text(*values):
        return system("You are an agent.\n" + "".join(f"{name}: {value}\nSome words that stand between this and that.\n"
                                                      for name, value in zip(names, values)) + RULES)
    history = [text("10:00", 0.5, 80, 3, "main"), user(FIRST)]
    reply, before = ask(sim, history)
    _, report = ask(sim, [text("10:05", 0.7, 79, 4, "fix"), user(FIRST), reply, user("Go on.")])
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "volatile_line" and ", and 4 more behind it" in verdict["text"], report
    about(verdict, before["tokens"]["prompt"] - report["divergence"]["token"])
    assert [line["strip_line"] for line in get(sim, f"/requests/{report['id']}")["divergence"]["lines"]] \
        == [f"^{name}:" for name in names]


def test_the_list_below_a_heading(quick):
    """As the status of a repository, which some agents put into their system text."""
    text = "gitStatus: as it was when the conversation began.\nCurrent branch: main\n\nStatus:\n{}\n\nRecent commits:\n{}\n\n"

    def turns(server):
        history = [system(text.format("(clean)", "1a2b3c4 one") + RULES), user(FIRST)]
        reply, _ = ask(server, history, tools=tools("read_file"))
        history[0] = system(text.format("M a.c\n M b.c\n?? c.c", "0c0ffee another\n1a2b3c4 one") + RULES)
        return ask(server, [*history, reply, user("Go on.")], tools=tools("read_file"))[1]
    report = turns(quick)
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "volatile_line" and "lines 5 to 10 of the system text changed" in verdict["text"], report
    options = shlex.split(re.search(r"`(.*?)` would have saved", verdict["advice"])[1])
    assert options == ["--strip-paragraph", "^Status:$|^Recent commits:$"], options
    with serve(*QUICK_SIM, "-np", "1", *options) as server:
        fixed = turns(server)
    assert fixed["reason"] == "extended" and fixed["verdicts"] == []
    about(verdict, report["tokens"]["computed"] - fixed["tokens"]["computed"])


def test_the_lines_of_a_status(sim):
    """A few lines in a row are others, and no heading says what ends where: no pattern takes them out, so none is
    proposed."""
    status = "Git status:\n{}\nThat is the end of what is known of this folder and of its branch.\n"
    history = [system(status.format(" M a.c\n?? notes.txt") + RULES), user(FIRST)]
    reply, before = ask(sim, history)
    history = [system(status.format(" M a.c\n M b.c\n M c.c") + RULES), user(FIRST), reply, user("Go on.")]
    _, report = ask(sim, history)
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "volatile_line", report
    assert "lines 3 to 4 of the system text changed (`M b.c`)" in verdict["text"]
    assert "newest message" in verdict["advice"] and "REGEX" not in verdict["advice"]
    about(verdict, before["tokens"]["prompt"] - report["divergence"]["token"])


def test_another_client_with_the_same_rules(sim):
    """It has no tools: that is no change of tools, but another conversation."""
    rules = [system(SYSTEM.format("several agents"))]
    ask(sim, [*rules, user("One agent with tools. " + FIRST)], tools=tools("read_file", "write_file"))
    _, report = ask(sim, [*rules, user("Another one without. " + FIRST)])
    assert report["reason"] == "cold" and report["verdicts"] == [], report


def test_a_line_that_another_client_has_already(sim):
    """A conversation is explained by its own earlier prompt, also where another one goes along with it for longer."""
    def text(minute):
        return system(f"It is 10:{minute} now.\n" + RULES)
    history = [text("21"), user(FIRST + RULES)]
    reply, before = ask(sim, history)
    ask(sim, [text("27"), user("Another conversation, which is short.")])
    _, report = ask(sim, [text("27"), user(FIRST + RULES), reply, user("Go on.")])
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "volatile_line" and "It is 10:27 now." in verdict["text"], report
    about(verdict, before["tokens"]["prompt"] - report["tokens"]["matched"])
    assert verdict["tokens"] < before["tokens"]["prompt"] * 0.6


def test_details_that_move_to_the_newest_message(sim):
    """They are new in any case, so nothing would have been saved."""
    history = [system(SYSTEM.format("details"))]
    for i in range(3):
        reply, report = ask(sim, [*history, user(f"Step {i}.\n<details>\n{RULES}\ntime {i}\n</details>")])
        history += [user(f"Step {i}."), reply]
    assert report["reason"] == "extended" and cause(report) == "new_text", report


def test_an_edited_message(sim):
    history, _ = begin(sim, "edited")
    for text in ("What is in the first file? " + RULES, "And in the second one?"):
        reply, before = ask(sim, [*history, user(text)])
        history += [user(text), reply]
    history[3] = user("What is in the last file? " + RULES)
    _, report = ask(sim, [*history, user("Go on.")])
    assert cause(report) == "edited_message"
    assert "message 3" in report["verdicts"][0]["text"]
    about(report["verdicts"][0], before["tokens"]["prompt"] - report["divergence"]["token"])


@pytest.mark.parametrize("lines", [1, 30])
def test_a_system_text_that_is_replaced(sim, lines):
    """That is no changed line, and no pattern takes it out. Left as it was, all but the newest message is known."""
    def text(word):
        return system(("\n" if lines > 1 else " ").join(f"{word} {i}, as it is said of {word} number {i * 37}." for i in range(30)))
    history = [text(f"Wind {lines}"), user(FIRST)]
    for i in range(2):
        reply, _ = ask(sim, history)
        history += [reply, user(f"Go on with the next of them, which is number {i}. " + RULES[:900])]
    _, good = ask(sim, [*history[:-1], user("Then do another thing.")])
    _, report = ask(sim, [text("Rain"), *history[1:-1], user("Then do another thing.")])
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "edited_message" and "all of the system text changed (`Wind" in verdict["text"], report
    assert "keep one system text" in verdict["advice"], verdict
    about(verdict, report["tokens"]["computed"] - good["tokens"]["computed"])


def test_a_reminder_in_an_earlier_message(sim):
    """As coding agents put into the first message: the line is told, and not the whole message."""
    def first(date):
        return user(f"<system-reminder>\n{RULES}\nToday's date is {date}.\nMind it.\n</system-reminder>\n{FIRST}\n{RULES}")
    history = [system("You are an agent. " + RULES), first("2026-11-24")]
    reply, before = ask(sim, history)
    _, report = ask(sim, [history[0], first("2026-11-25"), reply, user("Go on.")])
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "edited_message", report
    assert "line 42 of message 1 (user) changed (`Today's date is 2026-11-24.` became `Today's date is 2026-11-25.`)" \
        in verdict["text"]
    about(verdict, before["tokens"]["prompt"] - report["divergence"]["token"])


def test_calls_that_are_written_in_another_way(sim):
    """The client prints the arguments anew: the same keys, in another order."""
    def history(arguments):
        call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        return [system(SYSTEM.format("calls")), user(FIRST), {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": RULES}]
    one = history('{"path": "a", "lines": 3}')
    reply, before = ask(sim, one, tools=tools("read_file"))
    _, report = ask(sim, [*history('{"lines": 3, "path": "a"}'), reply, user("Go on.")], tools=tools("read_file"))
    assert cause(report) == "calls_reprinted" and "message 2 (assistant)" in report["verdicts"][0]["text"], report
    about(report["verdicts"][0], before["tokens"]["prompt"] - report["divergence"]["token"])


@pytest.mark.parametrize("kept", [0, 2])
def test_a_client_that_compacts(sim, kept):
    """It has the conversation summarised, and goes on from that, with the last messages or without them."""
    history, _ = begin(sim, f"compacted {kept}", max_tokens=40, ignore_eos=True)
    for i in range(3):
        history.append(user(f"Step {i}. " + FIRST))
        history.append(ask(sim, history, max_tokens=40, ignore_eos=True)[0])
    summary, _ = ask(sim, [*history, user("Summarise all of it.")], max_tokens=100, ignore_eos=True)
    begins = [history[0], user("The conversation is continued. What happened before:\n" + summary["content"])]
    _, report = ask(sim, [*begins, *history[len(history) - kept:], user("Go on.")])
    assert cause(report) == "compacted", report
    about(report["verdicts"][0], report["tokens"]["computed"])


def test_an_edit_between_replies_that_say_the_same(sim):
    """Nothing has gone: that is an edited message, and no compaction."""
    history = [system(SYSTEM.format("the same replies")), user(FIRST)]
    for text in ("Go on.", "Go on again.", "And again."):
        history += [{"role": "assistant", "content": "I have done what you wanted me to do, and all of it is well."}, user(text)]
        ask(sim, history)
    _, report = ask(sim, [history[0], user(FIRST.replace("folder", "place")), *history[2:]])
    assert cause(report) == "edited_message", report


def test_a_task_of_another_agent_is_no_compaction(sim):
    """A short conversation's reply that another one begins with."""
    history, _ = begin(sim, "gives a task", max_tokens=60, ignore_eos=True)
    _, report = ask(sim, [history[0], user("Do this: " + history[-1]["content"] + RULES)])
    assert cause(report) == "new_conversation", report


@pytest.mark.parametrize("change", ["dropped", "inserted"])
def test_messages_that_move(sim, change):
    history, _ = begin(sim, change)
    for text in ("One thing that I want to know first: what is the name of it all?", "Then tell me more. " + RULES):
        reply, before = ask(sim, [*history, user(text)])
        history += [user(text), reply]
    if change == "dropped":
        del history[3:5]
    else:
        history[3:3] = [user("A hint that comes from the side: mind the time of the day."), history[2]]
    _, report = ask(sim, [*history, user("Go on.")])
    assert cause(report) == "messages_moved", report
    assert report["divergence"]["cause"] == change


def test_messages_in_another_order(quick):
    history = [system(SYSTEM.format("order")), user("The first text.\n" + RULES[:900])]
    for text in ("The second text.\n" + RULES[900:1800], "What is in them?"):
        reply, _ = ask(quick, history)
        history += [reply, user(text)]
    ask(quick, history)
    history[1], history[3] = history[3], history[1]
    _, report = ask(quick, history)
    verdict = report["verdicts"][0]
    assert cause(report) == "messages_moved" and report["divergence"]["cause"] == "moved", report
    assert "put messages in another order, from message 1 (user) on" in verdict["text"]
    about(verdict, report["tokens"]["computed"])


@pytest.mark.parametrize("cut", [12, 30], ids=["few", "many"])
def test_parts_in_another_order(quick, cut):
    """As documents that are found anew for each request: no line came in, and no pattern takes it out."""
    lines = [f"Paper {i}: in part {i * 31} it says what part {i * 17} has to say." for i in range(cut + 20)]

    def text(*parts):
        return system(f"What is found for {cut}:\n\n" + "\n\n".join("\n".join(part) for part in parts))
    history = [text(lines[:cut], lines[cut:]), user(FIRST)]
    reply, before = ask(quick, history)
    _, report = ask(quick, [text(lines[cut:], lines[:cut]), user(FIRST), reply, user("Go on.")])
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "edited_message" and "the lines of the system text stand in another order" in verdict["text"], report
    assert f"Paper {cut}:" in verdict["text"] and "`Paper 0:" in verdict["text"] and "--strip" not in verdict["advice"], verdict
    about(verdict, before["tokens"]["prompt"] - report["divergence"]["token"])


def call(name, words="Let me look at that."):
    """A call of a tool, and its result."""
    return [{"role": "assistant", "content": words, "tool_calls": [
                {"id": f"call_{name}", "type": "function", "function": {"name": "read_file", "arguments": f'{{"path": "{name}"}}'}}]},
            {"role": "tool", "tool_call_id": f"call_{name}", "content": f"What {name} says. " + RULES}]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_calls_that_are_dropped(quick, joined, last):
    """With their results; the words beside them stay, and may have become one message with the reply behind them."""
    history = [system(SYSTEM.format(f"calls dropped {joined} {last}")), user(FIRST), *call("a"), *call("b")]
    reply, _ = ask(quick, history, tools=tools("read_file"), max_tokens=100, ignore_eos=True)
    if not last:
        history += [reply, user("What else is there?")]
        reply, _ = ask(quick, history, tools=tools("read_file"))
    del history[4 if last else 2]["tool_calls"], history[5 if last else 3]
    if joined:
        words, behind = (history.pop(4), reply) if last else (history.pop(2), history[2])
        behind["content"] = f"{words['content']}\n{behind['content'] or ''}"
    _, report = ask(quick, [*history, reply, user("Go on.")], tools=tools("read_file"))
    assert cause(report) == "messages_moved", report
    assert report["tokens"]["computed"] * 0.8 < report["verdicts"][0]["tokens"] <= report["tokens"]["computed"]


def test_two_conversations_of_one_task(quick):
    """Another conversation has the newest messages of this one; what has changed is told by its own."""
    def history(name):
        return [system(SYSTEM.format(name)), user(FIRST), *call("a"), *call("b")]
    ask(quick, [*history("the second"), *call("c")[:1]], tools=tools("read_file"))
    reply, _ = ask(quick, history("the first"), tools=tools("read_file"))
    edited = history("the first")
    edited[3]["content"] = "What a says is no longer kept."
    _, report = ask(quick, [*edited, reply, user("Go on.")], tools=tools("read_file"))
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "edited_message" and "message 3 (tool)" in verdict["text"], report
    about(verdict, report["tokens"]["computed"])


def test_two_programs_with_one_task(quick):
    """Both are asked the same, read the same file and answer the same; what has changed is told by the own prompt."""
    def history(name, line):
        return [system(f"You are {name}, an agent.\nFree memory: {line} MB\n" + RULES), user(FIRST), *call("the same")]
    reply, _ = ask(quick, history("tom", 8100), client="tom/1.0", tools=tools("read_file"))
    ask(quick, history("ann", 7000), client="ann/1.0", tools=tools("read_file"))
    _, report = ask(quick, [*history("tom", 8040), reply, user("Go on.")], client="tom/1.0", tools=tools("read_file"))
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "volatile_line" and "line 2 of the system text changed (`Free memory: 8040 MB`)" in verdict["text"], report
    assert "`--strip-line '^Free memory:'` would have saved" in verdict["advice"], verdict


@pytest.mark.parametrize("others", [None, ("read_file",), ("read_file", "write_file")])
def test_another_program_with_most_of_the_same_rules(quick, others):
    """A line of its prompt says what it is for: that is no volatile line, whatever tools it has."""
    text = f"You are one of the programs with {others}.\n{{}}\n{RULES}"
    ask(quick, [system(text.format("You write code, and you run it.")), user(FIRST)], tools=tools("read_file", "write_file"))
    _, report = ask(quick, [system(text.format("Titles of conversations are what you find.")), user(f"A title for: {FIRST}")],
                    **({"tools": tools(*others)} if others else {}))
    assert report["reason"] == "cold" and cause(report) in ("new_conversation", None), report


def test_a_date_in_the_next_conversation(quick):
    """Of the same program, which has the same tools; the advice leaves it to the user whether the line is needed."""
    text = f"You are an agent that knows the day.\nToday: {{}}\n{RULES}"
    _, before = ask(quick, [system(text.format("Tuesday")), user(FIRST)], tools=tools("read_file"))
    _, report = ask(quick, [system(text.format("Wednesday")), user("Another thing.")], tools=tools("read_file"))
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "volatile_line" and "is not that of an earlier prompt" in verdict["text"], report
    assert "where the model can do without it, `--strip-line '^Today:'`" in verdict["advice"]
    about(verdict, report["tokens"]["prompt"] - report["divergence"]["token"])


@pytest.mark.parametrize("now", [("write_file", "read_file"), ("read_file",)], ids=["order", "fewer"])
def test_tools_that_change(sim, now):
    history, before = begin(sim, f"tools {len(now)}", tools=tools("read_file", "write_file"))
    _, report = ask(sim, [*history, user("Go on.")], tools=tools(*now))
    if report["verdicts"]:
        assert cause(report) == "tools_changed", report
        assert report["divergence"]["field"] == "tools"
        assert "`write_file` is gone" in report["verdicts"][0]["text"]
    else:  # the tools were put back in the order that they were first printed in
        assert report["tokens"]["computed"] < before["tokens"]["computed"] / 4


def test_a_template_that_rewrites(tmp_path):
    """Thinking is printed until the next user message comes, and then left out of what stands before it."""
    template = os.path.join(os.path.dirname(__file__), "thinking.jinja")
    with serve("--engine", "sim", "-np", "1", "-c", "16384", "--chat-template-file", template) as server:
        call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}
        history = [system(SYSTEM.format("thinking")), user(FIRST),
                   {"role": "assistant", "reasoning_content": "I had better look at the first file of all. " * 8,
                    "content": "", "tool_calls": [call]},
                   {"role": "tool", "tool_call_id": "call_1", "content": RULES}]
        reply, _ = ask(server, history, tools=tools("read_file"))
        _, report = ask(server, [*history, reply, user("Go on.")], tools=tools("read_file"))
    assert cause(report) == "template_rewrites", report
    verdict = report["verdicts"][0]
    about(verdict, report["tokens"]["computed"])
    assert "--keep-thinking" in verdict["advice"]


def test_other_template_arguments(tmp_path):
    """A template that prints one of them at the beginning, and a client that changes it in the middle."""
    template = tmp_path / "effort.jinja"
    template.write_text(
        "{{- '<|im_start|>system\\nEffort: ' + (effort or 'any') + '\\n' + messages[0].content + '<|im_end|>\\n' -}}"
        "{%- for message in messages[1:] -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
        "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}")
    with serve(*QUICK_SIM, "-np", "1", "-c", "16384", "--chat-template-file", str(template)) as server:
        history, before = begin(server, "effort", chat_template_kwargs={"effort": "low"})
        _, report = ask(server, [*history, user("Go on.")], chat_template_kwargs={"effort": "high"})
    assert cause(report) == "arguments_changed", report
    about(report["verdicts"][0], before["tokens"]["prompt"] - report["tokens"]["matched"])


@pytest.mark.llama
@pytest.mark.tiny
def test_no_snapshot_there():
    """A model with recurrent layers, and a long message that changes in its middle."""
    model = os.path.join(servers.models_dir(), "tiny-hybrid.gguf")

    def turn(*flags):
        with serve("-m", model, "-np", "1", "-c", "16384", *flags) as server:
            ask(server, [user(RULES + " And that is all of them.")])
            return ask(server, [user(RULES[:-200] + " And those are not all of them.")])[1]
    report = turn()
    assert report["reason"] == "no_snapshot" and cause(report) == "no_snapshot", report
    verdict = report["verdicts"][0]
    about(verdict, report["tokens"]["matched"] - sum(report["tokens"]["reused"].values()))
    found = re.search(r"`--snapshot-interval (\d+)` instead of \d+ would have saved ([\d,]+) tokens", verdict["advice"])
    fixed = turn("--snapshot-interval", found[1])
    saved = report["tokens"]["computed"] - fixed["tokens"]["computed"]
    assert int(found[2].replace(",", "")) == pytest.approx(saved, rel=0.1), (verdict, fixed)


PROCESS_MADVISE, MADV_PAGEOUT = 440, 21
COLD_FAULTS, COLD_MS = 128, 300  # with fewer the machine's disk is too fast for a cold model to be felt


def page_out(pid, path):
    """Has the system take the pages of a file out of a process and out of RAM. False: it may not, or does not."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        spans = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(str(path))]
    process, file = os.pidfd_open(pid), os.open(path, os.O_RDONLY)
    try:
        for begin, end in spans:
            span = (ctypes.c_size_t * 2)(int(begin, 16), int(end, 16) - int(begin, 16))
            if ctypes.CDLL(None).syscall(PROCESS_MADVISE, process, span, ctypes.c_size_t(1), MADV_PAGEOUT, 0) < 0:
                return False
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        return bool(spans)
    finally:
        os.close(process)
        os.close(file)


def faults_of(pid):
    """How often the process has waited for a page that had to be read from disk."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[9])


@pytest.mark.long  # whether a disk can be felt is the machine's
@pytest.mark.llama
@pytest.mark.tiny
def test_a_cold_model(tmp_path):
    """The system takes the model's pages out again and again while a prompt is computed."""
    model = tmp_path / "model.gguf"
    shutil.copy(os.path.join(servers.models_dir(), "tiny.gguf"), model)
    os.sync()
    with serve("-m", str(model), "-np", "1", "-c", "8192", "--no-repack") as server:
        pid, over = server.process.pid, threading.Event()
        usual = ask(server, [user("What is usual. " + RULES * 2)])[1]
        if not page_out(pid, model):
            pytest.skip("the system does not take pages out when it is told to")

        def keep_out():
            while not over.is_set():
                page_out(pid, model)
        thread, before = threading.Thread(target=keep_out), faults_of(pid)
        thread.start()
        try:
            _, report = ask(server, [user("Something else. " + RULES * 2)])
        finally:
            over.set()
            thread.join()
        faults = faults_of(pid) - before
    if faults < COLD_FAULTS or report["ms"]["prefill"] < usual["ms"]["prefill"] + COLD_MS:
        pytest.skip(f"the disk gave {faults} pages back too quickly to be felt")
    cold = {verdict["cause"]: verdict for verdict in report["verdicts"]}.get("cold_model")
    assert cold and "pages were read from disk" in cold["text"] and "--mlock" in cold["advice"], report
    assert cold["lost_ms"] <= report["ms"]["prefill"]


def test_no_cache(sim):
    history, _ = begin(sim, "no cache")
    _, report = ask(sim, [*history, user("Go on.")], cache_prompt=False)
    assert cause(report) == "cache_off"


def test_queued(sim):
    """One lane: the second request waits for the first one's reply."""
    history, _ = begin(sim, "queued")
    _, report = together(
        sim, lambda: ask(sim, [*history, user("Tell me a long story.")], max_tokens=60, ignore_eos=True),
        lambda: ask(sim, [*history, user("A short one.")], max_tokens=1))
    assert cause(report) == "queued"
    assert "behind 1 other request (when it came, running or waiting: 1 of test-agent/1.0)" in report["verdicts"][0]["text"]
    assert report["verdicts"][0]["lost_ms"] == pytest.approx(report["waits_ms"]["lane"], rel=0.01)
    parts_add_up(report)


def together(server, *asks, apart_s=0.2):
    """Asks one after the other, each a moment after the server has taken the one before it, whose reply is not waited for;
    returns what is kept of each. Without a time between them all are asked at once."""
    reports = [None] * len(asks)

    def run(i, one):
        reports[i] = one()[1]

    threads = []
    for i, one in enumerate(asks):
        threads.append(threading.Thread(target=run, args=(i, one)))
        threads[-1].start()
        if apart_s > 0:
            wait_until(lambda: taken(server) > i or not threads[-1].is_alive(), "it is taken")
            time.sleep(apart_s)
    for thread in threads:
        thread.join()
    return reports


def taken(server):
    """How many requests are computed or wait."""
    metrics = server.client.metrics()
    return metrics["llamacpp:requests_processing"] + metrics["llamacpp:requests_deferred"]


def parts_add_up(report):
    """What is told of the time before the first token is all of it, but for a moment."""
    ms = report["ms"]
    parts = sum(ms[name] for name in ("prepare", "queue", "plan", "restore", "prefill"))
    assert ms["ttft"] == pytest.approx(parts, rel=0.03, abs=100), ms


def test_waiting_for_the_same_beginning():
    with serve("--engine", "sim", "-np", "2", "-c", "16384") as server:
        system_text = system(SYSTEM.format("both") + RULES)
        first, second = together(server, lambda: ask(server, [system_text, user("One.")]),
                                 lambda: ask(server, [system_text, user("Two.")]))
    assert cause(first) == "new_conversation"
    assert cause(second) == "same_prefix", second
    verdict = second["verdicts"][0]
    assert verdict["lost_ms"] == pytest.approx(second["waits_ms"]["prefix"], rel=0.01)
    assert f"took {sum(second['tokens']['reused'].values()):,} tokens from it" in verdict["text"]
    parts_add_up(second)


def test_short_of_cells():
    with serve("--engine", "sim", "-np", "4", "-c", "4096") as server:
        def one(name):
            return lambda: ask(server, [system(f"{name}. " + RULES), user("Go.")], max_tokens=200,
                               ignore_eos=True)
        reports = together(server, one("A"), one("B"), one("C"))
    waited = [report for report in reports if report["waits_ms"].get("cells", 0) > 0]
    assert waited, reports
    for report in waited:
        verdict = report["verdicts"][0]
        if verdict["cause"] != "short_of_cells":
            verdict = report["verdicts"][1]
        assert verdict["cause"] == "short_of_cells", report
        assert "`--ctx-size 8192` instead of 4096" in verdict["advice"], verdict
        parts_add_up(report)
    # What the verdict says of the fix is true.
    with serve("--engine", "sim", "-np", "4", "-c", "8192") as server:
        reports = together(server, one("A"), one("B"), one("C"))
    assert not any("cells" in report["waits_ms"] for report in reports)


def test_preempted(sim):
    history, _ = begin(sim, "preempted")
    slow, quick = together(
        sim, lambda: ask(sim, [*history, user("Take your time.")], max_tokens=100, ignore_eos=True, priority="background"),
        lambda: ask(sim, [*history, user("At once.")], max_tokens=20, ignore_eos=True))
    assert slow["preemptions"] == 1 and slow["class"] == "background", slow
    preempted = [verdict for verdict in slow["verdicts"] if verdict["cause"] == "preempted"]
    assert preempted and preempted[0]["lost_ms"] == pytest.approx(slow["waits_ms"]["preempted"], rel=0.01)
    parts_add_up(slow)
    parts_add_up(quick)


def test_others_computed_at_the_same_time():
    """A long prompt beside a reply: both take longer, and both are told of it."""
    with serve("--engine", "sim", "-np", "2", "-c", "16384") as server:
        ask(server, [user("Learn how fast a reply is.")], max_tokens=20, ignore_eos=True)
        reply, prompt = together(server, lambda: ask(server, [user("Tell me something.")], max_tokens=30, ignore_eos=True),
                                 lambda: ask(server, [user(FIRST + RULES)], max_tokens=2))
        shared = {verdict["cause"]: verdict for verdict in reply["verdicts"]}["shared"]
        assert shared["lost_ms"] == pytest.approx(reply["ms"]["beside"], rel=0.01)
        alone = ask(server, [user("Tell me another thing.")], max_tokens=30, ignore_eos=True)[1]
        assert shared["lost_ms"] == pytest.approx(reply["ms"]["total"] - alone["ms"]["total"], rel=0.5)
    parts_add_up(prompt)


def by_hand(server, head, rest, wait, read, path="/v1/chat/completions"):
    """A request whose body comes `wait` seconds after its head, and whose answer `read` takes from the socket."""
    body = json.dumps(rest).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall((f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                        f"Connection: close\r\n{head}Content-Length: {len(body)}\r\n\r\n").encode())
    connection.sendall(body[:10])
    time.sleep(wait)
    connection.sendall(body[10:])
    answer = read(connection)
    connection.close()
    return kept(server, re.search(rb"(?i)x-request-id: (\S+)", answer)[1].decode())


def read_all(connection):
    answer = b""
    while more := connection.recv(65536):
        answer += more
    return answer


def test_a_slow_upload(sim):
    report = by_hand(sim, "", {"messages": [user("Slowly.")], "max_tokens": 2}, 1, read_all)
    assert cause(report) == "slow_upload", report
    assert report["verdicts"][0]["lost_ms"] > 900


def test_a_client_that_reads_slowly(sim):
    def read_late(connection):
        time.sleep(2)
        return read_all(connection)
    report = by_hand(sim, "", {"messages": [user("Tell me all.")], "max_tokens": 120, "ignore_eos": True, "stream": True,
                               "logprobs": True, "top_logprobs": 5, "temperature": 0}, 0, read_late)
    slow = {verdict["cause"]: verdict for verdict in report["verdicts"]}["slow_reader"]
    assert 1000 < slow["lost_ms"] <= report["ms"]["total"]


@pytest.mark.parametrize("path, rest", [
    ("/v1/messages", {"model": "sim", "messages": [user("Tell me all.")], "max_tokens": 500}),
    ("/v1/responses", {"input": "Tell me all.", "max_output_tokens": 500, "store": False})], ids=["messages", "responses"])
def test_a_client_that_reads_slower_than_a_quick_model_writes(quick, path, rest):
    """Tokens come quicker than a client that keeps up may take: what is left unread grows, a little at a time."""
    def read_late(connection):
        time.sleep(1)
        return read_all(connection)
    report = by_hand(quick, "", {**rest, "ignore_eos": True, "stream": True, "temperature": 0}, 0, read_late, path)
    slow = {verdict["cause"]: verdict for verdict in report["verdicts"]}.get("slow_reader")
    assert slow and 200 < slow["lost_ms"] <= report["ms"]["total"], report


def test_a_client_that_gives_up(sim):
    """Its time limit is named, and what was computed until then serves the next try."""
    body = {"messages": [user("Be quick. " + RULES * 3)], "max_tokens": 2}
    call = urllib.request.Request(url(sim) + "/v1/chat/completions", json.dumps(body).encode(),
                                  {"Content-Type": "application/json", "User-Agent": "impatient/1.0"})
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(call, timeout=1).read()
    wait_until(lambda: get(sim, "/requests?client=impatient/1.0")["data"])
    report = get(sim, "/requests?client=impatient/1.0")["data"][0]
    assert cause(report) == "client_left" and report["end"] == "gone", report
    assert report["tokens"]["computed"] < report["tokens"]["prompt"]
    assert "if that was its time limit, a longer one" in report["verdicts"][0]["advice"]
    _, again = ask(sim, body["messages"], max_tokens=2)
    assert sum(again["tokens"]["reused"].values()) >= report["tokens"]["computed"] // 2


def test_a_long_reply(sim):
    history, _ = begin(sim, "long reply")
    _, report = ask(sim, [*history, user("Tell me a long story.")], max_tokens=100, ignore_eos=True)
    assert cause(report) == "long_reply", report
    assert "100 tokens" in report["verdicts"][0]["text"]


def test_much_new_text(sim):
    history, _ = begin(sim, "new text")
    _, report = ask(sim, [*history, user("Here are more rules. " + RULES.replace("Rule", "Law"))])
    assert cause(report) == "new_text"
    about(report["verdicts"][0], report["tokens"]["computed"])


def evict(*flags, others=4):
    """Conversations, one after the other; then the first goes on. What is kept of its first and second turn."""
    with serve(*QUICK_SIM, "-np", "1", "-c", "16384", *flags) as server:
        def first(name):
            history = [system(SYSTEM.format(name)), user(FIRST + RULES * 4)]
            reply, report = ask(server, history)
            return [*history, reply], report
        history, before = first("one")
        for i in range(others):
            first(f"other {i}")
        return before, ask(server, [*history, user("Go on.")])[1]


def test_evicted():
    """A MiB of RAM holds 15,000 tokens of the simulated model; five conversations take turns."""
    before, report = evict("--cache-ram", "1")
    assert before["tokens"]["prompt"] > 6000, before
    assert report["reason"] == "evicted", report
    assert cause(report) == "evicted"
    verdict = report["verdicts"][0]
    about(verdict, report["tokens"]["prompt"] - sum(report["tokens"]["reused"].values()))
    needed = int(re.search(r"`--cache-ram (\d+)` instead of 1 would have kept it", verdict["advice"])[1])
    assert needed == 3
    # What the verdict says of the fix is true.
    _, report = evict("--cache-ram", str(needed))
    assert report["reason"] == "extended" and report["verdicts"] == []


def test_a_prompt_that_RAM_never_took():
    """One that takes more than all of it is kept in part only."""
    def turns(*flags):
        with serve(*QUICK_SIM, "-np", "1", "-c", "32768", *flags) as server:
            ask(server, [user("What was there before. " + RULES * 3)])
            history = [system(SYSTEM.format("huge")), user(FIRST + RULES * 12)]
            reply, _ = ask(server, history)
            ask(server, [user("Something else. " + RULES)])
            return ask(server, [*history, reply, user("Go on.")])[1]
    report = turns("--cache-ram", "1")
    assert report["reason"] == "evicted" and cause(report) == "evicted", report
    verdict = report["verdicts"][0]
    about(verdict, report["tokens"]["computed"])
    needed = int(re.search(r"`--cache-ram (\d+)` instead of 1", verdict["advice"])[1])
    report = turns("--cache-ram", str(needed))
    assert report["reason"] == "extended" and report["verdicts"] == [], report


@pytest.mark.long
def test_evicted_from_disk(tmp_path):
    """Which of five conversations has to go is the policy's to say."""
    def turns(disk, name):
        with serve("--engine", "sim", "--sim-speed", "10", "-np", "1", "-c", "16384", "--cache-ram", "1", "--kv-disk", disk,
                   "--kv-dir", str(tmp_path / name)) as server:
            histories = [[system(SYSTEM.format(f"disk {i}")), user(FIRST + RULES * 4)] for i in range(5)]
            for history in histories:
                history += [ask(server, history)[0], user("Go on.")]
            return [ask(server, history)[1] for history in histories]
    reports = turns("1", "small")
    evicted = [report for report in reports if cause(report) == "evicted"]
    assert evicted and not any(report["reason"] == "restore_failed" for report in reports), reports
    needed = max(int(re.search(r"`--kv-disk (\d+)` instead of 1 would have kept it", report["verdicts"][0]["advice"])[1])
                 for report in evicted)
    assert needed <= 4
    assert not any(cause(report) == "evicted" for report in turns(str(needed), "larger"))


@pytest.mark.skipif(bool(servers.sanitizer()), reason="a library that is loaded before the sanitizer's")
def test_a_slow_disk(faulty_fs, tmp_path):
    """State comes back from a disk on which opening a file takes a tenth of a second."""
    (tmp_path / "kv").mkdir()
    faults = faulty.Faults(faulty_fs, tmp_path, tmp_path / "kv")
    flags = ("--engine", "sim", "-np", "1", "-c", "16384", "--kv-dir", str(tmp_path / "kv"))
    with serve(*flags) as server:
        history, _ = begin(server, "slow disk")
    with serve(*flags, env=faults.env) as server:
        wait_scanned(server)
        faults.set("open SLOW 1 0")
        _, report = ask(server, [*history, user("Go on.")])
    assert cause(report) == "slow_disk", report
    verdict = report["verdicts"][0]
    assert f"{report['tokens']['reused']['disk']:,} tokens from disk" in verdict["text"]
    assert verdict["lost_ms"] == pytest.approx(report["ms"]["restore"] + report["waits_ms"].get("disk", 0), rel=0.01)
    parts_add_up(report)


@pytest.mark.skipif(bool(servers.sanitizer()), reason="a library that is loaded before the sanitizer's")
def test_slow_to_prepare(faulty_fs, tmp_path):
    """What is kept of a conversation is read from a slow disk: each thread that prepares requests waits for that, and
    the next request for a thread."""
    (tmp_path / "kv").mkdir()
    faults = faulty.Faults(faulty_fs, tmp_path, tmp_path / "kv")
    flags = (*QUICK_SIM, "-np", "16", "-c", "32768", "--kv-dir", str(tmp_path / "kv"))
    with serve(*flags) as server:
        histories = [begin(server, f"prepared {i}")[0] for i in range(12)]
    with serve(*flags, env=faults.env) as server:
        wait_scanned(server)
        faults.set("read SLOW 1 10")
        reports = together(server, *[lambda history=history: ask(server, [*history, user("Go on.")])
                                     for history in histories], apart_s=0)
        reports = [kept(server, report["id"]) for report in reports]  # with all verdicts
    told = [(verdict, report) for report in reports for verdict in report["verdicts"]]
    slow = [one for one in told if one[0]["cause"] == "preparing" and "reading what is kept of its conversation" in one[0]["text"]]
    late = [one for one in told if one[0]["cause"] == "workers"]
    assert slow and late, reports
    for verdict, report in slow:
        assert "faster disk" in verdict["advice"] and verdict["lost_ms"] == pytest.approx(report["ms"]["prepare"], rel=0.01)
    for verdict, report in late:
        assert verdict["lost_ms"] == pytest.approx(report["waits_ms"]["worker"], rel=0.01)


def test_state_that_does_not_verify(tmp_path):
    """A bit of each page has changed on the disk since it was written."""
    flags = (*QUICK_SIM, "-np", "1", "-c", "16384", "--kv-dir", str(tmp_path))
    with serve(*flags) as server:
        history, before = begin(server, "damaged")
    pages = list(tmp_path.rglob("*.page"))
    for page in pages:
        content = bytearray(page.read_bytes())
        content[-1] ^= 1
        page.write_bytes(content)
    with serve(*flags) as server:
        wait_scanned(server)
        _, report = ask(server, [*history, user("Go on.")])
    assert pages and report["reason"] == "restore_failed" and cause(report) == "restore_failed", report
    about(report["verdicts"][0], before["tokens"]["prompt"])


@pytest.mark.skipif(bool(servers.sanitizer()), reason="a library that is loaded before the sanitizer's")
def test_right_after_a_start(faulty_fs, tmp_path):
    """The first request comes while the directory is looked through, which is slow."""
    (tmp_path / "kv").mkdir()
    faults = faulty.Faults(faulty_fs, tmp_path, tmp_path / "kv")
    flags = ("--engine", "sim", "-np", "1", "-c", "16384", "--kv-dir", str(tmp_path / "kv"))
    with serve(*flags) as server:
        history, _ = begin(server, "scanned")
    faults.set("open SLOW 1 0")
    with serve(*flags, env=faults.env) as server:
        _, report = ask(server, [*history, user("Go on.")])
    verdict = {verdict["cause"]: verdict for verdict in report["verdicts"]}["scanning"]
    assert verdict["lost_ms"] == pytest.approx(report["waits_ms"]["scan"], rel=0.01), report
    parts_add_up(report)


def test_state_that_was_not_kept(tmp_path):
    """The conversation is known after a restart, and its state is gone from the disk."""
    flags = ("--engine", "sim", "-np", "1", "-c", "16384", "--kv-dir", str(tmp_path))
    with serve(*flags) as server:
        history, before = begin(server, "restart")
    removed = [path.unlink() for path in tmp_path.rglob("*") if path.is_file() and path.suffix == ".page"]
    assert removed, list(tmp_path.rglob("*"))
    with serve(*flags) as server:
        _, report = ask(server, [*history, user("Go on.")])
    assert cause(report) == "state_gone", report
    about(report["verdicts"][0], before["tokens"]["prompt"])


def test_a_divergence_right_after_a_restart(tmp_path):
    """The conversation's own earlier prompt is found in the database, though another one's goes along for longer."""
    flags = (*QUICK_SIM, "-np", "1", "-c", "16384", "--kv-dir", str(tmp_path))

    def first(minute):
        return [system(f"It is 10:{minute} now.\n" + RULES), user(FIRST + RULES)]
    with serve(*flags) as server:
        reply, before = ask(server, first("21"))
        ask(server, [first("27")[0], user("Another conversation, which is short.")])
    with serve(*flags) as server:
        wait_scanned(server)
        _, report = ask(server, [*first("27"), reply, user("Go on.")])
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "volatile_line" and "It is 10:27 now." in verdict["text"], report
    about(verdict, before["tokens"]["prompt"] - report["tokens"]["matched"])


def test_a_history_that_is_not_known_here():
    """After a restart without a disk nothing is known: that is no new conversation."""
    with serve("--engine", "sim", "-np", "1", "-c", "16384") as server:
        history, _ = begin(server, "restart")
    with serve("--engine", "sim", "-np", "1", "-c", "16384") as server:
        _, report = ask(server, [*history, user("Go on.")])
    assert cause(report) == "new_conversation" and "began before the server was started" in report["verdicts"][0]["text"]
    assert "--kv-dir" in report["verdicts"][0]["advice"]


# ---- the list, the command ----


def why(server, *arguments, status=0):
    done = subprocess.run([servers.hearth_path(), "why", "--url", url(server), *map(str, arguments)],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "HEARTH_URL": "", "HEARTH_API_KEY": "", "TZ": "UTC"})
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


def test_why():
    with serve("--engine", "sim", "-np", "1", "--keep-requests", "4") as server:
        assert "none of the last 0 requests" in why(server).stdout
        history, _ = begin(server, "2026-11-24")
        history[0] = system(SYSTEM.format("2026-11-25"))
        _, report = ask(server, [*history, user("Go on.")])
        lines = why(server, "--limit", 1).stdout.splitlines()
        assert report["at"][11:19] in lines[0] and "test-agent/1.0" in lines[0] and report["id"] in lines[0]
        assert "line 3 of the system text changed (`Today: 2026-11-25`)" in lines[1]
        assert "--strip-line '^Today:'" in lines[1]
        one = why(server, report["id"]).stdout
        assert "before:" in one and "4\n" in one and "now:" in one and "computing the prompt" in one
        assert json.loads(why(server, report["id"], "--json").stdout)["id"] == report["id"]
        assert len(json.loads(why(server, "--json").stdout)) == 2
        assert "no request req_none" in why(server, "req_none", status=1).stderr
        assert "none of the last" in why(server, "--client", "codex").stdout
        for i in range(5):
            ask(server, [user(f"Say {i}.")])
        assert len(get(server, "/requests")["data"]) == 4
        get(server, f"/requests/{report['id']}", status=404)
        get(server, "/requests?limit=0", status=400)


def test_where_the_state_of_a_session_is(quick):
    begin(quick, "a session's state", session_id="at two")
    told = why(quick, "--session", "at two").stdout.splitlines()
    assert re.fullmatch(r"its state now: [\d,]+ tokens in the engine, \d to be computed; to come back takes 0\.0 s", told[-1]), told
    assert "its state" not in why(quick, "--session", "no such name").stdout


@pytest.mark.parametrize("command", [["why"], ["why", "--json"], ["top", "--json"], ["options"], ["kv", "--help"]])
def test_a_closed_pipe_ends_a_command_quietly(sim, command):
    """As it ends other programs: `hearth why | head` has no complaint in it."""
    to_server = ["--url", url(sim)] if command[0] in ("why", "top") else []
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([servers.hearth_path(), *command, *to_server], stdin=subprocess.DEVNULL, stdout=writing,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_output_that_cannot_be_written():
    with open("/dev/full", "w") as full:
        done = subprocess.run([servers.hearth_path(), "options"], stdin=subprocess.DEVNULL, stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "hearth: cannot write to standard output\n")


def test_follow():
    with serve("--engine", "sim", "-np", "1") as server:
        follower = subprocess.Popen([servers.hearth_path(), "why", "--follow", "--url", url(server)],
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        ids = []
        while not select.select([follower.stdout], [], [], 0.5)[0]:  # until it listens
            ids.append(begin(server, f"followed {len(ids)}", max_tokens=1)[1]["id"])
            assert len(ids) < 100
        line = follower.stdout.readline()
        assert any(identity in line for identity in ids)
        follower.terminate()
        follower.wait()


def test_each_client_has_a_line():
    """The costliest first, with the main cause and an option that can be used as it stands."""
    with serve(*QUICK_SIM, "-np", "1", "-c", "16384") as server:
        for minute in range(3):
            ask(server, [system(SYSTEM.format(f"10:{minute:02d}")), user(FIRST)], client="cron-agent/1.0")
            ask(server, [system("Be brief.\n" + RULES), user(FIRST)], client="steady-agent/2.0")
        total, titles, worst, fine = why(server).stdout.splitlines()[:4]
        assert re.match(r"the last 6 requests: of [\d,]+ prompt tokens that were computed [\d,]+ had been", total)
        assert titles.split()[:2] == ["CLIENT", "LOST"]
        assert re.match(r"  cron-agent/1\.0 .* volatile_line in 2 of 3 requests: .*`--strip-line '\^Today:'`", worst)
        assert re.match(r"  steady-agent/2\.0 +- +0 +- +nothing$", fine)
        assert "CLIENT" not in why(server, "--client", "cron-agent").stdout


def test_texts_and_requests_may_be_off():
    with serve("--engine", "sim", "--no-keep-texts") as server:
        history, _ = begin(server, "2026-11-24")
        history[0] = system(SYSTEM.format("2026-11-25"))
        _, report = ask(server, [*history, user("Go on.")])
        assert "before" not in get(server, f"/requests/{report['id']}")["divergence"]
    with serve("--engine", "sim", "--keep-requests", "0") as server:
        get(server, "/requests", status=501)


def test_a_key_sees_its_own(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k-olga name=olga\nk-ivan name=ivan\nk-root name=root scope=infer,sessions,admin\n")
    keys.chmod(0o600)
    with serve("--engine", "sim", "--api-key-file", str(keys)) as server:
        def as_key(key, path, body=None, status=200):
            request = urllib.request.Request(url(server) + path, body and json.dumps(body).encode(),
                                             {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                assert error.code == status
                return None

        as_key("k-olga", "/v1/chat/completions", {"messages": [user("Hello.")], "max_tokens": 2})
        for _ in range(100):
            if as_key("k-olga", "/requests")["data"]:
                break
            time.sleep(0.02)
        (own,) = as_key("k-olga", "/requests")["data"]
        assert own["key"] == "olga"
        assert as_key("k-ivan", "/requests")["data"] == []
        assert as_key("k-ivan", "/requests/clients")["data"] == []
        assert as_key("k-root", "/requests/clients")["data"][0]["key"] == "olga"
        as_key("k-ivan", f"/requests/{own['id']}", status=404)
        assert as_key("k-root", "/requests?key=olga")["data"] == [own]


def test_the_page_has_every_cause():
    """docs/watching.md tells what the server's table says, cause by cause."""
    root = os.path.join(os.path.dirname(__file__), "..", "..")
    header = open(os.path.join(root, "src", "report", "report.h")).read()
    page = open(os.path.join(root, "docs", "watching.md")).read()
    table = header[header.index("#define HEARTH_VERDICT_TABLE"):header.index("enum hearth_verdict_cause {")]
    strings = r'((?:"[^"]*"[\\\s]*)+)'
    rows = re.findall(rf"X\([A-Z_]+, {strings}, [A-Z_]+, [\\\s]*{strings}, [\\\s]*{strings}\)", table)
    assert len(rows) == table.count("    X(")
    for row in rows:
        name, text, advice = ("".join(re.findall(r'"([^"]*)"', part)) for part in row)
        assert f"| `{name}` | {text[0].upper()}{text[1:]} | {advice[0].upper()}{advice[1:]} |" in page
