"""What is known of utilities: which options take a value, which are the same, which only change the look of the output.

The table is text, a utility a line: its name, the kinds of its operands, then fields set off by `;` (see `Utility`).
`TABLE.extended("mytool: path; takes n; look v")` gives a table with one more, for `ShellVerifier(table=...)`. A utility
that is not in it is compared word by word, in order, at its working directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pivotrl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """One utility, or one subcommand (`git push`). Options are named without dashes: `n`, `exclude-dir`."""

    operands: tuple[str, ...] = ("word",)
    """Kinds of the operands: `path`, `pattern`, `mode` or `word`; the last goes for all that follow."""
    takes: frozenset[str] = frozenset()
    """Options with a value; those after `maybe` only where it is attached, as in `sed -i.bak`."""
    maybe: frozenset[str] = frozenset()
    same: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of an option, and the one that they stand for: `lines=n`."""
    default: Mapping[str, str] = field(default_factory=dict)
    """Values that change nothing where they are given; `=.` is the operand that is meant where there is none."""
    drop: frozenset[str] = frozenset()
    """Options that change neither what is done nor what is said."""
    look: frozenset[str] = frozenset()
    """Options that change only how it is said."""
    danger: frozenset[str] = frozenset()
    """Options with which another option or operand is never accepted; `*`: always so."""
    flags: frozenset[str] = frozenset()
    """`sorted0`, `sorted1`: from that operand on their order has no meaning. `reads0`, `reads1`: from there on they are
    files, in whose absence it reads its input. `each`: one run for many operands is like one for each. `files`: it does
    nothing but complain when given a directory. `here`: it depends on the working directory beside its operands.
    `stops`: its options end at the first operand. `wraps0`, `wraps1`: after so many operands comes the command that it
    runs. `words`: compared word by word."""
    digits: str = ""
    """The option that `-5` stands for."""
    becomes: tuple[str, ...] = ()
    """The words that it stands for."""

    def kind(self, at: int) -> str:
        """The kind of an operand."""
        return self.operands[min(at, len(self.operands) - 1)]

    def first(self, flag: str) -> int | None:
        """The number in `reads1`, None without that flag."""
        return next((at for at in (0, 1) if f"{flag}{at}" in self.flags), None)


def _utility(line: str) -> tuple[str, Utility]:
    head, *fields = (part.strip() for part in line.split(";"))
    name, _, operands = head.partition(":")
    made: dict[str, object] = {"operands": tuple(operands.split()) or ("word",)}
    for one in fields:
        key, _, value = one.partition(" ")
        words = value.split()
        if key in ("same", "default") and all("=" in word for word in words):
            made[key] = dict(word.split("=", 1) for word in words)
        elif key in ("takes", "maybe", "drop", "look", "danger", "flags"):
            made[key] = frozenset(words)
        elif key in ("digits", "becomes"):
            made[key] = value if key == "digits" else tuple(words)
        else:
            raise ConfigError(f"utility {name!r}: {one!r} is no field of it; use {', '.join(Utility.__slots__)}")
    return name.strip(), Utility(**made)  # type: ignore[arg-type]


def _utilities(text: str) -> Iterator[tuple[str, Utility]]:
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            names, colon, rest = line.partition(":")
            for name in names.split(","):
                yield _utility(f"{name.strip()}{colon}{rest}")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Utilities by name. Two tables are never equal, so that what is cached under one is not taken for another."""

    known: Mapping[str, Utility]
    extra: str = ""
    """What was added to the built-in ones."""

    def extended(self, text: str) -> Table:
        """A table with more utilities, or with others in their place, a line each. Raises ConfigError."""
        return Table({**self.known, **dict(_utilities(text))}, f"{self.extra}\n{text}".strip())


UNKNOWN: Final = Utility(flags=frozenset(("words", "here")))

_BUILT_IN: Final = r"""
# what shows files and directories
find: path; default =.; danger acts; flags sorted0; takes name iname path ipath regex iregex lname ilname type xtype \
    size mtime atime ctime mmin amin cmin newer anewer cnewer newermt user group perm inum links fstype maxdepth \
    mindepth printf fls fprint fprint0 regextype samefile used context; same wholename=path iwholename=ipath \
    mount=xdev follow=L d=depth not=! or=o and=a gid=group uid=user
