"""The desk as a domain with a base model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from pivotrl.lab.desk.clerk import Clerk
from pivotrl.lab.desk.environment import DeskEnvironment
from pivotrl.lab.desk.episodes import tools
from pivotrl.lab.desk.expert import STYLES, Expert
from pivotrl.lab.desk.rules import decide, item_of
from pivotrl.lab.desk.tasks import ID_PATTERN
from pivotrl.lab.domain import NAMES_PATTERN, Domain, Situation, copied_pattern
from pivotrl.lab.turns import play
from pivotrl.types import Message

_PIECES: Final = (
    rf"</?tool_call>|{copied_pattern(ID_PATTERN)}"
    rf"|[{{}}\[\]\", ]*\"(?!(?:{NAMES_PATTERN})\b)[a-z_]+\": \"?"
    rf"| ?(?!{copied_pattern(ID_PATTERN)})[A-Za-z_]+\b(?: (?={copied_pattern(ID_PATTERN)}))?"
    r"|[^A-Za-z0-9_<\n]+|\n|<"
)


def _clerk(index: int) -> tuple[tuple[Message, ...], list[dict[str, Any]] | None]:
    env = DeskEnvironment()
    play(env, f"desk-base-{index}", Clerk(env, index).act)
    return env.state.messages, tools()


def _situations(task: str, seed: int) -> Iterator[Situation]:
    env, rng = DeskEnvironment(), random.Random(f"{seed}/{task}")
    env.reset(task)
    while not env.done:
        acceptable = tuple(Expert(env, style).act() for style in STYLES.values())
        yield Situation(name=_name(env), state=env.state, acceptable=acceptable)
        env.step(rng.choice(acceptable))


def _name(env: DeskEnvironment) -> str:
    """Stage and case of the policy: `asked refund fee`."""
    session, task = env.session, env.task
    if session.stage in ("greeting", "closing") or not session.verified:
        return session.stage
    request = task.requests[session.at]
    decision, order = decide(task, request), task.order(request.orders[0])
    case: str = decision.reasons[0] if decision.reasons else ""
    if request.kind == "refund" and decision.amount is not None:
        case = "fee" if decision.amount < item_of(order, request).price else case
    if request.kind == "exchange" and not decision.reasons:
        case = task.caller.tier
    if request.kind == "address" and not decision.reasons:
        case = order.status
    return " ".join(filter(None, (session.stage, request.kind, case)))


DESK: Final = Domain(
    name="desk",
    make=DeskEnvironment,
    expert=Expert,
    styles=tuple(STYLES.values()),
    clerk=_clerk,
    situations=_situations,
    pieces=_PIECES,
    ids=("C", "O", "E", "P"),
    id_pattern=ID_PATTERN,
    calls_in_text=False,
    base="pivotrl.lab",
)
