"""A history put together from events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import JsonValue

from pivotrl.trajectories.messages import COPIED, copied, join
from pivotrl.types import Message


class History:
    """What the model saw so far, each message with the id of its event, and the segments that came before."""

    def __init__(self) -> None:
        self._closed: list[tuple[Message, ...]] = []
        self._view: list[tuple[str | None, Message]] = []
        self._responses: dict[str, int] = {}
        """Response -> place of its message in the view."""

    @property
    def awaits_model(self) -> bool:
        """Whether somebody else than the model spoke last."""
        return bool(self._view) and (self._view[-1][1].role != "assistant" or bool(self._view[-1][1].tool_calls))

    def add(self, key: str | None, message: Message) -> None:
        self._view.append((key, message))

    def say(self, key: str | None, response: str | None, message: Message, *, whole: bool = False) -> None:
        """A message of the model, or a further part of a response; `whole`: each part holds all of it."""
        at = None if response is None else self._responses.get(response)
        if at is None:
            if response is not None:
                self._responses[response] = len(self._view)
            self._view.append((key, message))
        elif not whole:
            first, said = self._view[at]
            self._view[at] = (first, join([said, message]))

    def answer(self, key: str | None, call: str | None, result: Message, *, keep: bool = True) -> None:
        """A result, put behind its call and the results that are there. Without a call: `keep`, else a user's word."""
        for at in range(len(self._view) - 1, -1, -1):
            if call is not None and any(made.id == call for made in self._view[at][1].tool_calls):
                end = at + 1
                while end < len(self._view) and self._view[end][1].role == "tool":
                    end += 1
                self._view.insert(end, (key, replace(result, tool_call_id=call)))
                self._responses = {name: i + (i >= end) for name, i in self._responses.items()}
                return
        keep = keep or (call is None and bool(self._view) and bool(self._view[-1][1].tool_calls))
        said = replace(result, tool_call_id=call) if keep else Message(role="user", content=result.content)
        self._view.append((key, said))

    def forget(self, keys: set[str], summary: JsonValue) -> None:
        """Close the segment; the next begins without these events, the summary in the place of the first of them."""
        places = [at for at, (key, _) in enumerate(self._view) if key in keys]
        if not places:
            return
        self._closed.append(tuple(message for _, message in self._view))
        kept = [(key, copied(message)) for key, message in self._view if key not in keys]
        if isinstance(summary, str) and summary:
            kept.insert(places[0], (None, Message(role="user", content=summary)))
        self._view, self._responses = kept, {}

    def segments(self) -> Iterator[tuple[Message, ...]]:
        """All segments with a turn of their own, and the last."""
        for part in self._closed:
            if any(message.role == "assistant" and message.excluded != COPIED for message in part):
                yield part
        yield tuple(message for _, message in self._view)
