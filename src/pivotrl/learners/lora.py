"""LoRA by peft (Hu et al. 2021, arXiv 2106.09685): trains small matrices beside all linear layers but the output head.

They are put into the loaded model itself, so that sampler, learner and shared trunks run it as they do any other; the
reference is the same model with the adapter off. They are float32, also beside bfloat16 weights. There is no dropout:
with it, learner and sampler would be two policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pivotrl.errors import DependencyError, InputError
from pivotrl.learners import LoraSettings
from pivotrl.models import ADAPTER_CONFIG, ADAPTER_FILE, LoadedModel, save_model, save_tokenizer
from pivotrl.policies.torch import TorchPolicy
from pivotrl.storage import write_json
from pivotrl.types import Sampled, SamplingParams, State, TrainingExample


class Adapter:
    """A new adapter in a loaded model, which it freezes; at first it changes nothing (B is zero)."""

    def __init__(self, loaded: LoadedModel, settings: LoraSettings, *, base: str, seed: int) -> None:
        """`base` is the model as the user named it. Raises DependencyError without peft."""
        try:
            import peft
        except ImportError:
            raise DependencyError("lora: peft is not installed; pip install 'pivotrl[peft]'") from None
        self._peft, self.loaded, self.settings, self._base = peft, loaded, settings, base
        config = peft.LoraConfig(
            r=settings.rank, lora_alpha=settings.alpha, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self._wrapped: Any = peft.get_peft_model(loaded.model, config)

    def weights(self) -> list[Tensor]:
        """What is trained."""
        return [one for one in self.loaded.model.parameters() if one.requires_grad]

    def reference(self) -> BasePolicy:
        """The model before any training, in the same memory."""
        return BasePolicy(self.loaded, self._wrapped)

    def save(self, directory: Path, *, whole: bool) -> None:
        """Write the adapter, or with `whole` what `settings.save` says. Raises OSError or SafetensorError."""
        if whole and self.settings.save == "merged":
            save_model(self.loaded, directory, self._merged())
            return
        directory.mkdir(parents=True, exist_ok=True)
        weights = self._peft.get_peft_model_state_dict(self._wrapped, save_embedding_layers=False)
        save_file(
            {name: one.contiguous() for name, one in weights.items()},
            directory / ADAPTER_FILE,
            metadata={"format": "pt"},
        )
        facts = self._wrapped.peft_config["default"].to_dict()
        facts |= {"base_model_name_or_path": self._base, "inference_mode": True}
        named = {name: sorted(one) if isinstance(one, set) else one for name, one in sorted(facts.items())}
        write_json(directory / ADAPTER_CONFIG, named)  # peft writes sets in an order that changes from run to run
        save_tokenizer(self.loaded.chat, directory)

    def load(self, directory: Path) -> None:
        """Take over the weights that `save` wrote. Raises InputError, OSError or SafetensorError."""
        weights = load_file(directory / ADAPTER_FILE)
        mine = self._peft.get_peft_model_state_dict(self._wrapped, save_embedding_layers=False)
        if {name: one.shape for name, one in mine.items()} != {name: one.shape for name, one in weights.items()}:
            raise InputError(f"{directory}: an adapter of another rank, or for another model")
        self._peft.set_peft_model_state_dict(self._wrapped, weights)

    def _merged(self) -> dict[str, Tensor]:
        """The model's weights with the adapter added, by the names that they have without it; the rest is shared."""
        layers = {name: layer for name, layer in self.loaded.model.named_modules() if hasattr(layer, "base_layer")}
        merged: dict[str, Tensor] = {}
        for name, value in self.loaded.model.state_dict().items():
            if ".lora_" in name:
                continue
            owner, _, rest = name.partition(".base_layer.")
            if owner in layers and rest == "weight":
                value = (value.float() + layers[owner].get_delta_weight("default").detach()).to(value.dtype)
            merged[name.replace(".base_layer.", ".")] = value
        return merged


class BasePolicy(TorchPolicy):
    """A model as it is without its adapter."""

    def __init__(self, loaded: LoadedModel, wrapped: Any) -> None:
        super().__init__(loaded)
        self._wrapped = wrapped

    def sample(
        self, states: Sequence[State], *, n: int, params: SamplingParams, seed: int, first: int = 0
    ) -> list[Sampled]:
        with self._wrapped.disable_adapter():
            return super().sample(states, n=n, params=params, seed=seed, first=first)

    def logprobs(self, examples: Sequence[TrainingExample]) -> list[tuple[float, ...]]:
        with self._wrapped.disable_adapter():
            return super().logprobs(examples)