ls: path; takes w I T; same all=a almost-all=A human-readable=h recursive=R directory=d reverse=r inode=i size=s \
    dereference=L ignore=I; default =.; drop color G N literal 1 w; look h F p k si time-style Q classify; \
    flags each sorted0
tree: path; takes L I P o; default =.; drop C n; look h
du: path; takes d t B X exclude; same max-depth=d summarize=s human-readable=h all=a total=c bytes=b threshold=t; \
    default =.; look h k m B si; flags each
df: path; takes t x B; same human-readable=h print-type=T type=t; look h k m B H si P
stat: path; takes c printf; same format=c dereference=L; flags each
file: path; same brief=b mime=i dereference=L; flags each; look N z
pwd: ; flags here; drop L P
readlink: path; same canonicalize=f; drop n q s v
realpath: path; drop q
basename: path word; takes s; same multiple=a suffix=s; drop a; flags each
dirname: path; flags each
which: word; flags each
# what reads text
cat: path; same number=n show-all=A; look n A; drop u; flags each reads0 files
head: path; takes n c; same lines=n bytes=c quiet=q silent=q verbose=v; default n=10; look q v; digits n; \
    flags reads0 files
tail: path; takes n c pid s; same lines=n bytes=c quiet=q silent=q verbose=v follow=f; default n=10; look q v; \
    digits n; flags reads0 files
wc: path; same lines=l words=w bytes=c chars=m max-line-length=L; flags reads0 files
grep: pattern path; takes e f m A B C d D include exclude exclude-dir label; same regexp=e file=f max-count=m \
    after-context=A before-context=B context=C ignore-case=i y=i invert-match=v word-regexp=w line-regexp=x count=c \
    files-with-matches=l files-without-match=L only-matching=o quiet=q silent=q no-messages=s line-number=n \
    with-filename=H no-filename=h recursive=r dereference-recursive=R extended-regexp=E fixed-strings=F basic-regexp=G \
    perl-regexp=P text=a null=Z; drop color colour G line-buffered; look n H h s a I T; digits C; flags reads1 files
sed: word path; takes e f l; maybe i; same quiet=n silent=n expression=e file=f in-place=i regexp-extended=E r=E \
    separate=s; danger i; drop u; flags reads1 files
awk: word path; takes F v f; same field-separator=F assign=v file=f; flags reads1 files
sort: path; takes k t S T o; same key=k field-separator=t numeric-sort=n reverse=r unique=u human-numeric-sort=h \
    version-sort=V general-numeric-sort=g ignore-case=f random-sort=R output=o stable=s zero-terminated=z; \
    danger o; drop S T; flags reads0 files
uniq: path word; takes f s w; same count=c repeated=d unique=u ignore-case=i; flags reads0
cut: path; takes d f c b output-delimiter; same delimiter=d fields=f characters=c bytes=b; flags reads0 files
tr: word; same delete=d squeeze-repeats=s complement=c C=c truncate-set1=t
rev, tac: path; flags reads0 files
nl: path; takes b s w v i n; flags reads0 files
fold: path; takes w; same width=w spaces=s bytes=b; default w=80; flags reads0 files
column: path; takes s o c; same separator=s table=t output-separator=o; flags reads0 files
paste: path; takes d; same delimiters=d serial=s; flags reads0 files
od: path; takes A t N j w S; same format=t address-radix=A read-bytes=N skip-bytes=j; flags reads0 files
diff: path; takes U x; same brief=q recursive=r unified=u ignore-all-space=w side-by-side=y; look u y U color
comm: path
join: path; takes t a j 1 2 o e v
cmp: path; same silent=s quiet=s verbose=l
md5sum, sha1sum, sha256sum: path; look b t; same binary=b text=t check=c; flags each files reads0
zcat: ; becomes gzip -d -c
gunzip: ; becomes gzip -d
bunzip2: ; becomes bzip2 -d
bzcat: ; becomes bzip2 -d -c
egrep: ; becomes grep -E
fgrep: ; becomes grep -F
rgrep: ; becomes grep -r
# what changes things
mkdir: path; takes m; same parents=p mode=m verbose=v; look p v; flags each sorted0
touch: path; takes d r t; same date=d reference=r no-create=c; flags each sorted0
rm: path; same R=r recursive=r force=f verbose=v interactive=i; look v; danger *; flags each sorted0
rmdir, unlink: path; same parents=p verbose=v; look v; danger *; flags each sorted0
mv, cp: path; takes t S; same target-directory=t R=r recursive=r force=f archive=a verbose=v no-clobber=n update=u \
    preserve=p dereference=L link=l symbolic-link=s backup=b; look v f; danger *; flags each
