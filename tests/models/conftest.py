"""The real models that the tests look into, loaded once, without a network."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"

import regard
from regard.models import computing, demo


@pytest.fixture(scope="session")
def minilm():
    """A sentence encoder: BERT, 6 layers of 12 heads."""
    return demo.load("minilm")


@pytest.fixture(scope="session")
def smollm2():
    """A decoder: Llama, 30 layers of 9 heads over 3 key heads."""
    return demo.load("smollm2")


@pytest.fixture(scope="session")
def albert():
    """An encoder of chemical reactions whose 12 layers are one shared module, called 12 times."""
    import transformers

    folder = Path(find_spec("rxnmapper").origin).parent / "models/transformers/albert_heads_8_uspto_all_1310k"
    return transformers.AlbertModel.from_pretrained(folder, local_files_only=True).eval()


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def computed(monkeypatch):
    """The engines that compute models' calls with regard, call by call."""
    engines = []

    def counting(*args, **kwargs):
        engines.append(kwargs["engine"])
        return regard.attention(*args, **kwargs)

    monkeypatch.setattr(computing, "attention", counting)
    return engines


@pytest.fixture
def torch_left_as_it_was():
    """What is changed in torch for a while is changed back."""

    def state():
        return (
            nn.Module.__call__,
            nn.MultiheadAttention.forward,
            nn.TransformerEncoder.forward,
            nn.TransformerEncoderLayer.forward,
            torch._dynamo.eval_frame._stance.stance,
            torch._C._len_torch_function_stack(),
        )

    before = state()
    yield
    assert state() == before
