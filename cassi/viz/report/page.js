// The page: pickers, band slider, marks, keyboard. State lives in `state`, `update` draws it.

const find = (selector) => document.querySelector(selector);
const scenes = [...document.querySelectorAll("script.scene")].map((element) => new Scene(element));
const state = { limit: 1, scene: 0, view: "color", band: 0, sources: [TRUTH, TRUTH], live: null, loaded: [] };
const panels = [...document.querySelectorAll(".panel")].map((element) => ({
  element,
  select: element.querySelector("select"),
  score: element.querySelector(".score"),
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
const wide = () => (current().cubes.size > 1 ? panels : panels.slice(0, 1));

function segments(element, choices, chosen, choose) {
  element.replaceChildren(...choices.map(([key, text]) => {
    const button = document.createElement("button");
    button.textContent = text;
    button.dataset.key = key;
    button.setAttribute("aria-pressed", key === chosen);
    button.onclick = () => {
      for (const other of element.children) other.setAttribute("aria-pressed", other === button);
      choose(key);
    };
    return button;
  }));
}

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
  if (!scene.truth && ["difference", "rms"].includes(state.view)) state.view = "color";
  const views = [["color", "Colour"], ["band", "Band"]];
  if (scene.truth && scene.methods.length) {
    views.push(["difference", "Difference"], ["rms", "Difference, all bands"]);
  }
  if (scene.bars.size) views.push(["bars", "Uncertainty"]);
  else if (state.view === "bars") state.view = "color";
  find("#surer").hidden = scene.bars.size === 0;
  setLimit(Number(find("#surer input").value));
  segments(find("#view"), views, state.view, (view) => { state.view = view; drawPictures(); });
  state.band = Math.min(state.band, scene.bands - 1);
  find("#band").max = scene.bands - 1;
  state.live = scene.marks[0] ?? 0;
  const [height, width] = scene.full;
  const mean = scene.block > 1 ? `, shown as means of ${scene.block} × ${scene.block}` : "";
  find("#summary").textContent = `${scenes.length > 1 ? `${scenes.length} scenes · ` : ""}` +
    `${scene.bands} bands${range()} · ${height} × ${width} pixels${mean}`;
  update();
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
    drawPicture(canvas, scene, key, view, band);
    hideUnsure(canvas, scene, key, view, band, state.limit);
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
  drawScale(find("#scale"), scene, view, band);
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
    for (const button of find("#view").children) {
      button.setAttribute("aria-pressed", button.dataset.key === state.view);
    }
  }
  drawPictures();
  drawLive();
  drawCards();
}

function place(pixel, className, text) {
  const { width, height } = current();
  const mark = document.createElement("div");
  mark.className = className;
  mark.style.left = `${(100 * ((pixel % width) + 0.5)) / width}%`;
  mark.style.top = `${(100 * (Math.floor(pixel / width) + 0.5)) / height}%`;
  if (text) mark.append(Object.assign(document.createElement("span"), { textContent: text }));
  return mark;
}

function drawMarks() {
  const { marks } = current();
  for (const panel of panels) {
    const rings = marks.map((pixel, i) => place(pixel, "mark", String(i + 1)));
    if (!marks.includes(state.live)) rings.push(place(state.live, "mark live"));
    panel.marks.replaceChildren(...rings);
  }
}

function words(pixel) {
  const { width, block } = current();
  return `row ${Math.floor(pixel / width) * block}, column ${(pixel % width) * block}`;
}

function drawLive() {
  const number = current().marks.indexOf(state.live) + 1;
  find("#spot").textContent = `${number ? `Point ${number}: ` : ""}${words(state.live)}`;
  drawSpectrum(find("#spectrum"), current(), state.live, state.band);
}

function drawCards() {
  const scene = current();
  const holder = find("#marked");
  while (holder.children.length > scene.marks.length) holder.lastChild.remove();
  scene.marks.forEach((pixel, i) => {
    let card = holder.children[i];
    if (!card) {
      card = document.createElement("div");
      card.className = "card";
      card.innerHTML = "<h3><span></span><button>×</button></h3><div class=plot></div><p></p>";
      holder.append(card);
    }
    card.querySelector("span").textContent = `${i + 1}   ${words(pixel)}`;
    const button = card.querySelector("button");
    button.setAttribute("aria-label", `Remove point ${i + 1}`);
    button.onclick = () => { scene.marks.splice(i, 1); drawMarks(); drawLive(); drawCards(); };
    const agreement = drawCard(card.querySelector(".plot"), scene, pixel, state.band);
    card.querySelector("p").textContent = agreement && `r with the truth: ${agreement}`;
  });
}

function pixelUnder(event, canvas) {
  const box = canvas.getBoundingClientRect();
  const { width, height } = current();
  const column = Math.floor(((event.clientX - box.left) / box.width) * width);
  const row = Math.floor(((event.clientY - box.top) / box.height) * height);
  return Math.max(0, Math.min(height - 1, row)) * width + Math.max(0, Math.min(width - 1, column));
}

function listen() {
  let waiting = false;
  const live = (pixel) => {
    state.live = pixel;
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; drawMarks(); drawLive(); });
  };
  panels.forEach(({ canvas, select }, i) => {
    canvas.onpointermove = (event) => live(pixelUnder(event, canvas));
    canvas.onpointerleave = () => live(current().marks.at(-1) ?? state.live);
    canvas.onclick = (event) => {
      const { marks } = current();
      const pixel = pixelUnder(event, canvas);
      if (!marks.includes(pixel)) marks.push(pixel);
      live(pixel);
      drawCards();
    };
    select.onchange = () => {
      state.sources[i] = select.value;
      if (i === 1) state.wanted = select.value;
      drawPictures();
      table.choosing(state.scene, state.sources[1]);
    };
  });
  find("#scene").onchange = (event) => show(Number(event.target.value));
  find("#surer input").oninput = (event) => {
    setLimit(Number(event.target.value));
    drawPictures();
  };
  find("#band").oninput = (event) => setBand(Number(event.target.value));
  document.addEventListener("keydown", (event) => {
    const own = event.target.matches?.("select, input") || event.ctrlKey || event.altKey || event.metaKey;
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (own || !way) return;
    setBand(state.band + way);
    event.preventDefault();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
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
  listen();
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
