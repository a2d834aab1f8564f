"""A command line as steps: one flat sequence of simple commands and keywords, quotes and escapes decided.

In a *word* everything that the shell still acts on is marked with lone surrogates, which no command line holds: an
active `*` is another character than a quoted one, and an expansion stands between OPEN and CLOSE. Equal words mean the
same, whatever the quotes were.

What it cannot decide:
1. Quotes around `$x` are dropped: whether its value holds blanks is not known. They count around `$(...)` and `$@`.
2. The inside of `${x:-y}`, `$((...))`, `[[ ... ]]`, `case` patterns and heredocs is compared as text.
3. A quoted keyword (`"done"`) is read like the keyword.
4. What tree-sitter-bash does not parse is no program here, also where bash would run it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

MAX_LENGTH: Final = 100_000
MAX_STEPS: Final = 1_000
MAX_DEPTH: Final = 50
MAX_BRACES: Final = 64
"""Most words that one `{a,b}` is expanded to; what gives more stays as it is."""

OPEN, CLOSE, QUOTED, NEXT, OPTION = "\ud800", "\ud801", "\ud802", "\ud803", "\ud804"
"""Begin and end of an expansion, quotes around it; in commands written as text what sets off fields and options."""
_ACTIVE: Final = str.maketrans({char: chr(0xD900 + ord(char)) for char in "*?[]{},"})
_PLAIN: Final = {0xD900 + ord(char): char for char in "*?[]{},"} | dict(enumerate(("", "", "", " ", "-"), 0xD800))
_BRACES: Final = {0xD900 + ord(char): char for char in "{},"}
_LEFT, _COMMA, _RIGHT = ("{,}"[at].translate(_ACTIVE) for at in range(3))
HOME: Final = f"{OPEN}$HOME{CLOSE}"

_PARSER: Final = Parser(Language(tree_sitter_bash.language()))
_IMPOSSIBLE: Final = re.compile("[\0\ud800-\udfff]")
_FOREIGN: Final = re.compile(r"[^\x00-\x7f]")
"""Parsed as letters, which they are to bash: tree-sitter-bash crashes on some. One byte each, places stay the same."""
_SPECIAL: Final = re.compile(r"[\\*?\[\]{},~]")
_ESCAPE: Final = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|(.))", re.DOTALL)
_CONTROL: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_VARIABLE: Final = re.compile(r"\$\{?(\w+|[#?$!@*-])\}?")
_HEREDOC: Final = re.compile(r"""(?<!<)<<(-?)[ \t]*(["'\\]?)([A-Za-z_]\w*)["']?""")
_INNER_BRACES: Final = re.compile(f"{_LEFT}([^{_LEFT}{_RIGHT}{OPEN}]*{_COMMA}[^{_LEFT}{_RIGHT}{OPEN}]*){_RIGHT}")
_EXPANSION: Final = ("expansion", "substitution")
_STATEMENT: Final = (
    *("command", "pipeline", "statement", "subshell", "assignment", "assignments"),
    *("definition", "item", "group", "clause"),
)
"""How the types of nodes end."""
_LINKS: Final = {"&&": "&&", "||": "||", ";": ";", "\n": ";", "|": "|", "|&": "|", "&": ";", ";;": ";"}


class NotShellError(ValueError):
    """The text is no command line that can be read: the reason code, and why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One simple command, or one keyword with what belongs to it (`for f in a b`, `done`, `(`)."""

    link: str
    """How it follows the one before: `;`, `&&`, `||`, `|`; `args`: that one's output is its last words."""
    words: tuple[str, ...]
    assigned: tuple[str, ...] = ()
    redirects: tuple[tuple[str, str], ...] = ()
    """Operator with descriptor, and target."""


Render = Callable[[list[Step]], str]
"""Writes the steps inside `$(...)` as text, the same for equivalent ones."""


def parse(text: str, render: Render) -> list[Step]:
    """The steps of a program. Raises NotShellError (`shell_syntax`, `too_long`)."""
    if len(text) > MAX_LENGTH:
        raise NotShellError("too_long", f"{len(text)} characters; {MAX_LENGTH} are read")
    if _IMPOSSIBLE.search(text):
        raise NotShellError("shell_syntax", "a null, or half a surrogate pair")
    source = _without_heredocs(text.replace("\r\n", "\n"))
    root = _PARSER.parse(_FOREIGN.sub("x", source).encode()).root_node
    if root.has_error:
        raise NotShellError("shell_syntax", "not parsed as bash")
    return _Reader(source, render).steps(root, ";")


def shown(word: str) -> str:
    """A word, or a text that holds words, for people: without marks."""
    return word.translate(_PLAIN)


def loosened(word: str) -> str:
    """A word whose globs and substitutions are taken as if quoted alike."""
    return word if word.isascii() else "".join(_PLAIN.get(ord(c), c) if c >= "\ud802" else c for c in word)


def _without_heredocs(text: str) -> str:
    """Every heredoc as the input of a file that is named by its content, which tree-sitter reads more surely."""
    if "<<" not in text:
        return text
    lines, kept = text.split("\n")[::-1], []
    closed = set(map(str.strip, lines))
    while lines:
        line = lines.pop()
        for dash, quote, mark in _HEREDOC.findall(line):
            body: list[str] = []
            if mark not in closed:
                break
            while lines and (lines[-1].lstrip("\t") if dash else lines[-1]) != mark:
                body.append(lines.pop().lstrip("\t") if dash else lines.pop())
            if not lines:  # never closed: no heredoc
                lines = body[::-1]
                closed.remove(mark)
                break
            lines.pop()
            expands = not quote and any(char in one for one in body for char in "$`\\")
            name = hashlib.sha256("\n".join((str(expands), *body)).encode()).hexdigest()[:16]
            line = _HEREDOC.sub(f"< /dev/heredoc/{name} ", line, count=1)
        kept.append(line)
    return "\n".join(kept)


class _Reader:
    """Walks one tree, with the source and how deep it is."""

    def __init__(self, source: str, render: Render) -> None:
        self.source, self.render, self.depth = source, render, 0

    def text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte]

    def steps(self, node: Node, link: str) -> list[Step]:
        """The steps of a statement, the first of which follows by `link`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotShellError("shell_syntax", f"nested deeper than {MAX_DEPTH}")
        kind = node.type
        if kind == "command":
            found = self._command(node, link)
        elif kind == "redirected_statement":
            found = self._redirected(node, link)
        elif kind == "variable_assignment":
            found = [Step(link=link, words=("=", *self._assignment(node)))]
        elif kind in ("declaration_command", "unset_command", "test_command"):
            found = [Step(link=link, words=tuple(self._flat(node)))]
        else:
            found = self._sequence(node, link)
        self.depth -= 1
        return found

    def _sequence(self, node: Node, link: str) -> list[Step]:
        """Statements one after another; keywords, with the words between them, are steps of their own."""
        found: list[Step] = []
        pending: list[str] = []
        waiting = node.children[::-1]
        while waiting:
            child = waiting.pop()
            kind = child.type
            if kind == "list":  # nested to the left, as deep as it is long
                waiting += child.children[::-1]
                continue
            if pending and (kind.endswith(_STATEMENT) or (kind in _LINKS and kind != ";")):
                found.append(Step(link=link, words=tuple(pending)))
                pending, link = [], ";"
            if kind.endswith(_STATEMENT):
                found += self.steps(child, link)
                link = ";"
                if len(found) > MAX_STEPS:
                    raise NotShellError("too_long", f"more than {MAX_STEPS} commands")
            elif kind in _LINKS:
                link = link if pending else _LINKS[kind]
                found[-1:] = _ended(found[-1:], kind)
            elif kind != "comment":
                pending += self.words(child) if child.is_named else [kind]
        return [*found, Step(link=link, words=tuple(pending))] if pending else found

    def _command(self, node: Node, link: str) -> list[Step]:
        found: list[Step] = []
        words: list[str] = []
        assigned: list[str] = []
        redirects: list[tuple[str, str]] = []
        last = node.children[-1]
        for child in node.children:
            kind = child.type
            if kind == "variable_assignment":
                assigned.append("=".join(self._assignment(child)))
            elif kind.endswith("_redirect"):
                redirects += self._redirect(child)
            elif kind == "command_name":
                words += self.words(child.children[0])
            elif kind == "command_substitution" and child == last and words and link != "|":
                found, link = self._inside(child, link), "args"
            else:
                words += self.words(child)
        return [*found, Step(link=link, words=tuple(words), assigned=tuple(assigned), redirects=tuple(redirects))]

    def _inside(self, node: Node, link: str) -> list[Step]:
        """The steps between the brackets of a substitution; `$(<file)` is one step, brackets and all."""
        found = self._sequence(node, link)
        return [replace(found[1], link=link), *found[2:-1]] if len(found) > 2 else found

    def _redirected(self, node: Node, link: str) -> list[Step]:
        body = node.child_by_field_name("body")
        found = self.steps(body, link) if body else []
        extra = [pair for child in node.children if child != body for pair in self._redirect(child)]
        last = found.pop() if found else Step(link=link, words=())
        return [*found, replace(last, redirects=(*last.redirects, *extra))]

    def _redirect(self, node: Node) -> list[tuple[str, str]]:
        """Operator and target. `&>f` and `>&f` are `>f 2>&1`; `1>` and `>|` are `>`."""
        descriptor = operator = target = ""
        for child in node.children:
            if child.type == "file_descriptor":
                descriptor = self.text(child)
            elif child.is_named:
                target += "".join(self.words(child))
            else:
                operator = operator or child.type
        if operator in ("&>", "&>>") or (operator == ">&" and not descriptor and target.strip("0123456789-")):
            operator = operator.replace(">&", "&>")
            return [(operator[1:], target), ("2>&", "1")]
        descriptor = "" if descriptor == "1" and operator.startswith(">") else descriptor
        return [(descriptor + operator.replace(">|", ">"), target)]

    def _assignment(self, node: Node) -> tuple[str, str]:
        value = node.child_by_field_name("value")
        name = "".join(self.text(child) for child in node.children if child != value)
        return name.removesuffix("="), "" if value is None else self.word(value).replace(QUOTED, "")

    def _flat(self, node: Node) -> Iterator[str]:
        """The words of `export a=1` or `[ -f x ]`, in order."""
        for child in node.children:
            if child.type == "variable_assignment":
                yield "=".join(self._assignment(child))
            elif child.type in ("unary_expression", "binary_expression", "negation_expression"):
                yield from self._flat(child)
            else:
                yield from self.words(child)

    def words(self, node: Node) -> list[str]:
        """The words that one node becomes: more than one where braces are expanded."""
        word = self.word(node)
        if word.isascii():
            return [word]
        done, waiting = [], [word]
        while waiting:
            one = waiting.pop()
            found = _INNER_BRACES.search(one)
            if found is None:
                done.append(one)
            else:
                parts = found[1].split(_COMMA)[::-1]
                waiting += [one[: found.start()] + part + one[found.end() :] for part in parts]
            if len(done) + len(waiting) > MAX_BRACES:
                done, waiting = [word], []
        return [one.translate(_BRACES) for one in done]

    def word(self, node: Node) -> str:
        kind = node.type
        if kind == "raw_string":
            return self.text(node)[1:-1]
        if kind == "string":
            return self._string(node)
        if kind == "ansi_c_string":
            return _ESCAPE.sub(_control, self.text(node)[2:-1])
        if kind == "concatenation":
            return "".join(self.word(child) for child in node.children)
        return self._expansion(node, "") if kind.endswith(_EXPANSION) else _unquoted(self.text(node))

    def _string(self, node: Node) -> str:
        """The text between double quotes, taken by the gaps between expansions: blanks there have no node."""
        parts: list[str] = []
        at = node.start_byte + 1
        for child in (child for child in node.children if child.type.endswith(_EXPANSION)):
            parts += [_in_quotes(self.source[at : child.start_byte]), self._expansion(child, QUOTED)]
            at = child.end_byte
        return "".join((*parts, _in_quotes(self.source[at : node.end_byte - 1])))

    def _expansion(self, node: Node, mark: str) -> str:
        text = self.text(node)
        if node.type in ("command_substitution", "process_substitution"):
            opener = text[0] if text[0] in "<>" else "$"
            self.depth += 1
            inside = self.render(self._inside(node, ";"))
            self.depth -= 1
            return f"{OPEN}{opener}({inside}){CLOSE}{mark}"
        if node.type == "arithmetic_expansion":
            return f"{OPEN}{''.join(text.split())}{CLOSE}"
        name = _VARIABLE.fullmatch(text)
        several = name[1] in ("@", "*") if name else "[@]" in text or "[*]" in text
        return f"{OPEN}{'$' + name[1] if name else text}{CLOSE}{mark if several else ''}"


def _ended(last: list[Step], how: str) -> list[Step]:
    """The last step with what the sign after it does to it: `|&` joins its errors, `&` is a step of its own."""
    if how == "|&" and last:
        return [replace(last[0], redirects=(*last[0].redirects, ("2>&", "1")))]
    return [*last, Step(link=";", words=("&",))] if how == "&" else last


def _control(match: re.Match[str]) -> str:
    octal, *codes, char = match.groups()
    if octal:
        return chr(int(octal, 8) & 0xFF)
    code = next(filter(None, codes), None)
    return chr(int(code, 16)) if code else _CONTROL.get(char, char if char in "\\'\"?" else "\\" + char)


def _in_quotes(text: str) -> str:
    return re.sub(r'\\(?:\n|([$`"\\]))', r"\1", text) if "\\" in text else text


def _unquoted(text: str) -> str:
    if not _SPECIAL.search(text):
        return text
    if text == "~" or text.startswith("~/"):
        return HOME + _unquoted(text[1:])
    parts = re.split(r"\\(.)", text.replace("\\\n", ""), flags=re.DOTALL)  # at odd places what was escaped
    return "".join(part if at % 2 else part.translate(_ACTIVE) for at, part in enumerate(parts))
