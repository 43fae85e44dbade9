/* Whether clients get dots instead of bars. */
const asDots = (runs, rows) => runs > 6 || rows > 60 || runs * rows > 160;

/* Bars of every client, a colour a run, with whiskers from low to high: rows: [{name, bars: [{value, low, high, hollow}]}]; few of them, or dots. */
function clientBars(host, { label, rows, axis, from, to, text, runs, chosen, pick }) {
  const width = widthOf(host);
  if (!width) return;
  const values = known(rows.flatMap(row => row.bars.flatMap(bar => [bar.value, bar.low, bar.high])));
  const dots = asDots(runs.length, rows.length);
  const short = rows.map(row => cut(row.name, 0.38 * width)), named = rows.length <= 60;
  const left = named ? widest(short, 12.5) + 10 : 12, right = 16, top = 6, bottom = 40;
  const thick = dots ? (named ? 17 : 5) : clamp(Math.round(40 / runs.length), 5, 12) * runs.length + 9;
  const high = rows.length * thick, down = top + high;
  const canvas = stage(host, down + bottom, label, width);
  const low = Math.min(from ?? 0, ...values), top_ = to ?? Math.max(low + 1e-9, ...values);
  const edge = from === undefined ? (top_ - low) * 0.04 : 0;
  const a = from === undefined ? low - edge : low, b = to === undefined ? top_ + edge : top_;
  const X = v => left + (v - a) / (b - a || 1) * (width - left - right);
  const scale = ticks(a, b, Math.max(2, Math.floor((width - left) / 70)));
  for (const v of scale.at) canvas.append(svg("line", { x1: X(v), x2: X(v), y1: top, y2: down, class: "grid" }), svg("text", { x: X(v), y: down + 17, class: "tick" }, scale.text(v)));
  canvas.append(svg("text", { x: left + (width - left - right) / 2, y: down + 35, class: "label" }, axis));
  rows.forEach((row, r) => {
    const y = top + r * thick, bar = (thick - 9) / runs.length;
    if (r === chosen) canvas.append(svg("rect", { x: 0, y, width, height: thick, class: "band" }));
    if (named) canvas.append(svg("text", { x: left - 6, y: y + thick / 2 + 4, class: r === chosen ? "tick end chosen" : "tick end" }, short[r]));
    row.bars.forEach((one, k) => {
      if (!Number.isFinite(one.value)) return;
      const fill = runs[k].colour || "currentColor";
      const middle = dots ? y + thick / 2 : y + 4.5 + (k + 0.5) * bar - 0.75, zero = X(clamp(0, a, b)), end = X(one.value);
      const shade = one.hollow ? { fill: "var(--paper)", stroke: fill, "stroke-width": 1.2 } : { fill };
      canvas.append(dots ? glyph(runs[k].marker, end, middle, named ? 4 : 2.4, { ...shade, opacity: 0.85 })
        : svg("rect", { x: Math.min(zero, end), y: y + 4.5 + k * bar, width: Math.max(1, Math.abs(end - zero)), height: Math.max(1, bar - 1.5), ...shade }));
      if (Number.isFinite(one.low) && (!dots || named)) canvas.append(svg("line", { x1: X(one.low), x2: X(one.high), y1: middle, y2: middle, class: "whisker" }));
    });
  });
  if (a < 0) canvas.append(svg("line", { x1: X(0), x2: X(0), y1: top, y2: down, class: "axis" }));
  const cursor = svg("rect", { class: "cell", x: 1, width: width - 2, height: thick, visibility: "hidden" });
  canvas.append(cursor);
  let here = -1;
  const answer = r => {
    const inside = r >= 0 && r < rows.length;
    here = inside ? r : -1;
    element(cursor, { visibility: inside ? "visible" : "hidden", y: top + r * thick }, []);
    return inside ? { lines: [rows[r].name, ...rows[r].bars.map((one, k) => `${runs[k].label}: ${text(one, k)}`)], x: left + 20, y: top + r * thick } : null;
  };
  askable(canvas, {
    find: (x, y) => answer(Math.floor((y - top) / thick)),
    move: (dx, dy) => answer(here < 0 ? 0 : clamp(here + (dy || dx), 0, rows.length - 1)),
    click: pick ? (x, y) => { const r = Math.floor((y - top) / thick); if (r >= 0 && r < rows.length) pick(r); } : null,
  });
}

/* A quantile of sorted numbers, as NumPy's linear rule. */
function quantile(sorted, q) {
  const place = q * (sorted.length - 1), k = Math.floor(place);
  return sorted[k] + (place - k) * ((sorted[k + 1] ?? sorted[k]) - sorted[k]);
}

