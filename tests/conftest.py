"""What holds for every test: no network, and no deadline that a busy machine would miss."""

import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported

settings.register_profile("pivotrl", deadline=None, derandomize=True)
settings.load_profile("pivotrl")
