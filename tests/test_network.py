"""The guard of conftest.py: a test that reaches for another machine fails, whoever catches what; loopback is free."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import contextlib, socket, threading

def swallowed():
    with contextlib.suppress(Exception), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("192.0.2.1", 9))

def test_connect_fails(): socket.create_connection(("192.0.2.1", 9), timeout=1)
def test_lookup_fails(): socket.getaddrinfo("pivotrl.invalid", 80)
def test_caught_fails(): swallowed()
def test_six_fails(): socket.socket(socket.AF_INET6).connect(("2001:db8::1", 9))

def test_thread_fails():
    one = threading.Thread(target=swallowed)
    one.start()
    one.join()

def test_loopback_passes():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
        socket.create_connection(("localhost", server.getsockname()[1])).close()
"""


def test_the_guard(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    endings = [line.split()[:2] for line in said.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR"))]
    outcome = {name.rpartition("::")[2]: [] for _, name in endings}
    for word, name in endings:
        outcome[name.rpartition("::")[2]].append(word)
    assert outcome.pop("test_loopback_passes") == ["PASSED"]
    assert len(outcome) == 5
    assert all(words != ["PASSED"] for words in outcome.values()), said
    assert "reached for the network" in said
