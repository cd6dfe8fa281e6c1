"""Fixtures of several tests of files."""

import h5py
import numpy as np
import pytest
import torch


@pytest.fixture
def cube():
    # The width is the shortest axis, so the bands are found only if the file states its axes.
    return torch.rand(5, 7, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def save_hdf5_as_matlab():
    """Writes a v7.3 file as MATLAB does: a text header of 512 bytes, axes reversed."""

    def save(path, **arrays):
        with h5py.File(path, "w", userblock_size=512) as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array.T, compression="gzip")
                file[name].attrs["MATLAB_class"] = np.bytes_("double")
        with path.open("r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")

    return save
