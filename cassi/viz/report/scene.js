// Scenes as cassi.viz.report.codec packed them: x = mean + sum of basis * (low + step * plane).

const settings = JSON.parse(document.getElementById("settings").textContent);

async function decodePlane(base64, width, height) {
  const image = new Image();
  image.src = `data:image/jpeg;base64,${base64}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, width, height).data;
  const plane = new Uint8Array(width * height);
  for (let i = 0; i < plane.length; i++) plane[i] = pixels[4 * i];
  return plane;
}

// Base64 of gzip, as a response whose text or bytes can be awaited.
function gunzip(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

class Cube {
  constructor(packed, bands, height, width) {
    Object.assign(this, { packed, bands, height, width, planes: null });
  }

  async load() {
    const { planes } = this.packed;
    this.planes ??= await Promise.all(planes.map((p) => decodePlane(p, this.width, this.height)));
  }

  // A weighted sum of the bands at every pixel.
  project(weights) {
    const { mean, basis, low, step } = this.packed;
    const dot = (vector) => vector.reduce((sum, value, b) => sum + value * weights[b], 0);
    let constant = dot(mean);
    const factors = basis.map(dot);
    factors.forEach((factor, i) => { constant += factor * low[i]; });
    const sum = new Float32Array(this.width * this.height).fill(constant);
    this.planes.forEach((plane, i) => {
      const factor = factors[i] * step[i];
      if (factor !== 0) for (let p = 0; p < sum.length; p++) sum[p] += factor * plane[p];
    });
    return sum;
  }

  band(index) {
    const weights = new Array(this.bands).fill(0);
    weights[index] = 1;
    return this.project(weights);
  }

  spectrum(pixel) {
    const { mean, basis, low, step } = this.packed;
    const values = mean.slice();
    this.planes.forEach((plane, i) => {
      const amount = low[i] + step[i] * plane[pixel];
      for (let b = 0; b < values.length; b++) values[b] += amount * basis[i][b];
    });
    return values;
  }

  // Mean and standard deviation of the spectra of some pixels, per band.
  statistics(pixels) {
    const [sum, squares] = [new Float64Array(this.bands), new Float64Array(this.bands)];
    const first = this.spectrum(pixels[0]); // taken off: the squares would lose digits otherwise
    for (const pixel of pixels) {
      this.spectrum(pixel).forEach((value, b) => {
        sum[b] += value - first[b];
        squares[b] += (value - first[b]) ** 2;
      });
    }
    const mean = first.map((value, b) => value + sum[b] / pixels.length);
    const spread = first.map((_, b) =>
      Math.sqrt(Math.max(0, squares[b] / pixels.length - (sum[b] / pixels.length) ** 2)));
    return { mean, spread };
  }
}

const TRUTH = ""; // the key of the truth among the methods' names, which are never empty

class Scene {
  constructor(element) {
    const page = JSON.parse(element.textContent);
    const [bands, height, width] = page.shape;
    Object.assign(this, { name: page.name, bands, height, width, block: page.block });
    Object.assign(this, { full: page.full, metrics: page.metrics });
    this.cubes = new Map();
    const add = (key, packed) => this.cubes.set(key, new Cube(packed, bands, height, width));
    if (page.truth) add(TRUTH, page.truth);
    page.methods.forEach(([method, packed]) => add(method, packed));
    this.bars = new Map(page.bars.map(([method, packed]) =>
      [method, Object.assign(new Cube(packed, bands, height, width), { peak: packed.peak })]));
    this.marks = page.points.map(([row, column]) => pixelAt(this, row, column));
    this.cache = new Map();
  }

  get truth() { return this.cubes.get(TRUTH); }
  get methods() { return [...this.cubes.keys()].filter((key) => key !== TRUTH); }
  get first() { return this.cubes.keys().next().value; } // the truth, where there is one

  get packs() { return [...this.cubes.values(), ...this.bars.values()]; }

  async load() { await Promise.all(this.packs.map((cube) => cube.load())); }

  forget() {
    for (const cube of this.packs) cube.planes = null;
    this.cache.clear();
  }

  cached(key, compute) {
    if (!this.cache.has(key)) {
      const most = Math.max(8, 1e7 / (this.width * this.height)); // some 40 MB, or eight pictures
      if (this.cache.size > most) this.cache.delete(this.cache.keys().next().value);
      this.cache.set(key, compute());
    }
    return this.cache.get(key);
  }

  band(key, index) {
    return this.cached(`band ${index} ${key}`, () => this.cubes.get(key).band(index));
  }

  color(key) {
    const weights = settings.rendering[this.bands];
    return this.cached(`color ${key}`, () => weights.map((w) => this.cubes.get(key).project(w)));
  }

  // One exposure for all pictures of the scene: 99.5 % of the reference are below 95 % of white.
  exposure() {
    return this.cached("exposure", () => {
      const [r, g, b] = this.color(this.first);
      return 0.95 / brightest(r.map((value, i) => Math.max(value, g[i], b[i])));
    });
  }

  white(index, key = this.first) {
    return this.cached(`white ${index} ${key}`, () => brightest(this.band(key, index)));
  }

  // Half the width of the interval around each value: of a band, or the mean over all.
  halfWidth(key, index) {
    const cube = this.bars.get(key);
    const weights = Array.from({ length: this.bands }, (_, b) =>
      (index === null ? 1 / this.bands : Number(b === index)));
    return this.cached(`bars ${index} ${key}`, () => cube.project(weights).map((v) => Math.max(0, v)));
  }
}

// Of every n-th value where there are many: sorting takes longer than drawing.
function quantile(values, fraction) {
  const every = Math.max(1, Math.floor(values.length / 2 ** 16));
  const some = new Float32Array(Math.ceil(values.length / every));
  for (let i = 0; i < some.length; i++) some[i] = values[i * every];
  some.sort();
  return some[Math.min(some.length - 1, Math.round(fraction * some.length))];
}

const brightest = (values) => Math.max(0, quantile(values, 0.995)) || 1;

// Pearson's coefficient of two spectra; null where one is flat.
function correlation(a, b) {
  const mean = (v) => v.reduce((sum, value) => sum + value, 0) / v.length;
  const [ma, mb] = [mean(a), mean(b)];
  let [ab, aa, bb] = [0, 0, 0];
  a.forEach((value, i) => {
    ab += (value - ma) * (b[i] - mb);
    aa += (value - ma) ** 2;
    bb += (b[i] - mb) ** 2;
  });
  return aa * bb > 0 ? ab / Math.sqrt(aa * bb) : null;
}

const bandName = (index) => settings.names?.[index] ?? `band ${index + 1}`;
