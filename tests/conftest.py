"""What holds for every test: no network, and no deadline that a busy machine would miss; and a run of the toy desk.

Where torch is not installed, what needs it is skipped and says so; all else runs (CONTRIBUTING.md).
"""

import importlib.util
import ipaddress
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported

settings.register_profile("pivotrl", deadline=None, derandomize=True)
settings.load_profile("pivotrl")

WITHOUT_TORCH = importlib.util.find_spec("torch") is None
NO_TORCH = "torch is not installed"
_reached: list[str] = []


def _stays_here(host: object) -> bool:
    """Whether an address, or a name to be looked up, is of this machine."""
    if host in (None, "", b"", "localhost", b"localhost"):
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host)).is_loopback
    except ValueError:
        return False


def _guard(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook, so that no import and no thread gets around it. It ends the test, whoever catches what."""
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):  # a str is a Unix socket
        host = arguments[1][0]
    else:
        return
    if not _stays_here(host):
        _reached.append(f"{event} {host!r}")
        pytest.fail(f"a test reached for the network: {_reached[-1]}")


sys.addaudithook(_guard)


@pytest.fixture(autouse=True)
def _offline() -> Iterator[None]:
    """Also what was caught, or happened in a thread, fails the test that it happened in."""
    _reached.clear()
    yield
    assert not _reached, f"a test reached for the network: {_reached}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Without torch: what failed for want of it, here or in a process that it started, was skipped."""
    report = yield
    if WITHOUT_TORCH and report.failed and (_wants_torch(call) or NO_TORCH in f"{report.longrepr}{report.capstderr}"):
        report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1], NO_TORCH)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    if WITHOUT_TORCH and report.failed and "No module named 'torch'" in str(report.longrepr):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, NO_TORCH)
    return report


def _wants_torch(call: pytest.CallInfo[None]) -> bool:
    error: BaseException | None = call.excinfo.value if call.excinfo else None
    while error is not None:
        if isinstance(error, ImportError) and (error.name == "torch" or "torch" in str(error).lower()):
            return True
        error = error.__cause__ or error.__context__
    return False


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is ingested only; not to be written to."""
    from kill_harness import RUN, make_desk

    return make_desk(tmp_path_factory.mktemp("desk")) / RUN


@pytest.fixture
def run(desk: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    from kill_harness import copy

    return copy(desk, tmp_path / "run")
