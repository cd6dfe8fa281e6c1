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

// The picture, and below it the scale of its colours.
function withScale(canvas, scale) {
  const ramp = scale.querySelector("canvas");
  const [low, high, words] = [ramp.previousSibling, ramp.nextSibling, scale.lastChild]
    .map((node) => node.textContent);
  const whole = document.createElement("canvas");
  const context = whole.getContext("2d");
  const font = "12px sans-serif";
  context.font = font;
  const wide = (text) => Math.ceil(context.measureText(text).width) + 8;
  const [start, end] = [wide(low), Math.max(canvas.width, wide(words), 240)];
  const bar = end - start - wide(high);
  Object.assign(whole, { width: end, height: canvas.height + 44 });
  Object.assign(context, { font, fillStyle: "#fff" }); // the new size has reset the font
  context.fillRect(0, 0, whole.width, whole.height);
  context.drawImage(canvas, 0, 0);
  context.drawImage(ramp, start, canvas.height + 8, bar, 12);
  context.fillStyle = "#000";
  context.fillText(low, 4, canvas.height + 18);
  context.fillText(high, start + bar + 4, canvas.height + 18);
  context.fillText(words, 4, canvas.height + 37);
  return whole;
}

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
