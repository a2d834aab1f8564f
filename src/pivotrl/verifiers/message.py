"""Messages that keep the facts of the demonstrated message and are about the same: Eq. 6 without a judge.

A fact is a token with a digit (an id, an amount, a date), normalised: `$1,234.50` is `1234.5`, `007` stays.
Aboutness is the F1 of the two multisets of content words, casefolded, on a true scale from 0 to 1.

Departures from the paper:
1. The paper only says that message turns count. NVIDIA's comparer accepts any, the empty one too; this does not.
2. Facts that the action adds are not checked: without the database behind the tools nobody can say that they are wrong.
3. Where a call was demonstrated nothing can be judged: unscored.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from pydantic import JsonValue

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import check_range, judged, said

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")
_CHUNK = re.compile(r"[^\s|;()\[\]{}<>\"`*“”—]+")
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"-?(?!0\d)(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_DASHES = str.maketrans("‐–−", "---")
_OUTER = "_'’‘#$€£¥%.,:!?~=&/\\"
_FUNCTION_WORD = re.compile(
    r"a|an|and|are|as|at|be|been|but|by|can|could|did|do|does|for|from|had|has|have|"
    r"he|her|his|i|if|in|is|it|its|ll|me|my|of|on|or|our|s|she|so|t|that|the|their|"
    r"them|then|there|they|this|to|us|ve|was|we|were|will|with|would|you|your"
)
"""Of English; negations are content. In other languages all words count."""


@dataclass(frozen=True, slots=True)
class MessageVerifier:
    min_overlap: float = 0.3
    """Least F1 of content words; 0 leaves the facts alone to decide."""
    name = "message"
    version = "1"

    def __post_init__(self) -> None:
        check_range("min_overlap", self.min_overlap, 1.0)

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        return {"min_overlap": self.min_overlap}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 for a message with every demonstrated fact and enough of the words, 0 if not, unscored at a call."""
        demonstration = candidate.demonstration
        if demonstration.kind == "call":
            return judged(self, None, "not_applicable", "a call was demonstrated; use tool_call or auto")
        if action.kind == "call":
            return judged(self, 0.0, "wrong_kind", "call instead of message")
        theirs, ours = said(demonstration), said(action)
        if not ours:
            return judged(self, 0.0, "empty")
        missing = sorted(facts(theirs) - facts(ours))
        if missing:
            return judged(self, 0.0, "missing_fact", ", ".join(missing))
        score = overlap(theirs, ours)
        if score < self.min_overlap:
            return judged(self, 0.0, "low_overlap", f"{score:.3f} < {self.min_overlap:g}")
        return judged(self, 1.0, "match", f"overlap {score:.3f}")


def facts(text: str) -> set[str]:
    """The tokens with a digit, without outer punctuation; numbers in plain decimal form."""
    found: set[str] = set()
    for chunk in _CHUNK.findall(unicodedata.normalize("NFKC", text).casefold().translate(_DASHES)):
        if _DIGIT.search(chunk):
            found.update(_facts_of(chunk))
    return found


def _facts_of(chunk: str) -> Iterator[str]:
    token = chunk.strip(_OUTER).removesuffix("'s").removesuffix("’s")
    sign = "-" if token.startswith("-") else ""
    token = token.strip(_OUTER + "-")
    number = _NUMBER.fullmatch(sign + token)
    if number:
        yield _plain(number[0])
    elif "," in token:
        for part in token.split(","):
            if _DIGIT.search(part):
                yield from _facts_of(part)
    else:
        yield token


def _plain(number: str) -> str:
    text = f"{Decimal(number.replace(',', '')):f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def overlap(a: str, b: str) -> float:
    """F1 of the two multisets of content words, from 0 to 1; 1 when the first text has no words."""
    left, right = _words(a), _words(b)
    content = Counter({word: n for word, n in left.items() if not _FUNCTION_WORD.fullmatch(word)})
    if content:
        left, right = content, Counter({word: n for word, n in right.items() if not _FUNCTION_WORD.fullmatch(word)})
    if not left:
        return 1.0
    return 2 * (left & right).total() / (left.total() + right.total())


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
