import numpy as np
import pytest

pytest.importorskip("panel", reason="needs panel")
from cassi.apps.view.pages.figures import with_mask


def test_a_mask_lies_where_its_band_falls():
    frame, mask = np.ones((6, 10), np.float32), np.ones((6, 4), np.float32)
    for offset, reached in ((3, range(3, 7)), (-2, range(2)), (8, range(8, 10)), (20, ())):
        picture = with_mask(frame, mask, offset, -1)
        red = [k for k in range(10) if picture[0, k, 0] != picture[0, k, 1]]
        assert red == list(reached)
    turned = with_mask(frame.T, mask.T, 3, -2)
    np.testing.assert_array_equal(turned, with_mask(frame, mask, 3, -1).transpose(1, 0, 2))
