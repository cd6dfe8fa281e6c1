"""What a GPU would refuse, and what would make it wait, without one; see `device_cases`.

In a process of its own: torch has room for one device of a user's, and asks it in many places.
"""

import pytest
from shared import python


@pytest.mark.parametrize(
    "chosen", ["not release", pytest.param("release", marks=pytest.mark.release)]
)
def test_what_devices_ask_for(chosen):
    said = python("-m", "pytest", "-q", "-n", "0", "-m", chosen, "tests/device_cases.py")
    assert "[100%]" in said
