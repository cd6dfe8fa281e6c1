// Spectra of all methods and the truth at one mark, or of one cube at all marks, by plotly.js.

// Okabe and Ito's palette for all kinds of colour vision, without its black.
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b8a800"];
const ON_DARK = ["#4ea6dd", "#f08a4b", "#35c79b", "#dd9bbf", "#efb84a", "#8fd0f5", "#e0d24a"];
const DASHES = ["solid", "dot", "dashdot", "longdash"];

async function startPlotly() {
  const script = document.createElement("script");
  script.textContent = await gunzip(document.getElementById("plotly").textContent).text();
  document.head.append(script);
}

// plotly.js reads tags and entities in names: a method may not bring any.
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Methods and marks whose curve a click on their name has hidden, in every scene.
const hidden = new Set();

const axisOf = (scene) =>
  settings.wavelengths ?? Array.from({ length: scene.bands }, (_, b) => b + 1);

function colorOf(index) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return (dark ? ON_DARK : PALETTE)[index % PALETTE.length];
}

// The mean spectrum of a cube at a mark; its interval, or where it has none its spread, is shaded.
// A region that has both has the interval as error bars.
function curve(scene, key, mark, index) {
  const x = axisOf(scene);
  const { mean, spread } = mark.statistics(scene.cubes.get(key));
  const dash = DASHES[Math.floor(index / PALETTE.length) % DASHES.length];
  const line = { color: colorOf(index), dash, width: 2 };
  const bars = scene.bars.get(key);
  const error = bars && mark.error(bars);
  const half = mark.single ? error : spread;
  const shade = half && {
    x: [...x, ...x.slice().reverse()],
    y: [...mean.map((v, b) => v + half[b]), ...mean.map((v, b) => v - half[b]).reverse()],
    mode: "lines", fill: "toself", fillcolor: `${line.color}2e`, line: { width: 0 },
    hoverinfo: "skip", showlegend: false,
  };
  const trace = { x, y: mean, mode: scene.bands === 1 ? "markers" : "lines", line };
  // The axis has wavelengths without their errors: names with errors stand beside the values.
  if (settings.names?.some((name) => name.includes("±"))) trace.customdata = settings.names;
  if (error && !mark.single) trace.error_y = { type: "data", array: error, thickness: 1, width: 2 };
  return { shade, trace };
}

function shadedWords(scene, marks) {
  const words = [];
  if (scene.bars.size && marks.some((mark) => mark.single)) {
    words.push("Shaded around a point: the 90 % interval.");
  }
  if (marks.some((mark) => !mark.single)) {
    words.push("Shaded around a region: ± the standard deviation of its pixels.");
    if (scene.bars.size) words.push("Its error bars: the 90 % interval of a pixel.");
  }
  return words.join(" ");
}

function truthCurve(scene, mark, color) {
  const { trace } = curve(scene, TRUTH, mark, 0);
  return { ...trace, line: { color, width: 2, dash: "dash" } };
}

// All cubes at one mark.
function curvesOfCubes(scene, mark) {
  const truth = scene.truth && mark.statistics(scene.truth).mean;
  const lines = scene.methods.map((method, i) => {
    const { shade, trace } = curve(scene, method, mark, i);
    const r = truth ? correlation(trace.y, truth) : null;
    return { key: method, r, shade, trace: { ...trace, name: plain(method) } };
  });
  if (truth) {
    const trace = { ...truthCurve(scene, mark, themed("--ink")), name: "truth" };
    lines.push({ key: TRUTH, r: null, trace });
  }
  return lines;
}

// One cube at all marks, dashed the truth there, and grey what is under the pointer.
function curvesOfMarks(scene, key, marks, live) {
  const lines = marks.flatMap((mark, i) => {
    const { shade, trace } = curve(scene, key, mark, i);
    const meta = `mark ${i + 1}`;
    const own = { key: meta, r: null, shade, trace: { ...trace, name: `${i + 1}: ${mark.words}` } };
    if (!scene.truth || key === TRUTH) return [own];
    const truth = { ...truthCurve(scene, mark, colorOf(i)), showlegend: false };
    return [own, { key: meta, r: null, trace: { ...truth, name: `${i + 1}: truth` } }];
  });
  if (marks.some((mark) => mark === live || mark.is(live))) return lines;
  const { trace } = curve(scene, key, live, 0);
  const line = { color: themed("--soft"), width: 1.5 };
  lines.push({ key: "pointer", r: null, trace: { ...trace, line, name: "pointer" } });
  return lines;
}

function layout(band, small) {
  const [ink, line] = [themed("--soft"), themed("--line")];
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const at = settings.wavelengths ? settings.wavelengths[band] : band + 1;
  const unit = settings.wavelengths ? "wavelength / nm" : "band";
  const whole = settings.wavelengths ? {} : { dtick: Math.ceil(current().bands / 8) };
  const cursor = {
    type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1,
    line: { color: themed("--accent"), width: 1, dash: "dot" },
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: small ? 11 : 12, family: "system-ui, sans-serif" },
    margin: small ? { l: 36, r: 6, t: 6, b: 22 } : { l: 48, r: 10, t: 8, b: 42 },
    xaxis: { ...axis, ...whole, title: small ? undefined : { text: unit }, showgrid: false },
    yaxis: { ...axis, rangemode: "tozero", title: small ? undefined : { text: settings.unit } },
    showlegend: !small, hovermode: "x unified",
    hoverlabel: { bgcolor: themed("--raised"), bordercolor: line, font: { color: themed("--ink") } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: themed("--ink") } },
    shapes: [cursor],
  };
}

// Plotly shows and hides curves by itself, but only until they are drawn anew.
function followHidden(element, draw) {
  element.on("plotly_restyle", () => {
    for (const { meta, visible, showlegend } of element.data) {
      if (showlegend === false) continue;
      if (visible === "legendonly") hidden.add(meta);
      else hidden.delete(meta);
    }
    draw();
  });
}

const coefficient = (r) => r.toFixed(3).replace("-", "−");

function drawSpectrum(element, lines, band) {
  const shades = lines.filter(({ key, shade }) => shade && !hidden.has(key));
  const traces = lines.map(({ key, trace, r }) => ({
    ...trace,
    meta: key,
    visible: !hidden.has(key) || (trace.showlegend === false ? false : "legendonly"),
    name: r === null ? trace.name : `${trace.name}  r = ${coefficient(r)}`,
    hovertemplate: `%{y:.4f}${trace.customdata ? " at %{customdata}" : ""}`,
  }));
  const buttons = ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "pan2d"];
  // The page has its own words; plotly's would lie over the names.
  const config = {
    responsive: true, displaylogo: false, showTips: false, modeBarButtonsToRemove: buttons,
  };
  const all = [...traces, ...shades.map(({ shade }) => shade)];
  return Plotly.react(element, all, layout(band, false), config);
}

function drawCard(element, scene, mark, band) {
  const lines = curvesOfCubes(scene, mark).filter(({ key }) => !hidden.has(key));
  const config = { responsive: true, staticPlot: true };
  const shades = lines.flatMap(({ shade }) => shade ?? []);
  Plotly.react(element, [...lines.map(({ trace }) => trace), ...shades], layout(band, true), config);
  const known = lines.filter(({ r }) => r !== null);
  return known.map(({ key, r }) => `${key} ${coefficient(r)}`).join(", ");
}
