// Marks of a scene: one pixel, a rectangle, or what an outline encloses. Rows and columns count
// the pixels of the page's pictures, whole numbers being edges; words count those of the full cube.

class Region {
  constructor(scene, [top, left, bottom, right], outline = null) {
    Object.assign(this, { scene, top, left, bottom, right, outline, known: new Map() });
    const rows = Array.from({ length: bottom - top }, (_, i) => top + i);
    const columns = Array.from({ length: right - left }, (_, i) => left + i);
    const inside = (row, column) => !outline || encloses(outline, row + 0.5, column + 0.5);
    this.pixels = rows.flatMap((row) => columns.filter((column) => inside(row, column))
      .map((column) => row * scene.width + column));
  }

  get single() { return this.bottom - this.top === 1 && this.right - this.left === 1; }

  get corners() {
    const { top, left, bottom, right } = this;
    return this.outline ?? [[top, left], [top, right], [bottom, right], [bottom, left]];
  }

  get words() {
    const [top, left, bottom, right] = [this.top, this.left, this.bottom, this.right]
      .map((edge) => edge * this.scene.block);
    if (this.single) return `row ${top}, column ${left}`;
    const kind = this.outline ? " (outline)" : "";
    return `rows ${top}–${bottom - 1}, columns ${left}–${right - 1}${kind}`;
  }

  is(other) { return this.single && other.single && this.pixels[0] === other.pixels[0]; }

  statistics(cube) {
    if (!this.known.has(cube)) this.known.set(cube, cube.statistics(this.pixels));
    return this.known.get(cube);
  }

  // Half the interval around each mean, per band: root mean square over the pixels.
  error(bars) {
    const { mean, spread } = this.statistics(bars);
    return mean.map((value, b) => Math.hypot(value, spread[b]));
  }
}

const pixelAt = (scene, row, column) => new Region(scene, [row, column, row + 1, column + 1]);

// The pixels that a rectangle between two places (row, column) touches; null beside the picture.
function between(scene, [y0, x0], [y1, x1]) {
  const within = (a, b, length) => {
    const [low, high] = [Math.floor(Math.min(a, b)), Math.max(a, b)];
    return [Math.max(0, low), Math.min(length, Math.max(Math.ceil(high), low + 1))];
  };
  const [[top, bottom], [left, right]] = [within(y0, y1, scene.height), within(x0, x1, scene.width)];
  return top < bottom && left < right ? new Region(scene, [top, left, bottom, right]) : null;
}

// The pixels whose middle lies inside an outline; null where there is none.
function inside(scene, outline) {
  const [rows, columns] = [0, 1].map((axis) => outline.map((place) => place[axis]));
  const ends = [Math.min, Math.max].map((end) => [end(...rows), end(...columns)]);
  const box = between(scene, ...ends);
  const found = box && new Region(scene, [box.top, box.left, box.bottom, box.right], outline);
  return found?.pixels.length ? found : null;
}

// A ray to the left crosses an odd number of edges: Shimrat 1962.
function encloses(outline, row, column) {
  let crossings = 0;
  outline.forEach(([r0, c0], i) => {
    const [r1, c1] = outline[(i + 1) % outline.length];
    if ((r0 > row) !== (r1 > row) && column > c0 + ((row - r0) * (c1 - c0)) / (r1 - r0)) crossings++;
  });
  return crossings % 2 === 1;
}
