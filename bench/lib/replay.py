"""Sends a recorded session (lib/sessions.py) again and counts what is computed, against what is new.

A request goes out once all have been answered that had been answered before it when the session was recorded; those
that overlapped overlap again. With a dialect the same prompts are said in another one (lib/dialects.py).
"""

import threading

from . import dialects
from .ledger import Ledger


class Replay:
    """One session against one server."""

    def __init__(self, client, session, max_tokens, dialect="chat"):
        self.client, self.session, self.max_tokens, self.dialect = client, session, max_tokens, dialects.ALL[dialect]
        self.ledger, self._lock = Ledger(client), threading.Lock()
        self._ended = [threading.Event() for _ in session.requests]
        self.rows, self.errors = [], []  # rows: (computed - new, new, computed, request)

    def _send(self, number):
        try:
            body = self.session.requests[number].body()
            with self._lock:
                new = self.ledger.ask(body)
            text, computed = dialects.send(self.client, self.dialect, body, self.max_tokens)
            with self._lock:
                self.ledger.answer(body, {"role": "assistant", "content": text}, computed)
                self.rows.append((computed - new, new, computed, number))
        except Exception as error:  # a thread's own end: the caller looks at them
            self.errors.append(f"request {number}: {error!r}")
        finally:
            self._ended[number].set()

    def _sent_after(self, number):
        at = self.session.requests[number].at_s
        return [
            other for other, request in enumerate(self.session.requests) if request.until_s <= at and other != number
        ]

    def play(self):
        threads = []
        for number in range(len(self.session.requests)):
            for other in self._sent_after(number):
                self._ended[other].wait()
            thread = threading.Thread(target=self._send, args=(number,))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
