"""The scripts are imported as they import each other: as `scripts.*` from the repository's root."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
