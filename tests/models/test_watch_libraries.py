"""Watching other libraries, and computing in them: real classes of timm and diffusers, random weights."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from models.computed import assert_same
from models.plain import assert_weights, textbook
from regard import masks
from regard.errors import NothingSeenError
from regard.models import use, watch


def seen(model, *inputs, **options):
    """What a watch records, and that the output is bit for bit that without it."""
    plain = model(*inputs, **options)
    with watch(model) as recording:
        watched = model(*inputs, **options)
    plain, watched = (out if isinstance(out, torch.Tensor) else out[0] for out in (plain, watched))
    assert torch.equal(plain, watched)
    return recording


def assert_knocked_out(model, *inputs, **options):
    """Masks reach every call: the first key gets no weight any more."""
    with use(model, mask={"*": ~masks.sinks(1)}), watch(model) as recording:
        model(*inputs, **options)
    for call in recording:
        weights = call.weights.to_dense()
        assert not weights[..., 0].any()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.fixture
def timm_attention(monkeypatch):
    """timm's `Attention` from its own file: `import timm` needs torchvision, which not every torch has."""
    spec = find_spec("timm")
    if spec is None:
        pytest.skip("timm is not installed")
    root = Path(spec.origin).parent
    for name, folder in (("timm", root), ("timm.layers", root / "layers")):
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        monkeypatch.setitem(sys.modules, name, package)
    yield import_module("timm.layers.attention")
    for name in [name for name in sys.modules if name.startswith("timm")]:
        del sys.modules[name]


def test_timm_is_seen_where_it_is_fused(timm_attention):
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm
    module = timm_attention.Attention(32, num_heads=4, qkv_bias=True, qk_norm=True, norm_layer=norm).eval()
    x = torch.randn(2, 9, 32)
    assert module.fused_attn
    recording = seen(module, x)
    query, key, _ = module.qkv(x).reshape(2, 9, 3, 4, 8).permute(2, 0, 3, 1, 4)
    assert_weights(recording[0], textbook(module.q_norm(query), module.k_norm(key)))
    assert_same(module, x)
    assert_knocked_out(module, x)


def test_timm_without_its_fused_attention_says_what_to_do(timm_attention):
    module = timm_attention.Attention(32, num_heads=4).eval()
    module.fused_attn = False
    wanted = r"`Attention` computes a softmax by itself.*set its `fused_attn` to True"
    with pytest.raises(NothingSeenError, match=wanted), watch(module):
        module(torch.randn(2, 9, 32))


@pytest.fixture
def diffusers():
    pytest.importorskip("diffusers")
    return import_module("diffusers.models")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("cross", [False, True])
def test_diffusers_attention_processors_are_seen(diffusers, cross):
    processor = import_module("diffusers.models.attention_processor")
    torch.manual_seed(0)
    module = processor.Attention(
        32,
        cross_attention_dim=24 if cross else None,
        heads=4,
        dim_head=8,
        processor=processor.AttnProcessor2_0(),
    ).eval()
    x, context = torch.randn(2, 9, 32), torch.randn(2, 5, 24)
    options = {"encoder_hidden_states": context} if cross else {}
    kept = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    if cross:
        options["attention_mask"] = module.prepare_attention_mask((1 - kept)[:, None] * -10000.0, 5, 2)
    recording = seen(module, x, **options)
    query, key = (
        projection(y).unflatten(-1, (4, 8)).transpose(1, 2)
        for projection, y in ((module.to_q, x), (module.to_k, context if cross else x))
    )
    allowed = kept[:, None, None].bool().expand(2, 4, 9, 5) if cross else None
    assert_weights(recording[0], textbook(query, key, allowed))
    assert_same(module, x, **options)
    assert_knocked_out(module, x, **options)
    module.set_processor(processor.AttnProcessor())
    with pytest.raises(NothingSeenError, match="`Attention` computes a softmax by itself"), watch(module):
        module(x, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_diffusers_model_that_dispatches_its_attention_is_seen(diffusers):
    flux = import_module("diffusers.models.transformers.transformer_flux")
    torch.manual_seed(0)
    model = flux.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    ).eval()  # fmt: skip
    text, image = torch.zeros(3, 3), torch.zeros(8, 3)
    x = torch.randn(1, 8, 4)
    options = {
        "encoder_hidden_states": torch.randn(1, 3, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([1.0]),
        "img_ids": image,
        "txt_ids": text,
        "return_dict": False,
    }
    recording = seen(model, x, **options)
    assert [call.module for call in recording] == [
        "transformer_blocks.0.attn",
        "single_transformer_blocks.0.attn",
    ]
    assert [tuple(call.weights.shape) for call in recording] == [(1, 2, 11, 11)] * 2
    assert_same(model, x, dtypes=[torch.float32], **options)
    assert_knocked_out(model, x, **options)
