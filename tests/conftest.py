"""What holds for every test: no network, and no deadline that a busy machine would miss; and a run of the toy desk."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported

settings.register_profile("pivotrl", deadline=None, derandomize=True)
settings.load_profile("pivotrl")


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
