"""An OpenAI-compatible server over real HTTP, whose every answer a test decides: also a slow, broken or lying one."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Body = dict[str, Any]
FAULTS = ("429", "500", "stall", "cut", "garbage", "wrong n")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer."""

    body: Body | bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    how: Literal["whole", "cut", "stall", "trickle"] = "whole"


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    path: str
    body: Body
    headers: dict[str, str]
    at: float

    @property
    def is_probe(self) -> bool:
        """Whether the policy asks this on opening."""
        return self.body.get("max_tokens", self.body.get("max_completion_tokens")) == 16


Answer = Callable[[Asked], Reply]


def chat(*texts: str | Body | None, finish: str | None = "stop", prompt_tokens: int = 100, usage: bool = True) -> Reply:
    """A chat answer with these texts, or messages, as its choices; each counts as three tokens."""
    messages = [text if isinstance(text, dict) else {"role": "assistant", "content": text} for text in texts]
    choices = [{"index": index, "finish_reason": finish, "message": said} for index, said in enumerate(messages)]
    counted = {"prompt_tokens": prompt_tokens, "completion_tokens": 3 * len(texts)}
    return Reply(body={"object": "chat.completion", "choices": choices} | ({"usage": counted} if usage else {}))


def words(body: Body, index: int = 0) -> str:
    """Other words for every seed, state and choice."""
    said = json.dumps(body.get("messages", body.get("prompt")))
    return f"word {random.Random(str(body.get('seed')) + said).randrange(10**9) + index}"


def obliging(asked: Asked, count: int | None = None) -> Reply:
    """As many choices as were asked for, or `count`, with `words`."""
    reply = chat(*[words(asked.body, index) for index in range(count or asked.body.get("n", 1))])
    reply.body["usage"] |= {"prompt_tokens_details": {"cached_tokens": 60}}
    return reply


def refusal(status: int, message: str, **more: Any) -> Reply:
    return Reply(status=status, body={"error": {"message": message, "type": "invalid_request_error", **more}})


class FakeServer:
    """Use as a context manager; `asked` holds every request in order of arrival."""

    def __init__(self, answer: Answer = obliging, *, probe: Answer | None = None, models: Body | None = None) -> None:
        self.answer, self.probe, self.models = answer, probe, models
        self.asked: list[Asked] = []
        self.most_at_once = self.at_once = 0
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.connections: list[socket.socket] = []
        self._http = _Listener(("127.0.0.1", 0), type("_Bound", (_Handler,), {"server_of": self}))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def reply(self, asked: Asked) -> Reply:
        with self.lock:
            self.asked.append(asked)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return self.probe(asked) if self.probe and asked.is_probe else self.answer(asked)
        finally:
            with self.lock:
                self.at_once -= 1


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_of: FakeServer

    def setup(self) -> None:
        super().setup()
        self.server_of.connections.append(self.connection)

    def do_GET(self) -> None:
        listed = self.server_of.models
        self._send(Reply(body=listed) if listed else Reply(status=404, body={"detail": "Not Found"}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = Asked(self.path.removeprefix("/v1"), body, dict(self.headers), time.monotonic())
        self._send(self.server_of.reply(asked))

    def _send(self, reply: Reply) -> None:
        data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        if reply.how == "stall":
            self.server_of.released.wait(60)
        self.send_response(reply.status)
        given = {"Content-Type": "application/json", "Content-Length": str(len(data)), **reply.headers}
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        for byte in data if reply.how == "trickle" else b"":
            self.wfile.write(bytes([byte]))
            self.server_of.released.wait(1)
        self.wfile.write({"cut": data[: len(data) // 2], "trickle": b""}.get(reply.how, data))
        self.close_connection = reply.how != "whole"

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client went away, as it should when it waits no longer
            self.close_connection = True


class Faulty:
    """Answers as `obliging` does, but for a share of the requests, drawn by seed, in one of six bad ways."""

    def __init__(self, share: float, seed: int) -> None:
        self.share, self.random, self.lock = share, random.Random(seed), threading.Lock()
        self.served: dict[str, int] = dict.fromkeys(("good", *FAULTS), 0)

    def __call__(self, asked: Asked) -> Reply:
        with self.lock:
            fault = self.random.choice(FAULTS) if self.random.random() < self.share else "good"
            self.served[fault] += 1
        return {
            "good": obliging(asked),
            "429": Reply(status=429, body=b"slow down", headers={"Retry-After": "0.01"}),
            "500": Reply(status=500, body={"error": "out of memory"}),
            "stall": Reply(how="stall"),
            "cut": replace(obliging(asked), how="cut"),
            "garbage": Reply(body=b'{"choices": [{"mess'),
            "wrong n": obliging(asked, asked.body.get("n", 1) + 1),
        }[fault]
