"""Asks an OpenAI-compatible server over HTTP: tries again what may pass, keeps to a spending cap, hides the key.

httpx2 is the client: huggingface_hub uses it, it is typed, keeps connections and cancels cleanly. The event loop has a
thread of its own, so that this is called like any function, also where a loop already runs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import random
import re
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import orjson

from pivotrl._version import __version__
from pivotrl.errors import ConfigError, DependencyError, ServerError
from pivotrl.storage import dump_json

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
LONGEST_BACKOFF: Final = 60.0
LONGEST_PAUSE: Final = 600.0
"""A server that asks for more seconds is left for another time."""
CONNECT_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 4.0
"""Less than the five after which uvicorn, and so vLLM, closes an idle connection, perhaps while we are writing."""
BYTES_PER_TOKEN: Final = 3
"""Of a request whose tokens we cannot count; most texts have more. The cap counts a token a byte there."""
LONGEST: Final = 64 << 20
"""Bytes of an answer."""
MOST_TOKENS: Final = 1 << 40
"""Of one answer; what says more is not believed."""
_SHORTEST_KEY: Final = 12
"""Characters from which on a key is looked for in answers; a stand-in such as EMPTY may be a word of theirs."""
_ADDRESS: Final = re.compile(r"https?://(\[[\da-fA-F:]+\]|[^/@?#\s:]+)(:\d+)?(/[^@?#\s]*)?")
FAILURES_IN_A_ROW: Final = 32
"""Requests that fail one after the other, none coming through, before we stop instead of writing failures."""


class Garbled(Exception):  # noqa: N818 - these are private signals, not errors for a user
    """An answer that cannot be one to what was asked; readers of answers raise it."""


class Unanswered(Exception):  # noqa: N818
    """A request that brought nothing back; says why."""


class Refused(Unanswered):
    """A request that the server will never answer as it is."""


class OverBudget(Exception):  # noqa: N818
    """A request that was not sent, since the spending cap or the account's quota is reached; says which."""


class _Again(Exception):  # noqa: N818
    """A try that failed and may be repeated, after the seconds that the server asks for."""

    def __init__(self, reason: str, pause: float = 0.0, *, gone: bool = False) -> None:
        super().__init__(reason)
        self.pause, self.gone = pause, gone


class Tokens(NamedTuple):
    """Tokens sent and tokens generated."""

    prompt: int = 0
    completion: int = 0

    def plus(self, other: Tokens, times: int = 1) -> Tokens:
        return Tokens(self.prompt + times * other.prompt, self.completion + times * other.completion)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How a server is asked. Raises ConfigError, which does not repeat an address that may hold a password."""

    cap_option = "max_cost"
    url: str = ""
    """Address up to /v1."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; none is sent where it is unset."""
    concurrency: int = 16
    """Requests under way at once."""
    timeout: float = 120.0
    """Seconds that one try of a request may take."""
    retries: int = 6
    """Further tries of a request whose failure may pass."""
    backoff: float = 0.5
    """Seconds before the second try; they double with every further one, up to a minute."""
    price_in: float = 0.0
    """Price of a million prompt tokens."""
    price_out: float = 0.0
    """Price of a million generated tokens."""
    max_cost: float = math.inf
    """Spend at most this much in one command, at these prices."""

    def __post_init__(self) -> None:
        least = {"concurrency": 1, "timeout": 0.001, "retries": 0, "backoff": 0, "price_in": 0, "price_out": 0}
        for name, low in least.items():
            if not low <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least {low}")
        if not self.max_cost >= 0 or (self.max_cost < math.inf and not self.price_in + self.price_out):
            raise ConfigError(f"max_cost={self.max_cost}: from 0, and with price_in and price_out of a million tokens")
        if not re.fullmatch(r"\w{1,100}", self.key_variable):
            raise ConfigError("key_variable: the name of an environment variable, not the key itself")
        if self.url and not _ADDRESS.fullmatch(self.url):
            raise ConfigError(
                "url: write http(s)://HOST:PORT/v1, without user, password and query; a key goes into the environment "
                "variable that key_variable names"
            )

    @property
    def recipient(self) -> str:
        """Which key goes where."""
        return f"{self.key_variable} for {self.url}"

    def cost(self, tokens: Tokens) -> float:
        return (tokens.prompt * self.price_in + tokens.completion * self.price_out) / 1e6


