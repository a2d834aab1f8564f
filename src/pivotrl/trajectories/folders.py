"""Which files make an input: what the command line names, and folders in which one trajectory lies in several files.

A further layout of that kind is one function in `JOINERS`: of the files of a folder, by their names in it, it says
which belong together and how their records follow. Layouts are known by names, as nothing else ties the files; what
lies in them is told by content as ever.
"""

from __future__ import annotations

import glob
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path, PurePath
from typing import Final

from pydantic import JsonValue

from pivotrl.errors import InputError, MissingError, brief
from pivotrl.logs import counted, say
from pivotrl.protocols import Record
from pivotrl.trajectories.database import BESIDE
from pivotrl.trajectories.messages import dig
from pivotrl.trajectories.sources import File, document, label, members, read_file, text_of

_PLAIN: Final = (".py", ".md", ".rst", ".yaml", ".yml", ".toml", ".sh", ".jinja")
_WHOLE: Final = "trajectories.jsonl"
Files = Mapping[str, File]
"""The files of a folder or an archive by their names in it, with `/` between."""


@dataclass(frozen=True, slots=True)
class Input:
    """What is read as one file: its trajectories have this label for their source."""

    label: str
    files: tuple[File, ...]
    join: Callable[[Sequence[File]], Iterator[Record | InputError]] | None = None
    """Gives the records of several files, in the order of `files`; a module's function, as workers are sent it."""
    named: bool = False
    """Whether the user named this very file: then it has to be readable."""

    def records(self) -> Iterator[Record | InputError]:
        """Raises InputError or MissingError."""
        return read_file(self.files[0]) if self.join is None else self.join(self.files)


def find(paths: Sequence[str], run: Path, stack: ExitStack) -> list[Input]:
    """Every input once, in the order given, folders sorted; nothing out of the run itself.

    `stack` holds what standard input is kept in. Raises MissingError or InputError.
    """
    found: dict[tuple[Path, str | None, str], Input] = {}
    for text in map(str, paths):
        inputs = [item for top in _tops(text, stack) for item in _inputs(top, run)]
        if not inputs:
            raise InputError(f"{text}: no files in it; give a directory that holds JSON or JSON Lines")
        for item in inputs:
            first = item.files[0]
            found.setdefault((first.path.resolve(), first.member, item.label if item.join else ""), item)
    return list(found.values())


def _tops(text: str, stack: ExitStack) -> list[tuple[Path, str | None]]:
    """Files and folders, each with its label where the user named it."""
    if text == "-":
        copy = stack.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        return [(Path(copy.name), "stdin")]
    path = _dataset(text.removeprefix("hf:")) if text.startswith("hf:") else Path(text)
    if path.exists():
        return [(path, path.name)]
    names = sorted(glob.glob(text, recursive=True))  # noqa: PTH207
    if not names:
        raise MissingError(f"{text}: no such file or directory; check the path")
    return [(Path(name), None) for name in names]


def _dataset(spec: str) -> Path:
    """The files of a Hugging Face dataset, `owner/name` or `owner/name@revision`, out of the local cache or the Hub."""
    import huggingface_hub

    name, _, revision = spec.partition("@")
    try:
        return Path(huggingface_hub.snapshot_download(name, repo_type="dataset", revision=revision or None))
    except (ValueError, OSError) as error:
        raise MissingError(
            f"hf:{spec}: not in the local cache, and the hub does not give it ({brief(error)})"
        ) from None


