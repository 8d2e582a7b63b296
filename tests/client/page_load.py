"""Eight agents that share a server, four of which waste something: what the page is to show at a glance. Tests and the
pictures of the README use it."""

import threading

import httpx

RULES = "\n".join(f"Rule {i}: read the file before you change it, keep changes small, run the tests, and say what you did "
                  f"in two sentences; never touch folder number {i}." for i in range(40))
QUESTIONS = ("Why does the build fail?", "Rename the field and its uses.", "Write a test for the parser.",
             "What does this function do?", "Make the lint pass.", "Summarise the last change.")
TOOLS = [{"type": "function", "function": {"name": name, "description": f"Tool {name}: " + RULES[:600], "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}}}}} for name in ("read", "write", "run", "search")]


def steady(turn):
    return {"system": RULES, "tools": TOOLS}


def dated(turn):
    """A date in the system text that changes with each request."""
    return {"system": f"You are a coding agent.\nToday: 2026-11-25 10:{turn:02d}\n{RULES}"}


def shuffled(turn):
    """Tools in another order each time."""
    return {"system": RULES, "tools": TOOLS[turn % 4:] + TOOLS[:turn % 4]}


def edited(turn):
    """It rewrites the first message of the conversation."""
    return {"system": RULES, "first": f"The task, as I know it after {turn} steps: " + RULES[:3000]}


# Client (a User-Agent), session or None, what it does, turns.
AGENTS = (("claude-cli/2.1", "api-cleanup", steady), ("codex/0.50", "parser-tests", steady), ("cron-agent/1.0", None, dated),
          ("mcp-hub/3.2", None, shuffled), ("aider/0.86", None, edited), ("claude-cli/2.1", "release-notes", steady),
          ("vibe/1.4", "dark-mode", steady), ("title-bot/0.3", None, dated))


def play(url, agent, turns, key=None, tokens=24, stop=None):
    """One agent, turn after turn, with its whole history each time as agents do."""
    client, session, habit = agent
    head = {"User-Agent": client, **({"Authorization": f"Bearer {key}"} if key else {})}
    history = []
    with httpx.Client(base_url=url, headers=head, timeout=120) as http:
        for turn in range(turns):
            if stop is not None and stop.is_set():
                return
            how = habit(turn)
            history.append({"role": "user", "content": f"{client} {session or ''}: {QUESTIONS[turn % len(QUESTIONS)]} " + RULES[:400]})
            messages = [{"role": "system", "content": how["system"]}, *history]
            if "first" in how:
                messages[1] = {"role": "user", "content": how["first"]}
            body = {"messages": messages, "max_tokens": tokens, **({"tools": how["tools"], "tool_choice": "none"} if "tools" in how else {}),
                    **({"session_id": session} if session else {})}
            answer = http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200 or (stop is not None and stop.is_set()), answer.text
            reply = answer.json()["choices"][0]["message"]["content"] or "Done."
            history.append({"role": "assistant", "content": reply})


def begin(url, turns=4, agents=AGENTS, **options):
    """All of them at once; the threads, to be joined."""
    threads = [threading.Thread(target=play, args=(url, agent, turns), kwargs=options, daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    return threads
