"""Views to test on: random attention with hostile tokens, and the page that a browser opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reading import seen_calls

from regard.recording import Call
from regard.viewer import build_view, write_page
