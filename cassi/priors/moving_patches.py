"""Low rank of groups of similar patches that are followed from frame to frame of a video."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cassi.checks import whole_number
from cassi.priors.non_local import GroupCache, Groups, check_groups, match_patches


@dataclass(frozen=True)
class MovingPatches:
    """Weighted nuclear norm shrinkage of groups of similar patches from several frames.

    The bands of the cube are frames. A group consists of a patch of a frame and the patches most
    like it in this frame and in its neighbours in time. So a group follows an object that moves.
    The mean of a group is subtracted, and its singular values s become s·(1 + √(1 − t²/s²))/2, or 0
    if s <= t, with

        t = weight·σ·(√M + patch),   M patches in the group

    `cassi.priors.NonLocalLowRank` takes a patch of all frames at once. That prior is faster, and
    blurs objects that move by more than a part of a patch from frame to frame.

    Args:
        weight: threshold in units of the largest singular value of noise, >= 0.
        patch: side of a patch, pixels.
        stride: distance of reference patches, pixels, <= patch.
        matches: M, at most 48 for the compiled operator.
        radius: largest distance of a match from its reference, rows and columns.
        reach: number of frames before and after a frame that are searched.
        refresh: number of calls in a run from one search to the next.

    Raises:
        ValueError: a negative weight, a number below 1, or a stride beyond the patch.

    Source: Liu, Yuan, Suo, Brady, Dai, "Rank minimization for snapshot compressive imaging"
    (DeSCI), TPAMI 41(12), 2019.
    """

    weight: float = 0.6
    patch: int = 6
    stride: int = 4
    matches: int = 32
    radius: int = 7
    reach: int = 2
    refresh: int = 10

    def __post_init__(self) -> None:
        numbers = {"matches": self.matches, "radius": self.radius, "refresh": self.refresh}
        check_groups("MovingPatches", self.weight, self.patch, self.stride, **numbers)
        whole_number("MovingPatches reach", self.reach, 1)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a video `(B, C, H, W)` of C frames; σ, a number or `(B,)`, is in its unit."""
        return self.begin()(x, sigma)

    def begin(self) -> Callable[[Tensor, float | Tensor], Tensor]:
        """Return the prior of one run, which keeps its groups for `refresh` calls."""
        cache = GroupCache(self._match, self.refresh)

        def denoise(x: Tensor, sigma: float | Tensor) -> Tensor:
            groups = cache(x)
            cache.count()
            return groups.shrink(_stack_frames(x), self.weight, sigma).reshape(x.shape)

        return denoise

    def _match(self, videos: Tensor) -> Groups:
        side = min(self.patch, *videos.shape[2:])
        settings = side, min(self.stride, side), self.matches, self.radius, self.reach
        return Groups.of(match_patches(videos[:, :, None], *settings), _stack_frames(videos), side)


def _stack_frames(videos: Tensor) -> Tensor:
    """Return frames `(B, F, H, W)` one below the other, `(B, 1, F·H, W)`.

    A flat position in this image determines the frame, row and column of a patch.
    """
    return videos.flatten(1, 2)[:, None]
