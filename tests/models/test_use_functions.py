"""`use` for torch's own attention: outputs, gradients and knock-outs of code that knows nothing of regard."""

import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from models.plain import Block, Model, assert_weights, textbook
from regard import masks
from regard.errors import ArgumentError, ModelError, NothingSeenError
from regard.models import computing, observation
from regard.testing import assert_within_budget

EVERYTHING, NOTHING = ~masks.sinks(0), masks.sinks(0)
X = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))
Y = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(2))
ADDED = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
PER_HEAD = torch.randn(8, 6, 6, generator=torch.Generator().manual_seed(4))
LATER = torch.ones(6, 6).triu(1).bool()
PADDED = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]], dtype=torch.bool)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    def state():
        return (
            nn.Module.__call__,
            nn.MultiheadAttention.forward,
            nn.TransformerEncoder.forward,
            torch._dynamo.eval_frame._stance.stance,
            torch._C._len_torch_function_stack(),
        )

    before = state()
    yield
    assert state() == before


@pytest.fixture(autouse=True)
def computed(monkeypatch):
    """The engines that compute, call by call."""
    engines = []

    def counting(*args, **kwargs):
        engines.append(kwargs["engine"])
        return regard.attention(*args, **kwargs)

    monkeypatch.setattr(computing, "attention", counting)
    return engines


def results(model, inputs, options, dtype, **used):
    """The output and the gradients of inputs and parameters, in a precision, with or without regard."""
    model = model.to(dtype)
    model.zero_grad()
    leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in inputs]
    options = {
        name: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in options.items()
    }
    with torch.enable_grad():
        with regard.use(**used) if used else nullcontext():
            output = model(*leaves, **options)
        output = output if isinstance(output, torch.Tensor) else output[0]
        weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
        (output * weights.to(dtype)).sum().backward()
    gradients = [leaf.grad for leaf in leaves]
    gradients += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [output.detach(), *(gradient.clone() for gradient in gradients)]


def assert_same(model, *inputs, dtypes=(torch.float32, torch.bfloat16), **options):
    """Output and gradients computed with regard are as near to the exact ones as torch's own."""
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for dtype in dtypes:
        model.to(dtype).load_state_dict(start)
        inputs_of_dtype = [tensor.to(dtype) for tensor in inputs]
        rounded = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        own = results(model, inputs_of_dtype, options, dtype)
        ours = results(model, inputs_of_dtype, options, dtype, engine="auto")
        model.double().load_state_dict(rounded)
        exact = results(model, inputs_of_dtype, options, torch.float64)
        for one, true, theirs in zip(ours, exact, own, strict=True):
            assert_within_budget(one, true, theirs)
    model.float().load_state_dict(start)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": ADDED > 0},
        {"attn_mask": ~PADDED[:, None, None]},
        {"attn_mask": ADDED},
        {"attn_mask": ADDED.expand(4, 6, 6)},
        {"attn_mask": ADDED[:1]},
        {"attn_mask": ADDED.masked_fill(ADDED > 0, -torch.inf)},
    ],
)
@pytest.mark.parametrize("key_heads", [4, 2])
def test_plain_code_gives_its_own_output_and_gradients(options, key_heads, computed):
    model = Model(key_heads=key_heads, enable_gqa=key_heads != 4)
    assert_same(model, X, **options)
    assert computed == ["auto"] * 4


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((6, 8), (9, 8), (9, 5)),
        ((4, 6, 8), (4, 9, 8), (4, 9, 5)),
        ((2, 4, 6, 8), (4, 9, 8), (1, 1, 9, 5)),
        ((2, 3, 4, 6, 8), (1, 3, 4, 9, 8), (2, 1, 4, 9, 5)),
    ],
)
def test_inputs_of_any_rank_broadcast_as_in_torch(query, key, value, computed):
    tensors = torch.randn(query), torch.randn(key), torch.randn(value)
    for is_causal in (False, True):
        plain = functional.scaled_dot_product_attention(*tensors, is_causal=is_causal)
        with regard.use():
            ours = functional.scaled_dot_product_attention(*tensors, is_causal=is_causal)
        torch.testing.assert_close(ours, plain, atol=2e-6, rtol=0)
    assert len(computed) == 2


def test_a_mask_that_is_learnt_gets_its_gradient():
    for start in (torch.zeros(6, 6), ADDED.clone()):
        gradients = []
        for used in (False, True):
            mask = start.clone().requires_grad_()
            with torch.enable_grad(), regard.use() if used else nullcontext():
                Model()(X, attn_mask=mask).square().sum().backward()
            gradients.append(mask.grad)
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_dropout_is_honoured_and_decided_by_torchs_seed():
    block = Block(heads=1, dim=32, dropout_p=0.5)
    with regard.use():
        outputs = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            outputs.append(block(X))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    module = attention(dropout=0.5)
    plain = module(X, X, X)[0]
    with regard.use():
        torch.testing.assert_close(module(X, X, X)[0], plain)
        assert not torch.allclose(module.train()(X, X, X)[0], plain, atol=1e-2)


