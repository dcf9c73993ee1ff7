"""onnxruntime's fused CPU attention: MultiHeadAttention without a mask, GroupQueryAttention for causal work.

Its operators keep heads beside the head dimension, `[B, N, H · E]`; turned round before the timing begins.
Inputs and outputs are bound once, so that nothing is copied; in decoding the cache grows in place.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import torch

from harness import Contender, Result
from patterns import Causal, Dense, Padding, Window
from peers import Unfit
from workload import Workload

NAME = "onnxruntime"
KINDS = {torch.float32: "FLOAT", torch.float16: "FLOAT16", torch.int32: "INT32"}


def output(work: Workload) -> Contender:
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        raise Unfit("not installed: pip install onnxruntime onnx")
    if work.query.dtype not in KINDS:
        raise Unfit("its CPU attention does not know bfloat16")
    if work.length == 1 and type(work.pattern) is Dense:
        return decoding(work)
    if isinstance(work.pattern, Causal | Window):
        return causal(work)
    if isinstance(work.pattern, Dense) and type(work.pattern) in (Dense, Padding):
        return unmasked(work)
    raise Unfit("has no such mask")


def unmasked(work: Workload) -> Contender:
    """MultiHeadAttention; padding as one length for each item."""
    if work.query.dtype != torch.float32 or work.grouped:
        raise Unfit("its MultiHeadAttention knows float32 without grouped heads only")
    inputs = {"query": flat(work.query), "key": flat(work.key), "value": flat(work.value)}
    if isinstance(work.pattern, Padding):
        inputs |= {"bias": torch.empty(0), "lengths": torch.tensor(work.pattern.lengths, dtype=torch.int32)}
    return bound("MultiHeadAttention", inputs, {}, work, num_heads=work.query.shape[1])


def causal(work: Workload) -> Contender:
    """GroupQueryAttention without a past."""
    batch, _, length, _ = work.query.shape
    if work.key.shape[-1] != work.value.shape[-1]:
        raise Unfit("its GroupQueryAttention wants values as wide as keys")
    inputs = {
        "query": flat(work.query),
        "key": flat(work.key),
        "value": flat(work.value),
        "past_key": torch.empty(0),
        "past_value": torch.empty(0),
        **counts(batch, length),
    }
    present = {"present_key": torch.empty_like(work.key), "present_value": torch.empty_like(work.value)}
    window = {"local_window_size": work.pattern.size} if isinstance(work.pattern, Window) else {}
    return bound("GroupQueryAttention", inputs, present, work, **head_counts(work), **window)


def decoding(work: Workload) -> Contender:
    """GroupQueryAttention whose past is all of the keys: the last one is written once more, where it lies."""
    inputs = {
        "query": flat(work.query),
        "key": flat(work.key[:, :, -1:]),
        "value": flat(work.value[:, :, -1:]),
        "past_key": work.key,
        "past_value": work.value,
        **counts(work.query.shape[0], work.keys),
    }
    present = {"present_key": work.key, "present_value": work.value}
    return bound("GroupQueryAttention", inputs, present, work, **head_counts(work))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """`[B, H, N, E]` as `[B, N, H · E]`."""
    return tensor.transpose(1, 2).flatten(2).contiguous()


def counts(batch: int, keys: int) -> dict[str, torch.Tensor]:
    """How many keys there are, in the operator's own terms: the index of each item's last, and the total."""
    return {
        "last": torch.full((batch,), keys - 1, dtype=torch.int32),
        "total": torch.tensor([keys], dtype=torch.int32),
    }


def head_counts(work: Workload) -> dict[str, int]:
    """The attributes that tell how many heads there are."""
    return {"num_heads": work.query.shape[1], "kv_num_heads": work.key.shape[1]}


def bound(
    operator: str,
    inputs: dict[str, torch.Tensor],
    further_outputs: dict[str, torch.Tensor],
    work: Workload,
    **attributes: int,
) -> Contender:
    """One operator whose inputs and outputs lie in torch's memory; an empty input is left out."""
    import onnxruntime

    batch, heads, length, _ = work.query.shape
    output = work.query.new_empty(batch, length, heads * work.value.shape[-1])
    outputs = {"output": output, **further_outputs}
    described = tuple(
        tuple((name, KINDS[t.dtype], tuple(t.shape)) for name, t in tensors.items())
        for tensors in (inputs, outputs)
    )
    running = session(operator, *described, tuple(attributes.items()), torch.get_num_threads())
    binding = running.io_binding()
    for name, tensor in inputs.items():
        if tensor.numel():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy()))
    for name, tensor in outputs.items():
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy()))

    def run() -> Result:
        running.run_with_iobinding(binding)
        return {"output": output.view(batch, length, heads, -1).transpose(1, 2)}

    return run


@functools.lru_cache(maxsize=1)
def session(operator: str, inputs: tuple, outputs: tuple, attributes: tuple, threads: int) -> Any:
    """A program of one operator, ready to run; kept, because the layers of one model share it."""
    import onnx
    import onnxruntime
    from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

    def told(tensors: tuple) -> list:
        return [
            make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape)
            for name, kind, shape in tensors
            if 0 not in shape
        ]

    names = ["" if 0 in shape else name for name, _, shape in inputs]
    node = make_node(
        operator, names, [name for name, *_ in outputs], domain="com.microsoft", **dict(attributes)
    )
    graph = make_graph([node], "attention", told(inputs), told(outputs))
    model = make_model(
        graph, opset_imports=[make_opsetid("", 21), make_opsetid("com.microsoft", 1)], ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Its workers would go on spinning into the next contender's time.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
