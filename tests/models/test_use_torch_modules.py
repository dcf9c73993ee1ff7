"""`use` for torch's attention modules: outputs, gradients and weights, whatever they are asked for."""

import pytest
import torch
from torch import nn

import regard
from models.computed import assert_same
from models.plain import MODULE_OPTIONS, Itself, attention, encoder
from regard.errors import ModelError
from regard.testing import assert_within_budget

pytestmark = pytest.mark.usefixtures("torch_left_as_it_was")
X = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))
Y = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(2))
ADDED = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
PER_HEAD = torch.randn(8, 6, 6, generator=torch.Generator().manual_seed(4))
LATER = torch.ones(6, 6).triu(1).bool()
PADDED = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]], dtype=torch.bool)
MASKS = [
    {},
    {"attn_mask": LATER},
    {"attn_mask": ADDED},
    {"attn_mask": PER_HEAD},
    {"attn_mask": PER_HEAD > 0.5},
    {"key_padding_mask": PADDED},
    {"key_padding_mask": PADDED * -3.0},
    {"attn_mask": LATER, "key_padding_mask": PADDED},
    {"attn_mask": ADDED, "key_padding_mask": PADDED * -3.0},
    {"attn_mask": LATER, "is_causal": True},
]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("given", MASKS)
def test_multi_head_attention_gives_its_own_output_and_gradients(need_weights, given, computed):
    assert_same(Itself(), X, need_weights=need_weights, **given)
    assert computed == ["auto"] * 2


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("given", MASKS)
@pytest.mark.parametrize("batched", [True, False])
def test_weights_that_a_caller_needs_are_torchs(average, given, batched):
    module, x = attention(), X
    if not batched:
        x = X[1]
        given = {
            name: mask[4:] if torch.is_tensor(mask) and mask.shape[0] == 8 else mask
            for name, mask in given.items()
        }
        given = {n: m[1] if n == "key_padding_mask" else m for n, m in given.items()}
    output, weights = module(x, x, x, average_attn_weights=average, **given)
    with regard.use():
        ours, our_weights = module(x, x, x, average_attn_weights=average, **given)
    torch.testing.assert_close(ours, output.nan_to_num(0.0), atol=2e-6, rtol=0)
    torch.testing.assert_close(our_weights, weights.nan_to_num(0.0), atol=2e-6, rtol=0)


@pytest.mark.parametrize("options", MODULE_OPTIONS)
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention_with_every_option_of_the_module(options, masked):
    module = attention(**options)
    inputs = X, Y, torch.randn(2, 9, module.vdim)
    if not module.batch_first:
        inputs = tuple(tensor.transpose(0, 1) for tensor in inputs)
    given = {"key_padding_mask": torch.arange(9).expand(2, 9) > 6} if masked else {}
    assert_same(module, *inputs, **given)
    plain = module(*inputs, **given)
    with regard.use(module):
        ours = module(*inputs, **given)
    for one, other in zip(ours, plain, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)


def test_weights_that_do_not_fit_are_refused_with_a_sentence(monkeypatch):
    monkeypatch.setattr(regard.AttentionWeights.to_dense, "__defaults__", (100,))
    with (
        pytest.raises(ModelError, match=r"`attention` .*`need_weights` asks for the whole matrix"),
        regard.use(),
    ):
        Itself()(X)
    with regard.use():
        Itself()(X, need_weights=False)


def test_what_torch_refuses_is_refused():
    module = attention()
    with pytest.raises(AssertionError, match="key_padding_mask"), regard.use():
        module(X, X, X, key_padding_mask=PADDED[0])
    with pytest.raises(ModelError, match="`is_causal` says that its `attn_mask`"), regard.use():
        attention(batch_first=False)(X, X, X, attn_mask=ADDED[:2, :2] > 0, is_causal=True, need_weights=False)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "given", [{}, {"mask": LATER}, {"mask": LATER, "is_causal": True}, {"src_key_padding_mask": PADDED}]
)
def test_an_encoder_gives_its_own_output_and_gradients(norm_first, training, given, computed):
    assert_same(encoder(norm_first=norm_first).train(training), X, **given)
    assert computed == ["auto"] * 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_encoder_that_torch_computes_on_its_fast_path(nested, dtype, computed):
    model = encoder(nested=nested).to(dtype)
    x, live = X.to(dtype), ~PADDED
    own = model(x, src_key_padding_mask=PADDED)
    exact = model.double()(x.double(), src_key_padding_mask=PADDED)
    with regard.use(model.to(dtype)):
        ours = model(x, src_key_padding_mask=PADDED)
    assert_within_budget(ours[live], exact[live], own[live])
    assert computed == ["auto"] * 2


def test_a_decoder_gives_its_own_output_and_gradients(computed):
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(32, 4, 48, dropout=0.0, activation="gelu", batch_first=True)
    padded = torch.arange(9).expand(2, 9) > 6
    for given in ({}, {"tgt_mask": LATER, "tgt_is_causal": True}, {"memory_key_padding_mask": padded}):
        assert_same(nn.TransformerDecoder(layer, 2).eval(), X, Y, **given)
    assert len(computed) == 3 * 2 * 4
