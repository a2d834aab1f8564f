"""Tasks by name: a task's id alone decides its books and its requests, and how long they are (`HORIZONS`).

No customer or order id occurs in two of train, validation and test; `base`, for pretraining, uses all of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pivotrl.errors import ConfigError
from pivotrl.lab.desk.books import (
    CITIES,
    COLOURS,
    ITEMS,
    MONTHS,
    Customer,
    Item,
    Kind,
    Order,
    Part,
    Request,
    Status,
    Task,
)
from pivotrl.lab.desk.rules import LIMIT, decide

TASKS_PER_PART: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """How long the conversations of one environment are."""

    turns: tuple[int, int]
    """The expert's fewest and most assistant turns, whatever the style."""
    requests: tuple[int, ...]
    """How many a customer has; one of these is drawn."""
    turn_limit: int
    orders: int = 10
    """Order ids that are kept for a task."""
    single: bool = False
    """One item in every order, so that the items last."""


HORIZONS: Final[Mapping[str, Horizon]] = {
    "desk": Horizon(turns=(8, 14), requests=(2, 2, 3, 3, 4), turn_limit=24),
    "desk-short": Horizon(turns=(4, 7), requests=(1,), turn_limit=14),
    "desk-long": Horizon(turns=(20, 30), requests=(5, 6, 6), turn_limit=48, orders=14, single=True),
}
"""By environment, which is also how the ids of its tasks begin."""
_SHARE: Final[dict[Part, tuple[int, ...]]] = {
    "base": tuple(range(10)),
    "train": (4, 5, 6),
    "validation": (7,),
    "test": (8, 9),
}
_CUSTOMERS, _ORDERS = 120, 400
_USUAL: Final[dict[Kind, Status]] = {
    "cancel": "pending",
    "refund": "delivered",
    "exchange": "delivered",
    "address": "pending",
}
_KINDS: Final[tuple[Kind, ...]] = ("track", "cancel", "refund", "refund", "exchange", "exchange", "address")
_TASK_ID: Final = re.compile(r"(desk(?:-short|-long)?)-([a-z]+)-(?:0|[1-9][0-9]{0,5})")
ID_PATTERN: Final = r"[CO][0-9]{4}|E[0-9]{4}@mail\.com|555-[0-9]{4}"
"""Customer, order, email, phone: what a tokenizer should keep whole."""


def pool(part: Part, letter: str) -> list[str]:
    """Every id of a part: customers `C`, orders `O`, emails `E`, phones `P`. The last digit tells the parts apart."""
    shape, count = {
        "C": ("C{}", _CUSTOMERS),
        "O": ("O{}", _ORDERS),
        "E": ("E{}@mail.com", _CUSTOMERS),
        "P": ("555-{}", _CUSTOMERS),
    }[letter]
    first = {"C": 1000, "O": 2000, "E": 3000, "P": 4000}[letter]
    return [shape.format(number) for number in range(first, first + count) if number % 10 in _SHARE[part]]


def draw_tasks(part: Part, count: int, seed: int, environment: str = "desk") -> list[Task]:
    """`count` distinct tasks of one part. Raises ConfigError for more than there are."""
    indices = draw_indices(environment, part, count, f"{part}-{seed}")
    return [make_task(f"{environment}-{part}-{index}") for index in indices]


def draw_indices(environment: str, part: Part, count: int, stream: str) -> list[int]:
    """Of `count` distinct tasks. Raises ConfigError for more than there are."""
    if count > TASKS_PER_PART:
        raise ConfigError(f"{environment}: {count} {part} tasks were asked for, there are {TASKS_PER_PART}; take fewer")
    return random.Random(stream).sample(range(TASKS_PER_PART), count)


def horizon_of(task_id: str) -> Horizon:
    """Of a task that there is."""
    return HORIZONS[task_id.rsplit("-", 2)[0]]


@lru_cache(maxsize=1024)
def make_task(task_id: str) -> Task:
    """The task of that id, `ENVIRONMENT-PART-INDEX`. Raises ConfigError for any other text."""
    found = _TASK_ID.fullmatch(task_id)
    part = next((part for part in _SHARE if found and found[2] == part), None)
    if part is None:
        raise ConfigError(f"desk task {task_id!r} is unknown; use desk-PART-INDEX with PART one of {', '.join(_SHARE)}")
    rng = random.Random(task_id)
    while True:
        task = _Maker(rng, task_id, part).make()
        shortest, longest = _turns(task)
        if shortest >= horizon_of(task_id).turns[0] and longest <= horizon_of(task_id).turns[1]:
            return task


