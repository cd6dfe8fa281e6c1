// Comparisons of a cube's band with that of another cube, or with another band of the same.

const SAMPLES = 4000; // pixels that a scale is taken from
const DARK = 0.01; // of white: a ratio to less is none
const MOST_RATIO = 10; // the scale of ratios ends there: 1 would be lost beside a few large ones
const COMPARE = {
  difference: (x, o) => x - o,
  ratio: (x, o, dark) => (o > dark ? x / o : NaN),
  index: (x, o, dark) => (x + o > dark ? (x - o) / (x + o) : NaN),
};
// Where values lie on the scale: ½ and 2 are equally far from 1.
const onScale = (view) => (view === "ratio" ? (value) => Math.log(Math.max(0, value)) : Number);
const isComparison = (view) => view === "rms" || view in COMPARE;

class Comparison {
  // `other` is a cube's name, or null for each cube itself; `second` a band, or null for the same.
  constructor(scene, view, band, other, second) {
    const [kind, at] = view === "rms" ? ["difference", null] : [view, second];
    Object.assign(this, { scene, view, kind, band, other, second: at });
  }

  // What a cube is compared with; null where that is itself.
  partner(key) {
    const [other, second] = [this.other ?? key, this.second ?? this.band];
    return other === key && (second === this.band || this.view === "rms") ? null : [other, second];
  }

  dark(other, second) {
    return DARK * this.scene.white(second, other) * (this.kind === "index" ? 2 : 1);
  }

  // Values of a picture; NaN where it is too dark for a ratio.
  picture(key) {
    const { scene, band, view } = this;
    const [other, second] = this.partner(key);
    return scene.cached(`${view} ${band} ${second} ${other} / ${key}`, () => {
      if (view === "rms") return this.rootMeanSquare(key, other);
      const [x, o] = [scene.band(key, band), scene.band(other, second)];
      const [compare, dark] = [COMPARE[view], this.dark(other, second)];
      return x.map((value, i) => compare(value, o[i], dark));
    });
  }

  rootMeanSquare(key, other) {
    const { bands, cubes, width, height } = this.scene;
    const sum = new Float32Array(width * height);
    for (let b = 0; b < bands; b++) {
      const [x, o] = [key, other].map((name) => cubes.get(name).band(b));
      for (let i = 0; i < sum.length; i++) sum[i] += (x[i] - o[i]) ** 2;
    }
    return sum.map((value) => Math.sqrt(value / bands));
  }

  // The values at the ends of the scale, of all cubes: 99.5 % of their pixels lie between. Where a
  // comparison has a sign, they are equally far from that of equal values. Of differences at the
  // same band those of all bands are.
  get range() {
    const { scene, kind, band, other, second, view } = this;
    if (kind === "index") return [-1, 1];
    const single = kind === "ratio" || second !== null;
    return scene.cached(`range ${view} ${single && band} ${second} / ${other}`, () => {
      const found = [];
      const every = Math.max(1, Math.floor((scene.width * scene.height) / SAMPLES));
      const bands = single ? [band] : Array.from({ length: scene.bands }, (_, b) => b);
      for (const [key, cube] of scene.cubes) {
        const partner = this.partner(key);
        if (!partner) continue;
        const dark = kind === "ratio" ? this.dark(...partner) : 0;
        for (let pixel = 0; pixel < scene.width * scene.height; pixel += every) {
          const [x, o] = [cube.spectrum(pixel), scene.cubes.get(partner[0]).spectrum(pixel)];
          for (const b of bands) {
            const value = COMPARE[kind](x[b], o[single ? partner[1] : b], dark);
            if (!Number.isNaN(value)) found.push(Math.abs(onScale(kind)(value)));
          }
        }
      }
      const most = (found.length && quantile(found, 0.995)) || 1;
      const ratio = Math.min(MOST_RATIO, Math.exp(most));
      return { rms: [0, most], difference: [-most, most], ratio: [1 / ratio, ratio] }[view];
    });
  }

  get words() {
    const { view, band, second, other } = this;
    const name = other === null ? "x" : label(other);
    const [x, o] = second === null ? ["x", name]
      : [`(x at ${bandName(band)})`, `(${name} at ${bandName(second)})`];
    const at = second === null ? ` at ${bandName(band)}` : "";
    return {
      difference: `${x} − ${o}${at}, ${settings.unit}, white: equal, one scale for all`,
      rms: `√ mean over bands of (x − ${name})², ${settings.unit}, one scale for all`,
      ratio: `${x} / ${o}${at}, logarithmic, white: 1, grey where it is dark, one scale for all`,
      index: `(${x} − ${o}) / (${x} + ${o})${at}, white: equal, grey where it is dark`,
    }[view];
  }
}
