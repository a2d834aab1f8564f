"""A command line as steps: one flat sequence of simple commands and keywords, quotes and escapes decided.

In a *word* everything that the shell still acts on is marked with lone surrogates, which no command line holds: an
active `*` is another character than a quoted one, and an expansion stands between OPEN and CLOSE. Equal words mean the
same, whatever the quotes were.

What it cannot decide:
1. Quotes around `$x` are dropped: whether its value holds blanks is not known. They count around `$(...)` and `$@`.
2. The inside of `${x:-y}`, `$((...))`, `$'...'`, `[[ ... ]]`, `case` patterns and heredocs is compared as text, that of
   `$(...)` word by word. Braces are not expanded.
3. A quoted keyword (`"done"`) is read like the keyword.
4. What tree-sitter-bash does not parse is no program here, also where bash would run it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

MAX_LENGTH: Final = 100_000
MAX_PROGRAM: Final = 25_000
"""Characters beside heredocs; what tree-sitter cannot read takes it a time that grows with their square."""
MAX_STEPS: Final = 1_000

OPEN, CLOSE, QUOTED, BRACES, NEXT = "\ud800", "\ud801", "\ud802", "\ud803", "\ud804"
"""Begin and end of an expansion, quotes around it, braces that are expanded; what sets off words written in one."""
_ACTIVE: Final = {ord(char): chr(0xD900 + ord(char)) for char in "*?[]"}
_QUIET: Final = {ord(active): chr(char) for char, active in _ACTIVE.items()}
HOME: Final = f"{OPEN}$HOME{CLOSE}"

_PARSER: Final = Parser(Language(tree_sitter_bash.language()))
_IMPOSSIBLE: Final = re.compile("[\0\ud800-\udfff]")
_FOREIGN: Final = re.compile(r"[^\x00-\x7f]")
"""Parsed as letters, which they are to bash: tree-sitter-bash crashes on some. One byte each, places stay the same."""
_VARIABLE: Final = re.compile(r"\$\{?(\w+|[#?$!@*-])\}?")
_HEREDOC: Final = re.compile(r"""(?<!<)<<(-?)[ \t]*(["'\\]?)([A-Za-z_]\w*)["']?(.*)\n""")
_TABS: Final = r"\t*"
_EXPANSION: Final = ("expansion", "substitution", "ansi_c_string")
_STATEMENT: Final = (
    *("command", "pipeline", "statement", "subshell", "assignment", "assignments"),
    *("definition", "item", "group", "clause"),
)
"""How the types of nodes end."""
_LINKS: Final = {"&&": "&&", "||": "||", ";": ";", "\n": ";", "|": "|", "|&": "|", "&": ";", ";;": ";"}


class NotShellError(ValueError):
    """The text is no command line that can be read: the reason code (`shell_syntax`, `too_long`), and why."""

    args: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One simple command, or one keyword with what belongs to it (`for f in a b`, `done`, `(`)."""

    link: str
    """How it follows the one before: `;`, `&&`, `||`, `|`; `args`: that one's output is its last words."""
    words: tuple[str, ...]
    assigned: tuple[str, ...] = ()
    redirects: tuple[tuple[str, str], ...] = ()
    """Operator with descriptor, and target."""


def parse(text: str) -> list[Step]:
    """The steps of a program. Raises NotShellError, RecursionError."""
    if len(text) > MAX_LENGTH:
        raise NotShellError("too_long", f"{len(text)} characters; {MAX_LENGTH} are read")
    source = "" if _IMPOSSIBLE.search(text) else _without_heredocs(text.replace("\r\n", "\n"))
    if len(source) > MAX_PROGRAM:
        raise NotShellError("too_long", f"{len(source)} characters beside heredocs; {MAX_PROGRAM} are read")
    root = _PARSER.parse(_FOREIGN.sub("x", source).encode()).root_node
    if root.has_error or (text and not source):
        raise NotShellError("shell_syntax", "not parsed as bash")
    return _Reader(source).steps(root, ";")


def shown(word: str) -> str:
    """A word for people: without marks."""
    return re.sub("[\ud800-\udfff]", " ", loosened(word))


def loosened(word: str) -> str:
    """A word whose globs are taken as if quoted."""
    return word if word.isascii() else word.translate(_QUIET)


def _without_heredocs(text: str) -> str:
    """Every heredoc as the input of a file that is named by its content, which tree-sitter reads more surely."""
    done = ""
    while found := _HEREDOC.search(text):
        dash, quote, mark, line = found.groups()
        rest = text[found.end() :]
        end = re.search(rf"(?m)^{_TABS if dash else ''}{mark}$", rest)
        if end is None:
            break
        body = rest[: end.start()]
        expands = not quote and not {*"$`\\"}.isdisjoint(body)
        name = hashlib.sha256(f"{expands}{body}".encode()).hexdigest()[:16]
        done += f"{text[: found.start()]}< /dev/heredoc/{name} "
        text = line + rest[end.end() :]
    return done + text


class _Reader:
    """Walks one tree, with its source."""

    def __init__(self, source: str) -> None:
        self.source = source

    def text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte]

    def steps(self, node: Node, link: str) -> list[Step]:
        """The steps of a statement, the first of which follows by `link`."""
        if node.type.endswith("command"):
            return self._command(node, link)
        if node.type == "variable_assignment":
            return [Step(link=link, words=(), assigned=(self.word(node),))]
        return self._sequence(node.children, link)

    def _sequence(self, nodes: list[Node], link: str) -> list[Step]:
        """Statements one after another; keywords, with the words between them, are steps of their own."""
        found, pending, waiting = list[Step](), list[str](), nodes[::-1]
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
            elif kind.endswith("_redirect"):
                last = found.pop() if found else Step(link=link, words=())
                found.append(replace(last, redirects=(*last.redirects, *self._redirect(child))))
            elif kind in _LINKS:
                link = link if pending else _LINKS[kind]
                found += [Step(link=";", words=(kind,))] if kind in ("&", "|&") else []
            elif kind != "comment":
                pending.append(self.word(child) if child.is_named else kind)
        return [*found, Step(link=link, words=tuple(pending))] if pending else found

    def _command(self, node: Node, link: str) -> list[Step]:
        found, redirects = list[Step](), list[tuple[str, str]]()
        words, assigned = list[str](), list[str]()
        for child in node.children:
            kind = child.type
            if kind == "variable_assignment":
                assigned.append(self.word(child))
            elif kind.endswith("_redirect"):
                redirects += self._redirect(child)
            elif kind == "command_substitution" and child == node.children[-1] and words and link != "|":
                found, link = self._sequence(child.children[1:-1], link), "args"
            else:
                words.append(self.word(child.children[0] if kind == "command_name" else child))
        return [*found, Step(link=link, words=tuple(words), assigned=tuple(assigned), redirects=tuple(redirects))]

    def _redirect(self, node: Node) -> list[tuple[str, str]]:
        """Operator and target. `&>f` and `>&f` are `>f 2>&1`; `1>` and `>|` are `>`."""
        descriptor = operator = target = ""
        for child in node.children:
            if child.type == "file_descriptor":
                descriptor = "" if self.text(child) == "1" else self.text(child)
            elif child.is_named:
                target += self.word(child)
            else:
                operator = operator or child.type.replace(">|", ">")
        if operator in ("&>", "&>>") or (operator == ">&" and not descriptor and target.strip("0123456789-")):
            return [(operator.replace("&", ""), target), ("2>&", "1")]
        return [(descriptor + operator, target)]

    def word(self, node: Node) -> str:
        """The word that a node stands for, with marks for what is still to be acted on."""
        kind, text = node.type, self.text(node)
        if kind == "raw_string":
            return text[1:-1]
        if kind == "string":
            return self._string(node)
        if kind in ("unary_expression", "binary_expression", "negation_expression"):
            return " ".join(map(self.word, node.children))
        if kind in ("concatenation", "variable_assignment"):
            expanded = "," in text and any(self.text(child) == "{" for child in node.children)
            return "".join(map(self.word, node.children)) + (BRACES if expanded else "")
        return self._expansion(node, "") if kind.endswith(_EXPANSION) else _unquoted(text)

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
            steps = self._sequence(node.children[1:-1], ";")
            inside = ((one.link, *one.assigned, *one.words, *map("".join, one.redirects)) for one in steps)
            opener = text[0] if text[0] in "<>" else "$"
            return f"{OPEN}{opener}({NEXT.join(map(NEXT.join, inside))}){CLOSE}{mark}"
        name = _VARIABLE.fullmatch(text)
        return f"{OPEN}{'$' + name[1] if name else text}{CLOSE}{mark if '@' in text else ''}"


def _in_quotes(text: str) -> str:
    return re.sub(r'\\(?:\n|([$`"\\]))', r"\1", text) if "\\" in text else text


def _unquoted(text: str) -> str:
    if text == "~" or text.startswith("~/"):
        return HOME + _unquoted(text[1:])
    if "\\" not in text:
        return text.translate(_ACTIVE)
    parts = re.split(r"\\(.)", text.replace("\\\n", ""), flags=re.DOTALL)  # at odd places what was escaped
    return "".join(part if at % 2 else part.translate(_ACTIVE) for at, part in enumerate(parts))
