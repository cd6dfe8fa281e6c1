"""Write the CIE tables of `cassi/viz/color.json` from colour-science.

    pip install colour-science && python -m scripts.data.color

The 1931 2° observer at 1 nm, and the illuminants of CIE 15:2018 and ISO 7589 at their own steps.
"""

import json
from pathlib import Path

import colour
import numpy as np

FILE = Path(__file__).resolve().parents[2] / "cassi" / "viz" / "color.json"
SOURCE = (
    "CIE 018:2019 (observer), CIE 15:2018 and ISO 7589:2002 (illuminants), as tabulated in "
    "colour-science 0.4.7, BSD-3-Clause, Copyright 2013 Colour Developers; see color.LICENSE.txt"
)


def main() -> None:
    """Write the file: first wavelength and step in nm, then values."""
    observer = colour.MSDS_CMFS["CIE 1931 2 Degree Standard Observer"]
    tables = {
        "observer": [_axis(observer), observer.values.T.tolist()],
        "illuminants": {
            name: [_axis(table), table.values.tolist()]
            for name, table in colour.SDS_ILLUMINANTS.items()
        },
    }
    FILE.write_text(json.dumps({"source": SOURCE, **tables}, separators=(",", ":")) + "\n")


def _axis(table: colour.SpectralDistribution) -> list[float]:
    first, step = table.wavelengths[0], table.wavelengths[1] - table.wavelengths[0]
    assert all(table.wavelengths == first + step * np.arange(len(table.wavelengths)))
    return [float(first), float(step)]


if __name__ == "__main__":
    main()
