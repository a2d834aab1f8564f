"""Loads weights and tokenizers (Hugging Face directories or ids) and names them by fingerprints."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import JsonValue

from pivotrl.chat import ChatFormat, Thinking, read_template
from pivotrl.errors import ConfigError, DependencyError, InputError, MissingError, PivotRLError, brief
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import check_sums, content_hash, file_hash, read_json
from pivotrl.types import ModelShape, PolicyFingerprint

if TYPE_CHECKING:
    import torch

Dtype = Literal["float32", "bfloat16", "float16"]
TOKENIZER_FILES: Final = ["*.json", "*.jinja", "*.txt", "*.model"]
HUB_FILES: Final = ["*.safetensors", *TOKENIZER_FILES]
ADAPTER_CONFIG: Final = "adapter_config.json"
"""Stands for config.json where a directory holds an adapter alone (peft's format)."""
ADAPTER_FILE: Final = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a model is loaded and talked to; shared by every stage that samples or trains."""

    chat_template: str | None = None
    """Jinja file, or the name of a shipped template (`chatml-tools`), to use instead of the tokenizer's own."""
    tool_parser: str | None = None
    """How calls are read from text: auto (the default), tokenizer, hermes, xml, llama_json or mistral."""
    thinking: Thinking | None = None
    """`enable_thinking` of the chat template: on, off, or default (as the template has it)."""
    dtype: Dtype | None = None
    """Number format of the weights; float32 where nothing is said. Others can be trained beside (--lora.rank)."""
    device: str | None = None
    """torch device; auto (the default) takes cuda, then mps, then cpu."""
    trust_remote_code: bool = False
    """Run model code that comes with the weights. Only for sources that you trust; never taken over from a profile."""

    def inherit(self, before: ModelSettings) -> ModelSettings:
        """These settings, and `before` where they say nothing."""
        names = [name for name in self.__slots__ if getattr(self, name) is None]
        return replace(self, **{name: getattr(before, name) for name in names})


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model with its chat format."""

    path: Path
    model: Any
    chat: ChatFormat
    weights: str
    """Names the weights that were loaded."""

    @property
    def context_length(self) -> int | None:
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def shape(self) -> ModelShape:
        """Parameter count for FLOPs: everything but the input embedding, the output head always counted once.

        Without attention (recurrent layers) its width is 0.
        """
        config, model = self.model.config.get_text_config(), self.model
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        tied = head is None or head.weight is embedding.weight
        heads = getattr(config, "num_attention_heads", 0)
        width = getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1)
        return ModelShape(
            parameters=parameters if tied else parameters - embedding.weight.numel(),
            layers=config.num_hidden_layers,
            attention_width=heads * width,
        )

    @property
    def fingerprint(self) -> PolicyFingerprint:
        """Of the weights on disk, as they were loaded."""
        import torch
        import transformers

        return PolicyFingerprint(
            weights=self.weights,
            tokenizer=tokenizer_hash(self.path),
            chat_template=self.chat.template_hash,
            tool_parser=self.chat.parser,
            thinking=self.chat.thinking,
            numerics=f"{self.model.dtype}, torch {torch.__version__}, transformers {transformers.__version__}",
        )


def load_model(spec: str, settings: ModelSettings) -> LoadedModel:
    """Load a directory or a hub id. Raises MissingError, InputError or ConfigError in one line."""
    import transformers

    path = resolve(spec)
    trust = settings.trust_remote_code
    quieten()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=trust)
        model = _weights_at(path, settings)
    except PivotRLError:
        raise
    except ImportError as error:
        raise DependencyError(f"model {spec!r}: {brief(error)}") from None
    except Exception as error:  # files of anybody's, and tokenizers raises a bare Exception
        raise InputError(f"model {spec!r}: cannot be loaded as a causal language model: {brief(error)}") from None
    chat = _chat_format(tokenizer, settings, model.generation_config)
    model.to(pick_device(settings.device or "auto")).eval()
    return LoadedModel(path=path, model=model, chat=chat, weights=weights_hash(path))


def _weights_at(path: Path, settings: ModelSettings) -> Any:
    """The model of a directory; an adapter is merged into its base."""
    import torch
    import transformers

    base = _base_of(path)
    if base is not None:
        import peft

        if not (path / ADAPTER_FILE).is_file():
            raise InputError(f"{path}: an adapter without {ADAPTER_FILE}; pickled weights are not loaded")
        return peft.PeftModel.from_pretrained(_weights_at(base, settings), path).merge_and_unload()
    return transformers.AutoModelForCausalLM.from_pretrained(
        path,
        dtype=getattr(torch, settings.dtype or "float32"),
        trust_remote_code=settings.trust_remote_code,
        attn_implementation="sdpa",
        use_safetensors=True,  # never a pickle
    )


def _base_of(path: Path) -> Path | None:
    """The base of an adapter; None for a model. Raises MissingError or InputError."""
    if (path / "config.json").is_file() or not (path / ADAPTER_CONFIG).is_file():
        return None
    facts = read_json(path / ADAPTER_CONFIG, dict[str, JsonValue])
    try:
        return resolve(str(facts.get("base_model_name_or_path")))
    except MissingError as error:
        raise MissingError(f"{path}: an adapter, and its base is gone: {error}") from None


def load_chat(spec: str, settings: ModelSettings) -> tuple[ChatFormat, str]:
    """The chat format of a model without its weights, and its tokenizer's hash. Raises MissingError or InputError."""
    import transformers

    path, trust = resolve(spec, TOKENIZER_FILES), settings.trust_remote_code
    quieten()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=trust)
        named = (path / "generation_config.json").is_file()
        generation = transformers.GenerationConfig.from_pretrained(path) if named else None
    except Exception as error:  # tokenizers raises a bare Exception for a file that it cannot read
        raise InputError(f"tokenizer {spec!r}: cannot be loaded: {brief(error)}") from None
    return _chat_format(tokenizer, settings, generation), tokenizer_hash(path)


