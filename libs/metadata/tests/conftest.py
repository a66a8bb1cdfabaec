"""Makes the kit of this directory importable by its tests (`metadata_kit`)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
