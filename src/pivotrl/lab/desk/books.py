"""The nouns of the desk: what its books hold, what a customer asks, and the task that joins both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Part = Literal["base", "train", "validation", "test"]
"""`base` tasks are for pretraining the base model; no id occurs in two of the others."""
Tier = Literal["gold", "basic"]
Status = Literal["pending", "shipped", "delivered"]
Kind = Literal["track", "cancel", "refund", "exchange", "address"]
Opening = Literal["greeting", "request", "identified"]

COLOURS: Final = ("red", "blue", "green", "black", "white")
CITIES: Final = ("Rome", "Paris", "Oslo", "Vienna", "Madrid", "Berlin")
MONTHS: Final = ("May", "June", "July")
ITEMS: Final = (
    "lamp", "chair", "mug", "kettle", "jacket", "shirt", "bag", "clock", "rug", "radio", "tent", "vase", "scarf",
    "mirror",
)  # fmt: skip
NAMES: Final = (*ITEMS, *COLOURS, *CITIES, *MONTHS)
"""The words that an agent copies from place to place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """One row of `customers`."""

    id: str
    email: str
    phone: str
    tier: Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One row of `items`; the names within a task are distinct."""

    name: str
    colour: str
    price: int
    sale: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One row of `orders` with its items."""

    id: str
    customer_id: str
    status: Status
    date: str
    """When it arrives, or arrived: `May 14`."""
    days: int
    """Since delivery; 0 before."""
    city: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One thing that the customer wants, and how the customer takes the answer."""

    kind: Kind
    orders: tuple[str, ...]
    """One order; `track` may ask for two."""
    item: str = ""
    value: str = ""
    """The new colour of `exchange`, the new city of `address`."""
    vague: bool = False
    """Names the item and not the order."""
    accepts: bool = True
    """Says yes when asked to confirm."""
    pushes: bool = False
    """Asks for an exception when refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One conversation to be had. The first customer is the caller."""

    id: str
    part: Part
    customers: tuple[Customer, ...]
    orders: tuple[Order, ...]
    stock: tuple[tuple[str, str, int], ...]
    """Item, colour, pieces left."""
    requests: tuple[Request, ...]
    opening: Opening

    @property
    def caller(self) -> Customer:
        return self.customers[0]

    def order(self, order_id: str) -> Order:
        """The order of that id. Raises KeyError."""
        for order in self.orders:
            if order.id == order_id:
                return order
        raise KeyError(order_id)

    def left(self, item: str, colour: str) -> int:
        """Pieces in stock; 0 for what the shop does not have."""
        return next((left for name, tint, left in self.stock if (name, tint) == (item, colour)), 0)
