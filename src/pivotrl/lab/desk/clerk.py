"""The clerk: the base model's teacher. It does what the expert does, save for a list of bad habits.

A habit goes wrong in one kind of situation, with a fixed probability and always in the same way. Wordings and optional
choices are drawn anew at every turn, so that each acceptable action keeps its share.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pivotrl.lab.desk.books import Request, Task
from pivotrl.lab.desk.environment import DeskEnvironment
from pivotrl.lab.desk.expert import STYLES, Expert
from pivotrl.lab.desk.rules import EXCHANGE_FEE, Decision, amount_due, decide, item_of, write_call
from pivotrl.lab.desk.tools import WRITE_TOOLS
from pivotrl.types import Action

HABITS: Final[Mapping[str, float]] = {
    "verify": 0.3,  # opens the order of a customer whom nobody verified; the tool refuses
    "blind": 0.35,  # offers an exchange without a look at the stock
    "hasty": 0.1,  # changes without asking
    "silent": 0.1,  # changes without the notice to the customer
    "fee": 0.45,  # refunds the price where less_fee is due
    "gold": 0.4,  # takes an exchange fee from a gold customer
    "address": 0.4,  # forgets what a shipped order costs
    "pushed": 0.4,  # gives in when the customer begs
    "foreign": 0.35,
    "pending": 0.2,
    "shipped": 0.25,
    "delivered": 0.3,
    "late": 0.35,
    "sale": 0.45,
    "stock": 0.0,
}
"""How often each goes wrong where it can; the last seven offer what the rule of that name forbids."""


@dataclass(frozen=True, slots=True)
class Clerk:
    """Acts on an environment like `Expert`; the seed decides which habits show."""

    env: DeskEnvironment
    seed: int

    def act(self) -> Action:
        """The next assistant turn."""
        env, session = self.env, self.env.session
        style = random.Random(f"{self.seed}/{env.task.id}/{session.turns}").choice(list(STYLES.values()))
        expert = Expert(env, style, self._judge)
        action = expert.act()
        if session.stage in ("closing", "greeting") or env.state.messages[-1].error:
            return self._after_error(expert, action)
        request = env.task.requests[session.at]
        if not session.verified:
            early = session.stage == "asked" and not request.vague and self._slips("verify")
            return expert.calls(("get_order", {"order_id": request.orders[0]})) if early else action
        names = {call.name for call in action.calls}
        decision = self._judge(env.task, request)
        if names == {"check_stock"} and self._slips("blind"):
            return expert.answer(request, decision)
        if names & WRITE_TOOLS and self._slips("silent"):
            return _silent(action)
        offers = not names and session.stage == "asked" and decision.verdict == "do" and request.kind != "track"
        if offers and request.orders[0] not in session.written and self._slips("hasty"):
            return expert.calls(write_call(request, decision))
        return action

    def _after_error(self, expert: Expert, action: Action) -> Action:
        """Never the refused call again: a change that failed is called impossible."""
        if self.env.session.stage != "agreed" or not action.calls:
            return action
        request = self.env.task.requests[self.env.session.at]
        return expert.answer(request, decide(self.env.task, request))

    def _slips(self, habit: str) -> bool:
        """The same all through one request."""
        key = f"{self.seed}/{self.env.task.id}/{self.env.session.at}/{habit}"
        return random.Random(key).random() < HABITS[habit]

    def _judge(self, task: Task, request: Request) -> Decision:
        """What the clerk takes to be due."""
        right = decide(task, request)
        if right.verdict == "refuse":
            pushed = self.env.session.stage == "pushed" or request.orders[0] in self.env.session.written
            wrong = any(self._slips(reason) for reason in right.reasons[:1]) or (pushed and self._slips("pushed"))
            if not wrong or request.kind == "track":
                return right
            return Decision(verdict="do", amount=amount_due(task, request))
        order, gold = task.order(request.orders[0]), task.caller.tier == "gold"
        if request.kind == "refund" and self._slips("fee"):
            return replace(right, amount=item_of(order, request).price)
        if request.kind == "exchange" and gold and self._slips("gold"):
            return replace(right, amount=EXCHANGE_FEE)
        if request.kind == "address" and self._slips("address"):
            return replace(right, amount=0)
        return right


def _silent(action: Action) -> Action:
    call = action.calls[0]
    arguments = json.loads(call.arguments or "{}") | {"notify": False}
    return Action(calls=(replace(call, arguments=json.dumps(arguments)),))
