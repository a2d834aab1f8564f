"""A language model behind any OpenAI-compatible server as judge: r_func(s, a) = 1[a in M(s)] (Eq. 6) by its word.

Departures from the paper, which says "LLM judge" and gives no rule:
1. It is asked only where code cannot decide. What `tool_call` accepts is right without it; another kind of action, an
   unknown tool, malformed arguments and, among the demonstrated tools, those against the schema are wrong without it.
2. Both orders must be accepted, each by the majority of n votes; a refusal in the first order is the end.
3. The last verdict of a reply counts, and only with its prompt's nonce (`judge_prompt`). A reply that was cut off has
   none. No majority, a failed call and a spent budget leave the action unscored.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from pivotrl.errors import ConfigError, StorageError
from pivotrl.logs import say, say_once
from pivotrl.openai_client import (
    BYTES_PER_TOKEN,
    Client,
    ClientSettings,
    Garbled,
    OverBudget,
    Tokens,
    Unanswered,
    error_message,
)
from pivotrl.storage import content_hash, dump_json
from pivotrl.types import Action, Candidate, Usage, Verdict
from pivotrl.verifiers.base import BuiltIn, check_range, judged
from pivotrl.verifiers.judge_prompt import EFFECT, LEFT_OUT, QUESTION, SYSTEM, Prompt, prompts, shown
from pivotrl.verifiers.schema import schema_refusal
from pivotrl.verifiers.tool_call import ToolCallVerifier

_OPEN: Final = ("wrong_tool", "missing_calls", "wrong_arguments")
"""Refusals of `tool_call` that the judge may overrule."""
_UNSHOWN: Final = (ValueError, TypeError, RecursionError)
"""What is raised for what cannot be written as JSON, such as a schema of too many levels."""
Question = tuple[Prompt, Prompt]
"""What has to be asked about one action: with the demonstration first, and second."""


class ReplyCache:
    """Replies on disk, for all runs; SQLite lets processes share it. Raises StorageError."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "judge.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = sqlite3.connect(self.path, timeout=60, check_same_thread=False, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise self._broken(error) from error
        self._run("PRAGMA journal_mode = WAL")
        self._run("PRAGMA synchronous = NORMAL")
        self._run("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID")

    def get(self, key: str) -> str | None:
        return next((text for (text,) in self._run("SELECT text FROM replies WHERE key = ?", key)), None)

    def put(self, key: str, text: str) -> None:
        self._run("INSERT OR IGNORE INTO replies VALUES (?, ?)", key, text)

    def _run(self, command: str, *values: str) -> list[tuple[str]]:
        try:
            return self._db.execute(command, values).fetchall()
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> StorageError:
        return StorageError(f"{self.path}: {error}; delete the file, or give the judge another cache=DIR")


@dataclass(slots=True)
class _Work:
    """What a judge has opened, found out and spent."""

    opened: tuple[Client, ReplyCache] | None = None
    ready: dict[Question, Verdict] = field(default_factory=dict)
    told: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeVerifier(ClientSettings, BuiltIn):
    """How the server is asked does not make another verifier; these do, the last two fields aside."""

    model: str = ""
    n: int = 1
    """Votes in each order; an odd number, and with several a temperature above 0."""
    temperature: float = 0.0
    max_tokens: int = 1024
    """Of one reply, reasoning included."""
    state_chars: int = 60_000
    """Longest state that is shown; of a longer one the messages after the first two are left out, oldest first."""
    length_field: str = "max_tokens"
    """How the server calls it; OpenAI's newer models say max_completion_tokens."""
    cache: str = ""
    """Folder of the replies; by default pivotrl/ in the user's cache folder."""
    name = "judge"
    _work: _Work = field(default_factory=_Work, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (self.url and self.model):
            raise ConfigError("verifier judge: say whom to ask: judge:url=http://HOST:PORT/v1,model=NAME")
        ClientSettings.__post_init__(self)
        check_range("temperature", self.temperature)
        for name in ("n", "max_tokens", "state_chars"):
            if getattr(self, name) < 1:
                raise ConfigError(f"verifier setting {name}={getattr(self, name)}: use a number from 1")
        if self.n % 2 == 0 or (self.n > 1 and self.temperature == 0):
            raise ConfigError(f"verifier judge: n={self.n}: use an odd number, and above 1 also a temperature above 0")

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        names = ("model", "n", "temperature", "max_tokens", "state_chars")
        prompt = content_hash([SYSTEM, QUESTION, EFFECT, LEFT_OUT])
        return {name: getattr(self, name) for name in names} | {"prompt": prompt, "tool_call": ToolCallVerifier.version}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """The judge's word, or that of `tool_call` where that is enough. Raises what `prepare` raises."""
        known = self._unasked(candidate, action)
        if known is not None:
            return known
        question = prompts(candidate, action, self.state_chars)
        if question not in self._work.ready:
            self._decide({question: candidate})
        return self._work.ready[question]

    def expect(self, candidates: Iterable[Candidate], actions: int) -> None:
        """Say what judging so many actions at each candidate will take at most; a demonstration stands for them.

        A candidate that cannot be asked about takes nothing.
        """
        sizes = list[int]()
        for one in candidates:
            with suppress(*_UNSHOWN):
                sizes.append(len(dump_json(prompts(one, one.demonstration, self.state_chars)[0].messages)))
        calls = 2 * self.n * actions
        tokens = Tokens(sum(sizes) // BYTES_PER_TOKEN * calls, len(sizes) * calls * self.max_tokens)
        count, cost = len(sizes), self.cost(tokens)
        say(
            f"judge {self.model}: at most {count * calls:,} calls for {count * actions:,} actions (equal ones count "
            f"once), about {tokens.prompt:,} prompt and at most {tokens.completion:,} generated tokens"
            + (f"; {cost:.2f} at these prices, and the cap is {self.max_cost:g}" if cost else "")
        )
        self._work.told = True

    def prepare(self, pairs: Sequence[tuple[Candidate, Action]]) -> None:
        """Ask about all that has to be asked, at once. Raises a PivotRLError where no other question would be spared.

        A pair that cannot be asked about is left to the call for it, which says why.
        """
        self._work.ready.clear()
        questions: dict[Question, Candidate] = {}
        for candidate, action in pairs:
            with suppress(*_UNSHOWN):
                if self._unasked(candidate, action) is None:
                    questions[prompts(candidate, action, self.state_chars)] = candidate
        self._decide(questions)

    def take_usage(self) -> Usage:
        if self._work.opened is None:
            return Usage()
        calls, tokens = self._work.opened[0].budget.take()
        prompt, generated = tokens
        money = self.cost(tokens)
        return Usage(judge_calls=calls, judge_prompt_tokens=prompt, judge_generated_tokens=generated, money=money)

    def _unasked(self, candidate: Candidate, action: Action) -> Verdict | None:
        """The verdict where no judge is needed."""
        demonstration = candidate.demonstration
        if action.kind != demonstration.kind:
            return judged(self, 0.0, "wrong_kind", f"{action.kind} instead of {demonstration.kind}")
        if action.kind == "call":
            refusal = schema_refusal(candidate, action)
            word = ToolCallVerifier()(candidate, action) if refusal is None else judged(self, 0.0, *refusal)
            return None if word.reason in _OPEN else judged(self, word.value, word.reason, word.detail)
        if shown(action) == shown(demonstration):
            return judged(self, 1.0, "match")
        return None if (action.text or "").strip() else judged(self, 0.0, "empty")

    def _decide(self, questions: Mapping[Question, Candidate]) -> None:
        """Fill `ready`. The answers that are on disk cost nothing."""
        if not questions:
            return
        if not self._work.told:
            self.expect(questions.values(), 1)
        verdicts = self._open()[0].run_all(map(self._verdict, questions))
        self._work.ready |= zip(questions, verdicts, strict=True)

    def _open(self) -> tuple[Client, ReplyCache]:
        """Raises DependencyError, ConfigError or StorageError."""
        if self._work.opened is None:
            home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pivotrl"
            self._work.opened = Client(self), ReplyCache(Path(self.cache) if self.cache else home)
        return self._work.opened

    async def _verdict(self, question: Question) -> Verdict:
        tally, unread = [], list[str]()
        for prompt, against in zip(question, ("refused", "one_order"), strict=True):
            try:
                votes = await self._votes(prompt, unread)
            except OverBudget as error:
                say_once(f"{self.url}: {error}")
                return judged(self, None, "judge_budget", str(error))
            except Unanswered as error:
                return judged(self, None, "judge_failed", str(error))
            yes, no = votes.count(True), votes.count(False)
            tally.append(f"{yes} yes, {no} no, {votes.count(None)} unclear")
            if 2 * yes <= self.n:
                value, reason = (0.0, against) if 2 * no > self.n else (None, "judge_unclear")
                replied = f"; it replied {unread[0][:60]!r}" if value is None and unread else ""
                return judged(self, value, reason, "; other order: ".join(tally) + replied)
        return judged(self, 1.0, "accepted", "; other order: ".join(tally))

    async def _votes(self, prompt: Prompt, unread: list[str]) -> list[bool | None]:
        """As many of the n votes as decide; replies without a verdict go into `unread`."""
        votes: list[bool | None] = []
        while len(votes) < self.n and 2 * max(votes.count(True), votes.count(False)) <= self.n:
            reply = await self._reply(prompt, len(votes))
            votes.append(prompt.verdict(reply))
            unread += [reply] if votes[-1] is None else []
        return votes

    async def _reply(self, prompt: Prompt, vote: int) -> str:
        """The text of one vote, from disk where it was given before."""
        client, cache = self._open()
        limit, messages = self.max_tokens, prompt.messages
        key = content_hash([self.model, messages, self.temperature, limit, vote])
        text = cache.get(key)
        if text is None:
            body = {"model": self.model, "messages": messages, "temperature": self.temperature}
            body |= {self.length_field: limit}
            bound = Tokens(len(dump_json(body)), limit)
            text = await client.ask("/chat/completions", body, _said, bound)
            cache.put(key, text)
        return text


def _said(document: Any) -> str:
    """The text of an answer, empty where it was cut off or holds none. Raises Garbled."""
    try:
        choice = document["choices"][0]
        text = choice["message"].get("content") or ""
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Garbled(f"no answer in what came back {error_message(document)}".strip()) from None
    return text if isinstance(text, str) and choice.get("finish_reason") != "length" else ""