def test_a_causal_hint_beside_a_mask_is_refused_as_torch_does():
    with pytest.raises(ModelError, match="`attn_mask` must be None when `is_causal`"), regard.use():
        Block()(X, attn_mask=ADDED, is_causal=True)


def test_masks_are_read_once_for_all_layers(monkeypatch):
    count, original = [0], observation.MaskReader.read.__globals__["_read"]

    def counted(*args):
        count[0] += 1
        return original(*args)

    monkeypatch.setitem(observation.MaskReader.read.__globals__, "_read", counted)
    boolean, added = ADDED > 0, ADDED.clone()
    with regard.use():
        Model()(X, attn_mask=boolean)
        Model()(X, attn_mask=added)
        encoder()(X, mask=torch.zeros(6, 6).masked_fill(LATER, -torch.inf), is_causal=True)
    assert count[0] == 3
    boolean.logical_not_()
    expected = Model()(X, attn_mask=boolean)
    with regard.use():
        torch.testing.assert_close(Model()(X, attn_mask=boolean), expected, atol=1e-5, rtol=0)
    assert count[0] == 4


def attention(**options):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(32, 4, **{"batch_first": True, **options}).eval()
    for name in ("in_proj_bias", "bias_k", "bias_v"):  # zero at first, which hides mistakes
        if getattr(module, name, None) is not None:
            nn.init.normal_(getattr(module, name))
    return module


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


class Itself(nn.Module):
    """Self-attention, as a module of one input."""

    def __init__(self, **options):
        super().__init__()
        self.attention = attention(**options)

    def forward(self, x, **options):
        return self.attention(x, x, x, **options)


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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True},
        {"kdim": 32, "vdim": 48},
        {"batch_first": False},
    ],
)
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


def encoder(nested=False, **options):
    torch.manual_seed(0)
    options = {"batch_first": True, "dim_feedforward": 48, "dropout": 0.0, **options}
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, **options), 2, enable_nested_tensor=nested)


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
    model = encoder(nested).eval().to(dtype)
    x, live = X.to(dtype), ~PADDED
    own = model(x, src_key_padding_mask=PADDED)
    exact = model.double()(x.double(), src_key_padding_mask=PADDED)
    with regard.use(model.to(dtype)):
        ours = model(x, src_key_padding_mask=PADDED)
    assert_within_budget(ours[live], exact[live], own[live])
    assert computed == ["auto"] * 2


def test_a_decoder_gives_its_own_output_and_gradients(computed):
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(32, 4, dim_feedforward=48, dropout=0.0, batch_first=True)
    padded = torch.arange(9).expand(2, 9) > 6
    for given in ({}, {"tgt_mask": LATER, "tgt_is_causal": True}, {"memory_key_padding_mask": padded}):
        assert_same(nn.TransformerDecoder(layer, 2).eval(), X, Y, **given)
    assert len(computed) == 3 * 2 * 4


def test_under_autocast_attention_computes_in_the_lower_precision():
    for model in (Model(is_causal=True), Itself(), encoder().eval()):
        exact = model.double()(X.double())
        model.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            own = model(X)
            with regard.use():
                ours = model(X)
        ours, own, exact = (out if torch.is_tensor(out) else out[0] for out in (ours, own, exact))
        assert ours.dtype == own.dtype
        assert_within_budget(ours, exact, own.bfloat16())


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize(
    ("model", "pattern", "merge"),
    [
        (Model(), "blocks.1", lambda model: model.blocks[1].merge),
        (encoder().eval(), "layers.1.*", None),
    ],
)
def test_a_head_knocked_out_by_pattern_adds_nothing(with_model, model, pattern, merge):
    heads = masks.per_head([EVERYTHING, NOTHING, EVERYTHING, EVERYTHING])
    weight = (merge(model) if merge else model.layers[1].self_attn.out_proj).weight
    kept = weight.clone()
    weight[:, 8:16] = 0
    expected = model(X)
    weight.copy_(kept)
    plain = model(X)
    with regard.use(model if with_model else None, mask={pattern: heads}):
        torch.testing.assert_close(model(X), expected, atol=1e-5, rtol=0)
    assert not torch.allclose(expected, plain, atol=1e-2)
    torch.testing.assert_close(model(X), plain, atol=0, rtol=0)


def test_edges_knocked_out_are_those_of_a_mask_in_nested_blocks():
    model = Model()
    allowed = masks.causal() & ~masks.sinks(2)
    expected = model(X, attn_mask=allowed.to_dense(6, 6))
    with regard.use(model, mask={"blocks.*": masks.causal()}, engine="tiled"):
        for sinks in (~masks.sinks(2), (~masks.sinks(2)).to_dense(6, 6)):
            with regard.use(mask={"*": sinks}):
                torch.testing.assert_close(model(X), expected, atol=1e-5, rtol=0)


def test_only_the_given_model_computes_with_regard(computed):
    model, other = encoder().eval(), encoder().eval()
    plain = other(X)
    with regard.use(model):
        assert torch.equal(other(X), plain)
        functional.scaled_dot_product_attention(X, X, X)
        assert computed == []
        model(X)
    assert len(computed) == 2


