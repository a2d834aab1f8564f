"""What an ingest does to each trajectory: a share of the inputs in, one event after the other out.

Shares are read in this process or by workers, each of which takes the next one that is left and leaves its events in a
file; whoever puts them together, in the order of the shares, gets the same whatever the number of workers was.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from pivotrl.candidates import CandidateRules, extract, line_hash
from pivotrl.chat import BUILTIN_TEMPLATES, ChatFormat, RenderError
from pivotrl.errors import ConfigError, InputError, PivotRLError, disk_error
from pivotrl.models import ModelSettings, load_chat
from pivotrl.splits import Ties, ties_of
from pivotrl.storage import dump_json
from pivotrl.trajectories import Input, Refusal, Taken, Told, Unclear, cut, read_input
from pivotrl.trajectories.messages import place
from pivotrl.trajectories.nemo_gym import Measured
from pivotrl.trajectories.observed import Observed, observe, observed_tools
from pivotrl.trajectories.redaction import redact
from pivotrl.types import Candidate, SkippedTurn, State, Tool, Trajectory
from pivotrl.workers import calling

_FIELDS: Final = [name.name for name in fields(Trajectory)]
_LINE: Final = b"{%b}\n" % b",".join(b'"%b":%%b' % name.encode() for name in _FIELDS)
_PROCESS_BYTES: Final = 64 << 20
"""What is worth a further process."""
_SHARE_BYTES: Final = 4 << 20
_SHARES: Final = 500
"""At most, as whoever takes one looks at all."""
Kind = tuple[str, str | None]
"""Format and domain: trajectories of one kind are taken to have had the same tools."""
Turn = tuple[int, tuple[str, ...], bytes, bytes, str, str]
"""An assistant turn, plain as there are many to send: its index, the tools that a candidate calls, a name of tools and
messages before it, a name of these and itself, and of a turn that is skipped reason and detail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeSettings(CandidateRules):
    """What is done to each trajectory."""

    format: str = "auto"
    """auto, or the name of one format: then nothing else is read."""
    redact: bool = False
    """Mask keys, tokens and passwords of the usual kinds before anything is stored."""
    tokenizer: str | None = None
    """Measure states with the tokenizer and chat template of this Hugging Face model directory or id."""
    chat_template: str | None = None
    """Jinja file, or the name of a shipped template (`chatml-tools`), to use instead of the tokenizer's own."""


class Read(NamedTuple):
    """A trajectory, as far as an ingest needs to know it; `tools` are known, matched, inferred, or unknown."""

    id: str
    line: bytes
    hash: str
    ties: Ties
    turns: list[Turn]
    digest: bytes
    outcome: float | None
    tools: str
    masked: Mapping[str, int]
    unmeasured: int
    measured: tuple[Measured, ...] | None = None
    """What a pivot row of NeMo Gym tells of others' rollouts; None where it is no such row."""


