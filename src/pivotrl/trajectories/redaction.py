"""Masks what looks like a key, a token or a password, in every text of a trajectory.

Patterns are those that the issuers document, and headers, assignments and addresses that carry a secret. A secret in
other words, or cut in two, is not found: redaction is no permission to publish.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

import orjson

from pivotrl.storage import decode, dump_json
from pivotrl.types import Trajectory

_EDGE: Final = r"((?<![A-Za-z0-9_-])|(?<=\\[nrt]))"
"""Where a token may begin: after an escape of JSON in a text, too."""


def _token(*literals: str, rest: str) -> tuple[tuple[bytes, ...], re.Pattern[str]]:
    return tuple(text.encode() for text in literals), re.compile(_EDGE + rest)


_KINDS: Final[dict[str, tuple[tuple[bytes, ...], re.Pattern[str]]]] = {
    "private_key": (
        (b"PRIVATE KEY-----",),
        re.compile(
            r"()-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=:,\s]|-(?!-)|\\+[nr])*"
            r"(?:-----END [A-Z ]*PRIVATE KEY-----)?"
        ),
    ),
    "jwt": _token("eyJ", rest=r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{5,}"),
    "aws_access_key": _token("AKIA", "ASIA", rest=r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    "github_token": _token("gh", rest=r"(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_\w{22,255})"),
    "gitlab_token": _token("glpat-", rest=r"glpat-[\w-]{20,}"),
    "anthropic_key": _token("sk-ant-", rest=r"sk-ant-[\w-]{20,}"),
    "openai_key": _token("sk-", rest=r"sk-(?=[A-Za-z_-]*\d)[\w-]{20,}"),
    "huggingface_token": _token("hf_", rest=r"hf_[A-Za-z0-9]{30,}"),
    "google_key": _token("AIza", rest=r"AIza[\w-]{35}"),
    "slack_token": _token("xox", "xapp-", rest=r"(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,}"),
    "stripe_key": _token("k_live_", "k_test_", rest=r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    "package_token": _token("npm_", "pypi-", rest=r"(?:npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,})"),
    "nvidia_key": _token("nvapi-", rest=r"nvapi-[\w-]{40,}"),
    "bearer": (
        (b"earer", b"EARER", b"asic ", b"BASIC "),
        re.compile(r"(?i)(\bbearer\s+|authorization\W{1,6}basic\s+)(?!\[REDACTED)[\w.~+/=-]{16,}"),
    ),
    "url_password": ((b"://",), re.compile(r"(://[^\s/:@\"'\\]{1,200}:)[^\s/:@\"'\\]{1,200}(?=@)")),
    "assigned_key": (
        (b"ey", b"EY", b"oken", b"OKEN", b"ecret", b"ECRET"),
        re.compile(
            r"(?i)((?:api|access|secret|auth|private)[_-]?(?:access[_-]?)?(?:key|token|secret)\\*[\"']?\s{0,9}[:=]\s{0,9}\\*[\"']?)"
            r"(?=[a-z_./+-]*\d)[\w./+=-]{16,}"
        ),
    ),
}
"""Kind -> texts of which one is in anything that the pattern finds, and the pattern; its first group is kept."""


def redact(trajectory: Trajectory) -> tuple[Trajectory, Counter[str]]:
    """The trajectory with `[REDACTED:KIND]` for every secret, and their number by kind."""
    line, found = dump_json(trajectory), Counter[str]()
    kinds = [kind for kind, (literals, _) in _KINDS.items() if any(literal in line for literal in literals)]
    masked = _masked(orjson.loads(line), kinds, found) if kinds else None
    return decode(dump_json(masked), Trajectory, trajectory.id) if found else trajectory, found


def _masked(value: Any, kinds: list[str], found: Counter[str]) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, kinds, found) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, kinds, found) for item in value]
    if isinstance(value, str):
        for kind in kinds:
            value, count = _KINDS[kind][1].subn(rf"\g<1>[REDACTED:{kind}]", value)
            found.update({kind: count} if count else {})
    return value
