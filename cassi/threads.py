"""How torch's threads wait for each other: decided by what is set before torch is loaded.

The GNU OpenMP library lets a thread that has nothing to do turn in a loop for milliseconds. Where
other processes want the cores, the threads it waits for do not run meanwhile: the default method
then takes several times as long. A short turn costs a tenth on an idle machine.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
