"""What runs the keystrokes of an action: real bash in the sandbox, one run a turn; and how Terminus 2 is spoken to."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from pivotrl.errors import InputError
from pivotrl.lab.shell.world import FOLDERS, WORKDIR, File, Tree
from pivotrl.sandbox import Sandbox, argument
from pivotrl.types import DECODER, Action
from pivotrl.verifiers.terminus import TerminusAction, read_terminus

HOST: Final = "user@sandbox"
LONGEST_OUTPUT: Final = 4000
"""Characters of one turn that the agent sees."""
_PLACE: Final = "tmp/.place"
_TIME: Final = 1_700_000_000
_KEYS: Final = {"Enter": "\n", "C-m": "\n", "Tab": "\t"}
_CLEARING: Final = ("C-c", "C-u", "C-d", "Escape", "q")
_WRONG: Final = """\
Previous response had parsing errors:
ERROR: {error}

Please fix these issues and provide a proper JSON response."""
SURE: Final = """\
Current terminal state:

{screen}

Are you sure you want to mark the task as complete? If so, include "task_complete": true in your JSON response again."""


class Shown(NamedTuple):
    """What a turn's commands leave: the screen without the last prompt, the directory, the files as packed."""

    screen: str
    place: str
    files: bytes


class Terminal(Protocol):
    """Runs commands on packed files."""

    def pack(self, tree: Tree) -> bytes: ...

    def look(self, files: bytes) -> Tree:
        """Raises InputError for other bytes."""
        ...

    def run(self, commands: Sequence[str], place: str, files: bytes) -> Shown: ...


@dataclass(frozen=True, slots=True)
class SandboxTerminal:
    """Real bash. A shell's variables end with the turn; its directory is carried over."""

    sandbox: Sandbox = field(default_factory=lambda: Sandbox(workdir=WORKDIR))

    def pack(self, tree: Tree) -> bytes:
        buffer, root = io.BytesIO(), WORKDIR.strip("/")
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name in FOLDERS:
                folder = tarfile.TarInfo(f"{root}/{name}")
                folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, 0o755, _TIME
                archive.addfile(folder)
            for path, file in tree.items():
                member, data = tarfile.TarInfo(f"{root}/{path}"), file.text.encode()
                member.mode, member.size, member.mtime = file.mode, len(data), _TIME
                archive.addfile(member, io.BytesIO(data))
        return buffer.getvalue()

    def look(self, files: bytes) -> Tree:
        root, found = f"{WORKDIR.strip('/')}/", {}
        try:
            with tarfile.open(fileobj=io.BytesIO(files)) as archive:
                for member in archive:
                    if member.name.startswith(root) and not member.isdir():
                        text = _text(archive, member) if member.isreg() or member.islnk() else f"<{member.type!r}>"
                        found[member.name.removeprefix(root)] = File(text, member.mode)
        except (tarfile.TarError, KeyError, OSError) as error:
            raise InputError(f"snapshot: the shell's files cannot be read ({error}); take it again") from None
        return found

    def run(self, commands: Sequence[str], place: str, files: bytes) -> Shown:
        lines = [
            "exec 2>&1",
            f"trap 'pwd > /{_PLACE}' EXIT",
            f"cd -- {shlex.quote(place)}",
            f"""_typed() {{ printf '{HOST}:%s$ %s\\n' "$PWD" "$1"; eval "$1"; }}""",
            *(f"_typed {shlex.quote(command)}" for command in commands),
        ]
        try:
            script = argument("\n".join(lines)).decode()
        except InputError as error:
            return Shown(f"{prompt(place)}\nbash: {error}\n", place, files)
        effects = self.sandbox.run(script, files)
        screen = effects.stdout.decode(errors="replace")
        if effects.tree is None:
            return Shown(f"{screen}\n[ended by a limit: {effects.ending}; nothing was kept]\n", place, files)
        with tarfile.open(fileobj=io.BytesIO(effects.tree)) as archive:
            left = _text(archive, archive.getmember(_PLACE)) if _PLACE in archive.getnames() else ""
        return Shown(screen, left.removesuffix("\n") or place, effects.tree)


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    return file.read().decode(errors="replace") if file else ""


def prompt(place: str) -> str:
    return f"{HOST}:{place}$ "


class Typed(NamedTuple):
    """An action read: commands that are sent off, what stays at the prompt, whether the task is called complete."""

    commands: tuple[str, ...]
    rest: str
    complete: bool


def read_action(action: Action, before: str) -> Typed | str:
    """What an action types after `before`, which stands at the prompt; or what is wrong with it."""
    if action.calls:
        return "tools cannot be called here"
    text = (action.text or "").rpartition("</think>")[2]
    found = read_terminus(text)
    if not isinstance(found, TerminusAction):
        return found or "No valid JSON found in response"
    if found.harness != "terminus_2":
        return "Missing required fields: analysis, plan"
    commands, rest = [], before
    for command in DECODER.decode(text[text.find("{") : text.rfind("}") + 1])["commands"]:
        keys = command["keystrokes"]
        rest = "" if keys.strip() in _CLEARING else rest + _KEYS.get(keys.strip(), keys)
        if rest.endswith("\n"):
            commands.append(rest.strip("\n"))
            rest = ""
    return Typed(tuple(filter(None, commands)), rest, found.complete)


def complaint(error: str) -> str:
    """What Terminus answers to an action that it cannot read."""
    return _WRONG.format(error=error[:LONGEST_OUTPUT])


def observation(screen: str, *, asks: bool = False) -> str:
    """What Terminus shows after a turn; `asks`: whether the task is complete indeed."""
    if len(screen) > LONGEST_OUTPUT:
        half = LONGEST_OUTPUT // 2
        screen = f"{screen[:half]}\n[... {len(screen) - 2 * half} characters left out ...]\n{screen[-half:]}"
    return SURE.format(screen=screen) if asks else f"New Terminal Output:\n\n{screen}"
