"""Directories as bytes, a tar archive each: what the sandbox starts from, what a command leaves, what lies where."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from pivotrl.errors import InputError


class Entry(NamedTuple):
    """What lies at a path. Times and owners are left out."""

    kind: bytes
    """As tar has it: tarfile.REGTYPE, DIRTYPE, SYMTYPE, LNKTYPE (a further name of a file), FIFOTYPE."""
    mode: int
    content: str
    """SHA-256 of a file, target of a link."""


def pack(roots: Mapping[str, str], *, files: int, size: int, owned: bool = False) -> bytes | None:
    """The directories (paths by the names that they get) as a tar archive; None if there is more than may be read.

    No link below them is followed; sockets and devices are left out. `owned`: make readable what its owner may not
    read, after its mode has been noted. No process may change the trees meanwhile.
    """
    buffer = io.BytesIO()
    names = {name.strip("/"): path for name, path in sorted(roots.items(), reverse=True)}
    waiting = list(names.items())
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        while waiting:
            name, path = waiting.pop()
            archive.dereference = name in names  # a root may be given by a link, as /proc/self/fd has them
            member: tarfile.TarInfo | None = archive.gettarinfo(path, name)  # typeshed forgets sockets
            if member is None or member.ischr() or member.isblk():
                continue
            files, size = files - 1, size - member.size
            if files < 0 or size < 0:
                return None
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = int(member.mtime)
            needed = 0o700 if member.isdir() else 0o400 if member.isreg() else 0
            if owned and member.mode & needed != needed:
                Path(path).chmod(member.mode | needed)
            if member.isreg():
                with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                    archive.addfile(member, file)
                continue
            archive.addfile(member)
            if member.isdir():
                inside = sorted(os.scandir(path), key=attrgetter("name"), reverse=True)
                waiting += [(at, one.path) for one in inside if (at := f"{name}/{one.name}") not in names]
    return buffer.getvalue()


def entries(tree: bytes) -> dict[str, Entry]:
    """What lies in a packed tree, by path without the leading slash; bytes that are no UTF-8 are surrogates."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            content = hashlib.sha256(file.read()).hexdigest() if file else member.linkname
            found[member.name] = Entry(member.type, member.mode, content)
    return found


@lru_cache(maxsize=4)
def load_snapshot(folder: Path, at: str, *, files: int, size: int) -> bytes:
    """A directory of the host, packed to lie at `at`; it must not change while the process runs. Raises InputError."""
    try:
        tree = pack({at: str(folder)}, files=files, size=size)
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"snapshot {folder}: cannot be read ({error}); check it and its permissions") from error
    if tree is None:
        raise InputError(
            f"snapshot {folder}: more than {files} files or {size} bytes; use a smaller one, or raise limits"
        )
    return tree
