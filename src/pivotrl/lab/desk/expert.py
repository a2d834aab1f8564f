"""The scripted expert: right in every situation, in several styles. It acts on what the conversation has shown."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pydantic import JsonValue

from pivotrl.lab.desk.books import Kind, Request, Task
from pivotrl.lab.desk.rules import LIMIT, Decision, Reason, decide, write_call
from pivotrl.lab.desk.tools import SCHEMAS
from pivotrl.types import Action, ToolCall

if TYPE_CHECKING:
    from pivotrl.lab.desk.environment import DeskEnvironment


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How an expert does what is right; none of it matters to success."""

    polite: bool = False
    contact: Literal["email", "phone", "both"] = "email"
    """What the customer is found by."""
    parallel: bool = False
    """Independent look-ups in one turn, the last first."""
    explicit: bool = False
    """Optional arguments given, with their defaults."""
    asks: bool = False
    """Asks for the order that a vague request means, instead of listing them."""


STYLES: Final[Mapping[str, Style]] = {
    "plain": Style(),
    "polite": Style(polite=True, asks=True),
    "phone": Style(contact="phone", explicit=True),
    "parallel": Style(parallel=True, contact="both"),
    "thorough": Style(polite=True, contact="phone", parallel=True, explicit=True),
}
_TEXTS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "contact": (
        ("What is your email or phone?", "Your email or phone?"),
        ("Please tell me your email or phone so that I can find you. What is it?",),
    ),
    "help": (("What do you need?", "What can I do for you?"), ("Thank you. What can I do for you?",)),
    "which": (("Which order is it?",), ("Which order is it, please?",)),
    "date": (("Order {id}: {date}.", "Order {id} has the date {date}."), ("The date of order {id} is {date}.",)),
    "cancel": (
        ("Cancel order {id} and pay back {amount}?", "I cancel order {id} and you get {amount}. Yes?"),
        ("I can cancel order {id} for you. You get {amount} back. Shall I cancel it?",),
    ),
    "refund": (
        ("Refund the {item} for {amount}, order {id}?", "I refund the {item} for {amount}, order {id}. Yes?"),
        ("I can refund the {item} for {amount}. It is order {id}. Shall I do it?",),
    ),
    "exchange": (
        ("Exchange the {item} of order {id} for {value}? It costs {amount}.",),
        ("I can exchange the {item} of order {id} for a {value} {item}. It costs {amount}. Shall I do it?",),
    ),
    "address": (
        ("Send order {id} to {value}? It costs {amount}.",),
        ("I can send order {id} to {value} for you. It costs {amount}. Shall I do it?",),
    ),
    "cancel done": (("Order {id} is cancelled.",), ("Done. Order {id} is cancelled.",)),
    "refund done": (
        ("The {item} of order {id} is refunded.",),
        ("Done. The {item} of order {id} is refunded.",),
    ),
    "exchange done": (("The {item} of order {id} is exchanged.",), ("Done. The {item} of order {id} is exchanged.",)),
    "address done": (("Order {id} goes to {value}.",), ("Done. Order {id} goes to {value} now.",)),
    "refuse": (
        ("I cannot {kind} it. Order {id} {reason}.", "Order {id} {reason}, so I cannot {kind} it."),
        ("Sorry, I cannot {kind} it, because order {id} {reason}.",),
    ),
    "again": (
        ("I cannot do that. Order {id} {reason}.",),
        ("Sorry, I cannot make an exception. Order {id} {reason}.",),
    ),
    "bye": (("Bye.", "Thank you. Bye."), ("Thank you and good day. Bye.",)),
}
_REASONS: Final[Mapping[Reason, str]] = {
    "foreign": "is of another customer",
    "pending": "is pending",
    "shipped": "is shipped",
    "delivered": "is delivered",
    "late": f"is more than {LIMIT} days old",
    "sale": "has a sale item",
    "stock": "has no new item in stock",
}
_KINDS: Final[Mapping[Kind, str]] = {"track": "track", "cancel": "cancel", "refund": "refund", "exchange": "exchange",
                                     "address": "send"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expert:
    """Gives the right action of one style at any point of an episode that can still be saved, and a fair one else."""

    env: DeskEnvironment
    style: Style
    judge: Callable[[Task, Request], Decision] = decide
    """What is taken to be due."""

    def act(self) -> Action:
        """The next assistant turn."""
        session = self.env.session
        if session.stage == "closing":
            return self._say("bye")
        if not session.verified:
            return self._find() if session.given else self._say("contact")
        if session.stage == "greeting":
            return self._say("help")
        request = self.env.task.requests[session.at]
        decision = self.judge(self.env.task, request)
        if decision.verdict == "do" and request.orders[0] in session.written:
            return self._say(f"{request.kind} done", request, decision)
        if decision.verdict == "do" and session.stage == "agreed":
            return self.calls(write_call(request, decision))
        if session.stage == "pushed" and decision.verdict == "refuse":
            return self._say("again", request, decision)
        return self._look_up(request) or self.answer(request, decision)

    def _find(self) -> Action:
        caller, given = self.env.task.caller, self.env.session.given
        wanted = [name for name in given if self.style.contact in (name, "both")] or list(given)
        return self.calls(("find_customer", {name: getattr(caller, name) for name in wanted}))

    def _look_up(self, request: Request) -> Action | None:
        """What has to be read before the request can be answered; None when all is known."""
        session, style = self.env.session, self.style
        if request.vague and not session.named and not {"orders", f"{request.item} orders"} & {*session.seen}:
            if style.asks:
                return self._say("which")
            return self.calls(("list_orders", {"customer_id": session.verified, "item": request.item}))
        ids = session.open_ids if request.kind == "track" else request.orders
        known = "" if request.kind == "track" else " items"
        calls: list[tuple[str, dict[str, JsonValue]]] = [
            ("get_order", {"order_id": id_}) for id_ in ids if f"{id_}{known}" not in session.seen
        ]
        reasons = self.judge(self.env.task, request).reasons
        stock = request.kind == "exchange" and f"{request.item} {request.value}" not in session.seen
        if stock and (style.parallel or reasons in ((), ("stock",))):
            calls.append(("check_stock", {"item": request.item, "colour": request.value}))
        if not calls:
            return None
        return self.calls(*reversed(calls)) if style.parallel else self.calls(calls[0])

    def answer(self, request: Request, decision: Decision) -> Action:
        """The message that tells, offers or refuses."""
        if decision.verdict == "refuse":
            return self._say("refuse", request, decision)
        if decision.verdict == "do":
            return self._say(request.kind, request, decision)
        texts = [self._text("date", id=id_, date=self.env.task.order(id_).date) for id_ in self.env.session.open_ids]
        return Action(text=" ".join(texts))

    def calls(self, *calls: tuple[str, dict[str, JsonValue]]) -> Action:
        """Calls of tools by name and arguments, optional ones as the style has them."""
        return Action(calls=tuple(self._call(name, arguments) for name, arguments in calls))

    def _call(self, name: str, arguments: dict[str, JsonValue]) -> ToolCall:
        if self.style.explicit:
            properties = SCHEMAS[name]["properties"]
            arguments = arguments | {key: one["default"] for key, one in properties.items() if "default" in one}
        return ToolCall(name=name, arguments=json.dumps(arguments))

    def _say(self, topic: str, request: Request | None = None, decision: Decision | None = None) -> Action:
        if request is None or decision is None:
            return Action(text=self._text(topic))
        facts: dict[str, object] = {"id": request.orders[0], "item": request.item, "value": request.value}
        facts |= {"amount": decision.amount, "kind": _KINDS[request.kind]}
        facts["reason"] = _REASONS[decision.reasons[0]] if decision.reasons else "cannot be changed"
        return Action(text=self._text(topic, **facts))

    def _text(self, topic: str, **facts: object) -> str:
        variants = _TEXTS[topic][self.style.polite]
        key = f"{self.env.task.id}/{topic}/{self.env.session.turns}"
        return variants[zlib.crc32(key.encode()) % len(variants)].format(**facts)
