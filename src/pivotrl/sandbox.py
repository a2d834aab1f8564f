"""Runs a shell command on a private copy of a packed directory, inside bubblewrap, and says what it did (`Effects`).

Inside are /usr and its kin, read-only, and four writable places, each a tmpfs of bounded size that never touches the
disk: the working directory, /home/user, /tmp and /dev/shm. Nothing else of the host, no network, no other process.
The snapshot is unpacked inside; what is left is packed from outside, through open directories, when all inside are
dead: `Effects.tree` of one command is the snapshot of the next. docs/sandbox.md says what is promised and what is not.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pivotrl import isolation
from pivotrl.errors import ConfigError, DependencyError, InputError
from pivotrl.isolation import Limits
from pivotrl.snapshots import pack

CommandEnding = Literal["exit", "timeout", "output", "memory", "disk", "files"]
"""Why a command is over: by itself, or by a limit: time, output, memory, bytes written, files (number, depth, size)."""

EMPTY: Final = pack({}, files=0, size=0) or b""
LONGEST_COMMAND: Final = 100_000
_BY_STATUS: Final[dict[int, CommandEnding]] = {128 + signal.SIGXCPU: "timeout", 128 + signal.SIGXFSZ: "disk"}
_WORKDIR: Final = re.compile(
    r"(?!/(usr|etc|proc|dev|sys|bin|sbin|lib|lib32|lib64|libx32)(/|$))(?!/(tmp|home|home/user)$)(/(?!\.\.?(/|$))[\w.+-]+)+",
    re.ASCII,
)
_TICK: Final = 0.05
_SETUP_SECONDS: Final = 30.0
_GRACE: Final = 5.0
_NOBODY: Final = 65534
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_HINT: Final = (
    "install bubblewrap 0.8 or newer (`apt install bubblewrap`) on a kernel that lets users make namespaces (sysctl "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0), or set unsafe_exec=true to "
    "run commands without a sandbox"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What a command did at once."""

    ending: CommandEnding
    status: int | None = None
    """As a shell has it (128 + signal); None when a limit ended it."""
    stdout: bytes
    """The first `Limits.output` bytes; there were more only if the ending says so."""
    stderr: bytes
    tree: bytes | None = None
    """The writable places afterwards, packed; None when a limit ended it."""


