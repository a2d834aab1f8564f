"""Whether there is a sandbox on this machine, and the mark of tests that need one."""

from __future__ import annotations

import pytest

from pivotrl.errors import DependencyError
from pivotrl.sandbox import Sandbox


def _reason():
    try:
        Sandbox().check()
    except DependencyError as error:
        return str(error)
    return ""


REASON = _reason()
caged = pytest.mark.skipif(bool(REASON), reason=REASON)
