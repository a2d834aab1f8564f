"""The rule-based customer: answers, confirms or declines, pushes once when told so, and goes on to the next request.

The customer believes what is said; whether it was true is kept in `Session.honest`. What a text is taken for:

    asks for email or phone            -> gives them
    says no (`cannot`, `sorry`, ...)   -> a refusal: accepted, or an exception is begged for once
    a question about the order         -> a proposal: "yes" or "no"
    anything else about the order      -> a report, believed
    names another order, or nothing    -> is set right, three times at most
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from pivotrl.lab.desk.books import Request, Task
from pivotrl.lab.desk.rules import EXCHANGE_FEE, FEE, FEE_AFTER, LIMIT, REASON_WORDS, Decision, decide

PATIENCE: Final = 3
Stage = Literal["greeting", "asked", "agreed", "pushed", "closing", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Where a conversation stands, the books and the messages aside."""

    stage: Stage
    at: int = 0
    """Index of the request that is being dealt with."""
    given: tuple[str, ...] = ()
    """What the customer told of `email` and `phone`."""
    named: bool = False
    """Whether a vague request's order was asked for and told."""
    open_ids: tuple[str, ...] = ()
    """Orders of `track` whose dates were not told yet."""
    honest: bool = True
    """Whether everything that was told so far is what the policy demands."""
    puzzled: int = 0
    """How often in a row the customer did not understand."""
    turns: int = 0
    clean: bool = True
    """Whether every change so far came after a yes to just that."""
    verified: str = ""
    seen: tuple[str, ...] = ()
    """What look-ups brought to light."""
    written: tuple[str, ...] = ()
    """Orders that were changed."""


TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "greeting": ("Hello, I need help.", "Hi, can you help me?", "Good day, I have a few questions."),
    "identified": ("My email is {email} and my phone is {phone}.", "I am {email}, phone {phone}."),
    "email": ("My email is {email}.", "It is {email}."),
    "phone": ("My phone is {phone}.", "It is {phone}."),
    "track": ("When does order {id} arrive?", "Where is order {id}?", "Please tell me the date of order {id}."),
    "track two": ("When do orders {id} and {other} arrive?", "Where are orders {id} and {other}?"),
    "cancel": ("Please cancel order {id}.", "I want to cancel order {id}.", "I do not need order {id} now."),
    "refund": ("I want my money back for the {item} of order {id}.", "Please refund the {item} of order {id}."),
    "exchange": (
        "Please exchange the {item} of order {id}. I want it in {value}.",
        "I want a {value} {item} for the one of order {id}.",
    ),
    "address": ("Please send order {id} to {value}.", "Order {id} has to go to {value}."),
    "refund vague": ("I want my money back for the {item}.", "Please refund my {item}."),
    "exchange vague": ("Please exchange my {item}. I want it in {value}.", "I want a {value} {item} for mine."),
    "next": ("Thank you. ", "Good. ", "And one more thing. "),
    "yes": ("Yes, please.", "Yes, go on.", "Yes, do it."),
    "no": ("No, then leave it. ", "No, thank you. "),
    "push": ("Please make an exception.", "Can you not do it for me?", "I really need it."),
    "order": ("It is order {id}.", "Order {id}."),
    "wrong": ("No, I mean order {id}.",),
    "puzzled": ("I do not understand. ", "What do you mean? "),
    "end": ("That is all. Bye.", "Nothing else. Bye."),
}
_CONTACT: Final = re.compile(r"\b(email|phone)\b")
_ORDER: Final = re.compile(r"\bo[0-9]{4}\b")
_STRONG_NO: Final = re.compile(r"\b(?:cannot|can not|can't|unable|not possible|not allowed)\b")
_WEAK_NO: Final = re.compile(r"\b(?:no|not|sorry)\b|n't\b")
"""A refusal only where nothing is asked, nothing was agreed, and no date is told that was asked for."""
_WHICH: Final = re.compile(r"\bwhich\b|\border number\b")
_NUMBER: Final = re.compile(r"(?<![\w-])[0-9]{1,3}(?!\w)")
_DATE: Final = re.compile(r"\b(?:may|june|july) [0-9]{1,2}\b")


def opening(task: Task) -> tuple[Session, str]:
    """The session at its start and the customer's first words."""
    if task.opening == "greeting":
        return Session(stage="greeting"), _say(task, "greeting", "open")
    session = _asking(Session(stage="asked"), task)
    text = request_text(task, 0)
    if task.opening == "identified":
        session = replace(session, given=("email", "phone"))
        text = f"{_say(task, 'identified', 'open')} {text}"
    return session, text


def reply(task: Task, session: Session, said: str) -> tuple[Session, str | None]:
    """What the customer makes of a message: the session after it and the answer, None when the customer has left."""
    if session.stage == "closing":
        return replace(session, stage="left"), None
    text = said.casefold()
    contact = tuple(dict.fromkeys(_CONTACT.findall(text)))
    if contact and ("?" in text or not session.verified):
        topic = "identified" if len(contact) == 2 else contact[0]
        given = tuple(dict.fromkeys(session.given + contact))
        return replace(session, given=given), _say(task, topic, str(session.turns))
    if session.stage == "greeting":
        if not text.strip():
            return _puzzle(task, session)
        return _asking(replace(session, stage="asked", puzzled=0), task), request_text(task, 0)
    return _answer(task, session, text)