/* Box and strip of every run's clients, for a metric: rows: [{run, values, names}]. */
function strips(host, { label, rows, axis, metric }) {
  const width = widthOf(host);
  if (!width) return;
  const tall = 46, top = 4, left = widest(rows.map(row => cut(row.run.label, 0.38 * width))) + 10, down = top + tall * rows.length;
  const canvas = stage(host, down + 40, label, width);
  const every = known(rows.flatMap(row => row.values));
  let a = Math.min(...every), b = Math.max(...every);
  const pad = (b - a) * 0.06 || 1;
  [a, b] = [a - pad, b + pad];
  const X = v => left + (v - a) / (b - a) * (width - left - 14);
  const scale = ticks(a, b, Math.max(2, Math.floor((width - left) / 70)));
  for (const v of scale.at) canvas.append(svg("line", { x1: X(v), x2: X(v), y1: top, y2: down, class: "grid" }), svg("text", { x: X(v), y: down + 17, class: "tick" }, scale.text(v)));
  canvas.append(svg("text", { x: (left + width) / 2, y: down + 35, class: "label" }, axis));
  const told = rows.map((row, r) => {
    const sorted = known(row.values).sort((p, q) => p - q), y = top + (r + 0.5) * tall, colour = ink(row.run).colour || "currentColor";
    const { higher } = metric, [tail, q25, q50, q75] = [higher ? 0.1 : 0.9, 0.25, 0.5, 0.75].map(q => quantile(sorted, q));
    const [least, most] = higher ? [sorted[0], sorted.at(-1)] : [sorted.at(-1), sorted[0]];
    canvas.append(svg("text", { x: left - 6, y: y + 4, class: "tick end" }, cut(row.run.label, 0.38 * width)),
      svg("line", { x1: X(sorted[0]), x2: X(sorted.at(-1)), y1: y, y2: y, stroke: colour, "stroke-width": 1.4 }),
      svg("rect", { x: X(q25), y: y - 11, width: Math.max(1, X(q75) - X(q25)), height: 22, stroke: colour, class: "box" }),
      svg("line", { x1: X(q50), x2: X(q50), y1: y - 11, y2: y + 11, stroke: colour, "stroke-width": 3 }));
    // Neighbours in rank go to different heights, so that equal numbers stay apart.
    row.values.forEach((v, k) => Number.isFinite(v) && canvas.append(svg("circle", { cx: X(v), cy: y + (((k * 0.618) % 1) - 0.5) * 18, r: 3, fill: colour, opacity: 0.6 })));
    canvas.append(svg("path", { d: `M${X(tail)} ${y - 7}l6 7l-6 7l-6 -7z`, stroke: colour, class: "box strong" }));
    canvas.append(svg("path", { d: `M${X(least) - 5} ${y - 5}l10 10m0 -10l-10 10`, stroke: colour, "stroke-width": 2.6 }));
    const short = v => plain(metric, v);
    return [row.run.label, `worst ${short(least)} (${row.names[row.values.indexOf(least)]})`, `${higher ? "10th" : "90th"} percentile ${short(tail)}`, `quartiles ${short(q25)}, ${short(q50)}, ${short(q75)}`, `best ${short(most)}`];
  });
  let here = -1;
  const answer = r => { here = r; return r >= 0 && r < rows.length ? { lines: told[r], x: left + 20, y: top + r * tall } : null; };
  askable(canvas, { find: (x, y) => answer(Math.floor((y - top) / tall)), move: (dx, dy) => answer(clamp(here + (dy || dx), 0, rows.length - 1)) });
}

/* For each class a bar divided among the clients. */
function holders(host, { label, held, chosen }) {
  const width = widthOf(host);
  if (!width) return;
  const { counts, classes, clients, groups } = held, thick = clamp(360 / classes.length, 12, 26), top = 4;
  const short = classes.map(name => cut(name, 0.38 * width)), left = widest(short) + 10, down = top + thick * classes.length;
  const totals = classes.map((_, c) => counts.reduce((sum, row) => sum + row[c], 0)), most = Math.max(...totals, 1);
  const canvas = stage(host, down + 40, label, width);
  const X = v => left + v / most * (width - left - 14);
  const scale = ticks(0, most, Math.max(2, Math.floor((width - left) / 80)), true);
  for (const v of scale.at) canvas.append(svg("line", { x1: X(v), x2: X(v), y1: top, y2: down, class: "grid" }), svg("text", { x: X(v), y: down + 17, class: "tick" }, v.toLocaleString("en")));
  canvas.append(svg("text", { x: (left + width) / 2, y: down + 35, class: "label" }, "training samples"));
  // Clients of one group stand together and share a colour.
  const sequence = span(clients.length).sort((i, j) => (groups[i] ?? i) - (groups[j] ?? j) || i - j), pieces = [];
  classes.forEach((name, c) => {
    let sum = 0;
    canvas.append(svg("text", { x: left - 6, y: top + (c + 0.5) * thick + 4, class: "tick end" }, short[c]));
    for (const i of sequence) {
      if (!counts[i][c]) continue;
      const x = X(sum), wide = X(sum += counts[i][c]) - x;
      pieces.push({ c, i, x, wide });
      canvas.append(svg("rect", { x, y: top + c * thick + 1.5, width: wide, height: thick - 3, fill: PALETTE[(groups[i] ?? i) % PALETTE.length], class: "piece", opacity: chosen >= 0 && chosen !== i ? 0.25 : 1 }));
      if (wide > widthOfText(clients[i]) + 6 && thick >= 14 && (chosen < 0 || chosen === i)) canvas.append(svg("text", { x: x + wide / 2, y: top + (c + 0.5) * thick + 4, class: "on" }, clients[i]));
    }
  });
  let here = -1;
  const answer = k => {
    here = k;
    if (k < 0) return null;
    const { c, i, x, wide } = pieces[k];
    return { lines: [`class ${classes[c]}`, `${clients[i]}: ${counts[i][c].toLocaleString("en")} of ${totals[c].toLocaleString("en")} (${(100 * counts[i][c] / totals[c]).toFixed(1)} %)`], x: x + wide / 2, y: top + c * thick };
  };
  askable(canvas, {
    find: (x, y) => answer(pieces.findIndex(p => x >= p.x && x < p.x + p.wide && y >= top + p.c * thick && y < top + (p.c + 1) * thick)),
    move: (dx, dy) => {
      const now = pieces[here];
      if (!now) return answer(0);
      if (dx) return answer(clamp(here + dx, 0, pieces.length - 1));
      const next = pieces.findIndex(p => p.c === now.c + dy);
      return answer(next < 0 ? here : next);
    },
  });
}

