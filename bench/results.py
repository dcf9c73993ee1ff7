"""What is kept of a run: the machine, the numbers as JSON, and the verdicts."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import torch

import regard
from harness import Effort

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, str | float]:
    """What the numbers depend on besides the code."""
    return {
        "regard": regard.__version__,
        "engine": engine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
    }


def engine() -> str:
    """The engine that "auto" means here, with its instruction set if it has several."""
    from regard import engines
    from regard.problem import prepare

    small = torch.zeros(1, 1, 1, 8)
    name = engines.engine_name(engines.choose("auto", prepare(small, small, small)[0]))
    if name != "native":
        return name
    from regard.engines import native

    return f"native, {native.isa()}"


def processor() -> str:
    """The processor's name as Linux tells it, with family and model: some names say little."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if "model name" not in fields:
        return platform.processor() or "unknown"
    number = f"family {fields.get('cpu family')}, model {fields.get('model')}"
    return f"{fields['model name']} ({number})"


def instruction_sets() -> list[str]:
    """The flags of the processor that matter for this work, as Linux lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return []
    flags = next(
        (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), []
    )
    telling = ("avx2", "fma", "f16c", "avx512", "avx_vnni", "amx", "neon", "asimd", "sve", "bf16")
    return sorted(flag for flag in flags if flag.startswith(telling))


def verdicts(content: dict) -> list[dict]:
    """Everything that was wanted and measured in a run, in order."""
    return [verdict for answer in content["answers"] for row in answer["rows"] for verdict in row["verdicts"]]


def opened(command: str, effort: Effort, ceilings: dict[str, float]) -> dict:
    """What a run keeps, before the first answer."""
    return {
        "command": command,
        "effort": effort.name,
        "seconds": 0.0,
        "machine": machine(),
        "instruction_sets": instruction_sets(),
        "ceilings": ceilings,
        "answers": [],
    }


def write(content: dict, name: str) -> Path:
    """Keep the numbers; a later run of the same name replaces them."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    return file
