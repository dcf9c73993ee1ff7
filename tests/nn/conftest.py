"""Makes the models in examples/ importable for the tests, and keeps the model library off the network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
