// The page: pickers, band slider, marks, keyboard. State lives in `state`, `update` draws it.

const find = (selector) => document.querySelector(selector);
const scenes = [...document.querySelectorAll("script.scene")].map((element) => new Scene(element));
const state = {
  limit: 1, wipe: 0, scene: 0, view: "color", band: 0, sources: [TRUTH, TRUTH], live: null, loaded: [],
  other: undefined, second: null, curves: "cubes", drag: "box", draft: null,
  zoom: { scale: 1, x: 0, y: 0 }, // the shown part begins at (x, y), shares of the picture
};
const panels = [...document.querySelectorAll(".panel")].map((element) => ({
  element,
  select: element.querySelector("select"),
  score: element.querySelector(".score"),
  save: element.querySelector(".save"),
  canvas: element.querySelector("canvas"),
  marks: element.querySelector(".marks"),
}));
const table = new Table(scenes, (index, method) => {
  if (method !== undefined) state.wanted = method;
  bringUp();
  show(index ?? state.scene);
});
const current = () => scenes[state.scene];
const label = (key) => (key === TRUTH ? "truth" : key);
const comparison = () =>
  new Comparison(current(), state.view, state.band, state.other, state.second);
const wide = () => (current().cubes.size > 1 ? panels : panels.slice(0, 1));

function segments(element, choices, chosen, choose) {
  element.replaceChildren(...choices.map(([key, text]) => {
    const button = document.createElement("button");
    button.textContent = text;
    button.dataset.key = key;
    button.setAttribute("aria-pressed", key === chosen);
    button.onclick = () => { press(element, key); choose(key); };
    return button;
  }));
}

const press = (element, chosen) => [...element.children].forEach((button) =>
  button.setAttribute("aria-pressed", button.dataset.key === chosen));

function option(value, text) {
  const element = document.createElement("option");
  [element.value, element.textContent] = [value, text];
  return element;
}

async function show(index) {
  state.scene = index;
  const scene = current();
  find("#scene").value = index;
  await scene.load();
  if (index !== state.scene) return; // another was chosen while this one was decoded
  // Decoded planes of a scene take some 10 MB: those of the last three stay.
  state.loaded = [index, ...state.loaded.filter((i) => i !== index)];
  state.loaded.splice(3).forEach((i) => scenes[i].forget());

  const keys = [...scene.cubes.keys()];
  const wanted = scene.cubes.has(state.wanted) ? state.wanted : best(scene);
  state.sources[1] = wanted;
  if (!keys.includes(state.sources[0]) || state.sources[0] === wanted) {
    state.sources[0] = keys.find((key) => key !== wanted) ?? keys[0];
  }
  panels.forEach(({ select }, i) => {
    select.replaceChildren(...keys.map((key) => option(key, label(key))));
    select.value = state.sources[i];
  });
  if (keys.length === 1) state.sources[0] = keys[0];
  panels[1].element.hidden = keys.length === 1;
  find(".stage").classList.toggle("single", keys.length === 1);
  offerComparisons(scene, keys, wanted);
  const views = [["color", "Colour"], ["band", "Band"]];
  const [many, bands] = [keys.length > 1, scene.bands > 1];
  if (many || bands) views.push(["difference", "Difference"]);
  if (many) views.push(["rms", "Difference, all bands"]);
  if (many || bands) views.push(["ratio", "Ratio"], ["index", "Index"]);
  if (scene.bars.size) views.push(["bars", "Uncertainty"]);
  if (!views.some(([view]) => view === state.view)) state.view = "color";
  find("#surer").hidden = scene.bars.size === 0;
  find("#wipe").hidden = !many;
  setLimit(Number(find("#surer input").value));
  segments(find("#view"), views, state.view, (view) => { state.view = view; drawPictures(); });
  state.band = Math.min(state.band, scene.bands - 1);
  find("#band").max = scene.bands - 1;
  state.live = scene.marks[0] ?? pixelAt(scene, 0, 0);
  setZoom(1, 0, 0);
  const [height, width] = scene.full;
  const mean = scene.block > 1 ? `, shown as means of ${scene.block} × ${scene.block}` : "";
  find("#summary").textContent = `${scenes.length > 1 ? `${scenes.length} scenes · ` : ""}` +
    `${scene.bands} bands${range()} · ${height} × ${width} pixels${mean}`;
  update();
}

