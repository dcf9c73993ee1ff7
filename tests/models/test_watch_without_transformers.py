"""A model of plain torch needs no other library to be watched."""

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["transformers"] = None
import torch, regard
layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
x = torch.randn(1, 5, 8)
with regard.watch(layer) as recording:
    layer(x, x, x)
print(recording[0].weights.shape)
"""


def test_transformers_need_not_be_installed():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "torch.Size([1, 2, 5, 5])", done.stderr
