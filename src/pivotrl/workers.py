"""Calls a function in several processes at once, each with a config of its own, and stops them all when this one ends.

A worker gets its config, and sends back what the function returned or raised, as a pickle through a pipe. When the pipe
to it closes, because its parent was interrupted or killed, it ends at once. The first one alone writes to the terminal.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from subprocess import PIPE, Popen
from typing import IO, Any

from pivotrl.errors import PivotRLError, disk_error
from pivotrl.logs import say


def call_all(function: str, configs: Sequence[object]) -> list[Any]:
    """What `module:function` returns for each config. Raises what the first that failed raised, a PivotRLError."""
    with calling(function, configs) as answers:
        return list(answers)


@contextmanager
def calling(function: str, configs: Sequence[object], start: int = 1) -> Iterator[Iterator[Any]]:
    """The answers of `call_all` as they are asked for; with `start` 2 this process is the first worker meanwhile.

    The processor's cores are divided among the workers unless OMP_NUM_THREADS says otherwise.
    """
    module, _, name = function.partition(":")
    code = f"from pivotrl.workers import serve; from {module} import {name}; serve({name})"
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // max(1, len(configs))))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": threads}
    with ExitStack() as stack:
        workers = []
        for number, config in enumerate(configs, start=start):
            log = None if number == 1 else stack.enter_context(tempfile.TemporaryFile())
            process = Popen(
                [sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, stderr=log, env=env, start_new_session=True
            )
            stack.callback(_stop, process)
            workers.append((process, log))
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended; `_answer` says how
                process.stdin.write(pickle.dumps(config))
                process.stdin.flush()
        yield (_answer(f"worker {number}", *one) for number, one in enumerate(workers, start=start))


def _answer(name: str, process: Popen[bytes], log: IO[bytes] | None) -> Any:
    assert process.stdout is not None
    sent = process.stdout.read()
    code = process.wait()
    if sent:
        answer = pickle.loads(sent)
        if isinstance(answer, PivotRLError):
            raise answer
        return answer
    if log is not None:
        log.seek(0)
        say(log.read().decode(errors="replace").rstrip())
    raise PivotRLError(f"{name} ended with status {code}; run the same command again")


def _stop(process: Popen[bytes]) -> None:
    with suppress(BrokenPipeError), process:  # closes its pipes and waits
        process.kill()


def serve(function: Callable[[Any], object]) -> None:
    """Be a worker."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    config = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer: object = function(config)
    except (PivotRLError, OSError) as error:
        answer = error if isinstance(error, PivotRLError) else disk_error(error.filename or "worker", error)
    answers.write(pickle.dumps(answer))
    answers.close()


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)
