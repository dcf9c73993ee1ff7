"""Watching torch's own attention modules: on their fast paths and off them, whatever they are asked for."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from models.plain import MODULE_OPTIONS, Block, assert_weights, attention, encoder
from regard.errors import ModelError
from regard.models import watch

X = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))
Y = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(2))
PADDED = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]], dtype=torch.bool)
LATER = torch.ones(6, 6).triu(1).bool()
ADDED = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
PER_HEAD = torch.randn(8, 6, 6, generator=torch.Generator().manual_seed(4))


def seen(model, *inputs, **options):
    """What a watch records, and that the output is bit for bit that without it."""
    plain = model(*inputs, **options)
    with watch(model) as recording:
        watched = model(*inputs, **options)
    for one, other in zip(
        *([x] if isinstance(x, torch.Tensor) else x for x in (plain, watched)), strict=True
    ):
        assert one is other is None or torch.equal(one, other)
    return recording


def own_weights(module, query, key, **options):
    """What torch's module itself gives as its weights, head by head."""
    options |= {"need_weights": True, "average_attn_weights": False}
    return module(query, key, key, **options)[1].nan_to_num(0.0).double()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"attn_mask": LATER},
        {"attn_mask": ADDED},
        {"attn_mask": PER_HEAD},
        {"attn_mask": PER_HEAD > 0.5},
        {"key_padding_mask": PADDED},
        {"key_padding_mask": PADDED * -1e9},
        {"attn_mask": LATER, "key_padding_mask": PADDED},
        {"attn_mask": ADDED, "key_padding_mask": PADDED * -3.0},
        {"attn_mask": LATER, "is_causal": True},
    ],
)
def test_self_attention_gives_the_weights_that_torch_gives(need_weights, masks):
    module = attention()
    recording = seen(module, X, X, X, need_weights=need_weights, **masks)
    assert [(call.module, call.ordinal) for call in recording] == [("", 0)]
    assert_weights(recording[0], own_weights(module, X, X, **masks))


@pytest.mark.parametrize("options", MODULE_OPTIONS)
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention_with_every_option_of_the_module(options, masked):
    module = attention(**options)
    value = torch.randn(2, 9, module.vdim)
    inputs = X, Y, value
    if not module.batch_first:
        inputs = tuple(tensor.transpose(0, 1) for tensor in inputs)
    masks = {"key_padding_mask": torch.arange(9).expand(2, 9) > 6} if masked else {}
    recording = seen(module, *inputs, **masks)
    expected = module(*inputs, average_attn_weights=False, **masks)[1].double()
    assert recording[0].weights.shape[-1] == 9 + 1 * bool(module.bias_k is not None) + module.add_zero_attn
    assert_weights(recording[0], expected)


def test_without_a_batch_and_in_double_precision():
    module = attention().double()
    x = X[0].double()
    expected = module(x, x, x, average_attn_weights=False)[1]
    assert_weights(seen(module, x, x, x)[0], expected, atol=1e-12)


def test_training_gives_the_weights_before_dropout():
    module = attention(dropout=0.5).train()
    with torch.enable_grad(), watch(module) as recording:
        module(X, X, X)
    assert_weights(recording[0], own_weights(module.eval(), X, X))


def test_under_autocast_projections_are_what_autocast_makes_them():
    module = attention()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        recording = seen(module, X, X, X, need_weights=False)
        expected = own_weights(module, X, X)
    assert recording[0].weights.dtype == torch.float32
    assert_weights(recording[0], expected, atol=4e-3)


def test_a_hint_that_is_wrong_is_refused():
    module = attention(batch_first=False)
    wrong = ADDED > 0
    with (
        pytest.raises(ModelError, match="`is_causal` says that its `attn_mask` is the causal one"),
        watch(module),
    ):
        module(X, X, X, attn_mask=wrong[:2, :2], is_causal=True, need_weights=False)


def expected_in(model, x, **masks):
    """The weights of each layer's attention, called again with what it gets."""
    weights = []
    for layer in model.layers:
        given = layer.norm1(x) if layer.norm_first else x
        weights.append(own_weights(layer.self_attn, given, given, **masks))
        x = layer(x, src_mask=masks.get("attn_mask"), src_key_padding_mask=masks.get("key_padding_mask"))
    return weights


