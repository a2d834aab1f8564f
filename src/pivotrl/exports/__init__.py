"""Exporters for other trainers. One more takes a file with a class of `Exporter`, and an entry in `EXPORTERS`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pivotrl.exports.base import Exporter
from pivotrl.exports.chat import Chat
from pivotrl.exports.nemo_gym import NemoGymExport

__all__ = ["EXPORTERS"]

EXPORTERS: Final[Mapping[str, Exporter]] = MappingProxyType({one.name: one for one in (Chat(), NemoGymExport())})
