"""R2E-Gym: runs whose steps hold the thought, the action as `<function=..>` and what the environment answered.

The prompts are not in the file: a state opens with the problem alone, and a turn is thought and action put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, expect, place, read_message
from pivotrl.trajectories.openai_chat import conversation
from pivotrl.types import Source, Trajectory

_STEPS: Final = "trajectory_steps"


class R2EGym:
    """Reads one run per record."""

    name = "r2e_gym"

    def claims(self, record: JsonValue) -> bool:
        return isinstance(record, dict) and isinstance(record.get(_STEPS), list)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        where = place(source)
        row: Object = expect(record, dict, where)
        said: list[Object] = [{"role": "user", "content": row.get("problem_statement")}]
        for at, value in enumerate(row[_STEPS]):
            step: Object = expect(value, dict, f"{where}: {_STEPS}[{at}]")
            written = [step[key] for key in ("thought", "action") if isinstance(step.get(key), str) and step[key]]
            said.append({"role": "assistant", "content": "\n\n".join(written)})
            if step.get("observation") is not None:
                said.append({"role": "user", "content": step["observation"]})
        messages = tuple(read_message(one, f"{where}: {_STEPS}") for one in said)
        return (conversation(row, messages, source),)
