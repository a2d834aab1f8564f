"""A domain for tests: an order desk of 3 to 5 turns whose every right action follows from what the agent can see.

Tasks come in two halves, `desk` and `base`, that share no (order, amount) pair.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pivotrl.storage import write_jsonl

Half = Literal["desk", "base"]
Record = dict[str, Any]

ORDERS: Final = tuple(f"{letter}{number}" for letter in "ABCDEF" for number in range(10, 20))
AMOUNTS: Final = tuple(range(20, 40))
FEES: Final = (3, 5, 7, 9)
STATUSES: Final = ("pending", "damaged", "late", "lost", "delivered")
OPENINGS: Final = (
    "Where is order {order}?",
    "Order {order} has a problem.",
    "Please cancel order {order}.",
    "Please send order {order} again.",
)
SYSTEM: Final = (
    "Look up first. Pending: cancel. Damaged: refund the amount. Late: refund the fee. "
    "Lost: resend. Delivered: explain."
)
TASKS_PER_HALF: Final = len(ORDERS) * len(AMOUNTS) // 2 * len(FEES) * len(STATUSES) * len(OPENINGS) * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One customer: what is asked, and what the desk's books say."""

    id: str
    order: str
    amount: int
    fee: int
    status: str
    opening: int
    recheck: bool
    """Whether the customer asks once more; always after an explanation, so that episodes have 3 to 5 turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One assistant turn: a call, or a message when there is no tool."""

    tool: str | None = None
    arguments: Record | None = None
    text: str | None = None


def task(half: Half, index: int) -> Task:
    """Task `index` (below TASKS_PER_HALF) of one half; the parity of order plus amount tells the halves apart."""
    rest, order = divmod(index, len(ORDERS))
    rest, pair = divmod(rest, len(AMOUNTS) // 2)
    rest, status = divmod(rest, len(STATUSES))
    rest, opening = divmod(rest, len(OPENINGS))
    recheck, fee = divmod(rest, len(FEES))
    return Task(
        id=f"{half}-{index}",
        order=ORDERS[order],
        amount=AMOUNTS[2 * pair + (order + (half == "base")) % 2],
        fee=FEES[fee],
        status=STATUSES[status],
        opening=opening,
        recheck=bool(recheck) or STATUSES[status] == "delivered",
    )


def draw_tasks(half: Half, count: int, seed: int) -> list[Task]:
    """Distinct tasks of one half."""
    return [task(half, index) for index in random.Random(f"{half}-{seed}").sample(range(TASKS_PER_HALF), count)]


def tools() -> list[Record]:
    """The desk's tools in OpenAI's schema."""
    order: Record = {"order_id": {"type": "string", "description": "such as A17"}}
    amount: Record = {"amount": {"type": "integer", "minimum": 1}}
    notify: Record = {"notify": {"type": "boolean", "default": True, "description": "write to the customer"}}
    properties: dict[str, Record] = {
        "find_order": order,
        "cancel": order,
        "resend": order,
        "refund": order | amount | notify,
    }
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": fields,
                    "required": [field for field in fields if field != "notify"],
                    "additionalProperties": False,
                },
            },
        }
        for name, fields in properties.items()
    ]


def expert_act(t: Task) -> Move:
    """What the policy asks for once the status is known."""
    if t.status == "delivered":
        return Move(text=f"Order {t.order} was delivered, so nothing is due.")
    if t.status in ("damaged", "late"):
        return Move(tool="refund", arguments={"order_id": t.order, "amount": t.fee if t.status == "late" else t.amount})
    return Move(tool="cancel" if t.status == "pending" else "resend", arguments={"order_id": t.order})


def episode(t: Task) -> Record:
    """The expert's episode. Tools answer what was really called."""
    messages: list[Record] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": OPENINGS[t.opening].format(order=t.order)},
    ]
    find = Move(tool="find_order", arguments={"order_id": t.order})

    def turn(move: Move, status: str) -> Move:
        messages.extend(_messages(t, move, status, len(messages)))
        return move

    turn(find, t.status)
    done = turn(expert_act(t), t.status)
    state = {"refund": "refunded", "cancel": "cancelled", "resend": "sent"}.get(done.tool or "", "delivered")
    closing = Move(text=f"Order {t.order} is {state}.")
    if done.tool:
        turn(closing, state)
    if t.recheck:
        messages.append({"role": "user", "content": "Is it done? Please check."})
        turn(find, state)
        turn(closing, state)
    return {"task_id": t.id, "messages": messages, "tools": tools(), "reward": 1.0}


def _messages(t: Task, move: Move, status: str, position: int) -> Iterator[Record]:
    if move.tool is None:
        yield {"role": "assistant", "content": move.text}
        return
    name, identifier = move.tool, f"call_{position}"
    function = {"name": name, "arguments": json.dumps(move.arguments)}
    call = {"id": identifier, "type": "function", "function": function}
    yield {"role": "assistant", "content": None, "tool_calls": [call]}
    books = {"order_id": t.order, "status": status, "amount": t.amount, "fee": t.fee}
    answer = books if name == "find_order" else {"order_id": t.order, "result": "ok"}
    yield {"role": "tool", "tool_call_id": identifier, "name": name, "content": json.dumps(answer)}


def write_episodes(path: Path, count: int, seed: int) -> None:
    """Write `count` expert episodes of distinct desk tasks as OpenAI chat JSON Lines."""
    write_jsonl(path, (episode(t) for t in draw_tasks("desk", count, seed)))
