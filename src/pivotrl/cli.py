"""The command line: one subcommand per public function, each taking that function's config.

A user's mistake prints one line and exits with 2; an interruption prints the command that resumes and exits with 130.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Final, Protocol, get_args

import tyro

from pivotrl._version import __version__
from pivotrl.auditing import AuditConfig, audit
from pivotrl.comparing import CompareConfig, compare
from pivotrl.diagnosis import DoctorConfig, doctor
from pivotrl.errors import ConfigError, PivotRLError, disk_error
from pivotrl.evaluation import evaluate
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.explaining import ExplainConfig, explain
from pivotrl.exporting import export
from pivotrl.exports.base import ExportConfig
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.lab.demonstration import DemoConfig, demo
from pivotrl.lab.pretraining import PretrainConfig, pretrain
from pivotrl.lab.running import RunConfig, run_grid
from pivotrl.lab.tables import CheckConfig, TablesConfig, check, tables
from pivotrl.lab.theory_practice import TheoryCheckConfig, theory_check
from pivotrl.lab.verifier_error import VerifierErrorConfig, verifier_error
from pivotrl.logs import plain, say
from pivotrl.pivots import SelectConfig, select
from pivotrl.plugins import listing
from pivotrl.profile_settings import ProfileConfig, RescoreConfig
from pivotrl.profiling import profile, rescore
from pivotrl.reporting import ReportConfig, report
from pivotrl.theory_page import TheoryConfig, theory
from pivotrl.training import train
from pivotrl.training_settings import Preset, TrainConfig, preset
from pivotrl.viewing import ViewConfig, view


class Printable(Protocol):
    def lines(self) -> list[str]: ...


COMMANDS: Final[dict[type, tuple[str, Callable[[Any], Printable]]]] = {
    DemoConfig: ("demo", demo),
    IngestConfig: ("ingest", ingest),
    ProfileConfig: ("profile", profile),
    SelectConfig: ("select", select),
    TrainConfig: ("train", train),
    EvaluateConfig: ("evaluate", evaluate),
    ReportConfig: ("report", report),
    CompareConfig: ("compare", compare),
    ExportConfig: ("export", export),
    ViewConfig: ("view", view),
    RescoreConfig: ("rescore", rescore),
    ExplainConfig: ("explain", explain),
    AuditConfig: ("audit", audit),
    TheoryConfig: ("theory", theory),
    DoctorConfig: ("doctor", doctor),
}
LAB: Final[dict[type, tuple[str, Callable[[Any], Printable]]]] = {
    PretrainConfig: ("pretrain", pretrain),
    VerifierErrorConfig: ("verifier-error", verifier_error),
    TheoryCheckConfig: ("theory-check", theory_check),
    RunConfig: ("run", run_grid),
    TablesConfig: ("tables", tables),
    CheckConfig: ("check", check),
}
"""Subcommands of `pivotrl lab`."""
_ABOUT: Final = (
    "Make a language model a better agent from expert trajectories: ingest, profile, select, train, evaluate, report. "
    "`pivotrl demo` shows all of it in a few minutes on a CPU."
)
_ABOUT_LAB: Final = "What the embedded default is made of, and what is measured on it."
_FRAME: Final = re.compile(r"\u256d.*|\A.*\n\s*-{4,}|-{4,}|[\u2500-\u257f]+|__tyro-dummy-inner__\.")
"""What tyro draws around a complaint: the line with its title, and the rest of the box, in ASCII too."""
_NO_NUMBER: Final = re.compile(r"(?:invalid literal for int|could not convert string).*?: ('.*?') .*?(--[\w.-]+)")
_WRAPPING: Final = re.compile(r"^Error parsing [\w.-]+: | For full helptext, see pivotrl --help$")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0; 1 after a failed check, 2 after a user's mistake, 130 after Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--version"], ["-V"]):
        print(f"pivotrl {__version__}")
        return 0
    try:
        config = _parse(given)
        _, function = (COMMANDS | LAB)[type(config)]
        result = function(config)
        print(plain("\n".join(result.lines())), flush=True)
        return 0 if getattr(result, "passed", True) else 1
    except PivotRLError as error:
        say(f"error: {' '.join(str(error).splitlines())}")
        return 2
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        say("error: torch is not installed, and this needs a model: pip install torch")
        return 2
    except KeyboardInterrupt:
        say(f"\ninterrupted; go on with: pivotrl {shlex.join(given)}")
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a folder in a file's place, a loop of links, a disk that refuses a library, ...
        if error.errno is None:  # a library's own
            raise
        say(f"error: {disk_error(error.filename or 'the operating system', error)}")
        return 2
    return 0


def _choices(
    commands: Mapping[type, tuple[str, object]], asked: Sequence[str], training: TrainConfig | None = None
) -> Any:
    """The union of configs that tyro makes subcommands of, each in a line but the one that is asked for.

    `training` holds other defaults of `train`.
    """
    choices: Any = None
    for config, (name, _) in commands.items():
        default: dict[str, Any] = {"default": training} if config is TrainConfig and training else {}
        about = inspect.cleandoc(config.__doc__ or "")
        about = about if name in asked[:2] else about.partition("\n\n")[0]
        subcommand = tyro.conf.subcommand(name, description=about, prefix_name=False, **default)
        choice = Annotated[config, subcommand]  # type: ignore[valid-type]
        choices = choice if choices is None else choices | choice
    return choices


def _parse(arguments: list[str]) -> Any:
    """The config that the arguments make. Raises ConfigError with tyro's complaint in one line."""
    _check_command(arguments)
    lab: Any = Annotated[
        _choices(LAB, arguments), tyro.conf.subcommand("lab", description=_ABOUT_LAB, prefix_name=False)
    ]
    if huge := [text for text in arguments if re.fullmatch(r"(--[\w.-]+=)?-?\d{19,}", text)]:
        raise ConfigError(f"{huge[0]}: this number is too large")
    if long := [text for text in arguments if re.match("--[^=]{100}", text)]:  # tyro would look for ones spelt alike
        raise ConfigError(f"{long[0][:40]}...: no such option; see --help")
    if arguments[:1] == ["view"]:  # its run stands alone; as everywhere else is right too
        arguments = [text.removeprefix("--run=") for text in arguments if text != "--run"]
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            arguments, training = _preset(arguments)
            choices: Any = _choices(COMMANDS, arguments, training) | lab
            about = f"{_ABOUT} Installed by name: {listing()}." if arguments == ["--help"] else _ABOUT
            return tyro.cli(choices, prog="pivotrl", args=arguments, description=about)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ConfigError(_one_line(complaint.getvalue())) from None


