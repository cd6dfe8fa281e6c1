"""Section 5: cube, pictures, spectra, and the config that repeats it."""

from __future__ import annotations

import asyncio
import csv
import io
from pathlib import Path
from typing import Any

import panel as pn

from cassi.apps.view.cubes import Shown, spectrum
from cassi.apps.view.folders import NUMBERS
from cassi.apps.view.jobs import explain
from cassi.apps.view.pages.look import LookSection
from cassi.apps.view.pages.parts import button, field, heading, say, text
from cassi.apps.view.pictures import as_png
from cassi.apps.view.runs import save
from cassi.apps.view.session import Session


class SaveSection:
    """Writes the cube that is looked at.

    Args:
        session: of this tab.
        look: what is looked at.
    """

    def __init__(self, session: Session, look: LookSection) -> None:
        self.session, self.look = session, look
        self.name = field("Name of the folder", "first", 240, "first")
        self.save = button("Save", primary=True)
        self.save.on_click(self._save)
        self.message = text()
        where = text(f"below {session.output}")
        self.view = pn.Column(
            heading("5 Save"),
            pn.Row(self.name, pn.Column(pn.Spacer(height=18), self.save)),
            where,
            self.message,
            visible=False,
        )

    def show(self, shown: Shown) -> None:
        """Offer to save what was reconstructed here; other cubes lie in their folders."""
        self.view.visible = shown.made is not None

    async def _save(self, event: Any) -> None:
        shown = self.look.shown
        if shown is None:
            return
        self.save.disabled = True
        say(self.message, "writing …")
        try:
            folder = place(self.session.output, self.name.value_input or self.name.value)
            command = await asyncio.to_thread(save, shown, folder, self._files(shown))
            say(self.message, [f"saved in {folder}", f"to repeat it: {command}"])
        except Exception as error:
            say(self.message, explain(error), "error")
        finally:
            self.save.disabled = False

    def _files(self, shown: Shown) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        if self.look.drawn is not None:
            files["view.png"] = as_png(self.look.drawn.rgb)
        if self.look.regions:
            files["regions.csv"] = tabulate(shown, self.look.regions)
        return files


def place(output: Path, name: str) -> Path:
    """Return the folder of a new result.

    Raises:
        ValueError: the name leads elsewhere.
        FileExistsError: there is a result.
    """
    name = name.strip()
    folder = output / name
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or any(part.startswith(".") for part in parts):
        raise ValueError(f"name: expected one below {output}, got {name!r}")
    if (folder / NUMBERS).exists():
        raise FileExistsError(f"{folder}: there is a result already; give another name")
    return folder


def tabulate(shown: Shown, regions: list[Any]) -> bytes:
    """Return spectra of regions as CSV: a row a band of each."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(["region", "pixels", "band", "wavelength_nm", "mean", "spread", "error"])
    for region in regions:
        found = spectrum(shown, region)
        for number in range(len(found.mean)):
            nm = "" if shown.wavelengths is None else shown.wavelengths[number]
            error = "" if found.error is None else float(found.error[number])
            values = [float(found.mean[number]), float(found.spread[number]), error]
            writer.writerow([region.label, found.pixels, number + 1, nm, *values])
    return stream.getvalue().encode()
