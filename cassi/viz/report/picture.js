// What stands in a picture panel: true colour, one band, or a comparison in false colour.

// Dark blue to pale yellow, evenly growing in lightness, so that greater always looks brighter.
const HEAT = [[0, 0, 4], [31, 12, 72], [85, 15, 109], [136, 34, 106], [186, 54, 85],
  [227, 89, 51], [249, 140, 10], [249, 201, 50], [252, 255, 164]];

const CURVE = Uint8Array.from({ length: 4097 }, (_, i) => {
  const linear = i / 4096;
  return Math.round(255 * (linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055));
});

const encode = (linear) => CURVE[Math.max(0, Math.min(4096, Math.round(4096 * linear)))];

const SIGNED = [[33, 102, 172], [247, 247, 247], [178, 24, 43]]; // blue, white, red
const pack = (colors) =>
  new Uint32Array(Uint8ClampedArray.from(colors.flatMap((c) => [...c, 255])).buffer);
const [NOTHING, UNSURE] = pack([[128, 128, 128], [112, 112, 128]]);

const rampTable = (anchors) => pack(Array.from({ length: 256 }, (_, i) => {
  const place = (i / 255) * (anchors.length - 1);
  const below = Math.min(anchors.length - 2, Math.floor(place));
  return anchors[below].map((v, c) => v + (place - below) * (anchors[below + 1][c] - v));
}));
const [HEAT_TABLE, SIGNED_TABLE] = [HEAT, SIGNED].map(rampTable);
const GREY_TABLE = pack(Array.from(CURVE, (level) => [level, level, level]));

// `fill` writes the pixels, a number each.
function paint(canvas, { width, height }, fill) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  fill(new Uint32Array(image.data.buffer), image.data);
  context.putImageData(image, 0, 0);
}

function paintColor(canvas, scene, [r, g, b], exposure) {
  paint(canvas, scene, (_, bytes) => {
    for (let i = 0, at = 0; i < r.length; i++, at += 4) {
      bytes[at] = encode(exposure * r[i]);
      bytes[at + 1] = encode(exposure * g[i]);
      bytes[at + 2] = encode(exposure * b[i]);
      bytes[at + 3] = 255;
    }
  });
}

// `place` gives where a value lies on the scale.
function paintTable(canvas, scene, values, range, table, place = Number) {
  const last = table.length - 1;
  const [low, high] = range.map(place);
  paint(canvas, scene, (pixels) => {
    for (let i = 0; i < pixels.length; i++) {
      const share = (place(values[i]) - low) / (high - low);
      const level = Math.max(0, Math.min(last, Math.round(last * share)));
      pixels[i] = table[level] ?? NOTHING; // of NaN there is none
    }
  });
}

const mostUnsure = (scene) => Math.max(...[...scene.bars.values()].map((cube) => cube.peak));

// Greys out the pixels whose interval is wider than the limit, a share of white.
function hideUnsure(canvas, scene, key, view, band, limit) {
  if (!scene.bars.has(key) || limit >= 1) return;
  const single = view !== "color" && view !== "rms";
  const half = scene.halfWidth(key, single ? band : null);
  const most = limit * scene.white(band);
  const cover = document.createElement("canvas");
  paint(cover, scene, (pixels) => {
    half.forEach((value, i) => { if (value > most) pixels[i] = UNSURE; });
  });
  canvas.getContext("2d").drawImage(cover, 0, 0);
}

const tableOf = (view) =>
  (view === "band" ? GREY_TABLE : view === "rms" || view === "bars" ? HEAT_TABLE : SIGNED_TABLE);

// Whether false colours stand for another quantity than the values of the cube.
const isMap = (scene, key, view, comparison) =>
  (view === "bars" ? scene.bars.has(key) : isComparison(view) && comparison.partner(key) !== null);

// Draws one source (a method or the truth) of a scene; what has no partner keeps its band.
function drawPicture(canvas, scene, key, view, band, comparison) {
  if (view === "color") {
    paintColor(canvas, scene, scene.color(key), scene.exposure());
  } else if (isMap(scene, key, view, comparison)) {
    const [values, range] = view === "bars" ? [scene.halfWidth(key, band), [0, mostUnsure(scene)]]
      : [comparison.picture(key), comparison.range];
    paintTable(canvas, scene, values, range, tableOf(view), onScale(view));
  } else {
    paintTable(canvas, scene, scene.band(key, band), [0, scene.white(band)], GREY_TABLE);
  }
}

// Lays the left part of another picture over a picture, up to a share of its width.
function wipe(canvas, share, draw) {
  const width = Math.round(share * canvas.width);
  if (width === 0) return;
  const cover = document.createElement("canvas");
  draw(cover);
  canvas.getContext("2d").drawImage(cover, 0, 0, width, canvas.height, 0, 0, width, canvas.height);
}

const sensible = (value) =>
  (value === 0 ? "0" : String(Number(value.toPrecision(3))).replace("-", "−"));

function drawScale(element, scene, view, band, comparison) {
  const color = settings.wavelengths ? "True colour" : "False colour, the thirds of the bands";
  const words = {
    color: `${color}, ${scene.truth ? "all at the exposure of the truth" : "one exposure"}`,
    band: `${bandName(band)}, ${settings.unit}, one scale for all`,
    bars: `Half the 90 % interval at ${bandName(band)}, ${settings.unit}`,
  };
  element.replaceChildren();
  if (view !== "color") {
    const compared = isComparison(view);
    const [low, high] = compared ? comparison.range
      : [0, view === "bars" ? mostUnsure(scene) : scene.white(band)];
    const ramp = document.createElement("canvas");
    const levels = Array.from({ length: 256 }, (_, i) => i);
    paintTable(ramp, { width: 256, height: 1 }, levels, [0, 255], tableOf(view));
    element.append(sensible(low), ramp, sensible(high), " ");
  }
  const text = document.createElement("span");
  text.textContent = words[view] ?? comparison.words;
  element.append(text);
}
