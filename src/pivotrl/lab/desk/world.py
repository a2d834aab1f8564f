"""The desk's books as a small SQLite database in memory: filled from a task, compared, saved and loaded as bytes."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from pivotrl.errors import InputError
from pivotrl.lab.desk.books import Task
from pivotrl.lab.desk.rules import decide, write_call
from pivotrl.lab.desk.tools import arguments_of, execute
from pivotrl.types import ToolCall

TABLES: Final = ("customers", "orders", "items", "stock", "changes")
SCHEMA: Final = """
PRAGMA page_size = 512;
CREATE TABLE customers (id TEXT, email TEXT, phone TEXT, tier TEXT);
CREATE TABLE orders (id TEXT, customer_id TEXT, status TEXT, date TEXT, days INTEGER, city TEXT);
CREATE TABLE items (order_id TEXT, name TEXT, colour TEXT, price INTEGER, sale INTEGER, state TEXT);
CREATE TABLE stock (name TEXT, colour TEXT, left INTEGER);
CREATE TABLE changes (tool TEXT, order_id TEXT, item TEXT, value TEXT, amount INTEGER, notify INTEGER);
"""


def open_books(task: Task) -> sqlite3.Connection:
    """A fresh database with the books of a task."""
    books = _connect()
    books.deserialize(_TEMPLATE)
    for table, rows in _rows(task).items():
        if rows:
            books.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return books


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


_TEMPLATE: Final = _connect().executescript(SCHEMA).connection.serialize()


def _rows(task: Task) -> dict[str, list[tuple[Any, ...]]]:
    return {
        "customers": [(one.id, one.email, one.phone, one.tier) for one in task.customers],
        "orders": [(one.id, one.customer_id, one.status, one.date, one.days, one.city) for one in task.orders],
        "items": [
            (order.id, item.name, item.colour, item.price, item.sale, "sold")
            for order in task.orders
            for item in order.items
        ],
        "stock": list(task.stock),
    }


def load_books(data: bytes) -> sqlite3.Connection:
    """A database that was serialized. Raises InputError for other bytes."""
    books = _connect()
    try:
        books.deserialize(data)
        contents(books)
    except (sqlite3.Error, OverflowError) as error:
        raise InputError(f"snapshot: the desk's books cannot be read ({error}); take the snapshot again") from None
    return books


def contents(books: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, the order of rows aside."""
    return {table: sorted(books.execute(f"SELECT * FROM {table}").fetchall()) for table in TABLES}


def wanted_contents(task: Task) -> dict[str, list[tuple[Any, ...]]]:
    """The contents after everything that the policy allows and the customer accepts."""
    books = open_books(task)
    for request in task.requests:
        decision = decide(task, request)
        if decision.verdict == "do" and request.accepts:
            name, arguments = write_call(request, decision)
            execute(books, name, arguments_of(ToolCall(name=name, arguments=json.dumps(arguments))))
    return contents(books)
