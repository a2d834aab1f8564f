"""A prompt and its response as texts: ms-swift's query/response/history, xLAM's query/answers, Alpaca, Search-R1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, expect, place, read_message, read_messages, unstring
from pivotrl.trajectories.openai_chat import conversation
from pivotrl.types import Message, Source, Trajectory

_PROMPTS: Final = ("query", "prompt", "instruction", "question")
_ANSWERS: Final = ("response", "completion", "output", "trajectory")
NO_PROMPT: Final = "no_prompt"


class PromptResponse:
    """Reads one exchange per record, with those before it where `history` holds them."""

    name = "prompt_response"

    def claims(self, record: JsonValue) -> bool:
        if not isinstance(record, dict) or "messages" in record or "conversations" in record:
            return False
        asked, answer = _key(record, _PROMPTS), _key(record, _ANSWERS)
        prompted = asked is not None or isinstance(record.get("prompt"), list) or answer == "response"
        return (prompted and answer is not None) or (asked is not None and "answers" in record and "tools" in record)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        where = place(source)
        row: Object = expect(record, dict, where)
        prompt, answer = tuple(_prompt(row, where)), _answer(row, where)
        given = {key: value for key, value in row.items() if key not in _ANSWERS}
        whole = conversation(given, (*prompt, answer if prompt else replace(answer, excluded=NO_PROMPT)), source)
        return (whole,)


def _key(row: Object, keys: Sequence[str]) -> str | None:
    return next((key for key in keys if isinstance(row.get(key), str)), None)


def _prompt(row: Object, where: str) -> Iterator[Message]:
    for at, pair in enumerate(expect(row.get("history") or [], list, f"{where}: history")):
        for role, text in zip(("user", "assistant"), expect(pair, list, f"{where}: history[{at}]"), strict=False):
            if text:
                yield read_message({"role": role, "content": text}, f"{where}: history[{at}]")
    if isinstance(row.get("prompt"), list):
        yield from read_messages(row["prompt"], f"{where}: prompt")
        return
    key = _key(row, _PROMPTS)
    texts = [row[key], row.get("input")] if key else []
    if any(texts):
        yield Message(role="user", content="\n".join(text for text in texts if isinstance(text, str) and text))


def _answer(row: Object, where: str) -> Message:
    calls = row.get("answers")
    if calls is None:
        return Message(role="assistant", content=row[_key(row, _ANSWERS) or _ANSWERS[0]])
    return read_message({"role": "assistant", "tool_calls": unstring(calls, f"{where}: answers")}, f"{where}: answers")