class Purse:
    """What was spent, and is reserved for what is under way, against the cap. Used in the event loop only."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.spent = self.reserved = Tokens()
        self.requests = 0
        self._taken = 0, Tokens()
        self.closed = ""
        """Why nothing is sent any more."""
        self._settled = asyncio.Event()

    async def reserve(self, bound: Tokens) -> None:
        """Wait until a request fits that takes `bound` at most. Raises OverBudget, from then on for every request."""
        while not self.closed and not self.fits(bound):
            if self.reserved == Tokens():
                cost, cap, spent = self.settings.cost, self.settings.max_cost, self.settings.cost(self.spent)
                self.closed = (
                    f"the spending cap is reached: {f'{spent:.4g}' if spent else 'nothing'} of {cap:g} is spent, and "
                    f"the next request may cost {cost(bound):.4g}; raise {self.settings.cap_option} and run again"
                )
            else:
                self._settled.clear()
                await self._settled.wait()
        if self.closed:
            raise OverBudget(self.closed)
        self.requests += 1
        self.reserved = self.reserved.plus(bound)

    def fits(self, bound: Tokens) -> bool:
        """Whether `bound` more may be spent."""
        return self.settings.cost(self.spent.plus(self.reserved).plus(bound)) <= self.settings.max_cost

    def settle(self, bound: Tokens, spent: Tokens) -> None:
        self.reserved, self.spent = self.reserved.plus(bound, -1), self.spent.plus(spent)
        self._settled.set()

    def take(self) -> tuple[int, Tokens]:
        """The requests and tokens since the last call of this method."""
        (requests, spent), self._taken = self._taken, (self.requests, self.spent)
        return self.requests - requests, self.spent.plus(spent, -1)


class Client:
    """One server, asked through one pool of connections. Raises DependencyError without httpx2."""

    def __init__(self, settings: ClientSettings) -> None:
        try:
            import httpx2
        except ImportError:
            raise DependencyError("asking a server needs httpx2; pip install 'pivotrl[openai]'") from None
        self.settings, self.budget = settings, Purse(settings)
        self.url = settings.url.rstrip("/")
        self._key = os.environ.get(settings.key_variable, "").strip()
        if not re.fullmatch(r"[!#-&(-\[\]-~]*", self._key):
            raise ConfigError(f"environment variable {settings.key_variable}: keys are plain ASCII without quotes")
        logging.getLogger("httpcore2").setLevel(logging.INFO)  # its DEBUG lines show headers, which hold the key
        self._failures = 0
        self._answered = False
        self._gate = asyncio.Semaphore(settings.concurrency)
        headers = {"Content-Type": "application/json", "User-Agent": f"pivotrl/{__version__}"}
        headers["Accept-Encoding"] = "identity"  # what is compressed may expand without end
        self._client = httpx2.AsyncClient(
            headers=headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            limits=httpx2.Limits(max_keepalive_connections=settings.concurrency, keepalive_expiry=IDLE_SECONDS),
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run, args=(self._loop, self._client), name="pivotrl-http", daemon=True).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done in the loop's thread; Ctrl-C cancels it and what it waits for."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def run_all(self, works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """The results of all, done at once. Raises what the first that failed raised."""

        async def together() -> list[T]:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(work) for work in works]
            except BaseExceptionGroup as raised:
                raise raised.exceptions[0] from None
            return [task.result() for task in tasks]

        return self.run(together())

    async def ask(self, path: str, body: object, read: Callable[[Any], T], bound: Tokens) -> T:
        """What `read` makes of the answer to one request, a GET without a body; `bound` is the most that it may take.

        Raises Unanswered and OverBudget, and a PivotRLError for what no other request would be spared.
        """
        content = None if body is None else dump_json(body)
        async with self._gate:
            for tries in itertools.count(1):
                try:
                    answer = await self._try(path, content, read, bound)
                    self._failures, self._answered = 0, True
                    return answer
                except Refused as error:
                    if not self._answered:  # a server that answers others is not to blame
                        self._failed(str(error))
                    raise
                except _Again as again:
                    if tries > self.settings.retries or again.pause > LONGEST_PAUSE:
                        self._failed(str(again), gone=again.gone)
                        raise Unanswered(f"{again} (try {tries} of {tries})") from None
                    wait = min(LONGEST_BACKOFF, self.settings.backoff * 2 ** (tries - 1))
                    await asyncio.sleep(max(again.pause * random.uniform(1.0, 1.1), wait * random.uniform(0.5, 1.0)))
        raise AssertionError("count has no end")

    def _failed(self, reason: str, *, gone: bool = False) -> None:
        """Count a request that came to nothing. Raises ServerError where more of them would be no use."""
        self._failures += 1
        if gone or self._failures >= FAILURES_IN_A_ROW:
            raise ServerError(
                f"{self.url}: {reason}, after {self._failures} failed requests in a row; what was finished is kept: "
                "mend the server or the address and run again"
            )

    async def _try(self, path: str, content: bytes | None, read: Callable[[Any], T], bound: Tokens) -> T:
        """One try. It counts as spent what the server says, all that it may take where that is unknown."""
        import httpx2

        await self.budget.reserve(bound)
        spent = bound
        try:
            async with asyncio.timeout(self.settings.timeout):
                response, answer = await self._answer(path, content)
            document = _decoded(answer, self._key.encode() if len(self._key) >= _SHORTEST_KEY else b"")
            if not response.is_success:
                spent = Tokens()
                raise self._complaint(response, document)
            spent = _tokens(document) or bound
            return read(document)
        except TimeoutError:
            raise _Again(f"no answer within {self.settings.timeout:g} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            spent = Tokens()
            raise _Again(self._clean(f"no connection ({error or type(error).__name__})"), gone=True) from None
        except httpx2.RequestError as error:
            raise _Again(self._clean(f"cut off ({type(error).__name__}: {error})")) from None
        except Garbled as garbled:
            raise _Again(self._clean(str(garbled))) from None
        finally:
            self.budget.settle(bound, spent)

    async def _answer(self, path: str, content: bytes | None) -> tuple[httpx2.Response, bytes]:
        """An answer and its body. Raises Garbled where that is too long."""
        body = bytearray()
        async with self._client.stream("POST" if content else "GET", self.url + path, content=content) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise Garbled("a compressed answer, which was not asked for")
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > LONGEST:
                    raise Garbled(f"an answer of more than {LONGEST >> 20} MiB")
        return response, bytes(body)

    def _complaint(self, response: httpx2.Response, document: Any) -> Exception:
        """What a status that is no success means."""
        status, error, pause = response.status_code, error_message(document), response.headers.get("retry-after", "")
        said = self._clean(f"{status} {error or response.reason_phrase}")
        if status == 402 or (status == 429 and "insufficient_quota" in error):
            self.budget.closed = self.budget.closed or f"{said}; top up the account and run the same command again"
            return OverBudget(self.budget.closed)
        if status in (408, 409, 425, 429) or status >= 500:
            return _Again(said, float(pause) if re.fullmatch(r"\d+(\.\d+)?", pause) else 0.0)
        if status in (401, 403):
            return ConfigError(f"{self.url}: {said}; set the key in the environment variable of key_variable")
        if status in (404, 405) or status < 400:
            return ConfigError(f"{self.url}: {said}; check the model's name, and the address up to /v1")
        return Refused(said)

    def _clean(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _run(loop: asyncio.AbstractEventLoop, client: httpx2.AsyncClient) -> None:
    """Run a loop until it is stopped, as it is when its client is forgotten; then close the connections."""
    loop.run_forever()
    loop.run_until_complete(client.aclose())
    loop.close()


def _decoded(content: bytes, key: bytes) -> Any:
    """The body without the key, however JSON spells it; None where it is no JSON, or nested too deeply."""
    try:
        if key and b"\\" in content:  # then it is written again, without needless escapes
            content = orjson.dumps(orjson.loads(content))
        return orjson.loads(content.replace(key, b"***") if key else content)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None


def _tokens(document: Any) -> Tokens | None:
    """What the server says that an answer took."""
    match document:
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}}:
            sane = min(prompt, completion) >= 0 and max(prompt, completion) <= MOST_TOKENS
            return Tokens(prompt, completion) if sane else None
    return None


def error_message(document: Any) -> str:
    """What an error body says, in one line: OpenAI's, FastAPI's and plain forms."""
    held = document if isinstance(document, dict) else {}
    error = held.get("error", held.get("detail", held.get("message", "")))
    if isinstance(error, dict):
        error = " ".join(str(error[name]) for name in ("message", "code", "param") if error.get(name))
    elif isinstance(error, list):  # FastAPI's; its `input` repeats what was sent
        error = "; ".join(f"{one.get('loc')}: {one.get('msg')}" for one in error if isinstance(one, dict))
    return " ".join(str(error).split())[:500]
