"""What a person sees while work goes on: a bar on a terminal, plain lines elsewhere, nothing for short work."""

from __future__ import annotations

import re
import sys
import time
from functools import cache
from typing import Final, TextIO

QUIET_SECONDS = 2.0
LINE_SECONDS = 10.0
_SECRET: Final = re.compile(r"(?i)(?<=://)[^\s/@]{1,400}(?=@)|(?<=[?&])((?:api[_-]?)?(?:key|token)=)[^\s&'\"]{1,400}")


def plain(text: str) -> str:
    """Text of anybody's for a terminal: what does not print is escaped, passwords and keys of addresses are masked."""
    shown = "".join(ch if ch.isprintable() or ch == "\n" else ch.encode("unicode_escape").decode() for ch in text)
    return _SECRET.sub(r"\1***", shown)


def counted(n: int, thing: str) -> str:
    """`1 task`, `2 tasks`, `0 trajectories`."""
    many = thing.removesuffix("y") + "ies" if thing.endswith("ry") else thing + "s"
    return f"{n} {thing if n == 1 else many}"


def say(line: str) -> None:
    """One line for a person, on standard error."""
    print(plain(line), file=sys.stderr, flush=True)


say_once: Final = cache(say)


class Progress:
    """Counts units of work on standard error; `total` may be unknown. Use as a context manager, call `advance`."""

    def __init__(self, label: str, total: int | None, done: int = 0, stream: TextIO | None = None) -> None:
        self.label, self.total, self.done, self.resumed = label, total, done, done
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self._start = time.monotonic()
        self._next = self._start + QUIET_SECONDS
        self._shown = False

    def advance(self, count: int = 1, note: str = "") -> None:
        """Say that `count` more units are done; `note` is shown beside the count."""
        self.done += count
        now = time.monotonic()
        if now >= self._next:
            self._show(now, note)
            self._next = now + (0.2 if self.live else LINE_SECONDS)

    def _show(self, now: float, note: str) -> None:
        elapsed = now - self._start
        fresh = self.done - self.resumed
        count, left = str(self.done), ""
        if self.total is not None:
            count += f"/{self.total}"
            left = f", about {_duration(elapsed / fresh * (self.total - self.done))} left" if fresh else ""
        line = f"{self.label} {count} in {_duration(elapsed)}{left}{'  ' + plain(note) if note else ''}"
        self.stream.write(f"\r\033[2K{line}" if self.live else f"{line}\n")
        self.stream.flush()
        self._shown = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._shown and self.live:
            self.stream.write("\n" if error else "\r\033[2K")
            self.stream.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
