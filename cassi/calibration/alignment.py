"""The alignment of a mask, estimated from a measurement."""

from dataclasses import dataclass

from cassi.systems import System


@dataclass(frozen=True)
class Alignment:
    """Shift, rotation, magnification and blur of a mask, and the camera with the mask moved.

    Attributes:
        down: shift of the mask down, pixels.
        right: shift of the mask to the right, pixels.
        rotation: degrees, counterclockwise as displayed with row 0 on top.
        magnification: size of the mask over its nominal size.
        blur: standard deviation of the blur of the mask, pixels.
        system: the aligned camera.
        before: held-out error of the nominal camera.
        after: held-out error of the aligned camera.
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
        """Return the entry of metrics.json."""
        return {
            "down": self.down,
            "right": self.right,
            "rotation": self.rotation,
            "magnification": self.magnification,
            "blur": self.blur,
            "heldout_error": {"before": self.before, "after": self.after},
        }

    def __str__(self) -> str:
        """Return one line for people."""
        return (
            f"the mask moved {self.down:+.2f} px down and {self.right:+.2f} px right, turned by "
            f"{self.rotation:+.3f}°, magnified {self.magnification:.4f} times, "
            f"blurred by {self.blur:.2f} px"
        )