def _check_command(arguments: list[str]) -> None:
    """Raise ConfigError for a command that is none: tyro would name options that are spelt alike."""
    inside = arguments[:1] == ["lab"]
    names = [name for name, _ in LAB.values()] if inside else [*(name for name, _ in COMMANDS.values()), "lab"]
    word = next(iter(arguments[inside:]), "--help")
    if not word.startswith("-") and word not in names:
        near = get_close_matches(word, names, n=2) or names
        raise ConfigError(f"{'lab ' * inside}{word}: no such command; use {' or '.join(near)}")


def _one_line(complaint: str) -> str:
    """Without the help of every option that is spelt alike, in this command and others: their names will do."""
    said = " ".join(_FRAME.sub(" ", complaint).split())
    if wrong := _NO_NUMBER.search(said):
        return f"{wrong[2]}: {wrong[1]} is no {'whole ' * wrong[0].startswith('invalid')}number; see its --help"
    what, found, alike = _WRAPPING.sub("", said).partition(" Perhaps you meant: ")
    names = [name for name in dict.fromkeys(re.findall(r"(?<!\S)--[\w.-]+", alike)) if name != "--help"]
    return what + (f"; did you mean {' or '.join(names[:3])}?" if found else "")


def _preset(arguments: list[str]) -> tuple[list[str], TrainConfig | None]:
    """The arguments without `--preset NAME` of `train`, and the defaults that it stands for."""
    if arguments[:1] != ["train"]:
        return arguments, None
    parser = argparse.ArgumentParser(prog="pivotrl train", usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", choices=get_args(Preset), default="paper")
    chosen, rest = parser.parse_known_args(arguments)
    return rest, preset(chosen.preset, tyro.MISSING)
