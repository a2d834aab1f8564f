"""The base models that ship with the package, and the checksums that say that they are those shipped."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path
from typing import Final

from pivotrl.errors import InputError

CHECKSUMS: Final = "SHA256SUMS"


def shipped_base(package: str = "pivotrl.lab") -> Path:
    """The directory `base` of a domain's package (`Domain.base`).

    Raises InputError when a file is not the one that was shipped.
    """
    directory = Path(str(resources.files(package) / "base"))
    if not (directory / CHECKSUMS).exists():
        raise InputError(f"{directory}: no model was shipped; install pivotrl again, or name another one")
    for line in (directory / CHECKSUMS).read_text(encoding="utf-8").splitlines():
        digest, name = line.split()
        if not (directory / name).exists() or _sha256(directory / name) != digest:
            raise InputError(f"{directory / name}: not the file that was shipped; install pivotrl again")
    return directory


def write_checksums(directory: Path) -> None:
    """Write CHECKSUMS for the files of a directory, in the format of sha256sum."""
    paths = [path for path in sorted(directory.iterdir()) if path.name != CHECKSUMS]
    text = "".join(f"{_sha256(path)}  {path.name}\n" for path in paths)
    (directory / CHECKSUMS).write_text(text, encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
