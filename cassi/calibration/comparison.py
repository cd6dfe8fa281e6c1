"""Which of two cameras predicts withheld pixels better, and which plain scenes fit better."""

from cassi.calibration.fit import SURE, PlainScenes
from cassi.calibration.geometry import Geometry
from cassi.calibration.heldout import Prediction, WithheldPixels

CLEAR = 3
"""Times `gain`, by which another valley must predict better."""
UNTOLD = 10
"""The same of another place of the mask where the dispersion is not told: it then makes up for a
wrong curve, and moves bands to other wavelengths. Of drawn cameras one predicts 10 % better and is
worse by 0.5 dB, ten predict 23 to 75 % better and none of them is worse."""
_SURER = 2.0  # standard errors, by which the held-out error of a richer model is lower


class Comparison:
    """Compares cameras by pixels that they predict, and by plain scenes.

    Args:
        scenes: the plain scenes.
        fitted: pixels that the camera is fitted to.
        tested: pixels that it is not fitted to.
        gain: by which share the error of these must fall for a further parameter.
    """

    def __init__(
        self, scenes: PlainScenes, fitted: WithheldPixels, tested: WithheldPixels, gain: float
    ) -> None:
        self.scenes, self.system = scenes, scenes.system
        self.fitted, self.tested, self.gain = fitted, tested, gain

    def is_better(self, rich: Prediction, plain: Prediction, times: float = 1) -> bool:
        """Tell whether a richer model predicts better, by enough and in most parts of the frames.

        Parts are compared by the ratio of their errors, and pixels weighted: a few that no camera
        predicts, at edges, would decide else.

        Args:
            rich: of the richer model.
            plain: of the other.
            times: of `gain`, by which it must be better.
        """
        place, weights = self.tested.place, plain.weights
        squares = [weights * each.residual.square() for each in (plain, rich)]
        if squares[1].sum() >= (1 - times * self.gain) ** 2 * squares[0].sum():
            return False
        many = int(place.max()) + 1
        parts = [value.new_zeros(many).index_add_(0, place, value) for value in squares]
        falls = (parts[0] / parts[1])[parts[1] > 0].log()
        return bool(falls.mean() > _SURER * falls.std() / len(falls) ** 0.5)

    def is_sure(self, geometry: Geometry, other: Geometry) -> bool:
        """Tell whether plain scenes fit one geometry significantly better than another."""
        return self.scenes.sureness(geometry, other) > SURE

    def is_contradicted(
        self, start: Geometry, reached: Prediction, other: Geometry, tried: Prediction
    ) -> bool:
        """Tell whether another valley predicts much better than where one is, in both draws.

        Where a reconstruction from nothing ends depends on details, in noise by some per cent.
        """
        least = 1 - CLEAR * self.gain
        if tried.error > least * reached.error:
            return False
        ends = [self.fitted.predict(each) for each in (start, other)]
        return ends[1].error < least * ends[0].error
