"""The desk's eight tools: their JSON Schemas, and what each does to the books."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator
from pydantic import JsonValue

from pivotrl.lab.desk.rules import FEE, WRITES
from pivotrl.types import Tool, ToolCall

Row = dict[str, Any]

_TEXT: Final[Row] = {"type": "string"}
_AMOUNT: Final[Row] = {"type": "integer", "minimum": 0, "maximum": 999}
_NOTIFY: Final[Row] = {"notify": {"type": "boolean", "default": True}}


_OPTIONAL: Final = {"find_customer": ("email", "phone"), "list_orders": ("item",), "check_stock": ("colour",)}
"""Arguments that may be left out and have no default."""


def _tool(name: str, description: str, properties: Row, **more: JsonValue) -> Tool:
    optional = _OPTIONAL.get(name, ())
    required = [key for key, schema in properties.items() if "default" not in schema and key not in optional]
    shape: dict[str, JsonValue] = {"type": "object", "properties": properties, "required": [*required]}
    return Tool(name=name, description=description, parameters=shape | {"additionalProperties": False} | more)


TOOLS: Final = (
    _tool("find_customer", "by email or phone", {"email": _TEXT, "phone": _TEXT}, minProperties=1),
    _tool("list_orders", "what a customer bought, all or one item", {"customer_id": _TEXT, "item": _TEXT}),
    _tool("get_order", "one order", {"order_id": _TEXT, "items": {"type": "boolean", "default": True}}),
    _tool("check_stock", "pieces left", {"item": _TEXT, "colour": _TEXT}),
    _tool("cancel_order", "cancel an order", {"order_id": _TEXT, **_NOTIFY}),
    _tool("refund_item", "pay back an item", {"order_id": _TEXT, "item": _TEXT, "amount": _AMOUNT, **_NOTIFY}),
    _tool(
        "exchange_item",
        "send another colour",
        {"order_id": _TEXT, "item": _TEXT, "colour": _TEXT, "fee": _AMOUNT, **_NOTIFY},
    ),
    _tool("change_address", "send to another city", {"order_id": _TEXT, "city": _TEXT, "fee": _AMOUNT, **_NOTIFY}),
)
SCHEMAS: Final[Mapping[str, Any]] = {tool.name: tool.parameters for tool in TOOLS}
_VALIDATORS: Final = {name: Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
WRITE_TOOLS: Final = frozenset(WRITES.values())


class RefusedError(Exception):
    """A call that the books do not allow; the text is what the tool says."""


def arguments_of(call: ToolCall) -> Row:
    """The call's arguments with the defaults filled in. Raises RefusedError for an unknown tool or bad arguments."""
    if call.name not in SCHEMAS:
        raise RefusedError("no such tool")
    arguments = call.parsed.value
    if arguments is None or not _VALIDATORS[call.name].is_valid(arguments):
        raise RefusedError("bad arguments")
    if not all(value.isascii() for value in arguments.values() if isinstance(value, str)):
        raise RefusedError("bad arguments")  # half a surrogate pair is a JSON string and no text
    defaults = {
        key: schema["default"] for key, schema in SCHEMAS[call.name]["properties"].items() if "default" in schema
    }
    return defaults | arguments


def execute(books: sqlite3.Connection, name: str, arguments: Row) -> Row:
    """What the tool answers; arguments come from `arguments_of`. Raises RefusedError with the books as they were."""
    return _EXECUTE[name](books, arguments)


