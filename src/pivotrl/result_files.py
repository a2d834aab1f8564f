"""Item by item results from where they lie: our runs, tau2-bench, lm-eval, NeMo Gym rollouts, SWE-bench reports.

A file is told by its content. Each reader gives the items that its tool's own number is the mean of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from pivotrl.errors import InputError, MissingError
from pivotrl.manifests import named
from pivotrl.outcomes import ITEMS_FILE, ItemScore, item_scores
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import content_hash, read_jsonl

Object = Mapping[str, Any]
_LONGEST: Final = 256 << 20
"""Bytes of one JSON text."""
_PRIMARY: Final = ("exact_match", "acc_norm", "acc", "pass@1", "prompt_level_strict_acc", "f1", "score", "chrf")
"""Metrics of lm-eval, the first that a sample has, unless it is asked for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What one policy scored, and under which settings."""

    items: tuple[ItemScore, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    """What should be the same on both sides: temperature, trials, the harness and its version, ..."""
    general: frozenset[str] = frozenset()
    """Suites that are known to be of what may be forgotten."""


def read_results(path: Path, policy: str | None, metric: str | None = None, name: str = "") -> Results:
    """The results of one policy: of a run the one called `policy`, else `name`, else its last; `metric` is lm-eval's.

    Raises MissingError (nothing there, no such policy) or InputError (a file that no reader knows, or that is broken).
    """
    if not path.exists():
        raise MissingError(f"{path}: no such file or directory; check the path")
    if (path / "run.json").exists():
        return _of_run(path, policy, name)
    inside = (one for one in path.rglob("*") if one.suffix in (".json", ".jsonl") and one.is_file())
    files = sorted(inside) if path.is_dir() else [path]
    samples = {(one.parent, _task_of(one)): one for one in files if one.name.startswith("samples_")}  # the latest run's
    found = [_of_file(one, name, metric) for one in samples.values() or files]
    items = tuple(item for results in found for item in results.items)
    if not items:
        raise InputError(f"{path}: no results in it; give a run, or what tau2, lm-eval, NeMo Gym or SWE-bench wrote")
    return Results(items=items, settings={key: value for one in found for key, value in one.settings.items()})


def _of_run(path: Path, policy: str | None, name: str) -> Results:
    run = RunDirectory(path)
    items: list[ItemScore] = []
    settings: dict[str, Any] = {}
    general: set[str] = set()
    for title, facts in named(run.stages(), "evaluate"):
        file = run.evaluation(title) / ITEMS_FILE
        if not file.exists():
            continue
        rows = list(read_jsonl(file, ItemScore))
        run.check(file)
        names = list(dict.fromkeys(one.policy for one in rows))
        wanted = (policy,) if policy else (name, f"train/{name}", *names[-1:])
        chosen = next((one for one in wanted if one in names), None)
        mine = [one for one in rows if one.policy == chosen]
        items += mine
        general |= {*facts.get("general", ())}
        for suite in {one.suite for one in mine}:
            settings[f"{suite}: sampling"] = facts["sampling"]
            settings[f"{suite}: version"] = facts.get("environments", {}).get(suite, facts.get("verifier_id"))
    if not items:
        raise MissingError(
            f"{path}: no evaluation of {policy or 'any policy'} with its items; `pivotrl evaluate` again, or name the "
            "policy: NAME=RUN:POLICY"
        )
    return Results(items=tuple(items), settings=settings, general=frozenset(general))


def _of_file(path: Path, policy: str, metric: str | None) -> Results:
    rows = list(_rows(path))
    first = rows[0] if rows else {}
    for knows, read in _READERS:
        if knows(first):
            try:
                items = tuple(item_scores(policy, list(read(rows, path, metric))))
                return Results(items=items, settings=_settings(rows, {one.suite for one in items}))
            except (KeyError, TypeError, AttributeError) as error:
                raise InputError(f"{path}: not as its tool writes it ({type(error).__name__}: {error})") from None
    return Results(items=())


def _rows(path: Path) -> Iterator[Object]:
    """A JSON document as one row, JSON Lines as many."""
    data = path.read_bytes()
    try:
        whole = _parsed(data)
    except ValueError:
        yield from _lines(path, data)
    else:
        yield from whole if isinstance(whole, list) else [whole]


def _lines(path: Path, data: bytes) -> Iterator[Object]:
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            try:
                row = _parsed(line)
            except ValueError as error:
                raise InputError(f"{path}:{number}: not JSON ({error}); fix or remove the line") from None
            yield row


def _parsed(text: bytes) -> Any:
    if len(text) > _LONGEST:
        raise ValueError(f"more than {_LONGEST >> 20} MiB")
    return orjson.loads(text)


_Scored = Iterator[tuple[str, str, float]]
"""Suite, item, reward."""


def _tau2(rows: list[Object], path: Path, _: str | None) -> _Scored:
    for row in rows:
        domain = ((row.get("info") or {}).get("environment_info") or {}).get("domain_name") or path.stem
        for at, one in enumerate(row["simulations"]):
            reward = (one.get("reward_info") or {}).get("reward")
            yield f"tau2 {domain}", str(one.get("task_id")), _number(reward, f"{path}: simulations[{at}]", missing=0.0)


def _tau(rows: list[Object], path: Path, _: str | None) -> _Scored:
    for at, row in enumerate(rows):
        yield "tau-bench", str(row["task_id"]), _number(row.get("reward"), f"{path}[{at}]", missing=0.0)


def _gym(rows: list[Object], path: Path, _: str | None) -> _Scored:
    for at, row in enumerate(rows):
        agent = (row.get("agent_ref") or {}).get("name") or path.stem
        item = str(row.get("_ng_task_index", row.get("task_index", at)))
        yield str(agent), item, _number(row.get("reward"), f"{path}:{at + 1}")


def _swe_bench(rows: list[Object], path: Path, _: str | None) -> _Scored:
    """Of the submitted instances, as its own report counts them; an error or an empty patch is not resolved."""
    report = rows[0]
    resolved = {*report["resolved_ids"]}
    lists = ("submitted_ids", "completed_ids", "unresolved_ids", "resolved_ids", "error_ids", "empty_patch_ids")
    every: Iterable[str] = report.get("submitted_ids") or [one for key in lists for one in report.get(key) or ()]
    for item in dict.fromkeys(every):
        yield "SWE-bench", item, float(item in resolved)


def _lm_eval(rows: list[Object], path: Path, metric: str | None) -> _Scored:
    """The lines of `samples_TASK_TIME.jsonl`."""
    return lm_eval_rows(rows, _task_of(path), metric, str(path))


def _task_of(path: Path) -> str:
    return path.stem.removeprefix("samples_").rsplit("_", 1)[0]


def lm_eval_rows(rows: list[Object], task: str, metric: str | None, where: str) -> _Scored:
    """Of lm-eval's samples of a task; of several filters the first. An item is a document, with its hash."""
    first_filter = rows[0].get("filter")
    name = metric or next((one for one in (*_PRIMARY, *rows[0].get("metrics", ())) if one in rows[0]), None)
    if name is None or name not in rows[0]:
        known = [key for key, value in rows[0].items() if isinstance(value, int | float) and key != "doc_id"]
        raise InputError(f"{where}: samples have no metric {name or ''}; choose one with --metric: {', '.join(known)}")
    for at, row in enumerate(rows):
        if row.get("filter") == first_filter:
            item = f"{row['doc_id']} {row.get('doc_hash', '')[:8]}".strip()
            yield f"{task} {name}", item, _number(row.get(name), f"{where}:{at + 1}")


