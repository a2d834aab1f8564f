"""The sandbox stops what it must stop, says what a command did, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pivotrl.errors import ConfigError, DependencyError, InputError
from pivotrl.isolation import Limits, system_call_filter
from pivotrl.sandbox import EMPTY, Sandbox
from pivotrl.snapshots import Entry, entries, load_snapshot, pack
from sandboxed import REASON, caged

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="drops root, so it must be root")
SMALL = Limits(seconds=20, memory=200 << 20, processes=32, disk=32 << 20, output=100_000, files=500)
MARK = f"61.{os.getpid()}"
"""Seconds for `sleep` that nobody else uses, so that what is left of one can be found."""


def run(command, snapshot=EMPTY, **limits):
    changed = {name: getattr(SMALL, name) for name in SMALL.__slots__} | limits
    return Sandbox(limits=Limits(**changed)).run(command, snapshot)


def load(folder, at="/work"):
    return load_snapshot(folder, at, files=100, size=1 << 20)


def below(effects, top="work/"):
    return {path: entry for path, entry in entries(effects.tree).items() if path.startswith(top)}


def left(mark=MARK):
    """Processes whose command line holds the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if mark.encode() in text and path.parent.name != str(os.getpid()):
            found.append(path.parent.name)
    return found


def within_a_minute(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.fixture
def snapshot(tmp_path):
    folder = tmp_path / "snapshot"
    (folder / "src").mkdir(parents=True)
    (folder / "src/a.txt").write_text("one\ntwo\n")
    (folder / "run.sh").write_text("echo run\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("src/a.txt")
    return load(folder)


@pytest.fixture
def open_folder():
    """A temporary folder that others may enter, as pytest's may not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


# What it stops


@caged
def test_fork_bomb():
    effects = run(f"bomb() {{ bomb | bomb & }}; bomb; sleep {MARK}", seconds=2)
    assert effects.ending == "timeout"
    assert b"Resource temporarily unavailable" in effects.stderr
    assert left() == []
    assert run("echo alive").stdout == b"alive\n"


@caged
@pytest.mark.parametrize(
    "command",
    [
        "dd if=/dev/zero of=big bs=1M count=10000",
        "dd if=/dev/zero of=/tmp/big bs=1M count=10000; true",
        "head -c 10G /dev/zero > ~/big",
        "cat /dev/zero > /dev/shm/big",
        "truncate -s 10G big",
        "for i in $(seq 400); do head -c 30M /dev/zero > $i; done",
    ],
)
def test_10_gb_write(command):
    effects = run(command)
    assert (effects.ending, effects.status, effects.tree) == ("disk", None, None)


@caged
def test_many_files_many_bytes_in_sparse_ones_and_deep_folders():
    assert run("i=0; while :; do : > $((i++)); done").ending == "files"
    assert run("for i in $(seq 9); do truncate -s 30M $i; done").ending == "files"
    deep = (
        "d=dddddddddd; for i in {1..7}; do d=$d$d; done; for i in {1..3}; do for j in {1..14}; do x=$x/${d:0:250}; done"
    )
    assert run(f"{deep}; mkdir -p ./$x; cd ./$x; x=; done").ending == "files"


@caged
def test_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(0.01)
        effects = run(
            f"(: > /dev/tcp/127.0.0.1/{port}) && echo in; (: > /dev/tcp/1.1.1.1/53) && echo out; ls /sys/class/net"
        )
        with pytest.raises(TimeoutError):
            server.accept()
    assert effects.stdout == b""
    assert b"Network is unreachable" in effects.stderr


@caged
@pytest.mark.skipif(not Path("/usr/bin/perl").exists(), reason="needs perl")
def test_sockets_and_memory_that_no_namespace_holds():
    """AF_VSOCK (40), AF_ALG (38) and others reach past the network namespace."""
    families = {family: family in (1, 2, 10) for family in (1, 2, 10, 17, 31, 38, 40)}
    for family, allowed in families.items():
        kind = 3 if family == 17 else 5 if family == 38 else 1
        effects = run(f"""perl -e 'socket(S, {family}, {kind}, 0) or die "$!\\n"; print "open"'""")
        assert (effects.stdout == b"open") is allowed, family
        assert allowed or b"Address family not supported" in effects.stderr
    assert b"not implemented" in run("""perl -e 'shmget(0, 4096, 0600) // die "$!\\n"'""").stderr


@caged
def test_reading_the_home_folder():
    home = Path.home()
    canary = home / f".pivotrl-canary-{os.getpid()}"
    canary.write_text("secret-canary")
    try:
        effects = run(
            f"cat {canary} /proc/1/root{canary} ~root/.bash*; ls -A ~ /root /home; grep -rs t-canary /tmp /etc /var\n"
            f"[ {home} = ~ ] || [ ! -e {home} ] || echo {home} is there"
        )
    finally:
        canary.unlink()
    assert b"secret-canary" not in effects.stdout
    assert effects.stdout == b"/home:\nuser\n\n/home/user:\n"


@caged
def test_only_the_wanted_part_of_the_host_is_there():
    shown = set(run("ls -A / /etc").stdout.split())
    tops = {b"/:", b"/etc:", b"bin", b"dev", b"etc", b"home", b"proc", b"sbin", b"tmp", b"usr", b"work"}
    kin = {b"lib", b"lib32", b"lib64", b"libx32", b"alternatives", b"ld.so.cache", b"ld.so.conf", b"ld.so.conf.d"}
    assert shown - kin == tops | {b"passwd", b"group", b"hosts"}
    os.environ["PIVOTRL_CANARY"] = "secret"
    try:
        assert b"CANARY" not in run("env").stdout
    finally:
        del os.environ["PIVOTRL_CANARY"]


@caged
@pytest.mark.parametrize("command", ["yes", "yes >&2", "cat /dev/zero & cat /dev/urandom"])
def test_endless_output(command):
    effects = run(command)
    assert effects.ending == "output"
    assert max(len(effects.stdout), len(effects.stderr)) == SMALL.output


@caged
def test_symlink_escape(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("outside")
    tmp_path.chmod(0o777)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/passwd").symlink_to("/etc/passwd")
    (tmp_path / "in/up").symlink_to("../outside.txt")
    (tmp_path / "in/direct").symlink_to(outside)
    (tmp_path / "in/folder").symlink_to(tmp_path)
    before = Path("/etc/passwd").read_bytes()
    effects = run(
        f"for f in passwd up direct; do echo x >> $f; done; ln -s / r; echo x > r{outside}; cat direct folder/*",
        load(tmp_path / "in"),
    )
    assert outside.read_text() == "outside"
    assert Path("/etc/passwd").read_bytes() == before
    links = {path: entry.content for path, entry in below(effects).items() if entry.kind == tarfile.SYMTYPE}
    assert links == {
        "work/passwd": "/etc/passwd",
        "work/up": "../outside.txt",
        "work/direct": str(outside),
        "work/folder": str(tmp_path),
        "work/r": "/",
    }
    assert b"outside" not in effects.stdout + effects.tree.replace(b"outside.txt", b"")


@caged
def test_killing_outside_processes():
    with subprocess.Popen(["sleep", "60"]) as bystander:
        effects = run(f"kill -9 {bystander.pid} {os.getpid()}; kill -9 -1; kill -9 1; ls /proc | grep -c '^[0-9]'")
        assert bystander.poll() is None
        bystander.kill()
    assert int(effects.stdout) < 6
    assert b"No such process" in effects.stderr


@caged
def test_memory_hogs():
    effects = run("tail /dev/zero")
    assert effects.status == 1
    assert b"memory exhausted" in effects.stderr
    many = f"for i in 1 2 3 4 5 6; do (head -c 90M /dev/zero; sleep {MARK}) | tail -c 90M > /dev/null & done; wait"
    assert run(many).ending == "memory"
    assert left() == []


@caged
@pytest.mark.parametrize(
    "command",
    ["sleep {}", "trap '' TERM INT HUP; sleep {}; sleep {}", "while :; do :; done # {}", "kill -STOP $$; sleep {}"],
)
def test_sleeping_and_spinning_forever(command):
    effects = run(command.format(MARK, MARK), seconds=0.3)
    assert (effects.ending, effects.status, effects.tree) == ("timeout", None, None)
    assert left() == []


@caged
def test_limits_of_each_process_and_no_core_dump():
    text = run("cat /proc/self/limits").stdout.decode()
    rows = {line[:26].strip(): line[26:68].split() for line in text.splitlines()[1:]}
    wanted = {
        "Max cpu time": ["21", "21"],
        "Max file size": [str(32 << 20)] * 2,
        "Max data size": [str(200 << 20)] * 2,
        "Max stack size": [str(8 << 20)] * 2,
        "Max core file size": ["1", "1"],
        "Max processes": ["32", "32"],
        "Max open files": ["256", "256"],
    }
    assert {name: rows[name] for name in wanted} == wanted


@caged
def test_setuid_and_privileges():
    effects = run(
        "cp /bin/bash b; chmod 6755 b; ./b -p -c 'id -u; id -g'; grep -E 'NoNewPrivs|Cap...:' /proc/self/status"
    )
    assert effects.stdout.split()[:2] == [b"1000", b"1000"]
    status = dict(line.split(b":\t") for line in effects.stdout.splitlines()[2:])
    assert status[b"NoNewPrivs"] == b"1"
    assert {value for name, value in status.items() if name.startswith(b"Cap")} == {b"0" * 16}
    for command in ("unshare -Ur id", "mount -t tmpfs x /tmp", "chroot / id", "mknod d c 1 3"):
        effects = run(command)
        assert effects.status != 0, command
        assert b"uid=0" not in effects.stdout, command


@caged
def test_writing_outside():
    places = "/x /usr/x /etc/x /etc/passwd /dev/x /home/x /proc/sys/kernel/hostname /bin/bash"
    effects = run(
        f"for p in {places}; do (echo x >> $p) 2> /dev/null && echo wrote $p; done; rm -rf /usr/bin 2> ~/x; ls /usr"
    )
    assert b"wrote" not in effects.stdout
    assert b"bin" in effects.stdout.split()
    assert entries(effects.tree).keys() == {"work", "tmp", "home/user", "home/user/x", "dev/shm"}


@caged
@root_only
@pytest.mark.parametrize("programs", [("bwrap", "setpriv"), ("bwrap",)])
def test_root_becomes_nobody_first(programs, open_folder, monkeypatch):
    """Through setpriv, and through Python where there is none."""
    for program in programs:
        (open_folder / program).symlink_to(shutil.which(program))
    monkeypatch.setenv("PATH", str(open_folder))
    with ThreadPoolExecutor(1) as pool:
        effects = pool.submit(run, f"stat -c %u /proc/[0-9]*; sleep {MARK}", seconds=3)
        within_a_minute(lambda: left(f"sleep\0{MARK}") or effects.done())
        owners = {Path(f"/proc/{process}").stat().st_uid for process in left()}
    assert owners == {65534}
    assert set(effects.result().stdout.split()) == {b"1000"}
    unsafe = Sandbox(limits=SMALL, unsafe_exec=True).run("id -u; id -g; id -G")
    assert unsafe.stdout.split() == [b"65534"] * 3


@caged
@root_only
def test_an_ordinary_user_may_use_it_too():
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.chdir("/")
            os.setgroups([])
            os.setgid(4321)
            os.setuid(4321)
            ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, as after an exec: /proc/self is the user's own
            effects = run("mkdir a; echo x > a/b; chmod 0 a/b a .; echo done")
            modes = [(path, oct(entry.mode)) for path, entry in entries(effects.tree).items() if "work" in path]
            os.write(writer, f"{effects.status} {effects.stdout} {modes}".encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    text = os.read(reader, 1000).decode()
    os.close(reader)
    os.wait()
    assert text == "0 b'done\\n' [('work', '0o0'), ('work/a', '0o0'), ('work/a/b', '0o0')]"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_of_system_calls_step_by_step(machine):
    """Recomputed by an interpreter of the five instructions that it uses."""
    program = system_call_filter(machine)
    steps = [struct.unpack("=HBBI", program[at : at + 8]) for at in range(0, len(program), 8)]

    def verdict(number, argument=0, audit={"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]):
        data = struct.pack("=IIQQ", number, audit, 0, argument)
        at, value = 0, 0
        while True:
            code, yes, no, k = steps[at]
            if code == 0x06:
                return k
            if code == 0x20:
                value, yes = struct.unpack_from("=I", data, k)[0], 0
                at += 1
            else:
                at += 1 + (yes if (value == k if code == 0x15 else value >= k) else no)

    allow, kill, absent, family = 0x7FFF0000, 0x80000000, 0x50026, 0x50061
    call, forbidden = (41, (319, 425, 29)) if machine == "x86_64" else (198, (279, 425, 194))
    assert [verdict(number) for number in forbidden] == [absent] * 3
    assert [verdict(call, one) for one in (1, 2, 10, 16, 40, 38, 0)] == [allow] * 4 + [family] * 3
    assert verdict(0) == verdict(59) == allow
    assert verdict(0, audit=0x40000003) == verdict(0x40000000) == kill
    with pytest.raises(DependencyError, match="riscv64"):
        system_call_filter("riscv64")


# What it says


@caged
def test_effects(snapshot):
    effects = run(
        "cat link; echo err >&2; rm run.sh; mkdir new; echo x > new/y; ln new/y new/z; mkfifo p; ln -s no l; exit 3",
        snapshot,
    )
    assert (effects.ending, effects.status) == ("exit", 3)
    assert (effects.stdout, effects.stderr) == (b"one\ntwo\n", b"err\n")
    assert {path: (entry.kind, entry.mode) for path, entry in below(effects).items()} == {
        "work/l": (tarfile.SYMTYPE, 0o777),
        "work/link": (tarfile.SYMTYPE, 0o777),
        "work/new": (tarfile.DIRTYPE, 0o755),
        "work/new/y": (tarfile.REGTYPE, 0o644),
        "work/new/z": (tarfile.LNKTYPE, 0o644),
        "work/p": (tarfile.FIFOTYPE, 0o644),
        "work/src": (tarfile.DIRTYPE, 0o755),
        "work/src/a.txt": (tarfile.REGTYPE, 0o644),
    }
    a, b, c = (below(run(command, snapshot)) for command in ("echo x > f", "printf 'x\\n' > f", "echo y > f"))
    assert a == b != c
    statuses = [run(command).status for command in ("kill -9 $$", "kill -TERM $$", "nonsense", "", "-x")]
    assert statuses == [137, 143, 127, 0, 127]


@caged
@pytest.mark.parametrize("at", ["/work", "/home/user/project", "/tmp/a/b"])
def test_one_command_after_the_other(snapshot, at, tmp_path):
    """A persistent directory: what one command leaves is the next one's snapshot, home and /tmp included."""
    sandbox = Sandbox(limits=SMALL, workdir=at)
    first = sandbox.run("pwd; echo x > new; echo y > ~/h; chmod 600 new; ls", load(tmp_path / "snapshot", at))
    assert first.stdout.decode() == f"{at}\nlink\nnew\nrun.sh\nsrc\n"
    assert entries(first.tree)[f"{at[1:]}/new"].mode == 0o600
    second = sandbox.run("cat new ~/h; rm new; mv ~/h /tmp/", first.tree)
    assert second.stdout == b"x\ny\n"
    assert entries(first.tree).keys() - entries(second.tree).keys() == {f"{at[1:]}/new", "home/user/h"}
    assert entries(sandbox.run("true", second.tree).tree) == entries(second.tree)
    assert (tmp_path / "snapshot/run.sh").read_text() == "echo run\n"


@caged
@pytest.mark.parametrize(
    "command",
    [
        "echo $$ $PPID; id; hostname; env | sort; umask; ulimit -a; pwd; tty; prlimit",
        "ls -Ai / ~ /tmp .; find . ; date +%Z; locale; readlink /proc/self",
        "for i in 3 1 2; do echo $i > f$i; done; ls -U; cat *; sort -R --random-source=/bin/ls f*",
    ],
)
def test_the_same_effects_each_time(command, snapshot):
    first, *others = [run(command, snapshot) for _ in range(3)]
    for other in others:
        assert (other.status, other.stdout, other.stderr) == (first.status, first.stdout, first.stderr)
        assert entries(other.tree) == entries(first.tree)


@caged
def test_odd_bytes(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / os.fsdecode(b"\xff \n'$x")).write_bytes(b"\x00\xfe")
    effects = run(r"cat *; printf '\xc3\x28\0'; mkdir $'\xfe\x01'; echo é > ü", load(folder))
    assert effects.stdout == b"\x00\xfe\xc3\x28\x00"
    assert {os.fsencode(path) for path in below(effects)} == {b"work/\xff \n'$x", b"work/\xfe\x01", "work/ü".encode()}
    for command in ("echo \0", "echo \ud800", "x" * 200_000):
        with pytest.raises(InputError, match="no shell can be given"):
            run(command)


@caged
def test_several_at_once():
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda at: run(f"echo {at} > f; sleep 0.05; cat f").stdout, range(12)))
    assert outputs == [f"{at}\n".encode() for at in range(12)]


