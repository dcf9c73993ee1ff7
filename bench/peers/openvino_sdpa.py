"""OpenVINO's scaled dot product attention on the CPU, compiled into one fused node."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from harness import Contender, Result
from patterns import Causal, Dense
from peers import Unfit
from workload import Workload

NAME = "OpenVINO"


def output(work: Workload) -> Contender:
    if find_spec("openvino") is None:
        raise Unfit("not installed: pip install openvino")
    if work.query.dtype != torch.float32 or work.grouped:
        raise Unfit("measured in float32 without grouped heads only")
    if type(work.pattern) not in (Dense, Causal):
        raise Unfit("measured dense and causal only: other masks take the full N × M work")
    import openvino
    from openvino import opset13

    inputs = [work.query, work.key, work.value]
    parameters = [opset13.parameter(list(tensor.shape), openvino.Type.f32) for tensor in inputs]
    node = opset13.scaled_dot_product_attention(*parameters, causal=isinstance(work.pattern, Causal))
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        # Left to itself it computes in bfloat16 where the processor can.
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    model = openvino.Model([node], parameters, "attention")
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    for index, tensor in enumerate(inputs):
        request.set_input_tensor(index, openvino.Tensor(tensor.numpy(), shared_memory=True))

    def run() -> Result:
        request.infer()
        return {"output": torch.from_numpy(request.get_output_tensor(0).data)}

    return run