@pytest.mark.parametrize("with_model", [True, False])
def test_modules_are_computed_in_every_thread(with_model, computed):
    model = Model()
    with regard.use(model if with_model else None, mask={"blocks.1": masks.causal()}):
        threads = [threading.Thread(target=model, args=(X,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(computed) == 4


@pytest.mark.parametrize("order", ["watch in use", "use in watch"])
@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize(
    "model",
    [Model(is_causal=True), encoder().eval(), Itself()],
    ids=lambda model: type(model).__name__,
)
def test_a_watch_sees_the_weights_that_are_computed_with_and_changes_nothing(
    order, with_model, model, monkeypatch, computed
):
    # What computes the output gives the normalizer as well: nothing is left to be computed again.
    monkeypatch.setattr(observation, "attention_weights", None)

    def used():
        return regard.use(model if with_model else None, mask={"*": ~masks.sinks(1)})

    with used():
        unwatched = model(X)
    count = len(computed)
    outer, inner = regard.watch(model, ["entropy"]), used()
    if order == "watch in use":
        outer, inner = inner, outer
    with outer as first, inner as second:
        watched = model(X)
    unwatched, watched = (out if torch.is_tensor(out) else out[0] for out in (unwatched, watched))
    recording = second if first is None else first
    assert torch.equal(watched, unwatched)
    assert len(recording) == count == len(computed) - count
    for call in recording:
        weights = call.weights.to_dense()
        assert not weights[..., 0].any()
        torch.testing.assert_close(weights[..., 1:, :].sum(-1), torch.ones(2, 4, 5))
        assert torch.equal(call.statistics["entropy"], call.weights.entropy())


def test_a_watch_of_an_unmasked_use_records_the_textbooks_weights():
    block = Block()
    with regard.use(), regard.watch(block) as recording:
        block(X)
    query, key, _ = block.split(X)
    assert_weights(recording[0], textbook(query, key))


def test_everything_is_undone_after_an_exception(computed):
    model = encoder().eval()
    plain = model(X)

    def use_and_fail():
        with regard.use():
            model(X)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use_and_fail()
    assert torch.equal(model(X), plain)
    assert len(computed) == 2


@pytest.mark.parametrize("with_model", [True, False])
def test_what_a_backward_pass_repeats_is_computed_in_the_same_way(with_model, computed):
    class Checkpointed(Model):
        def forward(self, x):
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return x

    gradients = []
    for kind in (Model, Checkpointed):
        model = kind()
        if kind is Model:
            model.forward = lambda x, model=model: model.blocks[1](model.blocks[0](x))
        with (
            torch.enable_grad(),
            regard.use(model if with_model else None, mask={"blocks.0": masks.sliding_window(2)}),
        ):
            model(X).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert len(computed) == 2 + 4


def test_a_repeated_call_outside_of_its_module_is_refused_if_there_are_masks():
    class Checkpointed(nn.Module):
        def forward(self, x):
            attend = functional.scaled_dot_product_attention
            return torch.utils.checkpoint.checkpoint(attend, x, x, x, use_reentrant=False)

    x = X.clone().requires_grad_()
    with torch.enable_grad():
        with regard.use():
            torch.autograd.backward(Checkpointed()(x).sum())
        with (
            pytest.raises(ModelError, match=r"repeats .* outside of its module"),
            regard.use(mask={"*": EVERYTHING}),
        ):
            torch.autograd.backward(Checkpointed()(x).sum())


@pytest.mark.parametrize("with_model", [True, False])
def test_compiled_modules_run_as_they_were_written(with_model, computed):
    model = Model()
    plain = model(X)
    compiled = torch.compile(model, backend="eager")
    compiled(X)
    with regard.use(compiled if with_model else None):
        torch.testing.assert_close(compiled(X), plain, atol=1e-5, rtol=0)
    assert len(computed) == 2


def test_an_exported_program_is_computed(computed):
    block = Block()
    exported = torch.export.export(block, (X,)).module()
    with regard.use():
        torch.testing.assert_close(exported(X), block(X), atol=1e-5, rtol=0)
    assert len(computed) == 2


class ByHand(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


@pytest.mark.parametrize(
    ("used", "model", "error", "sentence"),
    [
        ({"engine": "fast"}, Block(), ArgumentError, "`engine` must be one of .*'fast'"),
        ({"model": Block(), "mask": {"x.*": NOTHING}}, Block(), ArgumentError, "`mask` must match .*'x"),
        (
            {"mask": {"x.*": NOTHING}},
            Model(),
            NothingSeenError,
            r"names 'x\.\*', .* by 'blocks.0', 'blocks.1'",
        ),
        ({"mask": {"*": masks.per_head([NOTHING] * 3)}}, Model(), ModelError, "`blocks.0` .* 1 or 4, got 3"),
        ({}, ByHand(), NothingSeenError, "in the block through .* computes a softmax by itself"),
        ({"model": Block()}, Block(), NothingSeenError, "in the block by a module of the Block through"),
    ],
)
def test_a_wrong_use_is_one_sentence(used, model, error, sentence):
    with pytest.raises(error, match=sentence), regard.use(**used):
        model(X)