# What it leaves


@caged
@pytest.mark.parametrize(
    "command", ["sleep {} & exit 0", "setsid sleep {} > /dev/null 2>&1 < /dev/null & disown; exit 0"]
)
def test_nothing_runs_on_after_the_command(command):
    assert run(command.format(MARK)).status == 0
    assert left() == []


CHILD = """
from pivotrl.isolation import Limits
from pivotrl.sandbox import Sandbox
sandbox = Sandbox(limits=Limits(seconds=50), unsafe_exec={unsafe})
sandbox.run("echo x > f; (sleep {mark} & sleep {mark})")
"""


@pytest.mark.parametrize("unsafe", [pytest.param(False, marks=caged), True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_and_killed(unsafe, number, open_folder):
    if unsafe and number == signal.SIGKILL:
        pytest.skip("nothing sees to that without a sandbox")
    mark = f"62.{os.getpid()}"
    mounts = Path("/proc/mounts").read_text()
    environment = os.environ | {"TMPDIR": str(open_folder)}
    code = CHILD.format(unsafe=unsafe, mark=mark)
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL) as child:
        assert within_a_minute(lambda: len(left(f"sleep\0{mark}")) == 2)
        child.send_signal(number)
    assert within_a_minute(lambda: not left(mark))
    assert list(open_folder.iterdir()) == []
    assert Path("/proc/mounts").read_text() == mounts


def test_no_descriptor_and_no_temporary_folder_is_left():
    before = len(list(Path("/proc/self/fd").iterdir()))
    for sandbox in [Sandbox(limits=SMALL, unsafe_exec=True), *([] if REASON else [Sandbox(limits=SMALL)])]:
        for command in ("echo x > f", "yes"):
            sandbox.run(command)
        with pytest.raises(InputError, match="cannot be unpacked"):
            sandbox.run("true", b"no tar")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# What it refuses


def test_without_bubblewrap(monkeypatch, open_folder):
    monkeypatch.setenv("PATH", str(open_folder))
    with pytest.raises(DependencyError, match="apt install bubblewrap") as caught:
        Sandbox().check()
    assert "\n" not in str(caught.value)
    for first, line in (("#!/bin/sh", "No permissions to"), ("#!/no/shell", "cannot start .*No such file")):
        (open_folder / "bwrap").write_text(
            f"{first}\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
        )
        (open_folder / "bwrap").chmod(0o755)
        with pytest.raises(DependencyError, match=f"{line}.*unsafe_exec"):
            Sandbox().check()
    assert Sandbox(unsafe_exec=True).run("echo unsafe; echo x > f").stdout == b"unsafe\n"


def test_unsafe_is_limited_only_by_resources(snapshot):
    sandbox = Sandbox(limits=SMALL, unsafe_exec=True)
    effects = sandbox.run("cat link; rm link; echo x > ~/y; exit 4", snapshot)
    assert (effects.ending, effects.status, effects.stdout) == ("exit", 4, b"one\ntwo\n")
    assert {"work/run.sh", "home/user/y"} <= entries(effects.tree).keys()
    assert "work/link" not in entries(effects.tree)
    assert sandbox.run("truncate -s 10G f").ending == "disk"
    assert Sandbox(limits=Limits(seconds=0.2), unsafe_exec=True).run(f"sleep {MARK}").ending == "timeout"
    assert sandbox.run(f"sleep {MARK} & true").ending == "exit"
    assert within_a_minute(lambda: not left())


def test_configuration_errors():
    for workdir in ("work", "/", "/usr/x", "/tmp", "/work/", "/a/../b", "/proc/x", "", "/home/user", "/a\0", "/lib64"):
        with pytest.raises(ConfigError, match="absolute path"):
            Sandbox(workdir=workdir)
    assert [Sandbox(workdir=one).workdir for one in ("/tmp/x", "/home/user/x", "/library")]
    for name in SMALL.__slots__:
        with pytest.raises(ConfigError, match="above 0"):
            Limits(**{name: 0})


def test_packing(tmp_path):
    """What a folder holds, listed by hand; devices and sockets are left out, limits are kept."""
    (tmp_path / "large").write_bytes(bytes(1000))
    (tmp_path / "a").mkdir()
    (tmp_path / "a/absolute").symlink_to("/etc")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        tree = load(tmp_path, "/x/y")
    zeros = "541b3e9daa09b20bf85fa273e5cbd3e80185aa4ec298e765db87742b70138a53"
    assert {path: entry for path, entry in entries(tree).items() if "/y/" in path} == {
        "x/y/a": Entry(tarfile.DIRTYPE, 0o755, ""),
        "x/y/a/absolute": Entry(tarfile.SYMTYPE, 0o777, "/etc"),
        "x/y/large": Entry(tarfile.REGTYPE, 0o644, zeros),
    }
    assert pack({"/x": str(tmp_path)}, files=3, size=10**6) is None
    with pytest.raises(InputError, match="or 100 bytes"):
        load_snapshot(tmp_path, "/x", files=9, size=100)
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "absent")
