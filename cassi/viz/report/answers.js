// Answers to questions about the scene: maps with intervals, and a table of numbers. Maps are as
// cassi.viz.report.answers packed them: value = origin + step * level.

const VIRIDIS = [[68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 145, 140],
  [40, 174, 128], [94, 201, 98], [173, 220, 48], [253, 231, 37]];
const MAP_TABLES = { value: rampTable(VIRIDIS), width: HEAT_TABLE };
const STRIPES = pack([[176, 176, 176], [104, 104, 104]]);
const ABSTAINED = -(2 ** 15);
// A map is enlarged to about so many pixels, because stripes should be finer than its pixels.
const MAP_SIDE = 480;

// Numbers with the digits that their interval leaves: its half width has two.
function withDigitsOf(half, ...numbers) {
  const places = half > 0 ? Math.max(0, 1 - Math.floor(Math.log10(half))) : Infinity;
  return numbers.map((number) => {
    const fixed = places <= 6 && Math.abs(number) < 1e9;
    const text = fixed ? number.toFixed(places) : String(Number(number.toPrecision(4)));
    return (Number(text) === 0 ? text.replace("-", "") : text).replaceAll("-", "−");
  });
}

class AnswerMap {
  constructor(packed, levels) {
    const [height, width] = packed.shape;
    Object.assign(this, packed, { height, width, levels });
  }

  hidden(pixel) { return this.levels[pixel] === ABSTAINED; }

  value(pixel) { return this.origin + this.step * this.levels[pixel]; }

  half(pixel) { return this.step * this.levels[this.width * this.height + pixel]; }

  words(row, column) {
    const pixel = row * this.width + column;
    const place = ` (row ${row * this.block}, column ${column * this.block})`;
    if (this.hidden(pixel)) return `no answer${place}: ${this.reason}`;
    const [value, half] = [this.value(pixel), this.half(pixel)];
    const ends = [Math.max(value - half, this.least), Math.min(value + half, this.largest)];
    const [middle, low, high] = withDigitsOf(half, value, ...ends);
    return `${middle}${this.unit && ` ${this.unit}`}, 90 %: ${low} to ${high}${place}`;
  }

  draw(canvas, part) {
    const factor = Math.max(1, Math.round(MAP_SIDE / Math.max(this.width, this.height)));
    const size = { width: factor * this.width, height: factor * this.height };
    const [table, [low, high]] = [MAP_TABLES[part], this.range(part)];
    paint(canvas, size, (pixels) => {
      for (let y = 0, at = 0; y < size.height; y++) {
        const start = Math.floor(y / factor) * this.width;
        for (let x = 0; x < size.width; x++, at++) {
          const pixel = start + Math.floor(x / factor);
          const number = part === "value" ? this.value(pixel) : this.half(pixel);
          const level = Math.round((255 * (number - low)) / (high - low));
          pixels[at] = this.hidden(pixel) ? STRIPES[Math.floor((x + y) / 3) % 2]
            : table[Math.max(0, Math.min(255, level))];
        }
      }
    });
  }

  range(part) {
    return part === "value" ? [this.origin, this.origin + 1000 * this.step] : [0, this.widest];
  }
}

function answerFigure(map) {
  const figure = document.createElement("figure");
  figure.className = "panel";
  figure.innerHTML = "<figcaption></figcaption><div class=frame><canvas role=img></canvas></div>" +
    "<div class=scale></div><p></p>";
  const [caption, frame, scale, line] = figure.children;
  const canvas = frame.firstChild;
  caption.textContent = map.name;
  canvas.setAttribute("aria-label", map.name);
  frame.style.width = `min(100%, ${(64 * map.width) / map.height}vh)`;
  const share = Number((100 * map.share).toPrecision(3));
  const rest = map.share > 0 ? `no answer in ${share} % of the pixels: ${map.reason}` : "";
  line.textContent = rest;
  canvas.onpointermove = (event) => {
    const box = canvas.getBoundingClientRect();
    const at = (place, length) => Math.max(0, Math.min(length - 1, Math.floor(place * length)));
    line.textContent = map.words(at((event.clientY - box.top) / box.height, map.height),
      at((event.clientX - box.left) / box.width, map.width));
  };
  canvas.onpointerleave = () => { line.textContent = rest; };
  const draw = (part) => {
    map.draw(canvas, part);
    const ramp = document.createElement("canvas");
    paintTable(ramp, { width: 256, height: 1 }, Array.from({ length: 256 }, (_, i) => i), [0, 255],
      MAP_TABLES[part]);
    const [low, high] = map.range(part).map(sensible);
    scale.replaceChildren(low, ramp, high, map.unit);
  };
  return { figure, draw };
}

function fillNumbers(table, numbers) {
  const names = ["question", "part", "value", "68 % interval", "90 % interval"];
  const row = (texts, kind) => {
    const line = document.createElement("tr");
    line.append(...texts.map((text, i) => Object.assign(document.createElement(kind),
      { textContent: text, className: i < 2 ? "name" : "" })));
    return line;
  };
  table.tHead.replaceChildren(row(names, "th"));
  table.tBodies[0].replaceChildren(...numbers.flatMap(({ name, unit, reason, rows }) =>
    rows.map(([label, value, intervals]) => {
      if (value === null) return row([name, label, "no answer", reason, ""], "td");
      const half = Math.max(...intervals[1].map((end) => Math.abs(end - value)));
      const [middle, ...ends] = withDigitsOf(half, value, ...intervals.flat());
      return row([name, label, `${middle}${unit && ` ${unit}`}`, `${ends[0]} to ${ends[1]}`,
        `${ends[2]} to ${ends[3]}`], "td");
    })));
}

async function startAnswers(section) {
  const { maps, numbers } = JSON.parse(document.getElementById("packed-answers").textContent);
  section.hidden = maps.length + numbers.length === 0;
  const figures = await Promise.all(maps.map(async (packed) => {
    const levels = new Int16Array(await gunzip(packed.levels).arrayBuffer());
    return answerFigure(new AnswerMap(packed, levels));
  }));
  section.querySelector("#maps").replaceChildren(...figures.map(({ figure }) => figure));
  const draw = (part) => figures.forEach((figure) => figure.draw(part));
  const parts = [["value", "Value"], ["width", "Half of the 90 % interval"]];
  section.querySelector("#shown-part").hidden = maps.length === 0;
  segments(section.querySelector("#shown-part"), parts, "value", draw);
  draw("value");
  section.querySelector(".scroll").hidden = numbers.length === 0;
  fillNumbers(section.querySelector("table"), numbers);
}