def _chat_format(tokenizer: Any, settings: ModelSettings, generation: Any) -> ChatFormat:
    """With the end-of-sequence ids that the model's generation settings name among its stop tokens."""
    ids = getattr(generation, "eos_token_id", None)
    return ChatFormat(
        tokenizer,
        template=read_template(settings.chat_template) if settings.chat_template else None,
        parser=settings.tool_parser or "auto",
        thinking=settings.thinking or "default",
        stop_ids=() if ids is None else (ids,) if isinstance(ids, int) else ids,
    )


def quieten() -> None:
    """Keep transformers' warnings and progress bars out of our output."""
    import transformers

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # about what peft asks it
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def resolve(spec: str, files: list[str] = HUB_FILES) -> Path:
    """The local directory of a model. Raises MissingError when there is none and the hub does not give it."""
    path = Path(spec).expanduser()
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", ADAPTER_CONFIG)):
            raise MissingError(f"model {spec!r}: no config.json there; give a Hugging Face model directory or id")
        return path
    if path.exists() or spec.startswith((".", "/", "~")) or spec.count("/") != 1:
        raise MissingError(f"model {spec!r}: no such directory; give a Hugging Face model directory or id (owner/name)")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(spec, allow_patterns=files))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise MissingError(
            f"model {spec!r}: no such directory, and the hub does not give it ({brief(error)})"
        ) from None


def trained_model(run: RunDirectory, spec: str) -> str:
    """The directory of `train/NAME`, a model of this run; any other spec as it is. Raises MissingError."""
    prefix, _, name = spec.partition("/")
    if prefix != "train" or Path(spec).is_dir():
        if "/" not in spec and not Path(spec).is_dir() and (run.path / "train" / spec / "model").is_dir():
            raise MissingError(f"policy {spec!r}: no such directory; for the training of this run write train/{spec}")
        return spec
    model = run.train(name) / "model"
    if not model.is_dir():
        raise MissingError(f"{model} is not there; finish `pivotrl train --run {run.path} --name {name}` first")
    check_sums(model)
    return str(model)


def pick_device(device: str) -> torch.device:
    """The torch device of a name. Raises ConfigError when it is not there."""
    import torch

    if device == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(name)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} is not available: {str(error).splitlines()[0]}") from None
    return torch.device(device)


def weights_hash(path: Path) -> str:
    """Names the bytes of the weight files and the configuration of a model directory."""
    files = sorted(file for file in path.iterdir() if file.suffix in (".safetensors", ".bin", ".gguf"))
    base = _base_of(path)
    if base is not None:
        return content_hash([weights_hash(base), *map(_hash_of, (path / ADAPTER_CONFIG, *files))])
    return content_hash([_hash_of(file) for file in (path / "config.json", *files)])


def tokenizer_hash(path: Path) -> str:
    """Names what turns text into ids; the chat template is named apart."""
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")
    return content_hash([(name, _hash_of(path / name)) for name in names if (path / name).is_file()])


def _hash_of(path: Path) -> str:
    """A file's hash, computed again when the file has changed since."""
    return _remembered_hash(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _remembered_hash(path: Path, changed_ns: int) -> str:
    return file_hash(path)


def save_model(loaded: LoadedModel, directory: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Write a Hugging Face directory: safetensors (the model's, or these), configuration, tokenizer."""
    loaded.model.save_pretrained(directory, state_dict=weights, safe_serialization=True)
    save_tokenizer(loaded.chat, directory)


def save_tokenizer(chat: ChatFormat, directory: Path) -> None:
    """Write the tokenizer with the chat template in use."""
    tokenizer = chat.tokenizer
    previous, tokenizer.chat_template = tokenizer.chat_template, chat.template
    tokenizer.init_kwargs.pop("local_files_only", None)  # how it was loaded (HF_HUB_OFFLINE), not what it is
    try:
        tokenizer.save_pretrained(directory)
    finally:
        tokenizer.chat_template = previous
