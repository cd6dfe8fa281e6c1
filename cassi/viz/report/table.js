// The table of metrics: one row a method, its mean over scenes, or one row a method and scene.

const LABELS = { psnr: "PSNR / dB", ssim: "SSIM", sam: "SAM / °", rmse: "RMSE", ergas: "ERGAS / %",
  seconds: "seconds", relative_residual: "residual ‖y − Ax‖/‖y‖",
  heldout_error: "held-out error" };
const DIGITS = { psnr: 2, ssim: 4, sam: 2, rmse: 4, ergas: 2, seconds: 2 };
const GREATER_IS_BETTER = /psnr|ssim/i;

class Table {
  constructor(scenes, choose) {
    Object.assign(this, { scenes, choose, single: scenes.length > 1 ? "mean" : "every" });
    this.mode = this.single;
    this.element = document.querySelector("#table table");
    this.keys = [...new Set(scenes.flatMap((s) => s.metrics.flatMap(([, m]) => m.map(([k]) => k))))];
    const first = this.keys.find((key) => GREATER_IS_BETTER.test(key));
    this.sorted = first ? { column: first, sign: -1 } : { column: "method", sign: 1 };
    this.chosen = {};
    this.method = scenes[0].metrics[0]?.[0];
    document.getElementById("table").hidden = this.keys.length === 0;
  }

  rows() {
    const every = this.scenes.flatMap((scene, index) => scene.metrics.map(([method, pairs]) =>
      ({ index, scene: scene.name, method, values: new Map(pairs), counts: new Map() })));
    if (this.mode === "every") return every;
    if (this.mode === "own") return every.filter((row) => row.method === this.method);
    return [...new Set(every.map((row) => row.method))].map((method) => {
      const own = every.filter((row) => row.method === method);
      const mean = { method, values: new Map(), counts: new Map() };
      for (const key of this.keys) {
        const known = own.map((row) => row.values.get(key)).filter((v) => v !== null && v !== undefined);
        if (known.length) mean.values.set(key, known.reduce((a, b) => a + b, 0) / known.length);
        if (known.length && known.length < this.scenes.length) mean.counts.set(key, known.length);
      }
      return mean;
    });
  }

  draw() {
    const names = this.mode !== "mean" && this.scenes.length > 1 ? ["scene", "method"] : ["method"];
    const columns = [...names, ...this.keys];
    const rows = this.rows();
    const best = new Map(this.keys.map((key) => {
      const known = rows.map((row) => row.values.get(key)).filter((v) => v !== null && v !== undefined);
      return [key, GREATER_IS_BETTER.test(key) ? Math.max(...known) : Math.min(...known)];
    }));
    const { column, sign } = this.sorted;
    const value = (row) => (names.includes(column) ? row[column] : row.values.get(column) ?? null);
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null); // unknown ones last
      return sign * (typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y);
    });
    const head = document.createElement("tr");
    head.append(...columns.map((key) => this.header(key, names)));
    this.element.tHead.replaceChildren(head);
    const bold = this.mode === "mean" || this.scenes.length === 1;
    this.element.tBodies[0].replaceChildren(
      ...rows.map((row) => this.line(row, names, bold && rows.length > 1 ? best : new Map())));
  }

  header(key, names) {
    const cell = document.createElement("th");
    const button = document.createElement("button");
    cell.className = names.includes(key) ? "name" : "";
    cell.dataset.key = key;
    button.textContent = LABELS[key] ?? key;
    const { column, sign } = this.sorted;
    if (key === column) cell.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    button.onclick = () => {
      const start = GREATER_IS_BETTER.test(key) ? -1 : 1;
      this.sorted = { column: key, sign: key === column ? -sign : start };
      this.draw();
      this.element.querySelector(`th[data-key="${CSS.escape(key)}"] button`).focus();
    };
    cell.append(button);
    return cell;
  }

  line(row, names, best) {
    const line = document.createElement("tr");
    line.tabIndex = 0;
    const here = row.index === undefined || row.index === this.chosen.index;
    line.classList.toggle("chosen", here && row.method === this.chosen.method);
    line.onclick = () => this.choose(row.index, row.method);
    line.onkeydown = (event) => { if (event.key === "Enter") line.onclick(); };
    for (const name of names) {
      const cell = line.insertCell();
      cell.className = "name";
      cell.textContent = row[name];
    }
    for (const key of this.keys) {
      const cell = line.insertCell();
      const value = row.values.get(key);
      cell.textContent = formatMetric(key, value);
      cell.classList.toggle("best", value !== undefined && value === best.get(key));
      if (row.counts.has(key)) {
        const note = document.createElement("small");
        note.textContent = ` (${row.counts.get(key)} of ${this.scenes.length})`;
        cell.append(note);
      }
    }
    return line;
  }

  choosing(index, method) {
    this.chosen = { index, method };
    this.method = method || this.method; // the truth is in no row: the method seen last stays
    const button = document.querySelector("#rows [data-key=own]");
    if (button) button.textContent = `Scenes of ${this.method}`;
    this.draw();
  }
}

function formatMetric(key, value) {
  if (value === null || value === undefined) return "–";
  if (key in DIGITS) return value.toFixed(DIGITS[key]);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) < 0.001 ? value.toExponential(2).replaceAll("-", "−") : value.toPrecision(4);
}
