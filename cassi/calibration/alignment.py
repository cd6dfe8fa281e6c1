"""A mask that was moved to where a measurement shows it."""

from dataclasses import dataclass

from cassi.systems import System


@dataclass(frozen=True)
class Alignment:
    """Where the mask was found.

    Attributes:
        down: shift, pixels.
        right: shift, pixels.
        rotation: degrees, counterclockwise as displayed with row 0 on top.
        magnification: of the mask.
        blur: standard deviation, pixels.
        system: the camera with its mask there.
        before: held-out error through the camera as it was given.
        after: through this one, lower.
    """

    down: float
    right: float
    rotation: float
    magnification: float
    blur: float
    system: System
    before: float
    after: float

    def numbers(self) -> dict[str, object]:
        """Return what metrics.json has of it."""
        return {
            "down": self.down,
            "right": self.right,
            "rotation": self.rotation,
            "magnification": self.magnification,
            "blur": self.blur,
            "heldout_error": {"before": self.before, "after": self.after},
        }

    def __str__(self) -> str:
        """Say it for people."""
        return (
            f"the mask moved {self.down:+.2f} px down and {self.right:+.2f} px right, turned by "
            f"{self.rotation:+.3f}°, magnified {self.magnification:.4f} times, "
            f"blurred by {self.blur:.2f} px"
        )