@dataclass(frozen=True, slots=True)
class _Cage:
    """A started command, which waits for a word on `control`."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    first: int
    """The first process inside, of which all others descend; unsafe: the process itself."""
    handle: int
    """Its descriptor, readable when it is dead, and with it all others (unsafe: those that it waited for)."""
    roots: Mapping[str, int]
    """Writable places as the command sees them, and their descriptors."""
    unsafe: bool

    def kill(self) -> None:
        """End everything inside, which dies with its first process (unsafe: the process group, not who left it)."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        if self.unsafe and self.process.returncode is None:  # not waited for, so the number is still its own
            os.killpg(self.process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Where commands run. Several threads may use one."""

    limits: Limits = field(default_factory=Limits)
    workdir: str = "/work"
    unsafe_exec: bool = False
    """Run in a temporary directory with resource limits only: network, home and all that the user may do stay open."""

    def __post_init__(self) -> None:
        if not _WORKDIR.fullmatch(self.workdir):
            raise ConfigError(f"sandbox workdir {self.workdir!r}: use an absolute path of your own, as /work or /app")

    def check(self) -> None:
        """Raise DependencyError, which says what to install, unless commands can be run."""
        self.run("true")

    def run(self, command: str, snapshot: bytes = EMPTY) -> Effects:
        """Run a bash command on a packed directory; nothing of it is left when this returns or raises.

        Raises DependencyError where there is no sandbox, InputError for a snapshot that cannot be unpacked and for a
        command that no shell can be given.
        """
        data, tree = argument(command), None
        with ExitStack() as stack:
            cage = _start(self, data, snapshot, stack)
            cage.control.sendall(b"\n")
            ending, stdout, stderr = _follow(cage, self.limits)
            status = cage.process.wait()
            status = status if status >= 0 else 128 - status
            ending = _BY_STATUS.get(status, ending)
            ending = _full(cage, self.limits) if ending == "exit" else ending
            if ending == "exit":
                tree = _left(cage.roots, self.limits)
        if tree is None:
            return Effects(ending="files" if ending == "exit" else ending, stdout=stdout, stderr=stderr)
        return Effects(ending=ending, status=status, stdout=stdout, stderr=stderr, tree=tree)


def argument(command: str) -> bytes:
    """The command as a shell is given it. Raises InputError."""
    try:
        data = command.encode()
    except UnicodeEncodeError:
        raise InputError("command: half a surrogate pair, which no shell can be given; replace it") from None
    if b"\0" in data or len(data) > LONGEST_COMMAND:
        raise InputError(f"command: a NUL, or over {LONGEST_COMMAND} bytes; no shell can be given it: shorten it")
    return data


def _start(sandbox: Sandbox, command: bytes, snapshot: bytes, stack: ExitStack) -> _Cage:
    """A cage with the snapshot in it."""
    unsafe, places = sandbox.unsafe_exec, isolation.places(sandbox.workdir)
    root = _temporary(places, stack) if unsafe else ""
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    with ExitStack() as lent:
        fds = [lent.enter_context(theirs).fileno()]
        count = not unsafe or os.geteuid() == 0  # else every process of the user counts
        shell = isolation.prelude(root or "/", fds[0], sandbox.limits, count_processes=count)
        argv: list[str | bytes] = [*([] if unsafe else _bubblewrap(sandbox, fds, lent)), *shell, command]
        try:
            process = stack.enter_context(_popen(argv, root, sandbox.workdir, _memory_file(snapshot, lent), fds))
        except OSError as error:
            raise DependencyError(f"the sandbox cannot start ({error}): {_HINT}") from None
    stack.callback(process.kill)
    _await_ready(process, ours)
    try:
        first = process.pid if unsafe else int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        handle = _owned(os.pidfd_open(first), stack)
        base = root or f"/proc/{first}/root"
        roots = {place: _owned(os.open(base + place, os.O_RDONLY | os.O_DIRECTORY), stack) for place in places}
    except (OSError, ValueError) as error:
        raise DependencyError(f"the sandbox cannot be looked into ({error}): {_HINT}") from None
    cage = _Cage(process, ours, first, handle, roots, unsafe)
    stack.callback(process.wait)
    stack.callback(cage.kill)
    return cage


def _bubblewrap(sandbox: Sandbox, fds: list[int], lent: ExitStack) -> list[str]:
    """The command line up to the program inside; the descriptors that it names are added to `fds`."""
    program = shutil.which("bwrap")
    if program is None:
        raise DependencyError(f"there is no sandbox on this machine: {_HINT}")
    seccomp = _memory_file(isolation.system_call_filter(), lent)
    data = {path: _memory_file(text, lent) for path, text in isolation.FILES.items()}
    fds += [seccomp, *data.values()]
    argv = [program, *isolation.mounts(sandbox.workdir, sandbox.limits.disk, data)]
    return [*argv, "--seccomp", str(seccomp), "--"]


def _temporary(places: Sequence[str], stack: ExitStack) -> str:
    """A directory with the writable places in it, for a command without a sandbox."""
    root = stack.enter_context(tempfile.TemporaryDirectory(prefix="pivotrl-unsafe-", ignore_cleanup_errors=True))
    for place in places:
        Path(root + place).mkdir(parents=True)
    if os.geteuid() == 0:
        for folder in (Path(root), *Path(root).rglob("*")):
            os.chown(folder, _NOBODY, _NOBODY)
    return root


def _owned(descriptor: int, stack: ExitStack) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _memory_file(data: bytes, stack: ExitStack) -> int:
    descriptor = _owned(os.memfd_create("pivotrl"), stack)
    Path(f"/proc/self/fd/{descriptor}").write_bytes(data)
    return descriptor


def _popen(
    argv: Sequence[str | bytes], root: str, workdir: str, stdin: int, fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a process that is not root and inherits these descriptors only; `root` is empty for bubblewrap."""
    homes = {"HOME": root + isolation.HOME, "TMPDIR": f"{root}/tmp"} if root else {}
    dropped = _as_nobody(shutil.which("setpriv")) if os.geteuid() == 0 else []
    nobody = _NOBODY if os.geteuid() == 0 and not dropped else None
    return subprocess.Popen(
        [*dropped, *argv],
        cwd=root + workdir if root else "/",
        env=isolation.ENVIRONMENT | homes,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=fds,
        start_new_session=True,
        umask=0o022,
        user=nobody,
        group=nobody,
        extra_groups=None if nobody is None else [],
    )


@functools.cache
def _as_nobody(program: str | None) -> list[str]:
    """The command that stops being root, by util-linux; Python would fork, copying the tables of our pages."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout if program else ""
    identity = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--"]
    return [program, *identity] if program and "util-linux" in version else []


def _await_ready(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """Wait until the snapshot is unpacked inside."""
    control.settimeout(_SETUP_SECONDS)
    with contextlib.suppress(TimeoutError):
        if control.recv(1):
            return
    process.kill()
    line = process.communicate()[1].decode(errors="replace").strip().partition("\n")[0]
    if line.startswith("tar:"):
        raise InputError(f"snapshot: cannot be unpacked ({line}); check it, or allow more disk (disk_mb)")
    raise DependencyError(f"the sandbox cannot start ({line or 'no answer'}): {_HINT}")


def _follow(cage: _Cage, limits: Limits) -> tuple[CommandEnding, bytes, bytes]:
    """Read what the command says until all inside are dead, by themselves or by us: the ending and the two streams."""
    ending: CommandEnding = "exit"
    texts = {stream.fileno(): bytearray() for stream in (cage.process.stdout, cage.process.stderr) if stream}
    deadline, give_up = time.monotonic() + limits.seconds, math.inf
    with selectors.DefaultSelector() as selector:
        for descriptor in (*texts, cage.handle):
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < give_up:
            for key, _ in selector.select(_TICK):
                data = os.read(key.fd, 1 << 16) if key.fd in texts else b""
                if data:
                    texts[key.fd] += data[: limits.output + 1 - len(texts[key.fd])]
                else:
                    selector.unregister(key.fd)
            alive = cage.handle in selector.get_map()
            if any(len(text) > limits.output for text in texts.values()):
                ending = "output" if ending == "exit" else ending
            elif ending == "exit" and alive:
                ending = "timeout" if time.monotonic() > deadline else _breach(cage, limits)
            if give_up == math.inf and (ending != "exit" or not alive):
                cage.kill()
                give_up = time.monotonic() + _GRACE
    stdout, stderr = (bytes(text[: limits.output]) for text in texts.values())
    return ending, stdout, stderr


def _breach(cage: _Cage, limits: Limits) -> CommandEnding:
    """Which limit of the sandbox as a whole a command is over right now; "exit" for none."""
    resident, found = 0, list[Path]()  # pages that several share count for each
    with contextlib.suppress(OSError):  # all are dead
        found += () if cage.unsafe else Path(f"/proc/{cage.first}/root/proc").glob("[0-9]*/statm")
    for path in found:
        with contextlib.suppress(OSError, IndexError):  # this one is
            resident += int(path.read_text().split()[1]) * _PAGE
    return "memory" if resident > 2 * limits.memory else _full(cage, limits)


def _full(cage: _Cage, limits: Limits) -> CommandEnding:
    for root in () if cage.unsafe else cage.roots.values():
        status = os.fstatvfs(root)
        if status.f_bavail == 0:
            return "disk"
        if status.f_files - status.f_ffree > limits.files:
            return "files"
    return "exit"


def _left(roots: Mapping[str, int], limits: Limits) -> bytes | None:
    paths = {place: f"/proc/self/fd/{root}" for place, root in roots.items()}
    try:
        return pack(paths, files=limits.files, size=limits.disk, owned=True)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # folders within folders
            return None
        raise
