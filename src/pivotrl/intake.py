"""What an ingest does to each trajectory: a share of the inputs in, one event after the other out.

Shares are read in this process or by workers, each of which leaves the lines of its share in a file; whoever puts the
events together, in the order of the shares, gets the same whatever their number was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, NamedTuple

from pivotrl.candidates import CandidateRules, extract, line_hash
from pivotrl.chat import BUILTIN_TEMPLATES, ChatFormat, RenderError
from pivotrl.errors import ConfigError, InputError
from pivotrl.logs import Progress
from pivotrl.models import ModelSettings, load_chat
from pivotrl.splits import Ties, ties_of
from pivotrl.storage import dump_json
from pivotrl.trajectories import Input, Refusal, Taken, read_input
from pivotrl.trajectories.messages import place
from pivotrl.trajectories.observed import ObservedTools
from pivotrl.trajectories.redaction import redact
from pivotrl.types import Candidate, SkippedTurn, State, Tool, Trajectory

_FIELDS: Final = [name.name for name in fields(Trajectory)]
Kind = tuple[str, str | None]
"""Format and domain: trajectories of one kind are taken to have had the same tools."""


class Turn(NamedTuple):
    """An assistant turn: a candidate, or skipped for a reason."""

    turn: int
    kind: str
    tools: tuple[str, ...]
    state: bytes
    """Names tools and messages before it."""
    action: bytes
    """Names these and itself."""
    reason: str = ""
    detail: str = ""


class Read(NamedTuple):
    """A trajectory, as far as an ingest needs to know it."""

    id: str
    line: bytes
    """Empty where the share's file has it."""
    length: int
    hash: str
    ties: Ties
    turns: list[Turn]
    digest: bytes
    outcome: float | None
    tools: str
    """Where they came from: known, matched, inferred, or unknown."""
    masked: Mapping[str, int]
    unmeasured: int


class Begin(NamedTuple):
    """The events of this input follow, the label again being how people know it."""

    number: int


Event = Begin | Read | Refusal | Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Inputs with their numbers, and what to do with them."""

    inputs: tuple[tuple[int, Input], ...]
    rules: CandidateRules
    format: str
    lists: Sequence[tuple[Tool, ...]]
    inferred: Mapping[Kind, tuple[Tool, ...]]
    redact: bool
    tokenizer: str | None
    chat_template: str | None
    lines: Path | None = None
    """Where a worker leaves the lines."""


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
    if share.tokenizer is not None and chat is None:
        chat = chat_of(share.tokenizer, share.chat_template)
    with Progress("trajectories ingested", None) as progress:
        for number, item in share.inputs:
            yield Begin(number)
            try:
                for event in read_input(item, share.format):
                    if not isinstance(event, Trajectory):
                        yield event
                    elif all(message.role != "assistant" for message in event.messages):
                        yield Refusal(
                            "no_assistant_turn",
                            f"{place(event.source)}: no assistant turn in it; nothing to learn from",
                        )
                    else:
                        progress.advance()
                        yield _read(event, share, chat)
            except InputError as error:
                yield Refusal("damaged_file", str(error))


def chat_of(spec: str, template: str | None) -> ChatFormat:
    """The chat format that states are measured in. Raises MissingError, InputError or ConfigError."""
    try:
        return load_chat(spec, ModelSettings(chat_template=template))[0]
    except ConfigError:
        shipped = ", ".join(BUILTIN_TEMPLATES)
        raise ConfigError(
            f"tokenizer {spec!r} has no chat template; pass --chat-template FILE, or one of {shipped}"
        ) from None


def infer_tools(inputs: Sequence[Input], format: str) -> dict[Kind, tuple[Tool, ...]]:
    """What the calls of each kind of trajectory say of tools, by a reading of everything."""
    observed: dict[Kind, ObservedTools] = {}
    for item in inputs:
        with suppress(InputError):
            for event in read_input(item, format):
                if isinstance(event, Trajectory) and event.tools is None:
                    calls = (call for message in event.messages for call in message.tool_calls)
                    observed.setdefault(kind_of(event), ObservedTools()).add(calls)
    return {kind: found.tools for kind, found in observed.items() if found.tools}


def _read(trajectory: Trajectory, share: Share, chat: ChatFormat | None) -> Read:
    masked: Mapping[str, int] = {}
    if share.redact:
        trajectory, masked = redact(trajectory)
    origin = "known"
    if trajectory.tools is None:
        tools, origin = _tools(trajectory, share)
        trajectory = trajectory if tools is None else replace(trajectory, tools=tools)
    counter = None if chat is None else _Counter(chat)
    parts = [dump_json(message) for message in trajectory.messages]
    line = _line(trajectory, parts)
    names, digest = _digests(trajectory, parts)
    turns = zip(extract(trajectory, share.rules, counter), names, strict=True)
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
        unmeasured=counter.unmeasured if counter else 0,
    )


def _line(trajectory: Trajectory, messages: Sequence[bytes]) -> bytes:
    """`dump_json(trajectory)` and a newline, of messages that are dumped already."""
    dumped = {"messages": b"[%b]" % b",".join(messages)}
    values = (
        b'"%b":%b' % (name.encode(), dumped.get(name) or dump_json(getattr(trajectory, name))) for name in _FIELDS
    )
    return b"{%b}\n" % b",".join(values)


def _turn(turn: Candidate | SkippedTurn, state: bytes, action: bytes) -> Turn:
    if isinstance(turn, SkippedTurn):
        return Turn(turn.turn, "", (), state, action, turn.reason, turn.detail)
    message = turn.trajectory.messages[turn.turn]
    names = tuple(call.name for call in message.tool_calls)
    return Turn(turn.turn, "call" if names else "message", names, state, action)


def _tools(trajectory: Trajectory, share: Share) -> tuple[tuple[Tool, ...] | None, str]:
    """Of a trajectory that does not say: the first list that knows every called name, else what calls let one infer."""
    called = {call.name for message in trajectory.messages for call in message.tool_calls}
    matched = next((some for some in share.lists if called and called <= {tool.name for tool in some}), None)
    if matched is not None:
        return matched, "matched"
    inferred = share.inferred.get(kind_of(trajectory))
    return inferred, "unknown" if inferred is None else "inferred"


def kind_of(trajectory: Trajectory) -> Kind:
    return trajectory.source.format, trajectory.domain


def _digests(trajectory: Trajectory, parts: Sequence[bytes]) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Of every assistant turn the state, and state with action; of all of it. The same wherever it comes again."""
    running = hashlib.sha256(dump_json(trajectory.tools))
    turns: list[tuple[bytes, bytes]] = []
    for message, part in zip(trajectory.messages, parts, strict=True):
        state = running.digest()[:12] if message.role == "assistant" else b""
        running.update(part if message.excluded is None else dump_json(replace(message, excluded=None)))
        if state:
            turns.append((state, running.digest()[:12]))
    return turns, running.digest()[:12]


class _Counter:
    """Counts the tokens of states, and the states that the template refuses."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat, self.unmeasured = chat, 0

    def __call__(self, state: State) -> int | None:
        try:
            return len(self.chat.prompt_ids(state))
        except (RenderError, ConfigError):
            self.unmeasured += 1
            return None