/* Client by class, the area of a bubble in proportion to the count; beneath it the sizes of the clients' parts. */
function bubbles(host, { label, held, chosen, pick }) {
  const width = widthOf(host);
  if (!width) return;
  const { counts, classes, clients, groups } = held;
  const short = clients.map(name => cut(name, 0.38 * width)), named = clients.length <= 60;
  const left = named ? widest(short, 12.5) + 10 : 14, wide = Math.min(46, (width - left - 8) / classes.length);
  const tall = named ? clamp(wide, 17, 30) : 7, heads = classes.map(name => cut(name, 140)), turned = widest(heads) > wide - 4;
  const high = tall * clients.length, foot = wide < 11 ? 22 : (turned ? widest(heads) + 28 : 40);
  const canvas = stage(host, high + foot, label, width);
  const most = Math.max(...counts.flat(), 1), largest = Math.min(wide, tall) * 0.49;
  clients.forEach((name, i) => {
    const y = (i + 0.5) * tall;
    if (i === chosen) canvas.append(svg("rect", { x: 0, y: i * tall, width, height: tall, class: "band" }));
    canvas.append(svg("line", { x1: left, x2: left + wide * classes.length, y1: y, y2: y, class: "grid" }));
    if (named) canvas.append(svg("text", { x: left - 6, y: y + 4, class: i === chosen ? "tick end chosen" : "tick end" }, short[i]));
    counts[i].forEach((count, c) => count && canvas.append(svg("circle", { cx: left + (c + 0.5) * wide, cy: y, r: Math.max(0.8, largest * Math.sqrt(count / most)), fill: PALETTE[(groups[i] ?? 0) % PALETTE.length], opacity: 0.85 })));
  });
  if (wide >= 11) heads.forEach((name, c) => {
    const x = left + (c + 0.5) * wide;
    canvas.append(turned ? svg("text", { class: "tick end", transform: `translate(${x + 4} ${high + 6}) rotate(-90)` }, name) : svg("text", { x, y: high + 15, class: "tick" }, name));
  });
  canvas.append(svg("text", { x: left + wide * classes.length / 2, y: high + foot - 4, class: "label" }, "class"));
  const cursor = svg("rect", { class: "cell", width: wide, height: tall, visibility: "hidden" });
  canvas.append(cursor);
  let here = null;
  const answer = (i, c) => {
    const inside = i >= 0 && c >= 0 && i < clients.length && c < classes.length;
    here = inside ? [i, c] : null;
    element(cursor, { visibility: inside ? "visible" : "hidden", x: left + c * wide, y: i * tall }, []);
    if (!inside) return null;
    const parts = Object.entries(held.sizes).map(([part, sizes]) => `${sizes[i].toLocaleString("en")} ${part}`).join(", ");
    return { lines: [`${clients[i]}, class ${classes[c]}`, `${counts[i][c].toLocaleString("en")} training samples`, ...(parts ? [`all classes: ${parts}`] : [])], x: left + (c + 0.5) * wide, y: i * tall };
  };
  askable(canvas, {
    find: (x, y) => answer(Math.floor(y / tall), Math.floor((x - left) / wide)),
    move: (dx, dy) => answer(clamp(here ? here[0] + dy : 0, 0, clients.length - 1), clamp(here ? here[1] + dx : 0, 0, classes.length - 1)),
    click: (x, y) => { const i = Math.floor(y / tall); if (i >= 0 && i < clients.length) pick(i); },
  });
}