ln: path; takes t S; same target-directory=t symbolic=s force=f no-dereference=n verbose=v; look v; danger *; flags each
chmod: mode path; same recursive=R silent=f quiet=f verbose=v changes=c; look v c f; danger *; flags each sorted1
chown, chgrp: word path; same recursive=R silent=f quiet=f verbose=v changes=c; look v c f; danger *; flags each sorted1
tee: path; same append=a; danger *; flags sorted0
dd, kill, pkill, killall, mkfs, mount, umount, crontab, useradd, userdel, usermod, passwd, reboot, shutdown, docker, \
    systemctl, service, apt, apt-get, yum, dnf: ; danger *; flags words here
pip, pip3: ; takes r i t; same requirement=r quiet=q upgrade=U index-url=i target=t verbose=v; look q v; flags here
make: ; takes f C j; same jobs=j file=f directory=C silent=s quiet=s; look j s; flags here
pytest: path; takes k m n p c o maxfail tb; same verbose=v quiet=q exitfirst=x; look v q tb s; flags here
curl: ; takes o X d H u A e F T m; same silent=s output=o request=X data=d header=H user=u location=L show-error=S \
    user-agent=A form=F upload-file=T max-time=m remote-name=O fail=f; look s S; danger X d F T o O; flags here
wget: ; takes O P o T t; same output-document=O directory-prefix=P quiet=q no-verbose=nv; look q nv; danger O; \
    flags here
truncate, shred: path; takes s r n; same size=s reference=r; danger *; flags each
split: path word; takes b l n a C; maybe d; digits l; same bytes=b lines=l number=n suffix-length=a numeric-suffixes=d \
    line-bytes=C; flags here reads0
tar: path; takes f C T X exclude; same file=f directory=C extract=x get=x create=c list=t gzip=z gunzip=z bzip2=j xz=J \
    verbose=v append=r update=u; look v; danger *; flags here
gzip, bzip2, xz: path; takes S; same decompress=d uncompress=d stdout=c to-stdout=c keep=k force=f recursive=r test=t \
    verbose=v list=l suffix=S; look v q; danger *; flags each sorted0
rsync: word; takes e exclude include exclude-from files-from bwlimit; same archive=a verbose=v compress=z recursive=r \
    update=u links=l perms=p times=t group=g owner=o dry-run=n human-readable=h rsh=e; look v h progress q stats; \
    danger *; flags here
scp: word; takes P i F o l c; look v q; danger *; flags here
git: word; takes C c git-dir work-tree; drop no-pager P; flags stops here
git status: path; same short=s branch=b; look s b porcelain; flags here
git add: path; same all=A patch=p update=u force=f; look v; flags here sorted0
git commit: word; takes m F C author date; same message=m all=a file=F quiet=q; look q v; flags here
git log: word; takes n; same max-count=n patch=p; digits n; drop color no-color; flags here
git diff: word; same staged=cached; drop color no-color; flags here
git push, git reset, git clean, git checkout, git restore, git switch, git rm, git mv, git rebase, git merge, \
    git revert, git stash, git branch, git tag: ; danger *; flags words here
# what runs other commands
xargs: ; takes I n L P d s E a; maybe i l e; drop r t; look P; same null=0 replace=i max-args=n max-lines=L \
    max-procs=P delimiter=d no-run-if-empty=r; flags stops
sudo: ; takes u g; same user=u group=g; drop n S E H; flags stops wraps0
env: ; takes u; same ignore-environment=i unset=u; flags stops wraps0
timeout: ; takes s k; flags stops wraps1
nice: ; takes n; digits n; flags stops wraps0
nohup, time, command, builtin: ; drop p; flags stops wraps0
stdbuf: ; takes i o e; flags stops wraps0
# the rest
echo: ; flags stops
date: ; takes d r; same date=d reference=r utc=u universal=u
seq: ; takes s f; same separator=s
ssh: ; takes p l i o L R D J F; flags stops
whoami, hostname, uname, id: ; same all=a
"""
TABLE: Final = Table(dict(_utilities(_BUILT_IN)))
