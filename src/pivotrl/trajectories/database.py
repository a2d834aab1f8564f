"""The sessions in OpenCode's SQLite database (1.2 and later), each in the shape that `opencode export` gives it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.trajectories.jsonfile import parse

MAGIC: Final = b"SQLite format 3\0"
BESIDE: Final = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, and reads with it."""
_COLUMNS: Final = {"session": {"id"}, "message": {"id", "session_id", "data"}, "part": {"id", "message_id", "data"}}
_STEPS: Final = 1_000_000
"""Of SQLite's machine at a time; a read that needs `_MOST` times as many is given up."""
_MOST: Final = 10_000


def sessions(path: Path, label: str) -> Iterator[tuple[None, JsonValue]]:
    """Every session with its messages and their parts, in the order of their ids.

    The file is opened read-only, and what its schema would have SQLite run is not trusted. Raises InputError for
    another database, for one that is damaged, and for data that is not JSON.
    """
    try:
        with closing(_connect(path)) as database:
            found = {table: _columns(database, table) for table in _COLUMNS}
            if not all(_COLUMNS[table] <= columns for table, columns in found.items()):
                raise InputError(f"{label}: a database, and not OpenCode's; export its trajectories to JSON Lines")
            parent = "parent_id" if "parent_id" in found["session"] else "NULL"
            for own, above in database.execute(f"SELECT id, {parent} FROM session ORDER BY id").fetchall():
                yield None, {"info": {"id": own, "parentID": above}, "messages": _messages(database, own, label)}
    except sqlite3.Error as error:
        raise InputError(f"{label}: a database that cannot be read ({error}); export its sessions instead") from None


def _connect(path: Path) -> sqlite3.Connection:
    """With what its log holds; without, where the folder does not let SQLite read that."""
    for options in ("mode=ro", "mode=ro&immutable=1"):
        database = sqlite3.connect(f"{path.resolve().as_uri()}?{options}", uri=True)
        database.executescript("PRAGMA trusted_schema=OFF; PRAGMA query_only=ON; PRAGMA mmap_size=0")
        ends = partial(next, repeat(False, _MOST), True)  # False so many times; then True, which ends the query
        database.set_progress_handler(ends, _STEPS)
        try:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            database.close()
        else:
            return database
    raise sqlite3.OperationalError("it is locked, or not whole")


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    """None of them where it is no ordinary table: a view or a virtual table would be code of the file's."""
    kinds = database.execute("SELECT sql FROM sqlite_master WHERE name = ? AND type = 'table'", (table,)).fetchall()
    if not kinds or not str(kinds[0][0]).upper().startswith("CREATE TABLE"):
        return set()
    return {str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")}


def _messages(database: sqlite3.Connection, session: str, label: str) -> list[JsonValue]:
    """The messages of one session; ids are made of the time, so that they sort by it."""
    rows = database.execute("SELECT id, data FROM message WHERE session_id = ? ORDER BY id", (session,)).fetchall()
    query = "SELECT data FROM part WHERE message_id = ? ORDER BY id"
    return [
        {
            "info": _json(data, f"{label}: message {own}"),
            "parts": [_json(part, f"{label}: message {own}, a part") for (part,) in database.execute(query, (own,))],
        }
        for own, data in rows
    ]


def _json(text: object, where: str) -> JsonValue:
    try:
        return parse(text if isinstance(text, str | bytes) else "")
    except ValueError:
        raise InputError(f"{where}: data that is no JSON; export the session instead") from None
