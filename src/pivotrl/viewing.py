"""`view`: a run in the browser, served to this machine alone or exported as files, or one candidate in the terminal."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final

import tyro

from pivotrl.errors import ConfigError, PivotRLError
from pivotrl.logs import Progress, say
from pivotrl.profile_settings import DEFAULT_PROFILE
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import dump_json, write_atomic
from pivotrl.viewer_data import Judged, RunView
from pivotrl.viewer_text import turn_text

ASSETS: Final = {"index.html": "text/html", "viewer.css": "text/css", "viewer.js": "text/javascript"}
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types pivotrl",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewConfig:
    """Look at a run: its conversations, what became of each turn, the sampled actions beside the demonstration."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory, made by `ingest`; `--run RUN` does as well."""
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
    """Serve the page until Ctrl-C, or export it, or show one candidate. Raises ConfigError or MissingError."""
    shown = open_run(config)
    if config.text is not None:
        return ViewResult(said=tuple(turn_text(shown, config.text)))
    if config.export is not None:
        return ViewResult(said=(f"open {_export(shown, config.export)} in a browser",))
    with serving(shown, config.port) as url, suppress(KeyboardInterrupt):
        say(f"{len(shown.index['turns']['turn'])} turns at {url} (Ctrl-C ends it)")
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
    """A file of the page, or None. Data are scripts, which a folder allows too; JSON in a string keeps `__proto__`."""
    if name in ASSETS:
        return (resources.files("pivotrl") / "viewer_assets" / name).read_bytes()
    found = re.fullmatch(r"data/(index|[0-9]{1,9})\.js", name)
    key = found[1] if found else ""
    if not key or (key != "index" and int(key) >= len(shown.blocks)):
        return None
    try:
        value = shown.index if key == "index" else shown.block(shown.blocks[int(key)])
    except PivotRLError as error:
        value = {"error": str(error)}
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
        server = ThreadingHTTPServer(("127.0.0.1", port), lambda *rest: _Handler(shown, token, *rest))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port {port}: {error}; use another --port, or 0 for a free one") from None
    with server, ExitStack() as stack:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        yield f"http://127.0.0.1:{server.server_port}/{token}/"


class _Handler(BaseHTTPRequestHandler):
    """Gives the page's files to those who know the token and ask for this machine by number."""

    def __init__(self, shown: RunView, token: str, *rest: Any) -> None:
        self.shown, self.token = shown, token
        super().__init__(*rest)

    def do_GET(self) -> None:
        _, token, name = [*self.path.partition("?")[0].split("/", 2), "", ""][:3]
        known = secrets.compare_digest(token.encode(), self.token.encode())
        local = self.headers.get("Host", "").partition(":")[0] == "127.0.0.1"
        body = page_file(self.shown, name or "index.html") if known and local else None
        kind = f"{ASSETS.get(name or 'index.html', 'text/javascript')}; charset=utf-8"
        self.send_response(404 if body is None else 200)
        for header in ({"Content-Type": kind, "Content-Length": str(len(body or b""))} | HEADERS).items():
            self.send_header(*header)
        self.end_headers()
        with suppress(ConnectionError):  # whoever asked went away
            self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None: ...
