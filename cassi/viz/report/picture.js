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
const NOTHING = [128, 128, 128];

const rampTable = (anchors) => Array.from({ length: 256 }, (_, i) => {
  const place = (i / 255) * (anchors.length - 1);
  const below = Math.min(anchors.length - 2, Math.floor(place));
  return anchors[below].map((v, c) => v + (place - below) * (anchors[below + 1][c] - v));
});
const [HEAT_TABLE, SIGNED_TABLE] = [HEAT, SIGNED].map(rampTable);
const GREY_TABLE = Array.from({ length: 256 }, (_, i) => new Array(3).fill(encode(i / 255)));

function paint(canvas, width, height, color) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const { data } = image;
  const pixel = [0, 0, 0];
  for (let i = 0, at = 0; i < width * height; i++, at += 4) {
    color(i, pixel);
    data[at] = pixel[0];
    data[at + 1] = pixel[1];
    data[at + 2] = pixel[2];
    data[at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

function paintGrey(canvas, scene, values, white) {
  paint(canvas, scene.width, scene.height, (i, pixel) => pixel.fill(encode(values[i] / white)));
}

function paintTable(canvas, scene, values, [low, high], table) {
  paint(canvas, scene.width, scene.height, (i, pixel) => {
    const level = Math.max(0, Math.min(255, Math.round((255 * (values[i] - low)) / (high - low))));
    [pixel[0], pixel[1], pixel[2]] = table[level] ?? NOTHING; // of NaN there is none
  });
}

const mostUnsure = (scene) => Math.max(...[...scene.bars.values()].map((cube) => cube.peak));

const UNSURE = [112, 112, 128, 255];

// Greys out the pixels whose interval is wider than the limit, a share of white.
function hideUnsure(canvas, scene, key, view, band, limit) {
  if (!scene.bars.has(key) || limit >= 1) return;
  const single = view !== "color" && view !== "rms";
  const half = scene.halfWidth(key, single ? band : null);
  const most = limit * scene.white(band);
  const cover = document.createElement("canvas");
  [cover.width, cover.height] = [scene.width, scene.height];
  const context = cover.getContext("2d");
  const image = context.createImageData(scene.width, scene.height);
  half.forEach((value, i) => { if (value > most) image.data.set(UNSURE, 4 * i); });
  context.putImageData(image, 0, 0);
  canvas.getContext("2d").drawImage(cover, 0, 0);
}

// Draws one source (a method or the truth) of a scene; what has no partner keeps its band.
function drawPicture(canvas, scene, key, view, band, comparison) {
  if (view === "color") {
    const [exposure, [r, g, b]] = [scene.exposure(), scene.color(key)];
    paint(canvas, scene.width, scene.height, (i, pixel) => {
      pixel[0] = encode(exposure * r[i]);
      pixel[1] = encode(exposure * g[i]);
      pixel[2] = encode(exposure * b[i]);
    });
  } else if (view === "bars" && scene.bars.has(key)) {
    paintTable(canvas, scene, scene.halfWidth(key, band), [0, mostUnsure(scene)], HEAT_TABLE);
  } else if (isComparison(view) && comparison.partner(key)) {
    const table = view === "index" ? SIGNED_TABLE : HEAT_TABLE;
    paintTable(canvas, scene, comparison.picture(key), comparison.range, table);
  } else {
    paintGrey(canvas, scene, scene.band(key, band), scene.white(band));
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
    band: `Value at ${bandName(band)}, one scale for all`,
    bars: `Half the 90 % interval at ${bandName(band)}`,
  };
  element.replaceChildren();
  if (view !== "color") {
    const compared = isComparison(view);
    const table = view === "band" ? GREY_TABLE : view === "index" ? SIGNED_TABLE : HEAT_TABLE;
    const [low, high] = compared ? comparison.range
      : [0, view === "bars" ? mostUnsure(scene) : scene.white(band)];
    const ramp = document.createElement("canvas");
    paint(ramp, 256, 1, (i, pixel) => { [pixel[0], pixel[1], pixel[2]] = table[i]; });
    element.append(sensible(low), ramp, sensible(high), " ");
  }
  const text = document.createElement("span");
  text.textContent = words[view] ?? comparison.words;
  element.append(text);
}
