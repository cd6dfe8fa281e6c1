// What can be taken away from the page: a picture as PNG, curves as SVG, spectra of marks as
// CSV.

function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\p{L}\p{N}.+=-]+/gu, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const savePicture = (canvas, name) => canvas.toBlob((blob) => download(`${name}.png`, blob));

// A row a band of each cube at each mark.
function spectraTable(scene) {
  const head = ["region", "pixels", "cube", "band", "wavelength_nm", "mean", "spread", "error"];
  const rows = scene.marks.flatMap((mark) => [...scene.cubes].flatMap(([key, cube]) => {
    const { mean, spread } = mark.statistics(cube);
    const error = scene.bars.has(key) ? mark.error(scene.bars.get(key)) : [];
    return mean.map((value, b) => [mark.words, mark.pixels.length * scene.block ** 2, label(key),
      b + 1, settings.wavelengths?.[b] ?? "", value, spread[b], error[b] ?? ""]);
  }));
  const quoted = (cell) => (/[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : cell);
  return [head, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n");
}

const saveSpectra = (scene) =>
  download(`${scene.name} spectra.csv`, new Blob([spectraTable(scene)], { type: "text/csv" }));

// The curves as they are drawn, on the colour of the page, without a raster.
async function saveCurves(element, name) {
  const layout = { ...element.layout, paper_bgcolor: themed("--page") };
  const options = { format: "svg", width: 640, height: 420 };
  const image = await Plotly.toImage({ data: element.data, layout }, options);
  const text = decodeURIComponent(image.slice(image.indexOf(",") + 1));
  download(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
}