class _Maker:
    """Draws one task; whether it has the right length is for the caller to say."""

    def __init__(self, rng: random.Random, task_id: str, part: Part) -> None:
        self.rng, self.task_id, self.part, self.horizon = rng, task_id, part, horizon_of(task_id)
        self.names = rng.sample(ITEMS, len(ITEMS))
        self.order_ids = rng.sample(pool(part, "O"), self.horizon.orders)
        ids, emails, phones = (rng.sample(pool(part, letter), 2) for letter in "CEP")
        self.customers = tuple(
            Customer(id=id_, email=email, phone=phone, tier=rng.choice(("gold", "basic")))
            for id_, email, phone in zip(ids, emails, phones, strict=True)
        )
        self.orders: list[Order] = []
        self.stock: list[tuple[str, str, int]] = []

    def make(self) -> Task:
        rng = self.rng
        requests = tuple(self._request(rng.choice(_KINDS)) for _ in range(rng.choice(self.horizon.requests)))
        self._order("track", self.customers[0])  # never asked for
        self._order("track", self.customers[1])
        return Task(
            id=self.task_id,
            part=self.part,
            customers=self.customers,
            orders=tuple(rng.sample(self.orders, len(self.orders))),
            stock=tuple(self.stock),
            requests=requests,
            opening=rng.choice(("greeting", "request", "identified")),
        )

    def _order(self, kind: Kind, owner: Customer) -> Order:
        rng = self.rng
        status: Status = rng.choice(("pending", "shipped", "delivered"))
        if rng.random() < 0.55:
            status = _USUAL.get(kind, status)
        one = self.horizon.single or len(self.names) < 8
        items = tuple(
            Item(name=name, colour=rng.choice(COLOURS), price=rng.randint(20, 80), sale=rng.random() < 0.2)
            for name in [self.names.pop() for _ in range(1 if one else rng.choice((1, 2)))]
        )
        order = Order(
            id=self.order_ids.pop(),
            customer_id=owner.id,
            status=status,
            date=f"{rng.choice(MONTHS)} {rng.randint(1, 28)}",
            days=rng.randint(1, LIMIT + 10) if status == "delivered" else 0,
            city=rng.choice(CITIES),
            items=items,
        )
        self.orders.append(order)
        return order

    def _request(self, kind: Kind) -> Request:
        rng = self.rng
        foreign = rng.random() < 0.08
        order = self._order(kind, self.customers[foreign])
        if kind == "track":
            more = () if foreign or rng.random() < 0.5 else (self._order(kind, self.customers[0]).id,)
            return Request(kind=kind, orders=(order.id, *more), pushes=rng.random() < 0.3)
        item = rng.choice(order.items) if kind in ("refund", "exchange") else None
        value = rng.choice([city for city in CITIES if city != order.city]) if kind == "address" else ""
        if item and kind == "exchange":
            value = rng.choice([colour for colour in COLOURS if colour != item.colour])
            self.stock.extend(
                (item.name, colour, 0 if rng.random() < 0.25 else rng.randint(1, 9)) for colour in COLOURS
            )
        return Request(
            kind=kind,
            orders=(order.id,),
            item=item.name if item else "",
            value=value,
            vague=item is not None and not foreign and rng.random() < 0.4,
            accepts=rng.random() < 0.85,
            pushes=rng.random() < 0.3,
        )


def _turns(task: Task) -> tuple[int, int]:
    """The expert's least and most assistant turns: parallel look-ups, and one at a time."""
    costs = list(_costs(task))
    return sum(low for low, _ in costs), sum(high for _, high in costs)


def _costs(task: Task) -> Iterator[tuple[int, int]]:
    identified = {"greeting": 3, "request": 2, "identified": 1}[task.opening]
    yield identified + 1, identified + 1  # and the goodbye
    listed = False
    for request in task.requests:
        decision = decide(task, request)
        answers = 3 if decision.verdict == "do" and request.accepts else 1
        answers += decision.verdict == "refuse" and request.pushes
        look_ups = len(request.orders) + (request.kind == "exchange" and decision.reasons in ((), ("stock",)))
        yield answers + (request.vague and not listed) + 1, answers + request.vague + look_ups
        listed = listed or request.vague