// What pictures can be compared with: the truth where it is known, else another cube, or another
// band of the same.
function offerComparisons(scene, keys, wanted) {
  if (state.other === undefined || (state.other !== null && !keys.includes(state.other))) {
    state.other = keys.find((key) => key !== wanted) ?? null;
  }
  if (keys.length === 1) state.second ??= 0;
  if (state.second >= scene.bands) state.second = 0;
  const others = [null, ...keys];
  find("#other").replaceChildren(...others.map((key, i) => option(i, key === null ? "itself" : label(key))));
  find("#other").value = others.indexOf(state.other);
  find("#other").onchange = ({ target }) => {
    state.other = others[target.value];
    drawPictures();
  };
  const bands = Array.from({ length: scene.bands }, (_, b) => option(b, bandName(b)));
  find("#second").replaceChildren(option("", "the same band"), ...bands);
  find("#second").value = state.second ?? "";
  find("#second").onchange = ({ target }) => {
    state.second = target.value === "" ? null : Number(target.value);
    drawPictures();
  };
}

// The method shown first: that of the highest PSNR, or the first.
function best(scene) {
  const scored = scene.metrics
    .map(([method, pairs]) => [method, new Map(pairs).get("psnr") ?? -Infinity])
    .filter(([method]) => scene.cubes.has(method))
    .sort((a, b) => b[1] - a[1]);
  return scored[0]?.[0] ?? scene.methods[0] ?? TRUTH;
}

// To the viewer, where a row of the table was clicked that stands far below it.
function bringUp() {
  const quiet = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (find("#viewer").getBoundingClientRect().top >= 0) return;
  find("#viewer").scrollIntoView({ behavior: quiet ? "auto" : "smooth" });
}

function range() {
  const nm = settings.wavelengths;
  return nm ? `, ${nm[0]} to ${nm[nm.length - 1]} nm` : "";
}

function update() {
  drawPictures();
  drawMarks();
  drawLive();
  drawCards();
  table.choosing(state.scene, state.sources[1]);
}

