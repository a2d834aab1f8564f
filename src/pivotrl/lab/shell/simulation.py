"""The few commands of experts and clerks without bash, for the many episodes that pretraining reads.

A test runs what they type in both and compares; anything else raises NotImplementedError.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Final

from pivotrl.lab.shell.terminal import Shown, prompt
from pivotrl.lab.shell.world import FOLDERS, File, Tree

Files = dict[str, File]
_SUM: Final = re.compile(r"\{[st] (?:= t \+|\+=) \$3\} END \{print [st]\}")


class SimulatedTerminal:
    """Implements `Terminal` in the process, a thousand times as fast. The directory is always the first one."""

    def pack(self, tree: Tree) -> bytes:
        return json.dumps(tree).encode()

    def look(self, files: bytes) -> Tree:
        return {path: File(*file) for path, file in json.loads(files).items()}

    def run(self, commands: Sequence[str], place: str, files: bytes) -> Shown:
        tree = dict(self.look(files))
        screen = "".join(f"{prompt(place)}{command}\n{_pipeline(command, tree)}" for command in commands)
        return Shown(screen, place, self.pack(tree))


def _pipeline(command: str, tree: Files) -> str:
    """What a command shows: errors and output."""
    command = re.sub(r"\$\(([^()]*)\)", lambda found: _pipeline(found[1], tree).strip(), command)
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|<>;&")
    lexer.whitespace_split = True
    data, words, arrows, errors = "", list[str](), dict[str, str](), ""
    for word in [*lexer, "|"]:
        if word == "|":
            try:
                data = _run(words, tree[arrows.pop("<")].text if "<" in arrows else data, tree)
            except FileNotFoundError as error:
                data, errors = "", errors + f"{error}\n"
            words = []
        elif word in ("<", ">", ">>"):
            arrows[word] = ""
        elif "" in arrows.values():
            arrows = {arrow: path or word for arrow, path in arrows.items()}
            path = arrows.get(">") or arrows.get(">>", "")
            if path:  # the shell opens it before anything runs
                old = tree.get(path, File(""))
                tree[path] = old._replace(text="") if ">" in arrows else old
        else:
            words.append(word)
    path = arrows.get(">") or arrows.get(">>", "")
    if path:
        tree[path] = tree[path]._replace(text=tree[path].text + data)
    return errors if path else errors + data


def _run(words: list[str], data: str, tree: Files) -> str:
    name, *rest = words
    flags = [word for word in rest if word.startswith("-")]
    return _COMMANDS[name](flags, [word for word in rest if not word.startswith("-")], data, tree)


def _read(name: str, paths: list[str], data: str, tree: Files) -> str:
    for path in paths:
        if path not in tree:
            raise FileNotFoundError(f"{name}: {path}: No such file or directory")
    return "".join(tree[path].text for path in paths) if paths else data


def _sort(flags: list[str], words: list[str], data: str, tree: Files) -> str:
    lines = sorted(_read("sort", words[-1:], data, tree).splitlines())
    text = "".join(f"{line}\n" for line in (dict.fromkeys(lines) if "-u" in flags else lines))
    if "-o" not in flags:
        return text
    tree[words[0]] = tree[words[0]]._replace(text=text)
    return ""


def _move(_: list[str], words: list[str], __: str, tree: Files) -> str:
    path, target = words
    if path not in tree:
        raise FileNotFoundError(f"mv: cannot stat '{path}': No such file or directory")
    folder = target.rstrip("/")
    tree[f"{folder}/{path.rpartition('/')[2]}" if folder in FOLDERS else target] = tree.pop(path)
    return ""


def _copy(_: list[str], words: list[str], __: str, tree: Files) -> str:
    tree[words[1]] = tree[words[0]]
    return ""


def _chmod(_: list[str], words: list[str], __: str, tree: Files) -> str:
    tree[words[1]] = tree[words[1]]._replace(mode=int(words[0], 8))
    return ""


def _remove(_: list[str], words: list[str], __: str, tree: Files) -> str:
    del tree[words[0]]
    return ""


def _sed(flags: list[str], words: list[str], data: str, tree: Files) -> str:
    script, path = words
    lines = tree[path].text.splitlines(keepends=True)
    if flags == ["-n"]:
        return "".join(line for line in lines if script[1:-2] in line)
    guard, old, new, _ = script.split("/")[-4:] if script.startswith("s") else ("", *script.split("/")[-3:])
    where = re.compile(script.split("/")[1] if script.startswith("/") else "")
    tree[path] = tree[path]._replace(
        text="".join(re.sub(old, new, line) if where.search(line) else line for line in lines)
    )
    return guard.strip("s")


def _grep(flags: list[str], words: list[str], data: str, tree: Files) -> str:
    lines = [line for line in tree[words[1]].text.splitlines(keepends=True) if words[0] in line]
    return f"{len(lines)}\n" if "-c" in flags else "".join(lines)


def _awk(_: list[str], words: list[str], __: str, tree: Files) -> str:
    if not _SUM.fullmatch(words[0]):
        raise NotImplementedError(words[0])
    return f"{sum(int(line.split()[2]) for line in tree[words[1]].text.splitlines())}\n"


def _find(_: list[str], words: list[str], __: str, tree: Files) -> str:
    start = "" if words[0] == "." else f"{words[0]}/"
    found = (path for path in tree if path.startswith(start) and path.rpartition("/")[2] == words[1])
    return "".join(f"{'./' if not start else ''}{path}\n" for path in found)


def _list(_: list[str], words: list[str], __: str, tree: Files) -> str:
    names = (path.removeprefix(f"{words[0]}/") for path in tree if path.startswith(f"{words[0]}/"))
    return "".join(f"{name}\n" for name in sorted(names))


_COMMANDS: Final[dict[str, Callable[[list[str], list[str], str, Files], str]]] = {
    "awk": _awk,
    "cat": lambda _, words, data, tree: _read("cat", words, data, tree),
    "chmod": _chmod,
    "cp": _copy,
    "echo": lambda _, words, __, ___: f"{' '.join(words)}\n",
    "find": _find,
    "grep": _grep,
    "head": lambda _, words, data, tree: _read("head", words[1:], data, tree),
    "ls": _list,
    "mv": _move,
    "rm": _remove,
    "sed": _sed,
    "sort": _sort,
    "uniq": lambda _, __, data, ___: "".join(dict.fromkeys(data.splitlines(keepends=True))),
    "wc": lambda _, __, data, ___: f"{data.count(chr(10))}\n",
}
