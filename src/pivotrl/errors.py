"""Every error that a user can cause: one line that says what is wrong, where, and what to do.

Each class is also the standard-library error that a caller would expect, so library users may catch either.
The command line prints the message without a traceback and exits with code 2.
A bad rollout, an unparsable action or a failed verifier is *data* (`Completion.parse_error`, `Verdict.value is None`),
never one of these.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class PivotRLError(Exception):
    """Root of the hierarchy; its text is one line for a user."""


class ConfigError(PivotRLError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


def check_least(settings: object, where: str = "", /, **least: float) -> None:
    """Raise ConfigError for a setting that is given and below the least that it can be."""
    for name, low in least.items():
        value = getattr(settings, name)
        if value is not None and value < low:
            raise ConfigError(f"{where}{name.replace('_', '-')} {value}: must be at least {low}")


def brief(error: object, most: int = 300) -> str:
    """What somebody else's error says, for a message of ours; where it says nothing, what it is."""
    return " ".join(str(error).split())[:most] or type(error).__name__


class InputError(PivotRLError, ValueError):
    """A file that cannot be read as what it should be; the message names file, line and field."""


class MissingError(PivotRLError, FileNotFoundError):
    """Something that an earlier stage, or the user, should have provided is not there."""


class BusyError(PivotRLError, BlockingIOError):
    """Another process is writing the same artefact."""


class ServerError(PivotRLError, ConnectionError):
    """A server is gone; what was finished before is kept."""


class StorageError(PivotRLError, OSError):
    """The disk refused (full, read-only); what was written before is intact."""


class DependencyError(PivotRLError, ImportError):
    """An optional package is missing; the message names the extra that brings it."""


def disk_error(path: Path | str, error: OSError) -> StorageError:
    """What the operating system says, in one line, with what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageError(f"{path}: the disk is full; what was written before is intact: free space and run again")
    parts = (Path(path), *Path(path).parents)
    # unlike exists(), access() does not raise where a name is too long or a folder may not be looked into
    file = next((one for one in parts if os.access(one, os.F_OK)), path)
    if error.errno in (errno.EEXIST, errno.ENOTDIR) and not Path(file).is_dir():
        return StorageError(f"{file}: is a file, not a folder; name a folder")
    return StorageError(f"{path}: {error.strerror or error}; check the path and its permissions, then run again")
