// Reference spectra from files: a first column of nm and a spectrum a column, or saved spectra.

const references = []; // {name, nm, values}

function parseTable(text) {
  const mark = [";", "\t"].find((each) => text.includes(each)) ?? ",";
  const pattern = new RegExp(`(?:"((?:[^"]|"")*)"|([^"${mark}]*))(?:${mark}|$)`, "g");
  const cells = (line) => [...line.matchAll(pattern)].slice(0, -1)
    .map(([, quoted, open]) => (quoted?.replaceAll('""', '"') ?? open).trim());
  return text.split(/\r?\n/).filter((line) => line.trim() && !line.startsWith("#"))
    .map((line) => cells(line.endsWith(mark) ? line : line + mark));
}

const numberOfCell = (cell = "") => (cell === "" ? NaN : Number(cell.replace(",", ".")));

function spectrumOf(name, points) {
  const known = points.filter((point) => point.every(Number.isFinite)).sort((a, b) => a[0] - b[0]);
  return known.length < 2 ? [] : [{ name, nm: known.map(([nm]) => nm), values: known.map(([, v]) => v) }];
}

// The spectra of a table; none where it has no two numbers in a column.
function readReferences(text, file) {
  const rows = parseTable(text);
  const names = Number.isNaN(numberOfCell(rows[0]?.[0])) ? rows.shift() ?? [] : [];
  const [region, cube, nm, mean] =
    ["region", "cube", "wavelength_nm", "mean"].map((name) => names.indexOf(name));
  if (Math.min(region, cube, nm, mean) >= 0) { // as this page saves them
    const groups = new Map(rows.map((row) => [`${row[cube]}, ${row[region]}`, []]));
    for (const row of rows) {
      groups.get(`${row[cube]}, ${row[region]}`).push([nm, mean].map((at) => numberOfCell(row[at])));
    }
    return [...groups].flatMap(([name, points]) => spectrumOf(name, points));
  }
  const width = Math.max(0, ...rows.map((row) => row.length));
  return Array.from({ length: Math.max(0, width - 1) }, (_, i) => i + 1).flatMap((column) => {
    const name = names[column] || (width > 2 ? `${file} ${column}` : file);
    return spectrumOf(name, rows.map((row) => [numberOfCell(row[0]), numberOfCell(row[column])]));
  });
}

function interpolated({ nm, values }, at) {
  const above = nm.findIndex((x) => x >= at);
  if (above < 0 || at < nm[0]) return NaN;
  if (above === 0) return values[0];
  const share = (at - nm[above - 1]) / (nm[above] - nm[above - 1]);
  return values[above - 1] + share * (values[above] - values[above - 1]);
}

// As they are where the cube is reflectance, else scaled to a spectrum of the cube.
function referenceLines(mean) {
  return references.flatMap((reference, i) => {
    const pairs = settings.wavelengths.map((at, b) => [interpolated(reference, at), mean[b]])
      .filter(([value]) => !Number.isNaN(value));
    if (pairs.length < 2) return [];
    const sum = (f) => pairs.reduce((total, [a, b]) => total + f(a, b), 0);
    const fit = settings.unit === "reflectance" ? 1 : sum((a, b) => a * b) / sum((a) => a * a) || 1;
    const scaled = fit === 1 ? "" : ` × ${sensible(fit)}`;
    const ends = [settings.wavelengths[0], settings.wavelengths.at(-1)];
    const x = [...reference.nm.filter((nm) => nm > ends[0] && nm < ends[1]), ...ends]
      .filter((nm) => !Number.isNaN(interpolated(reference, nm))).sort((a, b) => a - b);
    const line = { color: themed("--ink"), width: 1.5, dash: DASHES[(i + 1) % DASHES.length] };
    const y = x.map((nm) => fit * interpolated(reference, nm));
    const trace = { x, y, mode: x.length < 40 ? "lines+markers" : "lines", line, marker: { size: 5 } };
    const r = correlation(...[0, 1].map((side) => pairs.map((pair) => pair[side])));
    return [{ key: `reference ${reference.name}`, r, trace: { ...trace, name: plain(reference.name + scaled) } }];
  });
}

async function addReferences(files) {
  for (const file of files) {
    const found = readReferences(await file.text(), file.name.replace(/\.\w+$/, ""));
    if (!settings.wavelengths) return "Reference spectra need a cube with wavelengths.";
    if (!found.length) return `${file.name}: expected nm and a spectrum, a column each.`;
    references.push(...found);
  }
  return `${references.length} reference spectra`;
}