def _inputs(top: tuple[Path, str | None], run: Path) -> list[Input]:
    path, name = top
    if not path.is_dir():
        shown = label(name or path.name)
        if inside := members(path, shown):
            return _joined({file.member or "": file for file in inside})
        own = name is None and run in path.resolve().parents
        beside = path.with_name(f"{path.stem}{_INPUTS}.jsonl")
        files = (File(shown, path), *([File(beside.name, beside)] if beside.exists() else ()))
        join = _gym_records if len(files) > 1 else None
        return [] if own else [Input(shown, files, join, named=name is not None)]
    found: dict[str, File] = {}
    items = [item for item in sorted(path.rglob("*")) if "/." not in f"/{item.relative_to(path)}" and item.is_file()]
    passed = _no_data(items)
    if passed:
        say(f"passed over in {path}, as no data: {counted(len(passed), 'file')}, such as {min(passed).name}")
    for item in items:
        is_beside = item.name.endswith(BESIDE) and item.with_name(item.name.rpartition("-")[0]).is_file()
        if item not in passed and not is_beside and run not in item.resolve().parents:
            place, inside = item.relative_to(path).as_posix(), []
            with suppress(InputError):  # it is said when the file is read
                inside = members(item, label(place))
            found |= {f"{place}/{file.member}": file for file in inside} or {place: File(label(place), item)}
    return _joined(found)


def _no_data(items: Sequence[Path]) -> set[Path]:
    """Scripts, texts for people, and of an export that holds its `trajectories.jsonl` all else."""
    whole = {item.parent for item in items if item.name == _WHOLE and item.with_name("export.json") in items}
    beside = {item for item in items if item.name != _WHOLE and not whole.isdisjoint(item.parents)}
    return {item for item in items if item in beside or item.suffix in _PLAIN or item.name == "requirements.txt"}


def _joined(files: Files) -> list[Input]:
    """The sets that lie in several files, and every other file alone."""
    joined = [item for joiner in JOINERS for item in joiner(files)]
    taken = {file for item in joined for file in item.files}
    return joined + [Input(file.label, (file,)) for file in files.values() if file not in taken]


def pairs(files: Files) -> Iterator[Input]:
    """Files that another one in the folder above completes."""
    for name, file in files.items():
        for pattern, beside, join in _BESIDE:
            match = re.fullmatch(pattern, name)
            other = files.get(f"{match[1] or ''}{beside}") if match else None
            if other is not None:
                yield Input(file.label, (file, other), join)


def _tau2_records(files: Sequence[File]) -> Iterator[Record | InputError]:
    simulation, results = files
    yield None, {"info": dig(_tau2_results(results, results.changed), "info"), "simulations": [document(simulation)]}


@lru_cache(maxsize=1)
def _tau2_results(file: File, changed: tuple[int, int]) -> JsonValue:
    return document(file)


_INPUTS: Final = "_materialized_inputs"
_EVENT: Final = re.compile(r"(.*/)?events/(?:event[-_])?(\d{1,18})[^/]*\.json")


def openhands(files: Files) -> Iterator[Input]:
    """OpenHands: each event in a file of its own, `events/event-00007-<id>.json`, before 1.0 `events/7.json`."""
    found = sorted((match[1] or "", int(match[2]), name) for name in files if (match := _EVENT.fullmatch(name)))
    for folder, run in groupby(found, key=lambda event: event[0]):
        names = [*(name for _, _, name in run), f"{folder}base_state.json"]
        taken = tuple(files[name] for name in names if name in files)
        label = str(PurePath(taken[0].label).parent.parent) if folder else "conversation"
        yield Input(label, taken, _openhands_records)


def _openhands_records(files: Sequence[File]) -> Iterator[Record | InputError]:
    for file in files:
        for record in read_file(file):
            yield record if isinstance(record, InputError) else (None, record[1])


def _harbor_records(files: Sequence[File]) -> Iterator[Record | InputError]:
    trajectory, result = map(document, files)
    yield None, {**trajectory, "harbor_result": result} if isinstance(trajectory, dict) else trajectory


def _gym_records(files: Sequence[File]) -> Iterator[Record | InputError]:
    rollouts, inputs = files
    rows: dict[int, dict[str, JsonValue]] = {}
    for record in read_file(inputs):
        row = None if isinstance(record, InputError) else record[1]
        if isinstance(row, dict) and isinstance(index := row.get("_ng_task_index"), int):
            rows.setdefault(index, {key: row[key] for key in row if key != "responses_create_params"})
    for record in read_file(rollouts):
        value = None if isinstance(record, InputError) else record[1]
        index = dig(value, "_ng_task_index")
        if isinstance(record, InputError) or not isinstance(value, dict) or not isinstance(index, int):
            yield record
        else:
            yield record[0], {**rows.get(index, {}), **value}


