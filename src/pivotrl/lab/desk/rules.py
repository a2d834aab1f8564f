"""The desk's written policy, as the agent reads it and as code; `decide` is the one place that knows what is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import JsonValue

from pivotrl.lab.desk.books import Item, Kind, Order, Request, Task

FEE_AFTER: Final = 14
LIMIT: Final = 30
FEE: Final = 5
EXCHANGE_FEE: Final = 3
ADDRESS_FEE: Final = 6

POLICY: Final = f"""You work at the service desk of a shop.
Verify first: find the customer. Help only with orders of this customer.
Read the order before you answer, and name it.
Before a change say the amount and ask.
Cancel: pending orders.
Refund: delivered, at most {LIMIT} days, not on sale. \
Pay the price, after {FEE_AFTER} days less_fee, for gold the price.
Exchange: delivered, at most {LIMIT} days, new colour in stock. Costs {EXCHANGE_FEE}, for gold 0.
Address: pending costs 0, shipped {ADDRESS_FEE}.
Refuse anything else and say why. Make no exception."""

ALLOWED: Final[Mapping[Kind, tuple[str, ...]]] = {
    "track": ("pending", "shipped", "delivered"),
    "cancel": ("pending",),
    "refund": ("delivered",),
    "exchange": ("delivered",),
    "address": ("pending", "shipped"),
}
Reason = Literal["foreign", "pending", "shipped", "delivered", "late", "sale", "stock"]
REASON_WORDS: Final[Mapping[Reason, tuple[str, ...]]] = {
    "foreign": ("not yours", "not your", "another customer"),
    "pending": ("pending",),
    "shipped": ("shipped",),
    "delivered": ("delivered",),
    "late": (str(LIMIT),),
    "sale": ("sale",),
    "stock": ("stock",),
}
"""What a refusal has to say, any of them."""
WRITES: Final[Mapping[Kind, str]] = {
    "cancel": "cancel_order",
    "refund": "refund_item",
    "exchange": "exchange_item",
    "address": "change_address",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the policy demands for a request."""

    verdict: Literal["tell", "do", "refuse"]
    amount: int | None = None
    """What the customer gets or pays when it is done."""
    reasons: tuple[Reason, ...] = ()
    """Every rule that forbids it; telling one is enough."""


def decide(task: Task, request: Request) -> Decision:
    """What the policy demands, from the books as they were at the start."""
    order = task.order(request.orders[0])
    reasons = tuple(_forbidding(task, request, order))
    if reasons:
        return Decision(verdict="refuse", reasons=reasons)
    if request.kind == "track":
        return Decision(verdict="tell")
    return Decision(verdict="do", amount=amount_due(task, request))


def _forbidding(task: Task, request: Request, order: Order) -> Iterator[Reason]:
    if order.customer_id != task.caller.id:
        yield "foreign"
    if order.status not in ALLOWED[request.kind]:
        yield order.status
    if request.kind in ("refund", "exchange") and order.days > LIMIT:
        yield "late"
    if request.kind == "refund" and item_of(order, request).sale:
        yield "sale"
    if request.kind == "exchange" and not task.left(request.item, request.value):
        yield "stock"


def amount_due(task: Task, request: Request) -> int:
    """What the customer gets or pays for a change, were it allowed."""
    order, gold = task.order(request.orders[0]), task.caller.tier == "gold"
    if request.kind == "cancel":
        return sum(item.price for item in order.items)
    if request.kind == "refund":
        price = item_of(order, request).price
        return price if gold or order.days <= FEE_AFTER else price - FEE
    if request.kind == "exchange":
        return 0 if gold else EXCHANGE_FEE
    return ADDRESS_FEE if order.status == "shipped" else 0


def item_of(order: Order, request: Request) -> Item:
    """The item of the order that the request names. Raises StopIteration when the order has none."""
    return next(item for item in order.items if item.name == request.item)


def write_call(request: Request, decision: Decision) -> tuple[str, dict[str, JsonValue]]:
    """The tool and the required arguments that carry out a `do`."""
    arguments: dict[str, JsonValue] = {"order_id": request.orders[0]}
    if request.item:
        arguments["item"] = request.item
    if request.kind == "exchange":
        arguments |= {"colour": request.value, "fee": decision.amount}
    elif request.kind == "address":
        arguments |= {"city": request.value, "fee": decision.amount}
    elif request.kind == "refund":
        arguments["amount"] = decision.amount
    return WRITES[request.kind], arguments
