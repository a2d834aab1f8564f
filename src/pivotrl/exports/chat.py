"""Conversations as TRL and most others read them; `ingest` reads them back as they were."""

from __future__ import annotations

from pathlib import Path

from pivotrl.exports.base import Material, Target


class Chat:
    """One trajectory per line."""

    name: Target = "chat"

    def write(self, material: Material, folder: Path) -> list[str]:
        raise NotImplementedError
