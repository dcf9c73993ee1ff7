"""Bad input gets one sentence: the argument, what it must be, and what came."""

import pytest
import torch

import regard
from regard import errors, masks
from regard.testing import make_inputs

Q, K, V = make_inputs(5, 9)


def call(q=Q, k=K, v=V, mask=None, **extras):
    return regard.attention(q, k, v, mask, **extras)


WRONG = {
    "a list": (lambda: call(q=[[1.0]]), errors.ArgumentTypeError, r"query.*(list|tensor)"),
    "integers": (lambda: call(q=Q.long(), k=K.long(), v=V.long()), errors.ArgumentTypeError, r"query.*int64"),
    "complex": (
        lambda: call(q=Q.cfloat(), k=K.cfloat(), v=V.cfloat()),
        errors.ArgumentTypeError,
        r"query.*complex",
    ),
    "dtypes that differ": (lambda: call(k=K.double()), errors.RegardError, r"key.*float64"),
    "a sparse tensor": (lambda: call(q=Q.to_sparse()), errors.ArgumentTypeError, r"query.*dense.*sparse"),
    "a scale to be learned": (
        lambda: call(scale=torch.nn.Parameter(torch.tensor(0.3))),
        errors.ArgumentTypeError,
        r"scale.*gradients",
    ),
    "a position that would wrap around": (
        lambda: call(query_start=2**63),
        errors.ArgumentError,
        r"query_start.*2\*\*61",
    ),
    "a drawn position that is no integer": (
        lambda: masks.causal().to_dense(3, 3, query_start=1.5),
        errors.ArgumentTypeError,
        r"query_start.*1\.5",
    ),
    "slopes that are nothing": (lambda: regard.biases.alibi(None), errors.ArgumentTypeError, r"slopes.*None"),
    "masks for other batches than positions": (
        lambda: masks.per_batch([masks.causal()] * 3).to_dense(3, 3, query_start=[1, 2]),
        errors.ArgumentError,
        r"query_start.*3.*2",
    ),
    "parts that are no list": (lambda: regard.merge(5), errors.ArgumentTypeError, r"parts.*int"),
    "bools of another length": (
        lambda: call(return_weights=True)[1][0, 0, [True]],
        errors.ArgumentError,
        r"bools.*\(5,\).*\(1,\)",
    ),
    "a negative step": (lambda: call(return_weights=True)[1][0, 0, ::-1], errors.ArgumentError, r"step"),
    "the value's dtype": (lambda: call(v=V.bfloat16()), errors.RegardError, r"value.*bfloat16"),
    "one dimension": (
        lambda: call(q=Q[0, 0, 0], k=K[0, 0], v=V[0, 0]),
        errors.ArgumentError,
        r"query.*\(8,?\)",
    ),
    "ranks that differ": (lambda: call(k=K[0, 0]), errors.ArgumentError, r"key"),
    "no head dim": (lambda: call(q=Q[..., :0], k=K[..., :0]), errors.ArgumentError, r"head_dim.*0"),
    "head dims": (lambda: call(k=K[..., :7]), errors.ArgumentError, r"key.*7"),
    "key and value lengths": (lambda: call(v=V[..., :6, :]), errors.ArgumentError, r"value.*6"),
    "key and value heads": (lambda: call(v=V[:, :1]), errors.ArgumentError, r"value.*1"),
    "heads that do not divide": (lambda: call(q=Q[:, :3]), errors.ArgumentError, r"3.*2|2.*3"),
    "no key heads": (lambda: call(k=K[:, :0], v=V[:, :0]), errors.ArgumentError, r"key|head"),
    "batches that do not broadcast": (
        lambda: call(k=K.expand(2, 2, 2, 9, 8)[:, :, 0].repeat(2, 1, 1, 1)[:3]),
        errors.ArgumentError,
        r"3",
    ),
    "a string for a mask": (lambda: call(mask="causal"), errors.ArgumentTypeError, r"mask.*(str|causal)"),
    "a bool for a mask": (lambda: call(mask=True), errors.ArgumentTypeError, r"mask.*(bool|True)"),
    "a float mask": (lambda: call(mask=torch.zeros(5, 9)), errors.RegardError, r"mask.*bias="),
    "a mask of another size": (
        lambda: call(mask=torch.ones(5, 8, dtype=torch.bool)),
        errors.ArgumentError,
        r"mask.*\(5, 8\)",
    ),
    "a mask for another batch": (lambda: call(mask=masks.padding([1, 2, 3])), errors.ArgumentError, r"3"),
    "scale": (lambda: call(scale="big"), errors.ArgumentTypeError, r"scale"),
    "scale NaN": (lambda: call(scale=float("nan")), errors.ArgumentError, r"scale.*nan"),
    "softcap zero": (lambda: call(softcap=0.0), errors.ArgumentError, r"softcap.*0"),
    "softcap negative": (lambda: call(softcap=-2.0), errors.ArgumentError, r"softcap.*-2"),
    "sinks of another length": (
        lambda: call(sink_logits=torch.zeros(3)),
        errors.ArgumentError,
        r"sink_logits.*3",
    ),
    "sinks of another rank": (
        lambda: call(sink_logits=torch.zeros(1, 4)),
        errors.ArgumentError,
        r"sink_logits",
    ),
    "sinks of integers": (
        lambda: call(sink_logits=torch.zeros(4).long()),
        errors.RegardError,
        r"sink_logits",
    ),
    "query_start a float": (
        lambda: call(query_start=1.5),
        errors.ArgumentTypeError,
        r"query_start.*(1\.5|float)",
    ),
    "query_start for another batch": (
        lambda: call(query_start=torch.tensor([1, 2, 3])),
        errors.ArgumentError,
        r"query_start.*3",
    ),
    "key_start of floats": (
        lambda: call(key_start=torch.tensor([1.0, 2.0])),
        errors.RegardError,
        r"key_start",
    ),
    "dropout": (lambda: call(dropout_p=2), errors.ArgumentError, r"dropout_p.*2"),
    "engine": (lambda: call(engine="fast"), errors.RegardError, r"engine.*fast"),
    "engine of another type": (lambda: call(engine=3), errors.RegardError, r"engine.*3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_sentence(name: str) -> None:
    wrong, kind, named = WRONG[name]
    with pytest.raises(kind, match=named) as caught:
        wrong()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 400
    assert caught.value.__cause__ is None


def test_a_tensor_on_another_device() -> None:
    with pytest.raises(errors.RegardError, match=r"meta"):
        call(k=K.to("meta"), v=V.to("meta"))
    with pytest.raises(errors.RegardError, match=r"bias.*meta|meta.*bias"):
        call(bias=torch.zeros(5, 9, device="meta"))


def test_one_family() -> None:
    for name, base in [
        ("ArgumentError", ValueError),
        ("ArgumentTypeError", TypeError),
        ("TooLargeError", ValueError),
        ("StaleWeightsError", RuntimeError),
        ("EngineError", RuntimeError),
        ("MissingExtraError", ImportError),
        ("NothingSeenError", RuntimeError),
        ("RecordingError", ValueError),
        ("ModelError", ValueError),
    ]:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.RegardError)
        assert issubclass(kind, base)


def test_arguments_after_the_mask_are_by_name() -> None:
    with pytest.raises(TypeError):
        regard.attention(Q, K, V, None, None)
