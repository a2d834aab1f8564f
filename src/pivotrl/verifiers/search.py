"""`search`: turns that search for the same, open the same documents, or give the same final answer (Eq. 6).

A turn is its calls with an argument of `_ROLES`; without calls, the tags `<search>`, `<open>`, `<visit>`, `<answer>` of
its text behind the last `</think>`. The paper does not say what its verifier for search was.
1. The queries of a call are taken together. They are the same if operators (`site:`, `-word`), quoted phrases, tokens
   with a digit and what is negated (`without a word`) are, no word has its opposite (`_PAIRS`, `un-`) instead, and the
   F1 of the content words is at least `min_query_overlap`; of fewer than `SHORT` words only one may be there or not.
2. Documents are the same by URL without scheme, `www.`, default port, trailing slash, fragment (but `#/`, `#!`, `#L5`),
   tracking parameters and order of the others; by id as it is. All documents of a call must be the same.
3. Answers are the same in the normal form of SQuAD, which here keeps the signs of `3.5`, `-5`, `C++` and `C#`.
4. Schemas and all other arguments are for `tool_call` to judge, but for the words of a `goal`.
Holes: 5. A query of `SHORT` words or more with another name in it may pass, as may its words in another order or joined
another way in a batch. Negations and opposites are English ones. 6. Redirects and mirrors are not known. 7. A right
answer in other words is refused.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlsplit

from pydantic import JsonValue

from pivotrl.types import Action, Candidate, Message, ToolCall, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, arguments_of, check_range, judged
from pivotrl.verifiers.message import NEGATION, content_words, facts, overlap
from pivotrl.verifiers.tool_call import ToolCallVerifier
from pivotrl.verifiers.values import match

_Object = dict[str, JsonValue]
_ROLES: Final = {
    **dict.fromkeys(("url", "urls", "link", "links", "uri", "id", "ids", "doc_id", "docid", "document_id"), "open"),
    **dict.fromkeys(("query", "queries", "q", "search_query", "keywords"), "search"),
    "answer": "answer",
}
_TAGS: Final = {"search": "query", "open": "url", "visit": "url", "answer": "answer"}
_TAG: Final = re.compile(rf"<({'|'.join(_TAGS)})>")
_OPERATOR: Final = re.compile(r'(?<!\S)-?[a-z]+:(?:"[^"\n]*"|[^\s"]+)|-?"[^"\n]+"|(?<!\S)-[^\s"-]\S*')
_PLAIN: Final = str.maketrans("“”„’−–", '"""\'--')
_NEGATED: Final = re.compile(
    rf"(?:{NEGATION.pattern}|\b(?:non|except|excluding|minus|other than)\b)"
    r"(?:[^\w\n]*\b(?:the|an?|any|of|in|by|for)\b)*[^\w\n]*(\w*)"
)
_PAIRS: Final = """ascending/descending asc/desc max/min maximum/minimum maximize/minimize highest/lowest high/low
higher/lower largest/smallest longest/shortest best/worst most/least more/less first/last before/after oldest/newest
older/newer earliest/latest increase/decrease increasing/decreasing rise/fall win/lose won/lost winner/loser
winners/losers male/female men/women north/south northern/southern east/west eastern/western left/right buy/sell
import/export enable/disable start/end include/exclude inside/outside above/below upper/lower positive/negative
pros/cons cause/effect causes/effects true/false open/closed"""
_OPPOSITES: Final = {one: other for pair in _PAIRS.split() for one, _, other in [pair.partition("/")]}
_PREFIX: Final = re.compile(r"\A(?:un|in|im|il|ir|dis|anti)(?=\w{3})")
SHORT: Final = 6
"""Content words from which on a query may have several others."""
_TRACKING: Final = re.compile(r"utm_.*|[a-z]*clid|gb?raid|wbraid|ref_src|ref_url|igshid|mc_[ce]id|spm|_ga|_gl")
_FRAGMENT: Final = re.compile(r"[/!]|(?:L|lines?-)\d", re.I)
_SITE: Final = re.compile(r"(?:[\w-]+\.)+[a-z]{2,}(?=[:/?#]|\Z)", re.I)
_MARK: Final = re.compile(r"(?<!\d)\.|\.(?!\d)|(?<=\w)-|-(?!\d)|(?<![\w+])[+#]|[^\w\s.+#$%€£¥-]|_")


