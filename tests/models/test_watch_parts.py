"""Watching some heads and some rows: the same numbers as in the whole, and nothing else kept."""

import pytest
import torch
import transformers

from models import small
from regard import attention, biases, masks
from regard.answers.layers import layers_of
from regard.errors import ArgumentError, ArgumentTypeError, ModelError, NothingSeenError, RecordingError
from regard.models import watch
from regard.recording import Recording
from regard.viewer.data import build_view

IDS = torch.arange(3, 14).view(1, 11)
LAYER = "model.layers.{}.self_attn"


@pytest.fixture(scope="module")
def model():
    return small.llama()


def assert_part(part, whole, heads, rows):
    """Every recorded call is that part of the call of the whole recording, and says which."""
    for one, other in zip(part, whole, strict=True):
        dense = other.weights.to_dense()
        expected = dense[:, heads][:, :, rows]
        torch.testing.assert_close(one.weights.to_dense(), expected, rtol=1e-5, atol=1e-7)
        # Distances are of positions: a row that has lost its place gives another one.
        torch.testing.assert_close(one.weights.distance(), other.weights.distance()[:, heads][:, :, rows])
        kept = range(dense.shape[2])[rows]
        assert one.heads == tuple(head % dense.shape[1] for head in heads)
        assert one.skipped_rows == (kept.start, dense.shape[2] - kept.stop)


MODELS = {
    "llama, left padding": (small.llama, {"input_ids": small.IDS, "attention_mask": small.LEFT_PADDING}),
    "llama, grouped": (small.llama, {"input_ids": small.IDS}),
    "mistral, window": (small.mistral, {"input_ids": small.IDS}),
    "gemma, softcap": (small.gemma, {"input_ids": small.IDS}),
    "gpt-oss, sinks": (small.gpt_oss, {"input_ids": small.IDS, "attention_mask": small.LEFT_PADDING}),
    "bert, both ways": (small.bert, {"input_ids": small.IDS, "attention_mask": small.RIGHT_PADDING}),
    "t5, position bias of each head": (
        small.t5,
        {"input_ids": small.IDS, "decoder_input_ids": small.IDS, "attention_mask": small.RIGHT_PADDING},
    ),
}


@pytest.mark.parametrize("heads", [[3, 0], [0, 1], [1, 2, 3], [-1]])
@pytest.mark.parametrize("rows", [slice(-1, None), slice(2, 7), slice(None)])
@pytest.mark.parametrize("name", MODELS)
def test_a_part_is_that_part_of_the_whole(name, heads, rows):
    make, inputs = MODELS[name]
    model = make()
    with torch.no_grad(), watch(model) as whole, watch(model, heads=heads, rows=rows) as part:
        model(**inputs)
    assert_part(part, whole, heads, rows)


