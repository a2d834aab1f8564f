"""What an ingest does to each trajectory: a share of the inputs in, one event after the other out.

Shares are read in this process or by workers, each of which leaves the lines of its share in a file; whoever puts the
events together, in the order of the shares, gets the same whatever their number was.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from pivotrl.candidates import CandidateRules, extract, line_hash
from pivotrl.chat import BUILTIN_TEMPLATES, ChatFormat, RenderError
from pivotrl.errors import ConfigError, InputError
from pivotrl.logs import Progress
from pivotrl.models import ModelSettings, load_chat
from pivotrl.splits import Ties, ties_of
from pivotrl.storage import dump_json
from pivotrl.trajectories import Input, Refusal, Taken, Told, Unclear, read_input
from pivotrl.trajectories.messages import place
from pivotrl.trajectories.nemo_gym import Measured
from pivotrl.trajectories.observed import Observed, observe, observed_tools
from pivotrl.trajectories.redaction import redact
from pivotrl.types import Candidate, SkippedTurn, State, Tool, Trajectory

_FIELDS: Final = [name.name for name in fields(Trajectory)]
_LINE: Final = b"{%b}\n" % b",".join(b'"%b":%%b' % name.encode() for name in _FIELDS)
_OPEN: Final = b'{"role":"'
"""What a message begins with; no text of JSON holds it, as quotes in there have a backslash before them."""
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
    """A trajectory, as far as an ingest needs to know it. `line` is empty where the share's file has it; `tools` are
    known, matched, inferred, or unknown."""

    id: str
    line: bytes
    length: int
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
    """Inputs with their numbers, and what to do with them; `lines` is where a worker leaves the lines."""

    inputs: tuple[tuple[int, Input], ...]
    settings: IntakeSettings
    lists: Sequence[tuple[Tool, ...]]
    inferred: Mapping[Kind, tuple[Tool, ...]]
    lines: Path | None = None


def read_share(share: Share) -> list[Event]:
    """A worker's part."""
    found: list[Event] = []
    assert share.lines is not None
    with share.lines.open("wb") as file:
        for event in read_events(share):
            if isinstance(event, Read):
                file.write(event.line)
                event = event._replace(line=b"")
            found.append(event)
    return found


def read_events(share: Share, chat: ChatFormat | None = None) -> Iterator[Event]:
    """Every input in turn. What is wrong with all of an input, or with the rest of it, is a Refusal at its end."""
    chat = chat or chat_of(share.settings)
    with _seldom_collected(), Progress("trajectories ingested", None) as progress:
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
                        text = f"{place(event.source)}: no assistant turn in it; nothing to learn from"
                        yield Refusal("no_assistant_turn", text)
                    else:
                        progress.advance()
                        read = _read(event, share, chat)
                        yield read if told is None else read._replace(measured=told)
                    told = None
            except InputError as error:
                yield Refusal("damaged_file", str(error))
            except RecursionError:
                yield Refusal("damaged_file", f"{item.label}: nested too deeply; fix or remove the record")


@contextmanager
def _seldom_collected() -> Iterator[None]:
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
    dumped = {"messages": dump_json(trajectory.messages), "tools": dump_json(trajectory.tools)}
    line = _line(trajectory, dumped)
    names, digest = _digests(trajectory, **dumped)
    turns = zip(extract(trajectory, share.settings, counter), names, strict=True)
    return Read(
        id=trajectory.id,
        line=line,
        length=len(line),
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


def _digests(trajectory: Trajectory, messages: bytes, tools: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Of every assistant turn the state, and state with action; of all of it. The same wherever it comes again."""
    running = hashlib.sha256(tools)
    turns: list[tuple[bytes, bytes]] = []
    parts = messages[1 + len(_OPEN) : -2].split(b"}," + _OPEN)
    for message, part in zip(trajectory.messages, parts, strict=True):
        state = running.digest()[:12] if message.role == "assistant" else b""
        if message.excluded is not None:
            part = dump_json(replace(message, excluded=None))[len(_OPEN) : -1]
        running.update(part)
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
