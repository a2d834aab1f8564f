"""Messages that keep the facts of the demonstrated message and are about the same: Eq. 6 without a judge.

A fact is a token with a digit (an id, an amount, a date), normalised: `$1,234.50` is `1234.5`, `15th` is `15`, `007`
stays. A message negates when it holds a word of `NEGATION`, whatever that word belongs to.
Aboutness is the F1 of the two multisets of content words, casefolded, on a true scale from 0 to 1.

Departures from the paper:
1. The paper only says that message turns count. NVIDIA's comparer accepts any, the empty one too; this does not.
2. Facts that the action adds are refused only with `same_facts`: without the database behind the tools nobody can say
   that they are wrong.
3. Where one message negates and the other does not, the action is refused as the opposite. That wrongs a polite
   "no problem", "no longer needed", "if you don't remember it" on one side.
4. A demonstration without words (an emoji) accepts the same text only.
5. The beginning of the demonstrated text is refused while it is less than CUT of it, and so is what repeats a message
   of the user, the system or a tool where the demonstration does not: training finds both before it finds words.
6. Where a call was demonstrated nothing can be judged: unscored.
7. It is blind to order and grammar: "from 10 to 20" passes for "from 20 to 10", and so does a salad of the right words;
   to which of two sentences a negation belongs, and to opposites without one ("approved", "denied").
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import BuiltIn, check_range, judged, said

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")
_CHUNK = re.compile(r"[^\s|;()\[\]{}<>\"`*“”—]+")
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"(-?(?!0\d)(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?:st|nd|rd|th)?")
_ASCII = str.maketrans("‐–−’‘", "---''")
_OUTER = "_'#$€£¥%.,:!?~=&/\\"
NEGATION = re.compile(r"\b(?:no(?!\. ?#?\d)|not|none|nothing|nobody|never|neither|nor|cannot|without|unable)\b|n't\b")
"""Of English, in casefolded text; "no. 5" is a number."""
_FUNCTION_WORD = re.compile(
    r"a|an|and|are|as|at|be|been|but|by|can|could|did|do|does|for|from|had|has|have|"
    r"he|her|his|i|if|in|is|it|its|ll|me|my|of|on|or|our|s|she|so|t|that|the|their|"
    r"them|then|there|they|this|to|us|ve|was|we|were|will|with|would|you|your"
)
"""Of English; in other languages all words count."""
CUT: Final = 0.75
ECHOED: Final = 3
QUOTED: Final = 5
"""Words from which on a message may be none but a user's or a tool's over again, or hold one of the user's."""


@dataclass(frozen=True, slots=True)
class MessageVerifier(BuiltIn):
    min_overlap: float = 0.4
    """Least F1 of content words; 0 leaves the facts and negations alone to decide."""
    same_facts: bool = False
    """Refuse facts that the demonstration does not give: for domains where it says all that there is to say."""
    name = "message"
    version = "4"

    def __post_init__(self) -> None:
        check_range("min_overlap", self.min_overlap, 1.0)

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 for a message with every fact, the same sense and enough of the words, 0 if not, unscored at a call."""
        demonstration = candidate.demonstration
        if demonstration.kind == "call":
            return judged(self, None, "not_applicable", "a call was demonstrated; use tool_call or auto")
        if action.kind == "call":
            return judged(self, 0.0, "wrong_kind", "call instead of message")
        theirs, ours = said(demonstration), said(action)
        if not ours:
            return judged(self, 0.0, "empty")
        if ours != theirs and not _words(theirs):
            return judged(self, 0.0, "wrong_text")
        wanted, given = facts(theirs), facts(ours)
        if wanted - given:
            return judged(self, 0.0, "missing_fact", ", ".join(sorted(wanted - given)))
        if self.same_facts and given - wanted:
            return judged(self, 0.0, "surplus_fact", ", ".join(sorted(given - wanted)))
        score = overlap(theirs, ours)
        if score < self.min_overlap:
            return judged(self, 0.0, "low_overlap", f"{score:.3f} < {self.min_overlap:g}")
        one, other = (NEGATION.search(_plain(text)) for text in (theirs, ours))
        found = one or other
        if found and not (one and other):
            return judged(self, 0.0, "negation", f"{found[0]!r} on one side only")
        reason = "" if ours == theirs else _hollow(candidate, theirs, ours)
        return judged(self, 0.0, reason) if reason else judged(self, 1.0, "match", f"overlap {score:.3f}")


def _hollow(candidate: Candidate, theirs: str, ours: str) -> str:
    """`cut` or `copied`: why a text that has facts and words enough says nothing of its own; else empty."""
    shown, said_words = (_WORD.findall(_plain(text)) for text in (theirs, ours))
    *begun, last = said_words or [""]
    if len(said_words) < CUT * len(shown) and shown[: len(begun)] == begun and shown[len(begun)].startswith(last):
        return "cut"
    wanted, given = (f" {' '.join(words)} " for words in (shown, said_words))
    for message in candidate.trajectory.messages[: candidate.turn]:
        words = _WORD.findall(_plain(message.content or "")) if message.role != "assistant" else []
        heard = f" {' '.join(words)} "
        if heard == given != wanted and len(words) >= ECHOED:
            return "copied"
        quotes = message.role != "tool" and min(len(words), len(said_words)) >= QUOTED
        if quotes and (heard in given or given in heard) and heard not in wanted and wanted not in heard:
            return "copied"
    return ""


def facts(text: str) -> set[str]:
    """The tokens with a digit, without outer punctuation; numbers in plain decimal form."""
    chunks = _CHUNK.findall(_plain(text))
    return {fact for chunk in chunks if _DIGIT.search(chunk) for fact in _facts_of(chunk)}


def _facts_of(chunk: str) -> Iterator[str]:
    token = chunk.strip(_OUTER).removesuffix("'s")
    sign = "-" if token.startswith("-") else ""
    token = token.strip(_OUTER + "-")
    number = _NUMBER.fullmatch(sign + token)
    if number:
        yield _decimal(number[1])
    elif "," in token:
        for part in token.split(","):
            if _DIGIT.search(part):
                yield from _facts_of(part)
    else:
        yield token


def _decimal(number: str) -> str:
    text = f"{Decimal(number.replace(',', '')):f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def overlap(a: str, b: str) -> float:
    """F1 of the two multisets of content words, from 0 to 1; 1 when the first text has no words."""
    left, right = content_words(a), content_words(b)
    left, right = (left, right) if left else (_words(a), _words(b))
    return 2 * (left & right).total() / (left.total() + right.total()) if left else 1.0


def content_words(text: str) -> Counter[str]:
    """The words that are no function words, casefolded."""
    return Counter({word: n for word, n in _words(text).items() if not _FUNCTION_WORD.fullmatch(word)})


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(_plain(text)))


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().translate(_ASCII)
