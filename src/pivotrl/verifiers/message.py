"""Messages that keep the facts of the demonstrated message and are about the same: Eq. 6 without a judge.

A fact is a token with a digit (an id, an amount, a date), normalised: `$1,234.50` is `1234.5`, `.5` is `0.5`, `15th` is
`15`, `007` stays. A message negates when it holds a word of `NEGATION`, whatever that word belongs to.
Aboutness is the F1 of the two multisets of content words, casefolded, on a true scale from 0 to 1.

Departures from the paper:
1. The paper only says that message turns count. NVIDIA's comparer accepts any, the empty one too; this does not.
2. Facts that the action adds are refused only with `same_facts`: without the database behind the tools nobody can say
   that they are wrong.
3. Where one message negates and the other does not, the action is refused as the opposite. That wrongs a polite
   "no problem", "no longer needed", "if you don't remember it" on one side.
4. A demonstration without words (an emoji) accepts the same text only.
5. Also refused: a text with less than `min_recall` of the demonstrated content words, a long one that shares next to no
   neighbouring words, and what repeats a message of the user, the system or a tool where the demonstration does not.
   Training finds beginnings, salads and echoes before it finds words of its own.
6. Where a call was demonstrated nothing can be judged: unscored.
7. It is blind to most of order and grammar: "from 10 to 20" passes for "from 20 to 10"; to which of two sentences a
   negation belongs, and to opposites without one ("approved", "denied").
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Final

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, check_range, decided, judged, said

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")
_CHUNK = re.compile(r"[^\s|;()\[\]{}<>\"`*“”—]+")
_DIGIT = re.compile(r"\d")
_BARE_POINT = re.compile(r"(?<![\w.])\.(?=\d)")
_NUMBER = re.compile(r"(-?(?!0\d)(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?:st|nd|rd|th)?")
_ASCII = str.maketrans("‐–−’‘", "---''")
_OUTER = "_'#$€£¥%.,:!?~=&/\\"
NEGATION = re.compile(r"\b(?:no(?!\. ?#?\d)|not|none|nothing|nobody|never|neither|nor|cannot|without|unable)\b|n't\b")
"""Of English, in casefolded text; "no. 5" is a number."""
_NEGATING = re.compile(
    r"no|not|never|neither|nor|cannot|without|unable|able|am|don|won|isn|aren|didn|doesn|couldn|wouldn"
)
"""Words of negated sentences and of their opposites."""
_FUNCTION_WORD = re.compile(
    r"a|an|and|are|as|at|be|been|but|by|can|could|did|do|does|for|from|had|has|have|"
    r"he|her|his|i|if|in|is|it|its|ll|me|my|of|on|or|our|s|she|so|t|that|the|their|"
    r"them|then|there|they|this|to|us|ve|was|we|were|will|with|would|you|your"
)
"""Of English; in other languages all words count."""
ORDER: Final = 0.2
"""Least F1 of the pairs of neighbouring words, where both texts have as many as LONG: no salad of the right words."""
LONG: Final = 8
ECHOED: Final = 3
QUOTED: Final = 5
"""Words from which on a message may be none but a user's or a tool's over again, or hold one of the user's."""


@dataclass(frozen=True, slots=True)
class MessageVerifier(BuiltIn):
    min_overlap: float = 0.4
    """Least F1 of content words; 0 leaves the facts and negations alone to decide."""
    min_recall: float = 0.6
    """Least share of the demonstrated content words: half of what there is to say is no answer."""
    same_facts: bool = False
    """Refuse facts that the demonstration does not give: for domains where it says all that there is to say."""
    name = "message"
    version = "6"

    def __post_init__(self) -> None:
        check_range("min_overlap", self.min_overlap, 1.0)
        check_range("min_recall", self.min_recall, 1.0)

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
        if ours == theirs:
            return judged(self, 1.0, "match", "the same text")
        if not _words(theirs):
            return judged(self, 0.0, "wrong_text")
        return decided(self, self._refusal(theirs, ours) or _copied(candidate, theirs, ours))

    def _refusal(self, theirs: str, ours: str) -> Refusal | None:
        wanted, given = facts(theirs), facts(ours)
        if wanted - given:
            return "missing_fact", ", ".join(sorted(wanted - given))
        if self.same_facts and given - wanted:
            return "surplus_fact", ", ".join(sorted(given - wanted))
        score, share = overlap(theirs, ours), recall(theirs, ours)
        if score < self.min_overlap or share < self.min_recall:
            return "low_overlap", f"overlap {score:.3f}, recall {share:.3f}"
        if negates(theirs) != negates(ours):
            return "negation", "on one side only"
        return ("word_order", "") if _disordered(theirs, ours) else None