class Fast:
    """How often torch's fast path computes a layer."""

    def __init__(self, monkeypatch):
        self.count, original = 0, torch._transformer_encoder_layer_fwd

        def counted(*args, **kwargs):
            self.count += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "masked", [{}, {"attn_mask": LATER}, {"attn_mask": LATER, "key_padding_mask": PADDED}]
)
def test_an_encoder_stays_on_its_fast_path(norm_first, masked, monkeypatch):
    model = encoder(norm_first=norm_first)
    fast = Fast(monkeypatch)
    masks = {"mask": masked.get("attn_mask"), "src_key_padding_mask": masked.get("key_padding_mask")}
    recording = seen(model, X, **masks)
    assert fast.count == 4
    assert [call.module for call in recording] == ["layers.0.self_attn", "layers.1.self_attn"]
    for call, expected in zip(recording, expected_in(model, X, **masked), strict=True):
        assert_weights(call, expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_batches_that_torch_packs_are_recorded_without_what_it_left_out(monkeypatch):
    model = encoder(nested=True)
    fast = Fast(monkeypatch)
    recording = seen(model, X, src_key_padding_mask=PADDED)
    assert fast.count == 4
    for call, expected in zip(recording, expected_in(model, X, key_padding_mask=PADDED), strict=True):
        live = ~PADDED[:, None, :, None]
        assert_weights(call, expected * live, atol=1e-5)


def test_off_the_fast_path_its_modules_are_seen(monkeypatch):
    model = encoder().train()
    fast = Fast(monkeypatch)
    with watch(model) as recording:
        model(X)
    assert fast.count == 0
    assert [call.module for call in recording] == ["layers.0.self_attn", "layers.1.self_attn"]


def test_a_watched_layer_alone_is_seen():
    layer = encoder().layers[0]
    assert [call.module for call in seen(layer, X)] == ["self_attn"]


def test_a_decoder_attends_itself_and_then_its_memory():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(32, 4, dim_feedforward=48, batch_first=True)
    model = nn.TransformerDecoder(layer, 2).eval()
    options = {"tgt_mask": LATER, "tgt_is_causal": True}
    recording = seen(model, X, Y, **options)
    assert [call.module for call in recording] == [
        f"layers.{i}.{kind}" for i in (0, 1) for kind in ("self_attn", "multihead_attn")
    ]
    assert [tuple(call.weights.shape) for call in recording] == [(2, 4, 6, 6), (2, 4, 6, 9)] * 2
    assert_weights(recording[0], own_weights(model.layers[0].self_attn, X, X, attn_mask=LATER))


def test_a_whole_transformer_is_seen():
    torch.manual_seed(0)
    model = nn.Transformer(32, 4, 1, 1, 48, batch_first=True).eval()
    names = ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"]
    assert [call.module for call in seen(model, Y, X)] == names


class OwnAttention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


class OwnBlock(nn.TransformerEncoderLayer):
    """A layer that attends in a way of its own."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.block = Block()

    def _sa_block(self, x, *_, **__):
        return self.block(x)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = attention()

    def forward(self, x):
        own, x = self.weights, x.transpose(0, 1)
        return functional.multi_head_attention_forward(
            x, x, x, 32, 4, own.in_proj_weight, own.in_proj_bias, None, None, False, 0.0,
            own.out_proj.weight, own.out_proj.bias, training=False,
        )[0]  # fmt: skip


def test_classes_built_on_torchs_are_seen_once():
    torch.manual_seed(0)
    own = OwnAttention(32, 4, batch_first=True).eval()
    recording = seen(own, X)
    expected = nn.MultiheadAttention.forward(own, X, X, X, average_attn_weights=False)[1]
    assert len(recording) == 1
    assert_weights(recording[0], expected.double())

    layer = OwnBlock(32, 4, 48, dropout=0.0, batch_first=True)
    assert [call.module for call in seen(layer.train(), X)] == ["block"]
    # The fast path asks no block: torch computes the layer's own attention then.
    assert [call.module for call in seen(layer.eval(), X)] == ["self_attn"]

    model = Functional()
    recording = seen(model, X)
    assert [call.module for call in recording] == [""]
    assert_weights(recording[0], own_weights(model.weights, X, X))


def test_somebody_elses_mode_is_left_in_place():
    class Passing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.block = attention(), Block()

        def forward(self, x):
            with Passing():
                x = self.attention(x, x, x, need_weights=False)[0]
            return self.block(x)

    assert [call.module for call in seen(Model(), X)] == ["attention", "block"]
    assert torch._C._len_torch_function_stack() == 0
