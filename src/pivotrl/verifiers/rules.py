"""The rules file of `tool_call`: how the arguments of each tool are compared where their schema does not say it all.

    read_only = ["find_customer", "get_order"]      # tools that change nothing

    [or_ask]                                        # messages that do as well as a call of the tool, and the reverse
    list_orders = ["Which order is it?"]
    [find_customer]
    email = "grounded:.+@.+"                        # a regular expression that the whole value has to match
    phone = "grounded"
    [book.guest]                                    # a table reaches into an object, or into those of an array
    name = "case"
    ["*"]                                           # any tool; its own table goes before
    note = "text>=0.8"

Words: `same` (the default comparison of `values`), `exact` (the same JSON value), `ignore`, `set` (an array without its
order), `path`, `date`, `case`, `text>=X` (F1 of content words), `filter` (may be left out: the tool then shows more),
`grounded` (may be left out or differ, see `grounding`; one such argument at least where one was demonstrated).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import orjson

from pivotrl.errors import ConfigError
from pivotrl.types import Tool
from pivotrl.verifiers.message import alike
from pivotrl.verifiers.values import TEXT, inferred

ANY: Final = "*"
READ_ONLY: Final = "read_only"
OR_ASK: Final = "or_ask"
ASKS: Final = 0.75
"""F1 of content words from which on a message is taken for a question of `or_ask`."""
STRANGE: Final = "file, but the schema has no such argument"
_GROUNDED: Final = re.compile(r"grounded(?::(.+))?", re.DOTALL)
_WORD: Final = re.compile(rf"same|exact|ignore|set|path|date|case|filter|{TEXT}(?:0(?:\.\d+)?|1(?:\.0+)?)")


@dataclass(frozen=True, slots=True)
class ToolRules:
    """The rules of one tool, ready for `values.difference`."""

    arguments: dict[str, Any]
    """Words by argument, or tables that reach into it."""
    grounded: Mapping[str, str]
    """Arguments of the rule `grounded` (for `difference` they are `ignore`), with the pattern of their values."""
    read_only: bool
    """Whether the tool changes nothing."""


def read_rules(source: str) -> str:
    """The rules in a TOML file (see `_text`) as JSON text; JSON text of rules, and none, stay. Raises ConfigError."""
    if not source:
        return ""
    try:
        tables = orjson.loads(source) if source.startswith("{") else tomllib.loads(_text(source))
    except (OSError, ModuleNotFoundError) as error:
        reason = getattr(error, "strerror", error)
        raise ConfigError(f"rules {source}: cannot be read ({reason}); give a TOML file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"rules {source}: no TOML ({error}); see docs/verifiers.md") from None
    for name, table in tables.items():
        _check(source, name, table)
    return orjson.dumps(tables, option=orjson.OPT_SORT_KEYS).decode() if tables else ""


def _text(source: str) -> str:
    """A file, or with @ one inside of a package: `@package.module/rules.toml`."""
    package, _, name = source[1:].partition("/")
    file = resources.files(package).joinpath(name) if source.startswith("@") else Path(source)
    return file.read_text(encoding="utf-8")


def _check(source: str, name: str, table: object) -> None:
    lists = [table] if name == READ_ONLY else [*table.values()] if name == OR_ASK and isinstance(table, dict) else None
    if lists is None and isinstance(table, dict):
        _check_table(source, name, table, depth=0)
    elif lists is None or not all(isinstance(one, list) and all(isinstance(x, str) for x in one) for one in lists):
        hint = f"{READ_ONLY} = [TOOLS], [{OR_ASK}] with TOOL = [QUESTIONS], or [TOOL] with ARGUMENT = RULE"
        raise ConfigError(f"rules {source}: {name}: write {hint}")


def _check_table(source: str, at: str, table: Mapping[str, object], depth: int) -> None:
    for key, word in table.items():
        where = f"rules {source}: [{at}] {key}"
        if isinstance(word, dict):
            _check_table(source, f"{at}.{key}", word, depth + 1)
            continue
        grounded = _GROUNDED.fullmatch(word) if isinstance(word, str) else None
        if grounded and depth:
            raise ConfigError(f"{where}: only a whole argument of a tool can be grounded")
        if grounded:
            try:
                re.compile(grounded[1] or "")
            except re.error as error:
                raise ConfigError(f"{where} = {word!r}: no regular expression ({error})") from None
        elif not (isinstance(word, str) and _WORD.fullmatch(word)):
            words = "same, exact, ignore, set, path, date, case, text>=X (X from 0 to 1), filter, grounded"
            raise ConfigError(f"{where} = {word!r}: no rule; use one of {words}")


@lru_cache(maxsize=1024)
def tool_rules(text: str, tool: str) -> ToolRules:
    """The rules of a tool in what `read_rules` returned."""
    rules, _ = _tool_table(text, tool)
    words = {key: word for key, word in rules.items() if isinstance(word, str)}
    grounded = {key: found[1] or "" for key, word in words.items() if (found := _GROUNDED.fullmatch(word))}
    return ToolRules(rules | dict.fromkeys(grounded, "ignore"), grounded, tool in _tables(text).get(READ_ONLY, ()))


def asks(text: str, tool: str, said: str | None) -> bool:
    """Whether a message is one of the questions that do as well as a call of the tool."""
    return any(alike(one, said or "", ASKS) for one in _tables(text).get(OR_ASK, {}).get(tool, ()))


def named_tools(text: str) -> frozenset[str]:
    """The tools that the file names anywhere."""
    tables = _tables(text)
    own = tables.keys() - {ANY, READ_ONLY, OR_ASK}
    return frozenset([*own, *tables.get(READ_ONLY, ()), *tables.get(OR_ASK, {})])


@lru_cache(maxsize=16)
def _tables(text: str) -> dict[str, Any]:
    tables: dict[str, Any] = orjson.loads(text or "{}")
    return tables


def _tool_table(text: str, tool: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rules of a tool, and those of them that its own table has."""
    own: dict[str, Any] = {} if tool in (READ_ONLY, OR_ASK) else _tables(text).get(tool, {})
    return {**_tables(text).get(ANY, {}), **own}, own


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRule:
    """The rule that holds for one argument, and where it comes from."""

    argument: str
    rule: str
    origin: str
    """`file`, `schema`, `default`, or STRANGE."""


def applied(text: str, tool: Tool) -> Iterator[AppliedRule]:
    """The rule of every argument that the schema or the tool's table name; `[]` stands for the items of an array."""
    rules, own = _tool_table(text, tool.name)
    if tool.parameters is not None:
        named = {**_properties(tool.parameters), **own}
        rules = {key: rule for key, rule in rules.items() if key in named}
    yield from _applied("", tool.parameters or {}, rules)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _applied(at: str, schema: Mapping[str, Any], rules: Mapping[str, Any]) -> Iterator[AppliedRule]:
    known = _properties(schema)
    for key in {**known, **rules}:
        inner, rule, name = known.get(key), rules.get(key), f"{at}{key}"
        if isinstance(rule, str):
            yield AppliedRule(argument=name, rule=rule, origin="file" if key in known or not known else STRANGE)
            continue
        word, shape = inferred(inner), inner if isinstance(inner, dict) else {}
        items = shape.get("items")
        shape = items if isinstance(items, dict) else shape
        if word != "same" or not (_properties(shape) or rule):
            yield AppliedRule(argument=name, rule=word, origin="default" if word == "same" else "schema")
        yield from _applied(f"{name}[]." if shape is items else f"{name}.", shape, rule or {})
