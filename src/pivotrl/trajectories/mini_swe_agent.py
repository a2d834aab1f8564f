"""mini-swe-agent trajectories: what the model saw is every message without its `extra`, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from pivotrl.trajectories.items import read_items
from pivotrl.trajectories.messages import Object, dig, expect, outcome_of, place, task_of, trajectory_id
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
        where = place(source)
        row: Object = expect(record, dict, where)
        info: Object = expect(row.get("info") or {}, dict, f"{where}: info")
        messages = expect(row["messages"], list, f"{where}: messages")
        return (
            Trajectory(
                id=trajectory_id(source),
                messages=tuple(read_items(list(_seen(messages, f"{where}: messages")), f"{where}: messages")),
                source=source,
                task_id=task_of(info | row),
                outcome=outcome_of(info | row),
            ),
        )


def _seen(messages: Sequence[JsonValue], where: str) -> Iterator[JsonValue]:
    """The messages without the mark of the end; those of the Responses API are the items that they hold."""
    for index, value in enumerate(messages):
        message: Object = expect(value, dict, f"{where}[{index}]")
        if message.get("object") == "response":
            yield from expect(message.get("output"), list, f"{where}[{index}].output")
        elif message.get("role") != "exit":
            cut = dig(message, "extra", "response", "choices", 0, "finish_reason") == "length"
            yield {**message, "status": "incomplete"} if cut else message
