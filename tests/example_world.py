"""What the examples in docstrings find at hand: the names that a reader of the page before would have."""

from __future__ import annotations

import doctest
import importlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import regard

LOOKING_INTO_MODELS = ("regard.models", "regard.recording", "regard.answers", "regard.viewer", "regard.cli")


def names_for(module: str, folder: Path) -> dict[str, Any]:
    """The names that a module's examples may use besides its own; `folder` is where they run."""
    q, k, v = (torch.randn(1, 8, 4096, 64) for _ in range(3))
    names = {"torch": torch, "regard": regard, "masks": regard.masks, "biases": regard.biases}
    names |= {"q": q, "k": k, "v": v}
    if module == "regard.weights":
        _, names["w"] = regard.attention(q, k, v, regard.masks.causal(), return_weights=True)
    if module.startswith(LOOKING_INTO_MODELS):
        model_folder, looked = seen_model()
        (folder / "models").mkdir()
        (folder / "models" / "SmolLM2-135M").symlink_to(model_folder)
        names |= looked
    return names


@cache
def seen_model() -> tuple[Path, dict[str, Any]]:
    """A real model that has been watched over three tokens, and the folder it lies in."""
    from regard import viewer
    from regard.models import demo, watch

    try:
        loaded = demo.load("smollm2")
    except regard.errors.MissingExtraError as error:
        pytest.skip(str(error))
    encoded = loaded.encode("the cat sat")
    with watch(loaded.model) as recording:
        loaded.run(encoded)
    names = {"loaded": loaded, "model": loaded.model, "tokenizer": loaded.tokenizer, "recording": recording}
    names |= {"inputs": {"input_ids": encoded.input_ids}, "tokens": encoded.tokens}
    names |= {"build_view": viewer.build_view, "write_page": viewer.write_page}
    return Path(loaded.model.config.name_or_path), names


class ShownOutput(doctest.OutputChecker):
    """Compares the output that an example shows; an example that shows none must only run."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Whether what was printed is what is shown."""
        return not want or super().check_output(want, got, optionflags)


def example_complaints(module: str, folder: Path, flags: int) -> str:
    """Run the examples in a module's docstrings; what doctest has to say about those that are not true."""
    complaints: list[str] = []
    tests = doctest.DocTestFinder().find(importlib.import_module(module), module)
    found = [test for test in tests if test.examples]
    names = names_for(module, folder) if found else {}
    for test in found:
        # The module's own names win.
        test.globs = {**names, **test.globs}
        runner = doctest.DocTestRunner(ShownOutput(), verbose=False, optionflags=flags)
        runner.run(test, out=complaints.append)
    return "".join(complaints)
