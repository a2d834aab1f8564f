"""What is known of utilities: which options take a value, which are the same, which only change the look of the output.

The table is text, a utility a line: its names, the kinds of its operands, then fields set off by `;` (see `Utility`).
`TABLE.extended("mytool: path; takes n; look v")` gives a table with one more, for `ShellVerifier(table=...)`. A utility
that is not in it, or has no kinds, is compared word by word, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pivotrl.errors import ConfigError

Option = tuple[str, str]
"""A name without dashes, and a value."""
PATHS: Final = ("path", "file", "any")
"""Kinds of operands that are paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """One utility, or one subcommand (`git push`). Options are named without dashes: `n`, `exclude-dir`."""

    operands: tuple[str, ...] = ()
    """Kinds of the operands; the last goes for all that follow. `path`; `file`: a path in whose absence it reads its
    input; `any`: paths whose order has no meaning; `pattern`; `text`; `command`: the rest is what it runs; `word`."""
    takes: frozenset[str] = frozenset()
    """Options with a value; one with `?` only where it is attached, as in `sed -i.bak`."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of an option, and the one that they stand for: `lines=n`."""
    default: Mapping[str, str] = field(default_factory=dict)
    """Values that change nothing where they are given; `=.` is the operand that is meant where there is none."""
    look: frozenset[str] = frozenset()
    """Options that change only how it is said."""
    danger: frozenset[str] = frozenset()
    """Options with which nothing else is accepted for it; `*`: never."""

    def kind(self, at: int) -> str:
        """The kind of an operand; -1: of the last."""
        return self.operands[min(at, len(self.operands) - 1)] if self.operands else "word"

    @property
    def here(self) -> bool:
        """Whether what it does depends on the working directory beside its operands."""
        return set(self.operands) <= {"word", "command"}


UNKNOWN: Final = Utility()


@dataclass(frozen=True, slots=True, eq=False)
class Utilities:
    """Utilities by name. Two tables are never equal, so that what is cached under one is not taken for another."""

    known: Mapping[str, Utility]
    extra: str = ""
    """What was added to the built-in ones."""

    def extended(self, text: str) -> Utilities:
        """A table with more utilities, or with others in their place, a line each. Raises ConfigError."""
        return Utilities({**self.known, **dict(_utilities(text))}, f"{self.extra}\n{text}".strip())


def _utilities(text: str) -> Iterator[tuple[str, Utility]]:
    for line in filter(str.strip, text.replace("\\\n", " ").splitlines()):
        head, *fields = (part.strip() for part in line.split(";"))
        names, _, operands = head.partition(":")
        made: dict[str, object] = {"operands": tuple(operands.split())}
        for one in fields:
            key, *words = one.split() or [""]
            if key in ("same", "default") and all("=" in word for word in words):
                made[key] = dict(word.split("=", 1) for word in words)
            elif key in ("takes", "look", "danger"):
                made[key] = frozenset(words)
            else:
                raise ConfigError(f"utility {names!r}: {one!r} is no field of it; use {', '.join(Utility.__slots__)}")
        for name in names.split(","):
            yield name.strip(), Utility(**made)  # type: ignore[arg-type]


