"""The licences of all that pivotrl and its extras depend on, held against Apache-2.0: `python recipes/licences.py`.

Reads the metadata of the packages installed beside this Python, so run it where all extras are (CONTRIBUTING.md).
Prints the table of docs/licences.md (--write replaces it there) and ends with 1 where a licence is neither known to be
compatible nor explained here. It reads what the packages say of themselves and is no legal advice.
"""

from __future__ import annotations

import argparse
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "licences.md"
EXTRAS = ("", "eval", "gguf", "openai", "parquet", "peft", "tinker", "track", "docs", "dev")
FREE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|Python-2\.0|Unlicense|Zlib|0BSD|CC0|HPND|Public Domain|CNRI",
    re.I,
)
WEAK = re.compile(r"MPL|Mozilla", re.I)
STRONG = re.compile(r"GPL|SSPL|Proprietary|EULA|Commercial", re.I)
MPL = "MPL-2.0 covers its own files; they are used unchanged"
LGPL = "used unchanged, through Python's import, by lm-eval; whoever passes it on keeps to the LGPL for it alone"
EXPLAINED = {
    "chardet": LGPL,
    "dominate": LGPL,
    "docutils": "only to build the site; GPL is an editor mode in its repository",
}
_NAME = re.compile(r"^[\w.-]+")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(extra: str) -> tuple[dict[str, Distribution], set[str]]:
    """What `pivotrl[extra]` brings here, by name, and what of it is not installed."""
    found: dict[str, Distribution] = {}
    missing, todo = set[str](), [("pivotrl", extra)]
    while todo:
        name, wanted = todo.pop()
        try:
            one = distribution(name)
        except PackageNotFoundError:
            missing.add(name)
            continue
        if name in found and not wanted:
            continue
        found[name] = one
        for text in one.requires or []:
            spec, _, when = text.partition(";")
            asked = re.search(r"extra == ['\"]([\w-]+)['\"]", when)
            if applies(when) and (asked is None or (wanted and normal(asked[1]) == normal(wanted))):
                inner = re.search(r"\[([\w-]+)", spec)
                todo.append((normal(_NAME.match(spec.strip())[0]), inner[1] if inner else ""))
    found.pop("pivotrl", None)
    return found, missing


def applies(when: str) -> bool:
    """Whether a requirement is of this system at all, its extra aside."""
    from packaging.markers import Marker

    asked = re.findall(r"extra == ['\"]([\w-]+)['\"]", when)
    return not when.strip() or Marker(when).evaluate({"extra": asked[0] if asked else ""})


def licence(one: Distribution) -> str:
    said = one.metadata.get("License-Expression") or ""
    classes = [text.rpartition(" :: ")[2] for text in one.metadata.get_all("Classifier") or [] if "License ::" in text]
    text = said or ", ".join(part for part in classes if part != "OSI Approved") or one.metadata.get("License") or ""
    return " ".join(text.split())[:70] or "not said"


def verdict(name: str, said: str) -> str:
    """Empty where it is compatible, else what is to be said of it; `?` where nobody has looked."""
    if name in EXPLAINED:
        return EXPLAINED[name]
    if STRONG.search(said):
        return "?"
    return MPL if WEAK.search(said) else "" if FREE.search(said) else "?"


def rows() -> tuple[list[str], list[str]]:
    """The table's rows, and the packages that are a question."""
    found: dict[str, tuple[Distribution, list[str]]] = {}
    lacking = set[str]()
    for extra in EXTRAS:
        some, missing = closure(extra)
        lacking |= missing
        for name, one in some.items():
            found.setdefault(name, (one, []))[1].append(extra or "pivotrl")
    lines, open_ = [], [f"{name}: not installed" for name in sorted(lacking)]
    for name, (one, brought) in sorted(found.items()):
        said = licence(one)
        word = verdict(name, said)
        open_ += [f"{name}: {said}"] if word == "?" else []
        by = "pivotrl" if "pivotrl" in brought else ", ".join(brought)
        lines.append(f"| {name} | {by} | {said} | {word} |")
    return lines, open_


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the table in docs/licences.md")
    write = parser.parse_args().write
    lines, questions = rows()
    table = "\n".join(["| package | brought by | its licence | |", "|---|---|---|---|", *lines]) + "\n"
    if write:
        PAGE.write_text(PAGE.read_text().partition("| package |")[0] + table)
    else:
        print(table)
    print(f"{len(lines)} packages; to be looked at: {'; '.join(questions) or 'none'}", file=sys.stderr)
    return bool(questions)


if __name__ == "__main__":
    sys.exit(main())