function drawPictures() {
  const scene = current();
  const { view, band } = state;
  wide().forEach(({ canvas, score }, i) => {
    const key = state.sources[i];
    const draw = (place, source) => {
      drawPicture(place, scene, source, view, band, comparison());
      hideUnsure(place, scene, source, view, band, state.limit);
    };
    draw(canvas, key);
    if (i === 1) wipe(canvas, state.wipe, (cover) => draw(cover, state.sources[0]));
    canvas.parentElement.style.width = `min(100%, ${(64 * scene.width) / scene.height}vh)`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${label(key)}, ${view}`);
    const metrics = new Map(scene.metrics.find(([method]) => method === key)?.[1]);
    const words = { psnr: (text) => `${text} dB`, ssim: (text) => `SSIM ${text}` };
    score.textContent = Object.keys(words)
      .filter((name) => Number.isFinite(metrics.get(name)))
      .map((name) => words[name](formatMetric(name, metrics.get(name))))
      .join(" · ");
  });
  drawScale(find("#scale"), scene, view, band, comparison());
  find("#compare").hidden = !isComparison(view);
  find("#second").parentElement.hidden = view === "rms";
  const chip = document.createElement("span");
  chip.className = "chip";
  chip.style.background = `rgb(${settings.tints[scene.bands][band].join(",")})`;
  const count = settings.wavelengths ? `  (${band + 1} of ${scene.bands})` : ` of ${scene.bands}`;
  find("#band-name").replaceChildren(chip, bandName(band) + count);
  find("#band").value = band;
  find("#band").setAttribute("aria-valuetext", bandName(band));
}

// From everything, at 100, down to intervals of a thousandth of white.
function setLimit(value) {
  state.limit = 10 ** ((3 * (value - 100)) / 100);
  const shown = Number((100 * state.limit).toPrecision(2));
  find("#surer span").textContent = state.limit >= 1
    ? "Show everything" : `Show only what is surer than ±${shown} % of white`;
}

function setBand(band) {
  state.band = Math.max(0, Math.min(current().bands - 1, band));
  if (state.view === "color" || state.view === "rms") {
    state.view = state.view === "rms" ? "difference" : "band"; // else the slider would do nothing
    press(find("#view"), state.view);
  }
  drawPictures();
  soon(() => { drawLive(); drawCards(); });
}

// The picture comes first. Curves follow when it is on the screen, once for many steps of the slider.
let following = false;
function soon(draw) {
  if (following) return;
  following = true;
  requestAnimationFrame(() => setTimeout(() => { following = false; draw(); }));
}

// The part of both pictures that is shown: so many times larger, from (x, y) on.
function setZoom(scale, x, y) {
  const larger = Math.max(1, Math.min(64, scale));
  const within = (start) => Math.max(0, Math.min(1 - 1 / larger, start));
  state.zoom = { scale: larger, x: within(x), y: within(y) };
  for (const { canvas } of panels) {
    const shift = `${-100 * state.zoom.x}%, ${-100 * state.zoom.y}%`;
    canvas.style.transform = `scale(${larger}) translate(${shift})`;
  }
}

// Zooms about a place, shares of the picture, which stays where it is.
function zoomBy(factor, [down, across]) {
  const { scale, x, y } = state.zoom;
  const larger = Math.max(1, Math.min(64, scale * factor));
  setZoom(larger, across - ((across - x) * scale) / larger, down - ((down - y) * scale) / larger);
  drawMarks();
}

const middle = () => [state.zoom.y, state.zoom.x].map((start) => start + 0.5 / state.zoom.scale);

function ring(mark, className, text) {
  const { width, height } = current();
  const { scale, x, y } = state.zoom;
  const element = document.createElement("div");
  element.className = className;
  const shift = mark.single ? 0.5 : 0; // a region has its number at its first corner
  element.style.left = `${100 * scale * ((mark.left + shift) / width - x)}%`;
  element.style.top = `${100 * scale * ((mark.top + shift) / height - y)}%`;
  if (text) element.append(Object.assign(document.createElement("span"), { textContent: text }));
  return element;
}

function outlines(marks) {
  const { width, height } = current();
  const { scale, x, y } = state.zoom;
  const make = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  const svg = make("svg");
  svg.setAttribute("viewBox", [x * width, y * height, width / scale, height / scale].join(" "));
  svg.setAttribute("preserveAspectRatio", "none");
  for (const [corners, color] of marks) {
    const polygon = make("polygon");
    polygon.setAttribute("points", corners.map(([row, column]) => `${column},${row}`).join(" "));
    polygon.style.stroke = color;
    svg.append(polygon);
  }
  return svg;
}

const numberOf = (mark) =>
  current().marks.findIndex((other) => other === mark || other.is(mark)) + 1;

function drawMarks() {
  const { marks } = current();
  const regions = marks.flatMap((mark, i) => (mark.single ? [] : [[mark.corners, colorOf(i)]]));
  if (state.draft) regions.push([state.draft, "#ffd84d"]);
  for (const panel of panels) {
    const rings = marks.map((mark, i) => ring(mark, mark.single ? "mark" : "mark region", String(i + 1)));
    if (numberOf(state.live) === 0) rings.push(ring(state.live, "mark live"));
    panel.marks.replaceChildren(outlines(regions), ...rings);
  }
}

function drawLive() {
  const scene = current();
  const number = numberOf(state.live);
  const name = state.live.single ? "Point" : "Region";
  find("#spot").textContent = `${number ? `${name} ${number}: ` : ""}${state.live.words}`;
  const lines = state.curves === "cubes" ? curvesOfCubes(scene, state.live)
    : curvesOfMarks(scene, state.sources[1], scene.marks, state.live);
  const { mean } = state.live.statistics(scene.cubes.get(state.sources[1]));
  drawSpectrum(find("#spectrum"), [...lines, ...referenceLines(mean)], state.band);
  find("#shaded").textContent = shadedWords(scene, [state.live, ...scene.marks]);
}

// Of the right picture's cube at the band of the slider.
function numbersOf(mark) {
  const scene = current();
  const [key, band] = [state.sources[1], state.band];
  const { mean, spread } = mark.statistics(scene.cubes.get(key));
  const bars = scene.bars.get(key);
  return [`${label(key)} at ${bandName(band)}: ${sensible(mean[band])}`,
    mark.single ? "" : `spread ${sensible(spread[band])}`,
    bars ? `90 % interval ±${sensible(mark.error(bars)[band])}` : "",
    mark.single ? "" : `${mark.pixels.length * scene.block ** 2} pixels`].filter(Boolean).join(", ");
}

function drawCards() {
  const scene = current();
  const holder = find("#marked");
  while (holder.children.length > scene.marks.length) holder.lastChild.remove();
  scene.marks.forEach((mark, i) => {
    let card = holder.children[i];
    if (!card) {
      card = document.createElement("div");
      card.className = "card";
      card.innerHTML = "<h3><span></span><button>×</button></h3><div class=plot></div><p></p><p></p>";
      holder.append(card);
    }
    card.querySelector("span").textContent = `${i + 1}   ${mark.words}`;
    const button = card.querySelector("button");
    button.setAttribute("aria-label", `Remove ${mark.single ? "point" : "region"} ${i + 1}`);
    button.onclick = () => { scene.marks.splice(i, 1); drawMarks(); drawLive(); drawCards(); };
    const agreement = drawCard(card.querySelector(".plot"), scene, mark, state.band);
    const [compared, numbers] = card.querySelectorAll("p");
    compared.textContent = agreement && `r with the truth: ${agreement}`;
    numbers.textContent = numbersOf(mark);
  });
}

function keep(mark) {
  find("#said").textContent = mark ? "" : "There is no pixel of the picture inside.";
  if (!mark) return;
  const { marks } = current();
  if (numberOf(mark) === 0) marks.push(mark);
  state.live = mark;
  drawMarks();
  drawLive();
  drawCards();
}

// Row and column under the pointer, and the pixel there.
function placeUnder(event, canvas) {
  const box = canvas.getBoundingClientRect();
  const { width, height } = current();
  return [((event.clientY - box.top) / box.height) * height,
    ((event.clientX - box.left) / box.width) * width];
}

function pixelUnder(event, canvas) {
  const { width, height } = current();
  const [row, column] = placeUnder(event, canvas).map(Math.floor);
  const within = (at, length) => Math.max(0, Math.min(length - 1, at));
  return pixelAt(current(), within(row, height), within(column, width));
}

// A click keeps a point; a drag keeps a rectangle or an outline, or moves the picture.
function listenToPointer(canvas, live) {
  let start = null;
  const draft = (place) => {
    const [[y0, x0], [y1, x1]] = [start.path[0], place];
    state.draft = state.drag === "box" ? [[y0, x0], [y0, x1], [y1, x1], [y1, x0]] : start.path;
    drawMarks();
  };
  const end = () => {
    const ended = start;
    [start, state.draft] = [null, null];
    return ended;
  };
  canvas.onpointerdown = (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    start = { x: event.clientX, y: event.clientY, zoom: state.zoom, path: [placeUnder(event, canvas)] };
  };
  canvas.onpointermove = (event) => {
    if (!start) return live(pixelUnder(event, canvas));
    const [right, down] = [event.clientX - start.x, event.clientY - start.y];
    start.dragged ||= Math.hypot(right, down) > 4;
    if (!start.dragged) return;
    if (state.drag === "move") {
      const box = canvas.getBoundingClientRect();
      setZoom(start.zoom.scale, start.zoom.x - right / box.width, start.zoom.y - down / box.height);
      drawMarks();
    } else {
      start.path.push(placeUnder(event, canvas));
      draft(start.path.at(-1));
    }
  };
  canvas.onpointerup = (event) => {
    const ended = end();
    if (!ended) return;
    if (!ended.dragged) keep(pixelUnder(event, canvas));
    else if (state.drag === "box") keep(between(current(), ended.path[0], ended.path.at(-1)));
    else if (state.drag === "outline") keep(inside(current(), ended.path));
    drawMarks();
  };
  canvas.onpointercancel = () => { end(); drawMarks(); };
  canvas.onpointerleave = () => { if (!start) live(current().marks.at(-1) ?? state.live); };
  canvas.addEventListener("wheel", (event) => {
    if (state.drag !== "move" && !event.ctrlKey) return; // the wheel scrolls the page
    event.preventDefault();
    const { width, height } = current();
    const [row, column] = placeUnder(event, canvas);
    zoomBy(2 ** (-event.deltaY / 250), [row / height, column / width]);
  }, { passive: false });
}

function listen() {
  let waiting = false;
  const live = (mark) => {
    state.live = mark;
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; drawMarks(); drawLive(); });
  };
  panels.forEach(({ canvas, select, save }, i) => {
    listenToPointer(canvas, live);
    save.onclick = () => {
      const at = ["color", "rms"].includes(state.view) ? "" : ` ${bandName(state.band)}`;
      const isFalse = isMap(current(), state.sources[i], state.view, comparison());
      const picture = isFalse ? withScale(canvas, find("#scale")) : canvas;
      savePicture(picture, `${label(state.sources[i])} ${state.view}${at}`);
    };
    select.onchange = () => {
      state.sources[i] = select.value;
      if (i === 1) state.wanted = select.value;
      drawPictures();
      drawLive();
      drawCards();
      table.choosing(state.scene, state.sources[1]);
    };
  });
  find("#scene").onchange = (event) => show(Number(event.target.value));
  find("#wipe input").oninput = (event) => {
    state.wipe = Number(event.target.value) / 100;
    drawPictures();
  };
  find("#surer input").oninput = (event) => {
    setLimit(Number(event.target.value));
    drawPictures();
  };
  find("#band").oninput = (event) => setBand(Number(event.target.value));
  listenToTools();
  document.addEventListener("keydown", (event) => {
    const own = event.target.matches?.("select, input") || event.ctrlKey || event.altKey || event.metaKey;
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (own || !way) return;
    setBand(state.band + way);
    event.preventDefault();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
}

function listenToTools() {
  const drags = [["box", "Rectangle"], ["outline", "Outline"], ["move", "Move"]];
  segments(find("#drag"), drags, state.drag, (drag) => { state.drag = drag; });
  const kinds = [["cubes", "All cubes here"], ["marks", "One cube, all marks"]];
  segments(find("#curves"), kinds, state.curves, (kind) => { state.curves = kind; drawLive(); });
  for (const [text, name, zoom] of [["+", "Larger", () => zoomBy(2, middle())],
    ["−", "Smaller", () => zoomBy(0.5, middle())], ["Whole", "Whole picture", () => zoomBy(0, middle())]]) {
    const button = Object.assign(document.createElement("button"), { textContent: text, onclick: zoom });
    button.setAttribute("aria-label", name);
    find("#zoom").append(button);
  }
  find("#typed button").onclick = () => {
    const { block } = current();
    const [row, column, rows, columns] = [...document.querySelectorAll("#typed input")]
      .map((field) => Number(field.value) / block);
    keep(between(current(), [row, column], [row + rows, column + columns]));
  };
  find("#clear").onclick = () => {
    current().marks.length = 0;
    drawMarks();
    drawLive();
    drawCards();
  };
  listenToReferences(find(".curves"), find("#reference"), find("#reference + input"));
  find("#table-of-spectra").onclick = () => saveSpectra(current());
  find("#curves-as-svg").onclick = () => saveCurves(find("#spectrum"), `${current().name} spectra`);
}

// Files of reference spectra are dropped on the curves, or chosen.
function listenToReferences(place, button, input) {
  const add = async (files) => { find("#said").textContent = await addReferences(files); drawLive(); };
  button.onclick = () => input.click();
  input.onchange = async () => { await add([...input.files]); input.value = ""; };
  place.addEventListener("dragover", (event) => event.preventDefault());
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });
}

// The method of report.html#METHOD.
function wantedByAddress() {
  try {
    return decodeURIComponent(location.hash.slice(1)) || undefined; // "" would be the truth
  } catch { // no text in UTF-8
    return undefined;
  }
}

async function start() {
  await startPlotly();
  find("#scene").replaceChildren(...scenes.map((scene, i) => option(i, scene.name)));
  find("#scene").parentElement.hidden = scenes.length === 1;
  find("#rows").hidden = scenes.length === 1;
  const kinds = [["mean", "Mean over scenes"], ["own", ""], ["every", "Every scene"]];
  segments(find("#rows"), kinds, table.mode, (mode) => { table.mode = mode; table.draw(); });
  find("#notes").textContent = `${settings.notes} Click a row to see it above.`;
  state.band = Math.floor(scenes[0].bands / 2);
  state.wanted = wantedByAddress();
  listen();
  await startAnswers(find("#answers"));
  await show(0);
  followHidden(find("#spectrum"), drawCards);
  find("#spectrum").on("plotly_click", ({ points }) => setBand(points[0].pointIndex));
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  const failure = find("#failure");
  failure.textContent = `The page could not be drawn; it needs a browser of 2023 or later. ${error}`;
  failure.hidden = false;
  throw error;
});