_BUILT_IN: Final = r"""
find: any; default =.; look print; danger acts; takes name iname path ipath regex iregex lname ilname type xtype size \
    mtime atime ctime mmin amin cmin newer newermt user group perm inum links maxdepth mindepth printf fprint fprint0 \
    fls regextype samefile; same wholename=path mount=xdev follow=L d=depth
ls: any; takes I w; same all=a almost-all=A human-readable=h recursive=R directory=d reverse=r; default =.; \
    look color G N 1 h F p k
du: path; takes d t; same max-depth=d summarize=s human-readable=h all=a total=c; default =.; look h k m
stat, file, readlink, realpath, dirname, basename: path; takes c
cat: file; same number=n; look n
head, tail: file; takes n c; same lines=n bytes=c quiet=q silent=q follow=f; default n=10; look q v
wc: file; same lines=l words=w bytes=c chars=m
grep: pattern file; takes e f m A B C include exclude exclude-dir; same regexp=e file=f max-count=m after-context=A \
    before-context=B context=C ignore-case=i invert-match=v word-regexp=w count=c files-with-matches=l \
    only-matching=o quiet=q line-number=n with-filename=H no-filename=h recursive=r extended-regexp=E \
    fixed-strings=F perl-regexp=P; look color n H h s a
sed: word file; takes e f i?; same quiet=n silent=n expression=e file=f in-place=i regexp-extended=E r=E; danger i
awk: word file; takes F v f; same field-separator=F assign=v file=f
sort: file; takes k t S T o; same key=k field-separator=t numeric-sort=n reverse=r unique=u human-numeric-sort=h \
    version-sort=V ignore-case=f output=o stable=s; danger o
uniq: file; takes f s w; same count=c repeated=d unique=u ignore-case=i
cut: file; takes d f c b; same delimiter=d fields=f characters=c bytes=b
tr: text; same delete=d squeeze-repeats=s complement=c C=c
rev, tac, nl, md5sum, sha256sum: file
diff, cmp, comm: path; takes U; same brief=q recursive=r unified=u side-by-side=y; look u y color
mkdir, touch: any; takes m d; same parents=p mode=m verbose=v; look p v
rm, rmdir: any; same R=r recursive=r force=f verbose=v interactive=i parents=p; look v; danger *
mv, cp, ln: path; takes t S; same target-directory=t R=r recursive=r force=f archive=a verbose=v no-clobber=n \
    symbolic=s; look v f; danger *
chmod, chown, chgrp: word any; same recursive=R verbose=v; look v c f; danger *
tee: any; same append=a; danger *
tar: word; takes f C T X exclude; same file=f directory=C extract=x get=x create=c list=t gzip=z bzip2=j xz=J \
    verbose=v; look v; danger *
bash, sh, eval, dd, kill, pkill, killall, mount, umount, crontab, useradd, userdel, usermod, passwd, reboot, shutdown, \
    docker, systemctl, service, apt, apt-get, yum, wget, curl, rsync, scp, gzip, gunzip, bzip2, xz, truncate, shred, \
    mkfs: ; danger *
git push, git reset, git clean, git checkout, git restore, git switch, git rm, git mv, git rebase, git merge, \
    git revert, git stash, git branch, git tag: ; danger *
git: command; takes C c git-dir work-tree; look no-pager
git add, git commit: word; takes m F author date; same message=m all=a file=F quiet=q; look q v
git status, git diff, git log: word; takes n; same max-count=n patch=p staged=cached short=s; look s color
pip, pip3, pytest: word; takes k m n p c o r maxfail tb; same requirement=r verbose=v quiet=q exitfirst=x; look v q tb
xargs: command; takes I n L P d s E a i? l? e?; same null=0 replace=i max-args=n max-procs=P delimiter=d \
    no-run-if-empty=r; look r t P
sudo: command; takes u g; same user=u group=g; look n S E H
timeout: word command; takes s k
nohup, time, nice, stdbuf: command; takes n o i e; look p
"""
TABLE: Final = Utilities(dict(_utilities(_BUILT_IN)))


def options_of(words: Sequence[str], known: Utility) -> tuple[list[Option], list[str]]:
    """Options with their values, under their canonical names, and operands; `-5` is `-n 5`."""
    options, operands, rest = list[Option](), list[str](), list(words)[::-1]
    while rest:
        word = rest.pop()
        if word == "--" or (operands and "command" in known.operands):
            return options, [*operands, *([] if word == "--" else [word]), *rest[::-1]]
        if not word.startswith("-") or word == "-":
            operands.append(word)
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = known.same.get(name, name)
            options.append((name, rest.pop() if not equals and name in known.takes and rest else value))
        elif "n" in known.takes and word[1:].isdigit() and word != "-0":
            options.append(("n", word[1:]))
        else:  # `-rfn5`: the first letter that takes a value takes what follows, or else the next word
            letters = word[1:]
            while letters:
                name, letters = known.same.get(letters[0], letters[0]), letters[1:]
                value = ""
                if name in known.takes or f"{name}?" in known.takes:
                    value, letters = letters or (rest.pop() if rest and name in known.takes else ""), ""
                options.append((name, value))
    return options, operands
