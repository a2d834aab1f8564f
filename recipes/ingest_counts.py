"""Prints, for every file under a directory, what `pivotrl ingest` makes of it: a Markdown table for docs/formats.md.

python recipes/ingest_counts.py DIRECTORY [FOLDER ...]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pivotrl.errors import InputError
from pivotrl.ingestion import IngestConfig, ingest


def row(path: Path, name: str) -> str:
    """One file, ingested alone into a run that is thrown away."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            result = ingest(IngestConfig(paths=(str(path),), run=Path(scratch) / "run"))
        except InputError as error:
            reason = str(error).removeprefix(path.name).lstrip(":[]0123456789 ")
            return f"| {name} | | | | refused: {reason} |"
    skips = ", ".join(f"{reason} {n}" for reason, n in result.skips.items())
    counts = f"{result.trajectories} | {result.assistant_turns} | {sum(result.candidates.values())}"
    return f"| {name} | {counts} | {skips} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("folders", nargs="*", help="only these folders of it")
    arguments = parser.parse_args()
    tops = [arguments.directory / folder for folder in arguments.folders] or [arguments.directory]
    print("| file | trajectories | assistant turns | candidates | skipped, or why refused |\n|---|---:|---:|---:|---|")
    for path in sorted(path for top in tops for path in top.rglob("*") if path.is_file()):
        print(row(path, path.relative_to(arguments.directory).as_posix()))


if __name__ == "__main__":
    main()