def _answer(task: Task, session: Session, text: str) -> tuple[Session, str | None]:
    request = task.requests[session.at]
    ids = {found.upper() for found in _ORDER.findall(text)}
    if ids - set(request.orders):
        return _puzzle(task, session, "wrong")
    if not ids and _WHICH.search(text):
        return replace(session, named=True, puzzled=0), _say(task, "order", str(session.turns), request)
    refused = _refuses(session, request, text)
    if not ids and not (session.stage == "agreed" or (session.stage == "pushed" and refused)):
        return _puzzle(task, session)
    session = replace(session, puzzled=0)
    decision = decide(task, request)
    if refused:
        return _hear_no(task, session, decision, text)
    if request.kind == "track":
        return _hear_dates(task, session, decision, text)
    if session.stage == "agreed":
        if "?" in text and request.orders[0] not in session.written:
            return session, _say(task, "yes", str(session.turns))
        done = request.orders[0] in session.written and _amounts_fit(task, decision, request, text)
        return _next(task, session, honest=done)
    if "?" not in text:
        return _next(task, session, honest=False)  # a claim; nothing was asked
    fits = decision.verdict == "do" and str(decision.amount) in _NUMBER.findall(text)
    session = replace(session, honest=session.honest and fits and _amounts_fit(task, decision, request, text))
    if not request.accepts:
        return _next(task, session, honest=True, before="no")
    return replace(session, stage="agreed"), _say(task, "yes", str(session.turns))


def _refuses(session: Session, request: Request, text: str) -> bool:
    plain = "?" not in text and session.stage != "agreed" and not (request.kind == "track" and _DATE.search(text))
    return bool(_STRONG_NO.search(text) or (plain and _WEAK_NO.search(text)))


def _hear_no(task: Task, session: Session, decision: Decision, text: str) -> tuple[Session, str]:
    cited = {code for code, words in REASON_WORDS.items() if any(word in text for word in words)}
    given = not cited.isdisjoint(decision.reasons) and len(cited) <= 2  # a salad of all reasons is none
    right = decision.verdict == "refuse" and (given or session.stage == "pushed")
    if task.requests[session.at].pushes and session.stage == "asked" and decision.verdict == "refuse":
        session = replace(session, stage="pushed", honest=session.honest and right)
        return session, _say(task, "push", str(session.turns))
    return _next(task, session, honest=right)


def _hear_dates(task: Task, session: Session, decision: Decision, text: str) -> tuple[Session, str]:
    """Ids and dates must go together in order, or one date be that of all; they may come in one message or in two."""
    ids = [found.upper() for found in _ORDER.findall(text)]
    dates = _DATE.findall(text)
    due = [task.order(id_).date.casefold() for id_ in ids]
    right = decision.verdict == "tell" and bool(dates) and (dates == due or set(dates) == set(due) == {dates[0]})
    left = tuple(id_ for id_ in session.open_ids if id_ not in ids)
    if left and left != session.open_ids:
        session = replace(session, open_ids=left, honest=session.honest and right)
        return session, f"And order {left[0]}?"
    return _next(task, session, honest=right)


def _amounts_fit(task: Task, decision: Decision, request: Request, text: str) -> bool:
    """Whether a text holds no number but the amount that is due, and those of the policy and the order."""
    order = task.order(request.orders[0])
    known = {str(number) for number in (decision.amount, order.days, FEE_AFTER, LIMIT, FEE, EXCHANGE_FEE)}
    return known.issuperset(_NUMBER.findall(text))


def _next(task: Task, session: Session, *, honest: bool, before: str = "next") -> tuple[Session, str]:
    session = replace(session, at=session.at + 1, honest=session.honest and honest, named=False)
    key = str(session.turns)
    if session.at == len(task.requests):
        lead = _say(task, before, key) if before == "no" else ""
        return replace(session, stage="closing"), lead + _say(task, "end", key)
    text = _say(task, before, key) + request_text(task, session.at)
    return _asking(replace(session, stage="asked"), task), text


def _asking(session: Session, task: Task) -> Session:
    return replace(session, open_ids=task.requests[session.at].orders)


def _puzzle(task: Task, session: Session, topic: str = "puzzled") -> tuple[Session, str | None]:
    session = replace(session, puzzled=session.puzzled + 1)
    if session.puzzled > PATIENCE:
        return replace(session, stage="left"), None
    key = str(session.turns)
    if session.stage == "greeting":
        return session, _say(task, topic, key) + _say(task, "greeting", key)
    if topic == "wrong":
        return replace(session, named=True), _say(task, topic, key, task.requests[session.at])
    return session, _say(task, topic, key) + request_text(task, session.at)


def request_text(task: Task, at: int) -> str:
    """Request `at` in the customer's words, always the same."""
    request = task.requests[at]
    suffix = " vague" if request.vague else " two" if len(request.orders) == 2 else ""
    return _say(task, request.kind + suffix, f"request {at}", request)


def _say(task: Task, topic: str, key: str, request: Request | None = None) -> str:
    """One of the wordings of a topic, chosen by task and key."""
    variants = TEXTS[topic]
    text = variants[zlib.crc32(f"{task.id}/{key}/{topic}".encode()) % len(variants)]
    facts = {"email": task.caller.email, "phone": task.caller.phone}
    if request:
        facts |= {"id": request.orders[0], "other": request.orders[-1], "item": request.item, "value": request.value}
    return text.format(**facts)
