// Spectra of all methods and the truth at one pixel, drawn by plotly.js.

// Okabe and Ito's palette for all kinds of colour vision, without its black.
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b8a800"];
const ON_DARK = ["#4ea6dd", "#f08a4b", "#35c79b", "#dd9bbf", "#efb84a", "#8fd0f5", "#e0d24a"];
const DASHES = ["solid", "dot", "dashdot", "longdash"];

async function startPlotly() {
  const text = atob(document.getElementById("plotly").textContent);
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

// plotly.js reads tags and entities in names: a method may not bring any.
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Methods whose curve a click on their name has hidden, in every scene.
const hidden = new Set();

function curves(scene, pixel) {
  const x = settings.wavelengths ?? Array.from({ length: scene.bands }, (_, b) => b + 1);
  const truth = scene.truth?.spectrum(pixel);
  const mode = scene.bands === 1 ? "markers" : "lines";
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const palette = dark ? ON_DARK : PALETTE;
  const lines = scene.methods.map((method, i) => {
    const y = scene.cubes.get(method).spectrum(pixel);
    const r = truth && correlation(y, truth);
    const line = {
      color: palette[i % palette.length],
      dash: DASHES[Math.floor(i / PALETTE.length) % DASHES.length],
      width: 2,
    };
    const half = scene.bars.get(method)?.spectrum(pixel).map((value) => Math.max(0, value));
    const shade = half && {
      x: [...x, ...x.slice().reverse()],
      y: [...y.map((v, b) => v + half[b]), ...y.map((v, b) => v - half[b]).reverse()],
      mode: "lines", fill: "toself", fillcolor: `${line.color}2e`, line: { width: 0 },
      hoverinfo: "skip", showlegend: false,
    };
    return { method, r, shade, trace: { x, y, mode, line, name: plain(method) } };
  });
  if (truth) {
    const line = { color: themed("--ink"), width: 2, dash: "dash" };
    lines.push({ method: TRUTH, r: null, trace: { x, y: truth, mode, line, name: "truth" } });
  }
  return lines;
}

function layout(band, small) {
  const [ink, line] = [themed("--soft"), themed("--line")];
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const at = settings.wavelengths ? settings.wavelengths[band] : band + 1;
  const unit = settings.wavelengths ? "wavelength / nm" : "band";
  const cursor = {
    type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1,
    line: { color: themed("--accent"), width: 1, dash: "dot" },
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: small ? 11 : 12, family: "system-ui, sans-serif" },
    margin: small ? { l: 36, r: 6, t: 6, b: 22 } : { l: 48, r: 10, t: 8, b: 42 },
    xaxis: { ...axis, title: small ? undefined : { text: unit }, showgrid: false },
    yaxis: { ...axis, rangemode: "tozero", title: small ? undefined : { text: "value in the cube" } },
    showlegend: !small, hovermode: "x unified",
    hoverlabel: { bgcolor: themed("--raised"), bordercolor: line, font: { color: themed("--ink") } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: themed("--ink") } },
    shapes: [cursor],
  };
}

// Plotly shows and hides curves by itself, but only until they are drawn anew.
function followHidden(element, draw) {
  element.on("plotly_restyle", () => {
    hidden.clear();
    for (const { meta, visible } of element.data) if (visible === "legendonly") hidden.add(meta);
    draw();
  });
}

const coefficient = (r) => r.toFixed(3).replace("-", "−");

function drawSpectrum(element, scene, pixel, band) {
  const lines = curves(scene, pixel);
  const shades = lines.filter(({ method, shade }) => shade && !hidden.has(method));
  const traces = lines.map(({ method, trace, r }) => ({
    ...trace,
    meta: method,
    visible: hidden.has(method) ? "legendonly" : true,
    name: r === null || r === undefined ? trace.name : `${trace.name}  r = ${coefficient(r)}`,
    hovertemplate: "%{y:.4f}",
  }));
  const buttons = ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "pan2d"];
  // The page has its own words; plotly's would lie over the names.
  const config = {
    responsive: true, displaylogo: false, showTips: false, modeBarButtonsToRemove: buttons,
  };
  const all = [...traces, ...shades.map(({ shade }) => shade)];
  return Plotly.react(element, all, layout(band, false), config);
}

function drawCard(element, scene, pixel, band) {
  const lines = curves(scene, pixel).filter(({ method }) => !hidden.has(method));
  const config = { responsive: true, staticPlot: true };
  const shades = lines.flatMap(({ shade }) => shade ?? []);
  Plotly.react(element, [...lines.map(({ trace }) => trace), ...shades], layout(band, true), config);
  const known = lines.filter(({ r }) => r !== null && r !== undefined);
  return known.map(({ method, r }) => `${method} ${coefficient(r)}`).join(", ");
}