_EPISODE: Final = re.compile(r"((?:.*/)?)agent-logs/episode-(\d+)/(prompt|response)\.(txt|json)")


def terminal_bench(files: Files) -> Iterator[Input]:
    """Terminal-Bench: `TRIAL/agent-logs/episode-7/prompt.txt` and `response.txt` (or `.json`), `TRIAL/results.json`."""
    found = sorted((m[1], int(m[2]), m[3], m[4], name) for name in files if (m := _EPISODE.fullmatch(name)))
    for folder, run in groupby(found, key=lambda item: item[0]):
        said = {(episode, who): files[name] for _, episode, who, _, name in run}  # of two answers the text
        results = [files[name] for name in (f"{folder}results.json",) if name in files]
        label = str(PurePath(next(iter(said.values())).label).parents[2])
        yield Input(label if label != "." else "trial", (*said.values(), *results), _terminal_bench_records)


def _terminal_bench_records(files: Sequence[File]) -> Iterator[Record | InputError]:
    results = document(files[-1]) if files[-1].label.endswith("results.json") else None
    roles = {"prompt": "user", "response": "assistant"}
    said = [(roles.get(PurePath(file.label).stem), file) for file in files]
    messages: list[JsonValue] = [{"role": role, "content": text_of(file)} for role, file in said if role]
    yield None, {"messages": messages, "task_id": dig(results, "task_id"), "resolved": dig(results, "is_resolved")}


def opencode(files: Files) -> Iterator[Input]:
    """OpenCode's storage: `message/SESSION/MESSAGE.json`, `part/.../MESSAGE/PART.json`, `session/.../SESSION.json`."""
    paths = {PurePath(name): file for name, file in files.items()}
    session_of = {path.stem: path.parent.name for path in paths if path.parent.parent.name == "message"}
    found: dict[str, list[File]] = {session: [] for session in session_of.values()}
    for path, file in paths.items():
        owner = session_of.get(path.stem) or session_of.get(path.parent.name) or path.stem
        found.get(owner, []).append(file)
    yield from (Input(group[0].label, tuple(group), _opencode_records) for group in found.values())


def _opencode_records(files: Sequence[File]) -> Iterator[Record | InputError]:
    values = [(PurePath(file.label), document(file)) for file in files]
    inside: dict[str, list[JsonValue]] = {}
    for path, value in values:
        inside.setdefault(path.parent.name, []).append(value)
    said: list[JsonValue] = [{"info": v, "parts": inside.get(p.stem, [])} for p, v in values if dig(v, "role")]
    session = dig(said, 0, "info", "sessionID")
    yield None, {"info": next((value for path, value in values if path.stem == session), None), "messages": said}


def inspect(files: Files) -> Iterator[Input]:
    """Inspect AI's archive of a log, which is refused once: by `_journal/start.json`."""
    for start in (name for name in files if name.endswith("_journal/start.json")):
        folder = start.removesuffix("_journal/start.json")
        own = re.compile(rf"{re.escape(folder)}((header|summaries|reductions)\.json|(_journal|samples)/.*)")
        rest = (file for name, file in files.items() if name != start and own.fullmatch(name))
        yield Input(files[start].label.removesuffix("/_journal/start.json"), (files[start], *rest))


_BESIDE: Final = (
    (r"(.*/)?simulations/[^/]+\.json", "results.json", _tau2_records),
    (r"(.*/)?agent/trajectory[^/]*\.json", "result.json", _harbor_records),
    (rf"(.*)(?<!{_INPUTS})\.jsonl", f"{_INPUTS}.jsonl", _gym_records),
)
"""tau2-bench's results have policy and tools, Harbor's the reward, NeMo Gym's inputs what the server's answer left out:
files, the one that completes them, how."""
JOINERS: Final[tuple[Callable[[Files], Iterator[Input]], ...]] = (pairs, openhands, terminal_bench, opencode, inspect)
"""Asked in turn; a file belongs to the first that takes it."""