@dataclass(frozen=True, slots=True)
class SearchVerifier(BuiltIn):
    min_query_overlap: float = 0.7
    """Least F1 of content words."""
    name = "search"
    version = "3"

    def __post_init__(self) -> None:
        check_range("min_query_overlap", self.min_query_overlap, 1.0)

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 for the same searches, documents or answer, 0 for others, unscored where anything else was demonstrated."""
        theirs, ours = tagged(candidate.demonstration), tagged(action)
        wanted, given = ([(call.name, arguments_of(call).value or {}) for call in side] for side in (theirs, ours))
        if not theirs or not all(map(searched, theirs)):
            return judged(self, None, "not_applicable", "not only searches, documents or answers were demonstrated")
        found = [[self._other(*one, *other) for one in wanted] for other in given]
        places = match([[at for at, refusal in enumerate(row) if refusal is None] for row in found])
        tools = candidate.trajectory.tools if candidate.demonstration.calls else None
        alone = replace(candidate.trajectory, tools=tools, messages=(Message(role="assistant", tool_calls=theirs),))
        try:
            pairs = zip(places, ours, strict=True)
            near = tuple(call if at < 0 else _spelled(wanted[at][1], call) for at, call in pairs)
            verdict = ToolCallVerifier()(Candidate(trajectory=alone, turn=0), Action(calls=near))
        except RecursionError:
            return judged(self, 0.0, "bad_arguments", "nested too deeply")
        refusal = verdict.reason, verdict.detail
        if verdict.reason == "wrong_arguments" and -1 in places:
            refusal = found[places.index(-1)][0] or refusal
        return judged(self, verdict.value, *refusal)

    def _other(self, name: str, theirs: _Object, other: str, ours: _Object) -> Refusal | None:
        """Why a call searches for, opens or answers something else; its other arguments are left aside."""
        if name != other:
            return "wrong_arguments", f"{other} instead of {name}"
        main = _main(theirs)
        wanted, given = _texts(theirs[main]), _texts(ours.get(main))
        if not given or _ROLES[main] == "search":
            return self._query(wanted, given) if given else ("wrong_arguments", f"{main} is missing or no text")
        normal, reason = (canonical, "wrong_target") if _ROLES[main] == "open" else (answer, "wrong_text")
        return None if sorted(map(normal, wanted)) == sorted(map(normal, given)) else (reason, ", ".join(given))

    def _query(self, *batches: list[str]) -> Refusal | None:
        """Why the queries of one call ask for something else than those of another."""
        texts = [unicodedata.normalize("NFKC", "\n".join(batch)).casefold().translate(_PLAIN) for batch in batches]
        wanted, given = (_marks(text) for text in texts)
        if wanted != given:
            return "missing_fact" if wanted - given else "surplus_fact", ", ".join(sorted(wanted ^ given))
        words, others = (content_words(text) for text in texts)
        lost, added = words - others, others - words
        opposed = _opposites(lost, added.keys()) | _opposites(added, lost.keys())
        if opposed:
            return "negation", f"the opposite of {', '.join(sorted(opposed))}"
        score = overlap(*texts) if re.search(r"[^\W_]", texts[0]) else float(texts[0].strip() == texts[1].strip())
        if score < self.min_query_overlap:
            return "low_overlap", f"{score:.3f} < {self.min_query_overlap:g}"
        if min(words.total(), others.total()) < SHORT and (lost + added).total() > 1:
            return "low_overlap", f"on one side only: {' '.join(lost + added)}"
        return None


def _marks(text: str) -> set[str]:
    """What two queries must both have: facts, operators, quoted phrases, and what a negation stands before."""
    operators = {" ".join(found.split()) for found in _OPERATOR.findall(text)}
    return facts(text) | operators | {f"not {word}" for word in _NEGATED.findall(text)}


def _opposites(words: Iterable[str], others: Set[str]) -> set[str]:
    """The words whose opposite is among the others."""
    return {word for word in words if not others.isdisjoint((_OPPOSITES.get(word), _PREFIX.sub("", word)))}


def tagged(action: Action) -> tuple[ToolCall, ...]:
    """The calls of a turn, its tags where it has none."""
    if action.calls:
        return action.calls
    tags = _closed((action.text or "").rpartition("</think>")[2])
    return tuple(ToolCall(name=f"<{tag}>", arguments=json.dumps({_TAGS[tag]: text})) for tag, text in tags)


def _closed(text: str) -> Iterator[tuple[str, str]]:
    """Tags that are closed, with what they hold; of one that never is, each further one costs nothing."""
    at, never = 0, set[str]()
    while begun := _TAG.search(text, at):
        end, at = -1 if begun[1] in never else text.find(f"</{begun[1]}>", begun.end()), begun.end()
        if end < 0:
            never.add(begun[1])
            continue
        yield begun[1], text[at:end]
        at = end + len(begun[1]) + 3


def searched(call: ToolCall) -> bool:
    """Whether a call says what it searches for, opens or answers."""
    return bool(_main(arguments_of(call).value or {}))


def _main(arguments: _Object) -> str:
    """The argument that says what is searched for, opened or answered."""
    return next((name for name in _ROLES if _texts(arguments.get(name))), "")


def _texts(value: JsonValue) -> list[str]:
    """The texts and numbers of a list, or the only one; none where one is blank or something else."""
    values = value if isinstance(value, list) else [value]
    fits = all(isinstance(one, str | int) and not isinstance(one, bool) and str(one).strip() for one in values)
    return [str(one) for one in values] if fits else []


def _spelled(theirs: _Object, ours: ToolCall) -> ToolCall:
    """The call, what it says being replaced by the demonstrated text for the same, if that is of the same type."""
    given = arguments_of(ours).value or {}
    keys = [key for key in (_main(theirs), "goal") if given.get(key) and type(given[key]) is type(theirs.get(key))]
    same = {key: theirs[key] for key in keys}
    return replace(ours, arguments=json.dumps({**given, **same}))


def canonical(url: str) -> str:
    """The same for addresses of one document; what is no address stays as it is."""
    text = url.strip()
    try:
        parts = urlsplit(f"http://{text}" if _SITE.match(text) else text)
        host, port = (parts.hostname or "").rstrip(".").removeprefix("www."), parts.port
        pairs = sorted(pair for pair in parse_qsl(parts.query, True) if not _TRACKING.fullmatch(pair[0]))
        path = "/".join(quote(unquote_to_bytes(one), "") for one in parts.path.rstrip("/").split("/"))
    except ValueError:
        return text
    part = parts.fragment if _FRAGMENT.match(parts.fragment) else ""
    web = {"http": 80, "https": 443}
    place = [parts.scheme not in web and parts.scheme, host, port not in (None, web.get(parts.scheme)) and port]
    return json.dumps([*place, path, pairs, part]) if host else text


def answer(text: str) -> str:
    """The normal form of an answer: no case, marks or articles."""
    words = _MARK.sub("", unicodedata.normalize("NFKC", text).casefold()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the")) or text.strip()