def negates(text: str) -> bool:
    """Whether a word of `NEGATION` stands in it."""
    return NEGATION.search(_plain(text)) is not None


def _disordered(theirs: str, ours: str) -> bool:
    """Whether two long texts share next to no neighbouring words."""
    words = [_WORD.findall(_plain(text)) for text in (theirs, ours)]
    if min(map(len, words)) < LONG:
        return False
    left, right = (Counter(pairwise(one)) for one in words)
    return 2 * (left & right).total() < ORDER * (left.total() + right.total())


def _copied(candidate: Candidate, theirs: str, ours: str) -> Refusal | None:
    """Whether a text is the state over again, or holds a message of the user's that was not demonstrated."""
    wanted, given = _spaced(theirs), _spaced(ours)
    state = [(one.role, _spaced(one.content or "")) for one in candidate.trajectory.messages[: candidate.turn]]
    prompt = _spaced(" ".join(heard for _, heard in state))
    said_before = any(role == "assistant" and given in heard for role, heard in state)
    if given in prompt and wanted not in prompt and not said_before and _length(given) >= ECHOED:
        return "copied", "the state"
    for role, heard in state:
        if role != "assistant" and heard == given != wanted and _length(heard) >= ECHOED:
            return "copied", role
        quotes = role in ("user", "system") and min(_length(heard), _length(given)) >= QUOTED
        if quotes and (heard in given or given in heard) and heard not in wanted and wanted not in heard:
            return "copied", role
    return None


def _spaced(text: str) -> str:
    """The words with a space before, between and behind, so that one text within another begins and ends at words."""
    return f" {' '.join(_WORD.findall(_plain(text)))} "


def _length(spaced: str) -> int:
    return len(spaced.split())


def facts(text: str) -> set[str]:
    """The tokens with a digit, without outer punctuation; numbers in plain decimal form."""
    chunks = _CHUNK.findall(_BARE_POINT.sub("0.", _plain(text)))
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
    left, right = _content(a, b)
    return 2 * (left & right).total() / (left.total() + right.total()) if left else 1.0


def alike(a: str, b: str, least: float) -> bool:
    """Whether two texts are about the same, to this overlap, with the same facts and in the same sense."""
    return overlap(a, b) >= least and facts(a) == facts(b) and negates(a) == negates(b)


def recall(a: str, b: str) -> float:
    """The share of the first text's content words that the second has; 1 when it has none.

    Facts and negations are compared by themselves, and in several spellings, so they do not count here.
    """
    left, right = _content(a, b)
    left = Counter({word: n for word, n in left.items() if not (_DIGIT.search(word) or _NEGATING.fullmatch(word))})
    return (left & right).total() / left.total() if left else 1.0


def _content(a: str, b: str) -> tuple[Counter[str], Counter[str]]:
    """The content words of both; all words where the first has no others."""
    left, right = content_words(a), content_words(b)
    return (left, right) if left else (_words(a), _words(b))


def content_words(text: str) -> Counter[str]:
    """The words that are no function words, casefolded."""
    return Counter({word: n for word, n in _words(text).items() if not _FUNCTION_WORD.fullmatch(word)})


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(_plain(text)))


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().translate(_ASCII)
