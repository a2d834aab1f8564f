"""`view`: a run in the browser, served to this machine alone or exported as files, or one candidate in the terminal.

The page is three fixed files and scripts of data, `data/index.js` and `data/NUMBER.js`, each a call with JSON in a
string; so one page works from a server and from a folder. What the run holds enters the page as text and nothing else.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final

import tyro

from pivotrl.errors import ConfigError, PivotRLError
from pivotrl.logs import Progress, say
from pivotrl.profile_settings import DEFAULT_PROFILE
from pivotrl.storage import RunDirectory, dump_json, write_atomic
from pivotrl.viewer_data import Judged, RunView
from pivotrl.viewer_text import turn_text

ASSETS: Final = {"index.html": "text/html", "viewer.css": "text/css", "viewer.js": "text/javascript"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types pivotrl"
)
"""Of the page served; the same without `frame-ancestors`, which is for headers only, stands in the page itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewConfig:
    """Look at a run: its conversations, what became of each turn, the sampled actions beside the demonstration."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory, made by `ingest`."""
    profile: str | None = None
    """Profile to show; by default base, or the first there is."""
    verifier: str | None = None
    """Verifier whose verdicts are shown; by default the profile's own. Others: `rescore` first."""
    selection: str | None = None
    """Selection that says what became of a candidate; by default the first of this profile and verifier."""
    port: int = 0
    """Port of the page, at 127.0.0.1 only; 0 takes a free one."""
    export: Path | None = None
    """Write the page as files into this new folder, and serve nothing."""
    text: str | None = None
    """Show this candidate (TRAJECTORY@TURN) in the terminal, and serve nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewResult:
    """What there is to say at the end."""

    said: tuple[str, ...]

    def lines(self) -> list[str]:
        return list(self.said)


def view(config: ViewConfig) -> ViewResult:
    """Serve the page until Ctrl-C, or export it, or show one candidate.

    Raises ConfigError (port, folder) or MissingError (no such run, profile, verdicts, selection or candidate).
    """
    shown = open_run(config)
    if config.text is not None:
        return ViewResult(said=tuple(turn_text(shown, config.text)))
    if config.export is not None:
        return ViewResult(said=(f"open {_export(shown, config.export)} in a browser",))
    with serving(shown, config.port) as url, suppress(KeyboardInterrupt):
        say(f"{url}  (Ctrl-C ends it)")
        threading.Event().wait()
    return ViewResult(said=("no longer served",))


def open_run(config: ViewConfig) -> RunView:
    """What the config names. Raises MissingError."""
    run = RunDirectory(config.run)
    run.stages()
    names = sorted(path.parent.name for path in run.path.glob("profiles/*/profile.json"))
    name = config.profile or (DEFAULT_PROFILE if DEFAULT_PROFILE in names else next(iter(names), None))
    return RunView(run, None if name is None else Judged(run, name, config.verifier, config.selection))


def page_file(shown: RunView, name: str) -> bytes | None:
    """A file of the page; None where there is no such one."""
    if name in ASSETS:
        return (resources.files("pivotrl") / "viewer_assets" / name).read_bytes()
    key = name.removeprefix("data/").removesuffix(".js")
    is_block = key.isascii() and key.isdecimal() and int(key) < len(shown.blocks)
    if name != f"data/{key}.js" or not (is_block or key == "index"):
        return None
    try:
        value = shown.block(shown.blocks[int(key)]) if is_block else shown.index
    except PivotRLError as error:
        value = {"error": str(error)}
    # in a string, since an object literal would take `__proto__` for more than a name
    return b"pivotrl(%b,%b);\n" % (dump_json(key), dump_json(dump_json(value).decode()))


def _export(shown: RunView, folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already; name a new folder, or delete it")
    names = [*ASSETS, "data/index.js", *(f"data/{number}.js" for number in range(len(shown.blocks)))]
    with Progress("files exported", len(names)) as progress:
        for name in names:
            write_atomic(folder / name, page_file(shown, name) or b"")
            progress.advance()
    return folder / "index.html"


@contextmanager
def serving(shown: RunView, port: int = 0) -> Iterator[str]:
    """Serve the page from a thread; yields its address. Raises ConfigError where the port cannot be had."""
    token = secrets.token_urlsafe(24)
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, shown, token))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port {port}: {error}; use another --port, or 0 for a free one") from None
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{token}/"
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    """Gives the page's files to those who know the token and ask for this machine by number."""

    protocol_version = "HTTP/1.1"

    def __init__(self, shown: RunView, token: str, *rest: Any) -> None:
        self.shown, self.token = shown, token
        super().__init__(*rest)

    def do_GET(self) -> None:
        _, token, name = [*self.path.partition("?")[0].split("/", 2), "", ""][:3]
        known = secrets.compare_digest(token.encode(), self.token.encode())
        local = self.headers.get("Host", "").partition(":")[0] == "127.0.0.1"
        body = page_file(self.shown, name or "index.html") if known and local else None
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", f"{ASSETS.get(name or 'index.html', 'text/javascript')}; charset=utf-8")
        self.send_header("Content-Length", str(len(body or b"")))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        with suppress(ConnectionError):  # whoever asked went away
            self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Nothing: standard error is for people."""