class _Attention(torch.nn.Module):
    """A call with masks and biases of each head, of torch's function or of regard."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, query, key):
        return self.call(query, key, key)


HOLES = torch.rand(2, 4, 9, 12, generator=torch.Generator().manual_seed(0)) < 0.5
HOLES[..., 0] = True
CALLS = {
    "torch, a boolean mask of each head": lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
        q, k, v, HOLES, enable_gqa=True
    ),
    "torch, top left causal": lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    ),
    "torch, a bias": lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
        q, k, v, HOLES.float(), enable_gqa=True
    ),
    "regard, windows of each head": lambda q, k, v: attention(q, k, v, masks.streaming(2, [3, 4, 5, 6])),
    "regard, alibi and sinks": lambda q, k, v: attention(
        q, k, v, masks.causal(), bias=biases.alibi(4), sink_logits=torch.arange(4.0)
    ),
    "regard, items placed apart": lambda q, k, v: attention(
        q, k, v, masks.causal(), query_start=torch.tensor([1, 3]), bias=biases.alibi(4)
    ),
}


@pytest.mark.parametrize("heads", [[3, 0], [2, 3], [0]])
@pytest.mark.parametrize("name", CALLS)
def test_masks_biases_and_sinks_follow_their_heads_and_rows(name, heads):
    torch.manual_seed(0)
    query, key, rows = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 12, 8), slice(3, 8)
    module = _Attention(CALLS[name])
    with watch(module) as whole, watch(module, heads=heads, rows=rows) as part:
        module(query, key)
    assert_part(part, whole, heads, rows)


def test_heads_differ_by_module_and_the_first_pattern_counts(model):
    with torch.no_grad(), watch(model, heads={"*.layers.1.*": [2, -1], "*.self_attn": 0}) as recording:
        model(IDS)
    assert [call.heads for call in recording] == [(0,), (2, 3)]
    with torch.no_grad(), watch(model, heads={"*.layers.1.*": [1]}) as recording:
        model(IDS)
    assert [(call.layer, call.heads) for call in recording] == [(1, (1,))]


def test_statistics_are_of_the_chosen_part(model):
    asked = {"entropy": None, "received": None, "top_keys": 2}
    with (
        torch.no_grad(),
        watch(model) as whole,
        watch(model, asked, heads=[2], rows=slice(-4, None), keep="statistics") as part,
    ):
        model(IDS)
    for one, other in zip(part, whole, strict=True):
        assert one.weights is None
        entropy, received = other.weights.entropy(), other.weights.received(slice(-4, None))
        torch.testing.assert_close(one.statistics["entropy"], entropy[:, 2:3, -4:])
        torch.testing.assert_close(one.statistics["received"], received[:, 2:3])
        assert torch.equal(one.statistics["top_keys"][1], other.weights.top_keys(2)[1][:, 2:3, -4:])


@pytest.mark.parametrize(
    ("heads", "key_heads"), [([0, 1], [0]), ([3, 2], [1]), ([3, 0], [1, 0]), ([0, 1, 2], [0, 0, 1])]
)
def test_only_the_keys_and_values_of_the_chosen_heads_are_kept(model, heads, key_heads):
    with torch.no_grad(), watch(model, values=True) as whole:
        model(IDS)
    with torch.no_grad(), watch(model, heads=heads, values=True) as part:
        model(IDS)
    for one, other in zip(part, whole, strict=True):
        assert torch.equal(one.keys.tensor(), other.keys.tensor()[:, key_heads])
        assert torch.equal(one.values, other.values[:, key_heads])


def test_what_is_not_kept_takes_no_bytes(model):
    # One query of one head, with its key head and the bounds of its row.
    one_call = 8 * 4 * (1 + 11) + 2 * 8
    part = {"heads": 0, "rows": -1, "layers": 0}
    with torch.no_grad(), watch(model, max_bytes=one_call, **part) as recording:
        model(IDS)
    assert recording.without_weights == 0
    with (
        pytest.warns(match="`max_bytes` is used up"),
        torch.no_grad(),
        watch(model, max_bytes=8 * 4 * 12 - 1, **part) as recording,
    ):
        model(IDS)
    assert recording.without_weights == 1


def generate(model):
    with torch.no_grad():
        model.generate(IDS, max_new_tokens=5, do_sample=False, pad_token_id=0)


def test_the_last_rows_of_a_generation_join(model, tmp_path):
    with watch(model) as whole, watch(model, heads=[1, 2], rows=slice(-1, None)) as part:
        generate(model)
    joined, everything = part.joined(LAYER.format(1)), whole.joined(LAYER.format(1))
    expected = everything.to_dense()[:, 1:3, 10:]
    assert joined.shape == expected.shape == (1, 2, 5, 15)
    torch.testing.assert_close(joined.to_dense(), expected)
    torch.testing.assert_close(joined.distance(), everything.distance()[:, 1:3, 10:])
    assert len({id(call.keys.keys) for call in part}) == 2, "each step adds its own keys"
    part.save(tmp_path / "part")
    loaded = Recording.load(tmp_path / "part")
    assert [(call.heads, call.skipped_rows) for call in loaded] == [
        (call.heads, call.skipped_rows) for call in part
    ]
    assert torch.equal(loaded.joined(LAYER.format(1)).to_dense(), joined.to_dense())


def test_rows_with_gaps_between_them_do_not_join(model):
    with watch(model, rows=0) as recording:
        generate(model)
    with pytest.raises(ArgumentError, match="5 calls that do not continue one another"):
        recording.joined(LAYER.format(0))


def test_chunks_of_a_prompt_share_their_keys_whichever_rows_are_kept(model):
    cache = transformers.DynamicCache(config=model.config)
    with torch.inference_mode(), watch(model, layers=0, heads=[0], rows=slice(-2, None)) as recording:
        for ids in IDS.split([5, 6], dim=1):
            model(ids, cache=cache)
    first, second = recording
    assert first.keys.keys is second.keys.keys
    assert (second.keys.start, second.keys.stop, second.skipped_rows) == (0, 11, (4, 0))


def test_rows_of_a_cross_attention_join_in_the_order_of_the_steps():
    model = small.t5()
    module = "decoder.block.0.layer.1.EncDecAttention"

    def generate_from_text():
        model.generate(small.IDS, max_new_tokens=4, min_new_tokens=4, do_sample=False)

    with watch(model) as whole, watch(model, heads=[2], rows=-1) as part:
        generate_from_text()
    torch.testing.assert_close(part.joined(module).to_dense(), whole.joined(module).to_dense()[:, [2]])


def test_a_call_without_any_of_the_rows_is_not_recorded(model):
    with watch(model, rows=slice(4, None)) as recording:
        generate(model)
    assert [(call.step, call.skipped_rows) for call in recording] == [(0, (4, 0)), (0, (4, 0))]


def test_answers_and_pages_refuse_what_they_would_misplace(model):
    tokens = list("abcdefghijk")
    with torch.no_grad(), watch(model, rows=slice(0, 5)) as first, watch(model, heads=[3, 0]) as crossed:
        model(IDS)
    with pytest.raises(ArgumentError, match=r"rows of `model\.layers\.0\.self_attn` must end with its last"):
        layers_of(first)
    with pytest.raises(ArgumentError, match="of which the 5 queries are the last"):
        build_view(first, tokens, title="t")
    with pytest.raises(ArgumentError, match=r"must hold the heads 0, 1, … of call 0 .*got \(3, 0\)"):
        build_view(crossed, tokens, title="t")


def test_a_file_whose_heads_are_not_those_of_its_weights_is_refused(model, tmp_path):
    with torch.no_grad(), watch(model, heads=[3, 0]) as recording:
        model(IDS)
    object.__setattr__(recording[0], "heads", (1,))
    recording.save(tmp_path / "part")
    with pytest.raises(
        RecordingError, match=r"`heads` of call 0 must name those of weights \(1, 2, 11, 11\)"
    ):
        Recording.load(tmp_path / "part")


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (
            {"heads": 4},
            ModelError,
            r"`model\.layers\.0\.self_attn`.*`heads` must lie within its 4 heads, got 4",
        ),
        ({"heads": [0, -5]}, ModelError, "`heads` must lie within its 4 heads, got -5"),
        ({"heads": []}, ArgumentError, "`heads` must hold at least one index"),
        ({"heads": "*"}, ArgumentTypeError, "`heads` must be indices of heads.*got '\\*'"),
        ({"heads": [True]}, ArgumentTypeError, "`heads` must be .*got True, a bool"),
        ({"heads": 1.5}, ArgumentTypeError, "`heads` must be .*got 1.5, a float"),
        (
            {"heads": {"no.such": 0}},
            ArgumentError,
            "`heads` must match the model's module names, got 'no.such'",
        ),
        (
            {"heads": {"*.mlp": 0}},
            NothingSeenError,
            "`heads` names '\\*.mlp', which is none of the 2 attention",
        ),
        ({"rows": slice(0, 9, 2)}, ArgumentError, "`rows` must be a slice of integers with a step of 1"),
        ({"rows": slice(0.5, 2)}, ArgumentError, "`rows` must be a slice of integers"),
        (
            {"rows": [1, 2]},
            ArgumentTypeError,
            r"`rows` must be a slice of the queries or one index, got \[1, 2\]",
        ),
        ({"rows": slice(20, None)}, NothingSeenError, "`rows` must take some query of some call, got slice"),
    ],
)
def test_a_wrong_choice_is_one_sentence(model, arguments, error, sentence):
    with pytest.raises(error, match=sentence), torch.no_grad(), watch(model, **arguments):
        model(IDS)