def _number(value: Any, where: str, missing: float | None = None) -> float:
    if value is None and missing is not None:
        return missing
    if not isinstance(value, bool | int | float):
        raise InputError(f"{where}: no reward; found {value!r:.60}")
    return float(value)


def _settings(rows: list[Object], suites: set[str]) -> dict[str, Any]:
    """What tau2's own header says of how it was run; the prompts of lm-eval."""
    if prompts := sorted(one["prompt_hash"] for one in rows if "prompt_hash" in one):
        return {f"{suite}: prompts": content_hash(prompts) for suite in suites}
    row = rows[0]
    info = row.get("info") if isinstance(row.get("info"), Mapping) else {}
    kept = {key: info[key] for key in ("num_trials", "max_steps", "user_info") if info and key in info}
    return {f"{suite}: {key}": value for suite in sorted(suites) for key, value in kept.items()}


def _has(*keys: str) -> Callable[[Object], bool]:
    return lambda row: isinstance(row, Mapping) and all(key in row for key in keys)


_READERS: Final[tuple[tuple[Callable[[Object], bool], Callable[[list[Object], Path, str | None], _Scored]], ...]] = (
    (_has("simulations"), _tau2),
    (_has("task_id", "reward", "traj"), _tau),
    (_has("resolved_ids"), _swe_bench),
    (_has("doc_id", "target"), _lm_eval),
    (_has("responses_create_params", "reward"), _gym),
)