def _one(books: sqlite3.Connection, query: str, values: tuple[object, ...], missing: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = books.execute(query, values).fetchone()
    if row is None:
        raise RefusedError(missing)
    return row


def _find_customer(books: sqlite3.Connection, arguments: Row) -> Row:
    where = " AND ".join(f"{key} = ?" for key in arguments)  # the schema allows two names
    query = f"SELECT id, tier FROM customers WHERE {where}"
    found, tier = _one(books, query, tuple(arguments.values()), "no such customer")
    return {"customer_id": found, "tier": tier}


def _list_orders(books: sqlite3.Connection, arguments: Row) -> Row:
    _one(books, "SELECT id FROM customers WHERE id = ?", (arguments["customer_id"],), "no such customer")
    query = (
        "SELECT items.name, orders.id FROM items JOIN orders ON orders.id = items.order_id "
        "WHERE customer_id = ? AND ? IN ('', items.name) ORDER BY orders.id, items.rowid"
    )
    rows = books.execute(query, (arguments["customer_id"], arguments.get("item", ""))).fetchall()
    return {"items": [{"item": name, "order_id": id_} for name, id_ in rows]}


def _items(books: sqlite3.Connection, order_id: str) -> list[tuple[str, int, int]]:
    query = "SELECT name, price, sale FROM items WHERE order_id = ? ORDER BY rowid"
    return books.execute(query, (order_id,)).fetchall()


def _get_order(books: sqlite3.Connection, arguments: Row) -> Row:
    query = "SELECT id, customer_id, status, date, days FROM orders WHERE id = ?"
    row = _one(books, query, (arguments["order_id"],), "no such order")
    result: Row = dict(zip(("order_id", "customer_id", "status", "date", "days"), row, strict=True))
    items = _items(books, arguments["order_id"])
    result["total"] = sum(price for _, price, _ in items)
    if arguments["items"]:
        result["items"] = [
            {"item": name, "price": price, "less_fee": price - FEE, "sale": bool(sale)} for name, price, sale in items
        ]
    return result


def _check_stock(books: sqlite3.Connection, arguments: Row) -> Row:
    query = "SELECT colour, left FROM stock WHERE name = ? ORDER BY rowid"
    left = dict(books.execute(query, (arguments["item"],)).fetchall())
    if not left:
        raise RefusedError("no such item")
    if "colour" not in arguments:
        return {"item": arguments["item"], "left": left}
    if arguments["colour"] not in left:
        raise RefusedError("no such colour")
    return {"item": arguments["item"], "colour": arguments["colour"], "left": left[arguments["colour"]]}


def _record(books: sqlite3.Connection, tool: str, arguments: Row, value: str, amount: int) -> None:
    values = (tool, arguments["order_id"], arguments.get("item", ""), value, amount, arguments["notify"])
    books.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", values)


def _cancel(books: sqlite3.Connection, arguments: Row) -> Row:
    query = "SELECT status, (SELECT sum(price) FROM items WHERE order_id = id) FROM orders WHERE id = ?"
    status, total = _one(books, query, (arguments["order_id"],), "no such order")
    if status == "cancelled":
        raise RefusedError("already done")
    books.execute("UPDATE orders SET status = 'cancelled' WHERE id = ?", (arguments["order_id"],))
    _record(books, "cancel_order", arguments, "", total)
    return {"order_id": arguments["order_id"], "result": "cancelled", "amount": total}


def _change_item(books: sqlite3.Connection, arguments: Row, state: str) -> None:
    pair = (arguments["order_id"], arguments["item"])
    query = "SELECT state FROM items WHERE order_id = ? AND name = ?"
    if _one(books, query, pair, "no such item in this order")[0] != "sold":
        raise RefusedError("already done")
    books.execute("UPDATE items SET state = ? WHERE order_id = ? AND name = ?", (state, *pair))


def _refund(books: sqlite3.Connection, arguments: Row) -> Row:
    _change_item(books, arguments, "refunded")
    _record(books, "refund_item", arguments, "", arguments["amount"])
    return {"order_id": arguments["order_id"], "result": "refunded", "amount": arguments["amount"]}


def _exchange(books: sqlite3.Connection, arguments: Row) -> Row:
    pair = (arguments["item"], arguments["colour"])
    _one(books, "SELECT left FROM stock WHERE name = ? AND colour = ? AND left > 0", pair, "not in stock")
    _change_item(books, arguments, "exchanged")
    books.execute("UPDATE stock SET left = left - 1 WHERE name = ? AND colour = ?", pair)
    _record(books, "exchange_item", arguments, arguments["colour"], arguments["fee"])
    return {"order_id": arguments["order_id"], "result": "exchanged", "fee": arguments["fee"]}


def _address(books: sqlite3.Connection, arguments: Row) -> Row:
    _one(books, "SELECT id FROM orders WHERE id = ?", (arguments["order_id"],), "no such order")
    books.execute("UPDATE orders SET city = ? WHERE id = ?", (arguments["city"], arguments["order_id"]))
    _record(books, "change_address", arguments, arguments["city"], arguments["fee"])
    return {"order_id": arguments["order_id"], "result": "changed", "fee": arguments["fee"]}


_EXECUTE: Final[Mapping[str, Callable[[sqlite3.Connection, Row], Row]]] = {
    "find_customer": _find_customer,
    "list_orders": _list_orders,
    "get_order": _get_order,
    "check_stock": _check_stock,
    "cancel_order": _cancel,
    "refund_item": _refund,
    "exchange_item": _exchange,
    "change_address": _address,
}
