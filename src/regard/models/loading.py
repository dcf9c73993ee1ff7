"""Loading a model from a folder, offline: ready to be watched over a text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, MissingExtraError, ModelError
from regard.models.display import display_tokens

_WEIGHTS = ("*.safetensors", "*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "*.gguf")


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text as a model takes it: `input_ids`, int64 `[1, N]`, and for each of them a string to show."""

    input_ids: Tensor
    tokens: list[str]


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in float32 that is ready to run, with its tokenizer.

    `max_tokens` is the longest text it takes, in tokens; None if its configuration sets no limit.
    """

    model: nn.Module
    tokenizer: Any
    name: str
    max_tokens: int | None

    def encode(self, text: str) -> Encoded:
        """Tokenize a text, with the special tokens the model expects.

        Raises `ArgumentError` for a text without a token, or with more than the model takes.
        """
        ids = self.tokenizer(text, truncation=False, verbose=False)["input_ids"] if text.strip() else []
        if not ids:
            raise ArgumentError("`text` must hold something to read, got an empty text")
        if self.max_tokens is not None and len(ids) > self.max_tokens:
            raise ArgumentError(
                f"`text` must fit the context of {self.name}, {self.max_tokens:,} tokens, got {len(ids):,}"
            )
        return Encoded(torch.tensor([ids]), display_tokens(self.tokenizer, ids))

    @torch.no_grad()
    def run(self, encoded: Encoded) -> None:
        """Run the model over a text, for those who watch: all layers, and no prediction of the next token."""
        getattr(self.model, "base_model", self.model)(input_ids=encoded.input_ids)


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """Load the decoder or encoder that a folder holds, as transformers saves it.

    Nothing is fetched and no code from the folder is run. Weights are converted to float32. Raises
    `ModelError`, which names what is missing or wrong, and `MissingExtraError` without transformers.

    >>> loaded = load("models/SmolLM2-135M")
    >>> with regard.watch(loaded.model) as recording:
    ...     loaded.run(loaded.encode("the cat sat"))
    """
    folder = Path(path)
    config = _read_config(folder)
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{folder} must hold a decoder or an encoder, got an encoder-decoder model")
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ModelError(f"{folder} holds no weights: a model folder has a .safetensors or .bin file")
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        raise ModelError(
            f"{folder} holds no tokenizer: a model folder has a tokenizer.json or vocabulary file"
        )
    transformers = import_transformers()
    architectures = config.get("architectures") or [""]
    decoder = str(architectures[0]).endswith(("ForCausalLM", "LMHeadModel"))
    kind = transformers.AutoModelForCausalLM if decoder else transformers.AutoModel
    try:
        with quiet(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model, info = kind.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
    except Exception as error:  # transformers raises whatever its parsers meet: any of it means a bad folder
        raise ModelError(f"{folder} cannot be loaded as a model: {_first_line(error)}") from error
    # What pools an encoder's output was often not trained, and no attention depends on it.
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)
    if missing:
        raise ModelError(
            f"{folder} holds weights that lack {len(missing)} of the model's, such as {missing[0]}"
        )
    return LoadedModel(model.eval(), tokenizer, folder.resolve().name, _max_tokens(model.config, tokenizer))


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ModelError(f"a model must be a folder that holds config.json and weights, but {folder} {what}")
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} is not a model: it holds no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {_first_line(error)}") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelError(f"{path} is not the configuration of a transformers model: it names no model_type")
    return config


def _max_tokens(config: Any, tokenizer: Any) -> int | None:
    """The smallest limit that is one: tokenizers without a limit state a number beyond any text."""
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    limits = [
        getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len")
    ]
    limits.append(tokenizer.model_max_length)
    return min((limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**9), default=None)


def import_transformers() -> Any:
    """The transformers library, with a sentence that says how to get it if it is not there."""
    try:
        import transformers
    except ImportError:
        raise MissingExtraError(
            "loading a model needs Hugging Face transformers: `pip install regard[hf]`"
        ) from None
    return transformers


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """While it lasts, transformers prints no progress bars and no reports of unused weights."""
    logging = transformers.utils.logging
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