Event = int | Read | Refusal | Taken | Unclear
"""The number of an input, and what follows of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Inputs with their numbers, and what to do with them."""

    inputs: tuple[tuple[int, Input], ...]
    settings: IntakeSettings
    lists: Sequence[tuple[Tool, ...]]
    inferred: Mapping[Kind, tuple[Tool, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Shares for several processes. The folder holds the numbers of those that are taken, and what was read of some."""

    shares: Sequence[Share]
    folder: Path

    def events(self, number: int, chat: ChatFormat | None, answers: Iterator[None]) -> Iterator[Event]:
        """Those of a share that is read here, or was by a worker; while one is at it, others are read here."""
        if self._take(number):
            yield from read_events(self.shares[number], chat)
            return
        path = self.folder / f"{number}.read"
        while not path.exists():
            if not self.read_one(chat):
                list(answers)  # as no share is left, workers are at their last
                break
        with path.open("rb") as file:
            path.unlink()
            while file.peek(1):
                event = pickle.load(file)
                if isinstance(event, PivotRLError):
                    raise event
                yield event

    def read_one(self, chat: ChatFormat | None) -> bool:
        """Read a share into a file; False where none was left."""
        taken = {entry.name for entry in os.scandir(self.folder)}
        left = [number for number in range(len(self.shares)) if f"{number}.taken" not in taken]
        # the first is what the process that puts all together needs next: read there, it takes no file
        number = next(filter(self._take, left[1:] + left[:1]), None)
        if number is None:
            return False
        path = self.folder / f"{number}.part"
        try:
            with path.open("wb") as file:
                try:
                    for event in read_events(self.shares[number], chat):
                        pickle.dump(event, file)
                except PivotRLError as error:
                    pickle.dump(error, file)
            path.rename(path.with_suffix(".read"))
        except OSError as error:
            raise disk_error(error.filename or path, error) from error
        return True

    def _take(self, number: int) -> bool:
        with suppress(FileExistsError):
            (self.folder / f"{number}.taken").touch(exist_ok=False)
            return True
        return False


def read_all(share: Share, chat: ChatFormat | None, workers: int, folder: Path) -> Generator[Event, None, None]:
    """Of all inputs in order, read here or by workers, which end when it is closed."""
    size = sum(file.path.stat().st_size for _, item in share.inputs for file in item.files)
    workers = workers or min(os.cpu_count() or 1, size // _PROCESS_BYTES)
    if workers < 2:
        yield from read_events(share, chat)
        return
    with tempfile.TemporaryDirectory(prefix=".shares-", dir=folder) as scratch:
        count = min(_SHARES, max(4 * workers, size // _SHARE_BYTES))
        cuts = cut([item for _, item in share.inputs], count, share.settings.format)
        work = Work(shares=[replace(share, inputs=part) for part in cuts if part], folder=Path(scratch))
        with calling(f"{__name__}:read_shares", [work] * (min(workers, len(work.shares)) - 1), start=2) as answers:
            for number in range(len(work.shares)):
                yield from work.events(number, chat, answers)


def read_shares(work: Work) -> None:
    """A worker's part."""
    chat = chat_of(work.shares[0].settings)
    with seldom_collected():
        while work.read_one(chat):
            pass


def read_events(share: Share, chat: ChatFormat | None) -> Iterator[Event]:
    """Every input in turn. What is wrong with all of an input, or with the rest of it, is a Refusal at its end."""
    for number, item in share.inputs:
        yield number
        told: tuple[Measured, ...] | None = None
        try:
            for event in read_input(item, share.settings.format):
                if isinstance(event, Told):
                    told = event.measured
                    continue
                if not isinstance(event, Trajectory):
                    yield event
                elif all(message.role != "assistant" for message in event.messages):
                    yield Refusal(
                        "no_assistant_turn",
                        f"{place(event.source)}: no assistant turn in it; nothing to learn from",
                    )
                else:
                    read = _read(event, share, chat)
                    yield read if told is None else read._replace(measured=told)
                told = None
        except InputError as error:
            yield Refusal("damaged_file", str(error))
        except RecursionError:
            yield Refusal("damaged_file", f"{item.label}: nested too deeply; fix or remove the record")


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Records and trajectories have no cycles, and looking for some at every 700th object takes a tenth of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(10**5, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def chat_of(settings: IntakeSettings) -> ChatFormat | None:
    """The chat format that states are measured in. Raises MissingError, InputError or ConfigError."""
    if settings.tokenizer is None:
        return None
    try:
        return load_chat(settings.tokenizer, ModelSettings(chat_template=settings.chat_template))[0]
    except ConfigError:
        shipped = ", ".join(BUILTIN_TEMPLATES)
        raise ConfigError(
            f"tokenizer {settings.tokenizer!r} has no chat template; pass --chat-template FILE, or one of {shipped}"
        ) from None


def infer_tools(inputs: Sequence[Input], format: str) -> dict[Kind, tuple[Tool, ...]]:
    """What the calls of each kind of trajectory say of tools, by a reading of everything."""
    seen: dict[Kind, Observed] = {}
    for item in inputs:
        with suppress(InputError):
            for event in read_input(item, format):
                if isinstance(event, Trajectory) and event.tools is None:
                    kind = event.source.format, event.domain
                    calls = (call for message in event.messages for call in message.tool_calls)
                    observe(seen.setdefault(kind, {}), calls)
    return {kind: observed_tools(found) for kind, found in seen.items() if found}


def _read(trajectory: Trajectory, share: Share, chat: ChatFormat | None) -> Read:
    masked: Mapping[str, int] = {}
    if share.settings.redact:
        trajectory, masked = redact(trajectory)
    origin = "known"
    if trajectory.tools is None:
        tools, origin = _tools(trajectory, share)
        trajectory = trajectory if tools is None else replace(trajectory, tools=tools)
    unmeasured: list[str] = []
    counter = None if chat is None else partial(_count, chat, unmeasured)
    messages, schemas = [dump_json(message) for message in trajectory.messages], dump_json(trajectory.tools)
    line = _line(trajectory, {"messages": b"[%b]" % b",".join(messages), "tools": schemas})
    names, digest = _digests(trajectory, messages, schemas)
    turns = zip(extract(trajectory, share.settings, counter), names, strict=True)
    return Read(
        id=trajectory.id,
        line=line,
        hash=line_hash(line),
        ties=ties_of(trajectory),
        turns=[_turn(turn, *name) for turn, name in turns],
        digest=digest,
        outcome=trajectory.outcome,
        tools=origin,
        masked=masked,
        unmeasured=len(unmeasured),
    )


def _line(trajectory: Trajectory, dumped: Mapping[str, bytes]) -> bytes:
    """`dump_json(trajectory)` and a newline, of fields that are dumped already and others."""
    values = [dumped.get(name) or dump_json(getattr(trajectory, name)) for name in _FIELDS]
    return _LINE % tuple(values)


def _turn(turn: Candidate | SkippedTurn, state: bytes, action: bytes) -> Turn:
    if isinstance(turn, SkippedTurn):
        return turn.turn, (), state, action, turn.reason, turn.detail
    calls = turn.trajectory.messages[turn.turn].tool_calls
    return turn.turn, tuple([call.name for call in calls]), state, action, "", ""


def _tools(trajectory: Trajectory, share: Share) -> tuple[tuple[Tool, ...] | None, str]:
    """Of a trajectory that does not say: the first list that knows every called name, else what calls let one infer."""
    called = {call.name for message in trajectory.messages for call in message.tool_calls}
    matched = next((some for some in share.lists if called and called <= {tool.name for tool in some}), None)
    if matched is not None:
        return matched, "matched"
    inferred = share.inferred.get((trajectory.source.format, trajectory.domain))
    return inferred, "unknown" if inferred is None else "inferred"


def _digests(
    trajectory: Trajectory, messages: Sequence[bytes], tools: bytes
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Of every assistant turn the state, and state with action; of all of it. The same wherever it comes again."""
    running = hashlib.sha256(tools)
    turns: list[tuple[bytes, bytes]] = []
    for message, dumped in zip(trajectory.messages, messages, strict=True):
        state = running.digest()[:12] if message.role == "assistant" else b""
        running.update(dumped if message.excluded is None else dump_json(replace(message, excluded=None)))
        if state:
            turns.append((state, running.digest()[:12]))
    return turns, running.digest()[:12]


def _count(chat: ChatFormat, refused: list[str], state: State) -> int | None:
    """Tokens of a state; None, and its name in `refused`, where the template refuses it."""
    try:
        return len(chat.prompt_ids(state))
    except (RenderError, ConfigError):
        refused.append(state.key)
        return None
