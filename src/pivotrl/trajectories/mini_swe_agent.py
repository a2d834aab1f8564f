"""mini-swe-agent: what the model saw is every message, in order, without its `extra`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from pivotrl.trajectories.items import read_items
from pivotrl.trajectories.messages import Object, dig, expect, place
from pivotrl.trajectories.openai_chat import conversation
from pivotrl.types import Source, Trajectory


class MiniSweAgent:
    """Reads `.traj.json` files of versions 1 and 2; a bare list of messages (version 0) is `openai_chat`."""

    name = "mini_swe_agent"

    def claims(self, record: JsonValue) -> bool:
        known = str(dig(record, "trajectory_format")).startswith("mini-swe-agent") or dig(
            record, "info", "mini_version"
        )
        return bool(known) and isinstance(record, dict) and "messages" in record

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        row: Object = expect(record, dict, place(source))
        info: Object = expect(row.get("info") or {}, dict, f"{place(source)}: info")
        at = f"{place(source)}: messages"
        messages = tuple(read_items(list(_seen(expect(row["messages"], list, at), at)), at))
        tools = next((value["tools"] for value in row["messages"] if value.get("tools")), None)
        return (conversation({**info, **row, "tools": tools}, messages, source),)


def _seen(messages: Sequence[JsonValue], where: str) -> Iterator[JsonValue]:
    """Without the mark of the end; a response of the Responses API is the items that it holds."""
    for index, value in enumerate(messages):
        message: Object = expect(value, dict, f"{where}[{index}]")
        if message.get("object") == "response":
            yield from expect(message.get("output"), list, f"{where}[{index}].output")
        elif message.get("role") != "exit":
            cut = dig(message, "extra", "response", "choices", 0, "finish_reason") == "length"
            yield {**message, "status": "incomplete"} if cut else message
