"""What can go wrong, for `fault_suite.py`: small runs of every stage, and what is done to them."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from kill_harness import RUN, bill, copy, sizes, start, tear, wait_for_orphans  # noqa: E402

_NUMBER = re.compile(rb'(?<=[:\[,"])[0-9.]*[0-9](?=[,}\]"])')
LIMIT = 1800.0
"""Seconds after which a command hangs, on a machine that others use too."""
PULSE, HELD, PAGE = 0.002, 15.0, 4096
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
PLAY = "--run run --policy scripted:desk_plugins:play --rollouts"
COIN = "coin=scripted:toy_environment:coin expert=scripted:toy_environment:expert --env toy_environment:Steps"
STAGES = {
    "ingest": ("ingest episodes.jsonl --run run --validation-fraction 0.15 --test-fraction 0.3", ""),
    "profile": (f"profile {PLAY} 4 --name scripted", "ingest"),
    "rounds": (f"profile {PLAY} 6 --name rounds --budget curtailed --stopping.round-size 2", "ingest"),
    "workers": (f"profile {PLAY} 4 --name workers --workers 2", "ingest"),
    "rescore": ("rescore --run run --name scripted --verifier exact", "ingest profile"),
    "select": ("select --run run --profile scripted --name chosen --lambda-diff 0.9", "ingest profile"),
    "train": (
        "train --run run --steps 4 --prompts 2 --group-size 4 --checkpoint-every 2 --optimizer.lr 0.003 "
        "--validation.every 2 --validation.candidates 2",
        "ingest sampled pivots",
    ),
    "evaluate": ("evaluate --run run --policies desk=scripted:desk_plugins:play --rollouts 4", "ingest"),
    "tasks": (f"evaluate --run run --policies {COIN} --tasks 12 --episodes.width 4 --name tasks", "ingest"),
    "audit": ("audit --run run --profile scripted --max-candidates 6", "ingest profile"),
    "export": ("export --run run --to nemo-gym --pivots chosen --output gym", "ingest profile select"),
    "compare": ("compare a=run:coin b=run:expert --output compared", "ingest tasks"),
    "report": ("report --run run", "ingest sampled pivots train profile select evaluate tasks audit"),
    "episodes": (
        "train --run run --method e2e --env toy_environment:Parity --policy model --tasks 6 --steps 4 --prompts 2 "
        "--group-size 4 --checkpoint-every 2 --max-new-tokens 6 --loss.beta 0",
        "ingest",
    ),
    "sampled": (
        "profile --run run --policy model --rollouts 4 --verifier desk_plugins:parity --sampling.max-new-tokens 8",
        "ingest",
    ),
    "pivots": ("select --run run --lambda-diff 0.9", "ingest sampled"),
}
"""A command of each, and the stages that come before it."""
HELPERS = ("sampled", "pivots")
"""What `train` goes out from; not disturbed themselves."""
SLOW = ("train", "episodes", "workers", "report")
NOT_COMPARED = ("ledger.jsonl", "report.md", "report.html", "README.md", "compare.json", "compare.md", "compare.html")
"""Hold seconds; `bill` compares the ledger."""


def before(stage: str) -> tuple[str, ...]:
    return tuple(STAGES[stage][1].split())


class WrongError(AssertionError):
    """A promise that was not kept."""


class Skipped(Exception):  # noqa: N818 - no error
    """This machine cannot do that."""


@dataclass
class Scene:
    """One scenario at work."""

    seed: int
    kind: str
    stage: str
    folder: Path
    rng: random.Random
    before: Path
    calm: Path
    runs: list[str] = field(default_factory=list)
    """Exit status and last line of each run."""
    how: str = ""
    untouched: tuple[str, ...] = ()
    """Files that are not compared: what was edited, and not read."""

    @property
    def command(self) -> list[str]:
        return STAGES[self.stage][0].split()

    @property
    def needs(self) -> tuple[str, ...]:
        return before(self.stage)

    def run(self, *more: str, until: Callable[[], bool] | None = None, sign: int = 0, **extra: str) -> int:
        """Run the command; send a signal once `until` holds. Raises WrongError for an end that is not clear."""
        process = start(self.folder, [*self.command, *more], **extra)
        return self.ended(process, until, sign)

    def ended(self, process: subprocess.Popen[str], until: Callable[[], bool] | None = None, sign: int = 0) -> int:
        if until is not None:
            limit = time.monotonic() + LIMIT
            while process.poll() is None and time.monotonic() < limit:
                if until():
                    with suppress(ProcessLookupError):
                        process.send_signal(sign)
                    break
                time.sleep(PULSE)
        try:
            _, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise WrongError(f"hangs: {self.runs}") from None
        if sign and self.stage == "workers":
            wait_for_orphans(self.folder / RUN)
        lines = err.strip().splitlines() or [""]
        code, last = process.returncode, lines[-1]
        self.runs.append(f"{code} {last[:300]}".strip())
        killed = sign and ("status -" in last or code == -sign)
        refused, stopped = code == 2 and last.startswith("error: "), code == 130 and "interrup" in last
        early = sign == signal.SIGINT and last == "KeyboardInterrupt" and "pivotrl" not in err  # Python was starting
        if not early and ("Traceback" in err or not (code == 0 or killed or refused or stopped)):
            raise WrongError("\n".join(lines[-12:]))
        return code

    def finish(self) -> None:
        """Run to the end and compare."""
        code = self.run()
        if code == 2 and "already" in self.runs[-1]:  # ingest and export: it was finished
            code = self.run("--overwrite")
        if code:
            raise WrongError(f"does not go on: {self.runs[-1]}")
        if differ := self.differences():
            raise WrongError(f"differs in {differ}")

    def differences(self) -> list[str]:
        one, other = contents(self.folder), contents(self.calm)
        found = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
        wrong = sorted(key for key in found if key not in self.untouched)
        ledger = f"{RUN}/ledger.jsonl" not in self.untouched
        return wrong or ["the bill"] * (ledger and bill(self.folder / RUN) != bill(self.calm / RUN))

    def moment(self) -> Callable[[], bool]:
        """Once a seeded share of what the stage writes is there."""
        share = self.rng.random() ** 2
        had = total(self.before)
        bytes_ = max(1, int(share * (total(self.calm) - had)))
        self.how = f"{self.how} after {bytes_} bytes".strip()
        return lambda: total(self.folder) >= had + bytes_

    def artefacts(self) -> list[Path]:
        """The visible files of the run, in order."""
        return [path for name, path in sorted(shown(self.folder).items()) if name.startswith(RUN)]


def total(folder: Path) -> int:
    """Bytes of all files, and one for each that there is."""
    size = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += 1 + os.stat(os.path.join(where, name)).st_size  # noqa: PTH116, PTH118
    return size


def shown(folder: Path) -> dict[str, Path]:
    """The visible files of a folder, by name."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {str(name): path for name, path in files.items() if not any(part[:1] == "." for part in name.parts)}


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of what must not depend on faults; the place of the run, and sums over it, aside."""
    files = shown(folder).items()
    found = {name: path.read_bytes() for name, path in files if path.name not in NOT_COMPARED}
    if (manifest := found.get(f"{RUN}/run.json")) is not None:
        stages = json.loads(manifest)["stages"]
        for facts in stages.values():
            facts.pop("wrote", None)
            facts.get("config", {}).pop("run", None)
        found[f"{RUN}/run.json"] = json.dumps(stages).encode()
    return found


def signalled(scene: Scene, sign: int) -> None:
    """A signal once or twice, sometimes with the files torn where they were being written."""
    copy(scene.before, scene.folder)
    for _ in range(scene.rng.choice([1, 1, 2])):
        had = sizes(scene.folder / RUN)
        killed = scene.run(until=scene.moment(), sign=sign) != 0
        if killed and sign == signal.SIGKILL and scene.rng.random() < 0.5:
            grown = [path for path, size in sizes(scene.folder / RUN).items() if size != had.get(path)]
            tear(grown, scene.rng)
            scene.how += ", torn"
    scene.finish()


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    subprocess.run(["mount", *options, str(folder)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with mounted(Path(scratch), "-t", "tmpfs", "-o", "size=64k", "none"):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


def full(scene: Scene) -> None:
    """A disk that is full after a seeded share of what the stage writes, or files that cannot grow; then room."""
    share = scene.rng.random()
    if scene.rng.random() < 0.5 and can_mount():
        disk = scene.folder.parent
        with mounted(disk, "-t", "tmpfs", "-o", "size=256m", "none"):
            copy(scene.before, scene.folder)
            used = shutil.disk_usage(disk).used
            size = used + PAGE * int(share * (pages(scene.calm) - pages(scene.before)))
            scene.how = f"tmpfs of {size} bytes, {used} of them used"
            subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
            scene.run(TMPDIR=str(disk))
            subprocess.run(["mount", "-o", "remount,size=256m", str(disk)], check=True)
            scene.finish()
        return
    copy(scene.before, scene.folder)
    new = contents(scene.calm).items() - contents(scene.before).items()
    limit = int(share * max((len(data) for _, data in new), default=1))
    scene.how = f"files of at most {limit} bytes"
    limited = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
    scene.ended(start(scene.folder, scene.command, before=limited))
    scene.finish()


def pages(folder: Path) -> int:
    """Of a tmpfs that holds its files."""
    return sum(-(-path.stat().st_size // PAGE) for path in folder.rglob("*") if path.is_file())


def read_only(scene: Scene) -> None:
    """Nothing can be written; then all can."""
    copy(scene.before, scene.folder)
    if can_mount():
        with mounted(scene.folder, "--bind", str(scene.folder)):
            subprocess.run(["mount", "-o", "remount,ro,bind", str(scene.folder)], check=True)
            scene.run()
    elif os.geteuid():
        places = [scene.folder, *(one for one in scene.folder.rglob("*") if one.is_dir())]
        for place in places:
            place.chmod(0o500)
        scene.run()
        for place in places:
            place.chmod(0o700)
    else:
        raise Skipped("root, and no mount")
    scene.finish()


def clock(scene: Scene) -> None:
    """The clock is years off, jumps when something was written, and is elsewhere again for the second run."""
    if FAKETIME is None:
        raise Skipped("no faketime")
    copy(scene.before, scene.folder)
    clock, jumps = scene.folder.parent / "clock", [scene.rng.randint(-5000, 5000) for _ in range(3)]
    fake = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
    fake |= {"DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    scene.how = f"days off: {jumps}"
    clock.write_text(f"{jumps[0]:+d}d")
    came = scene.moment()

    def jump() -> bool:
        if came():
            clock.write_text(f"{jumps[1]:+d}d")
        return False

    killed = scene.rng.random() < 0.5
    scene.run(until=came if killed else jump, sign=signal.SIGKILL if killed else 0, **fake)
    clock.write_text(f"{jumps[2]:+d}d")
    scene.run(**fake)
    scene.finish()


def twice(scene: Scene) -> None:
    """A second process while the first is held in the middle of its work: it does it too, or is refused in one line."""
    copy(scene.before, scene.folder)
    first, came = start(scene.folder, scene.command), scene.moment()
    while first.poll() is None and not came():
        time.sleep(PULSE)
    first.send_signal(signal.SIGSTOP)
    second = start(scene.folder, scene.command)
    with suppress(subprocess.TimeoutExpired):
        second.wait(HELD)  # it may be waiting for the first
    first.send_signal(signal.SIGCONT)
    codes = [scene.ended(one) for one in (second, first)]
    if 0 not in codes:
        raise WrongError(f"neither did it: {scene.runs}")
    scene.finish()


def stale(scene: Scene) -> None:
    """Locks and half-made files of processes that are gone, or of a number that somebody else has now."""
    copy(scene.before, scene.folder)
    owner = scene.rng.choice([str(2**22 + 5), str(os.getpid()), "", "none of your business"])
    locks = [path.relative_to(scene.calm) for path in sorted(scene.calm.rglob(".*lock"))]
    for name in locks:
        (scene.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (scene.folder / name).write_text(owner)
    some = scene.rng.sample(sorted(contents(scene.calm)), 3)
    for name in some:
        path = scene.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".{path.name}.{scene.rng.randbytes(8).hex()}.tmp").write_bytes(b"half")
    scene.how = f"{len(locks)} locks of {owner!r}"
    scene.finish()


def moved(scene: Scene) -> None:
    """Killed, carried to another place, and gone on with there, by a relative or an absolute path."""
    copy(scene.before, scene.folder)
    scene.run(until=scene.moment(), sign=signal.SIGKILL)
    place = scene.folder.parent / "another place" / "of it"
    place.parent.mkdir()
    shutil.copytree(scene.folder, place)
    shutil.rmtree(scene.folder)
    scene.folder = place
    if scene.rng.random() < 0.5:
        command = [str(place / RUN) if word == RUN else word for word in scene.command]
        scene.ended(start(place, command))
        scene.how += ", absolute"
    scene.finish()


def damaged(scene: Scene, damage: Callable[[Path, random.Random], str]) -> None:
    """An artefact before or after the stage is another: that is told, or makes no difference to anything else."""
    copy(scene.before if scene.needs and scene.rng.random() < 0.7 else scene.calm, scene.folder)
    path = scene.rng.choice(scene.artefacts())
    name, good = str(path.relative_to(scene.folder)), path.read_bytes()
    scene.how = f"{name} {damage(path, scene.rng)}"
    code = scene.run()
    if code == 2 and "already" in scene.runs[-1]:
        code = scene.run("--overwrite")
    if code == 0:
        page = scene.folder / RUN / "report.md"
        if scene.stage == "report" and f"{Path(name).relative_to(RUN)} is not what" in page.read_text():
            scene.how += ", told in the report"
            return
        scene.untouched = (name,)
        if differ := scene.differences():
            raise WrongError(f"{scene.how}: not told, and it made {differ}")
        scene.how += ", no difference"
        return
    places = {name, path.name, path.parent.name, *path.parent.parts[len(scene.folder.parts) :], "run directory"}
    if not any(one in scene.runs[-1] for one in places):
        raise WrongError(f"{scene.how}: told without its place: {scene.runs[-1]}")
    scene.how += ", told"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(good)
    scene.finish()


def edit(path: Path, rng: random.Random) -> str:
    """One byte, or one number or word of JSON, written as we write it."""
    data = path.read_bytes()
    numbers = list(_NUMBER.finditer(data)) if path.suffix[:5] == ".json" else []
    if numbers and rng.random() < 0.7:
        found = rng.choice(numbers)
        old, at = found[0], found.start()
        new = b"%d" % (1 - int(old)) if old in (b"0", b"1") else old[:-1] + (b"3" if old[-1:] != b"3" else b"4")
        path.write_bytes(data[:at] + new + data[at + len(old) :])
        return f"at {at} {old.decode()} -> {new.decode()}"
    at = rng.randrange(max(1, len(data)))
    path.write_bytes(data[:at] + bytes([(data[at] if data else 0) ^ 1 << rng.randrange(7)]) + data[at + 1 :])
    return f"at {at} one bit"


def cut(path: Path, rng: random.Random) -> str:
    """Bytes of the last line, or of any."""
    size = path.stat().st_size
    kept = size - rng.randint(1, 40) if rng.random() < 0.6 else rng.randrange(max(1, size))
    os.truncate(path, max(0, kept))
    return f"cut to {max(0, kept)} of {size} bytes"


def delete(path: Path, rng: random.Random) -> str:
    path.unlink()
    return "deleted"


def older(scene: Scene) -> None:
    """Another format is refused; a run from before there were sums is gone on with."""
    copy(scene.before if scene.needs else scene.calm, scene.folder)
    again = () if scene.needs else ("--overwrite",)
    manifest = scene.folder / RUN / "run.json"
    good = manifest.read_bytes()
    version = scene.rng.choice([0, 2, "1", None])
    manifest.write_bytes(good.replace(b'"format_version": 1', b'"format_version": %b' % json.dumps(version).encode()))
    scene.how = f"format {version}"
    if scene.run(*again) != 2 or "run.json" not in scene.runs[-1]:
        raise WrongError(f"format {version} is taken: {scene.runs[-1]}")
    document = json.loads(good)
    document.pop("hash")
    for facts in document["stages"].values():
        facts.pop("wrote", None)
    manifest.write_text(json.dumps(document))
    without_sums(scene.folder)
    if scene.run(*again):
        raise WrongError(f"an older run is refused: {scene.runs[-1]}")
    calm = copy(scene.calm, scene.folder.parent / "calm")
    for folder in (scene.folder, calm):
        without_sums(folder)
    scene.calm = calm
    if differ := scene.differences():
        raise WrongError(f"an older run differs in {differ}")


def without_sums(folder: Path) -> None:
    for path in folder.rglob("sums.json"):
        path.unlink()
    for path in folder.rglob("*.jsonl"):
        path.write_bytes(re.sub(rb',"sum":"[0-9a-f]{8}"}\n', b"}\n", path.read_bytes()))
