"""What shuts a sandboxed command in: bubblewrap's arguments, a filter of system calls, limits on resources."""

from __future__ import annotations

import math
import platform
import shlex
import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from pivotrl.errors import ConfigError, DependencyError

HOME: Final = "/home/user"
ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "user",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}
FILES: Final = {
    "/etc/passwd": b"root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n",
    "/etc/group": b"root:x:0:\nuser:x:1000:\n",
    "/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n",
}
TOP: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC: Final = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")
_OPEN_FILES: Final = 256

_FAMILIES: Final = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: others, such as AF_VSOCK, do not heed network namespaces."""
_DENIED: Final = {
    "x86_64": (0xC000003E, 41, (319, 447, 29, 64, 68, 425, 248, 249, 250, 321, 298, 323)),
    "aarch64": (0xC00000B7, 198, (279, 447, 194, 190, 186, 425, 217, 218, 219, 280, 241, 282)),
}
"""Audit code, `socket`, and: memfd_create, memfd_secret, shmget, semget, msgget (memory that no limit counts),
io_uring_setup (a way round this filter), add_key, request_key, keyctl (keys outlive the sandbox), bpf, perf_event_open,
userfaultfd. From the kernel's linux/audit.h and asm/unistd.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a command may use."""

    seconds: float = 10.0
    """By the clock; of CPU time one more, for each process."""
    memory: int = 1 << 30
    """Bytes private to a process, beyond which it gets no more; twice as many in all processes end the command."""
    processes: int = 64
    """Threads count."""
    disk: int = 256 << 20
    """Bytes in each writable place, and in all of them at the end."""
    output: int = 1 << 20
    """Bytes of standard output, and of standard error."""
    files: int = 20_000
    """In each writable place, and in all of them at the end."""

    def __post_init__(self) -> None:
        if not all(0 < value < math.inf for value in astuple(self)):
            raise ConfigError(f"{self}: use numbers above 0")


def mounts(workdir: str, disk: int, data: Mapping[str, int]) -> list[str]:
    """bubblewrap's arguments for namespaces and file system; `data` says which descriptor holds which file of /etc."""
    argv = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--as-pid-1"]
    argv += ["--new-session", "--cap-drop", "ALL", "--hostname", "sandbox", "--uid", "1000", "--gid", "1000"]
    argv += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in TOP:
        path = Path("/", name)
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            argv += ["--ro-bind", str(path), str(path)]
    for name in _ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for file, descriptor in data.items():
        argv += ["--perms", "0644", "--ro-bind-data", str(descriptor), file]
    for place in places(workdir):
        argv += ["--perms", "1777" if place == "/tmp" else "0755", "--size", str(disk), "--tmpfs", place]
    return [*argv, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", workdir]


def places(workdir: str) -> tuple[str, ...]:
    """Where a command can write."""
    return HOME, "/tmp", "/dev/shm", workdir


def prelude(root: str, control: int, limits: Limits, *, count_processes: bool = True) -> list[str]:
    """A shell that takes the limits, unpacks standard input at `root`, says so on `control`, waits, runs bash -c $1.

    It is the namespace's first process: no signal from inside ends it, and its end is that of all others. A limit that
    cannot be set is tighter already. Processes are counted by namespace (before Linux 5.14 by user). One byte of core
    dump is less than none: the kernel then keeps it from programs of the host's, too.
    """
    amounts = {"d": limits.memory >> 10, "s": 8192, "t": math.ceil(limits.seconds) + 1, "n": _OPEN_FILES}
    amounts |= {"f": max(1, limits.disk >> 10)} | ({"u": limits.processes} if count_processes else {})
    lines = [
        "{ prlimit --pid $$ --core=1:1 || ulimit -c 0",
        *(f"ulimit -{name} {amount}" for name, amount in amounts.items()),
        "echo 1000 > /proc/self/oom_score_adj; } 2> /dev/null",  # the first to go when the machine's memory runs out
        f"tar -xpf - -C {shlex.quote(root)} && exec < /dev/null || exit 1",
        f"echo >&{control} && read -r -n 1 -u {control} || exit 1",
        f"exec {control}>&- {{errors}}>&2 2> /dev/null",
        'bash -c -- "$1" 2>&$errors {errors}>&-',
        "exit",
    ]
    return ["/bin/bash", "-c", "\n".join(lines), "bash"]


def system_call_filter(machine: str = "") -> bytes:
    """A seccomp program (classic BPF) that refuses what `_DENIED` and `_FAMILIES` say. Raises DependencyError."""
    machine = machine or platform.machine()
    if machine not in _DENIED:
        raise DependencyError(f"the sandbox knows no {machine} processor; use x86_64 or aarch64, or unsafe_exec")
    audit, socket, denied = _DENIED[machine]
    load, equal, at_least, result = 0x20, 0x15, 0x35, 0x06
    allow, kill = (result, 0, 0, 0x7FFF0000), (result, 0, 0, 0x80000000)
    absent, no_family = (result, 0, 0, 0x50000 | 38), (result, 0, 0, 0x50000 | 97)  # ENOSYS, EAFNOSUPPORT
    program = [(load, 0, 0, 4), (equal, 1, 0, audit), kill, (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), kill]  # the x32 calls
    for number in denied:
        program += [(equal, 0, 1, number), absent]
    program += [(equal, 1, 0, socket), allow, (load, 0, 0, 16)]
    for family in _FAMILIES:
        program += [(equal, 0, 1, family), allow]
    return b"".join(struct.pack("=HBBI", *step) for step in [*program, no_family])
