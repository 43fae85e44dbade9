/* A chart of curves.

lines: [{name, points: [[x, y]] or with the ends of an interval [[x, y, low, high]], colour, dash, width, faint}]; x, y: {label, text(v), log, whole, from, to};
marks: [{x or y, name}] guide lines; at: the x that is set apart; pick(x): what a click chooses; methods: the lines are
methods, which are named at their ends where there are more than looks, and below where one hides another. */
function lineChart(host, { label, lines, x, y, marks = [], at, pick, methods = false, height = 250, limit = 10 }) {
  const width = widthOf(host);
  if (!width) return;
  const drawn = lines.map(line => ({ ...line, points: line.points.filter(([a, b]) => Number.isFinite(b) && (!x.log || a > 0)) }))
    .filter(line => line.points.length);
  const canvas = stage(host, height, label, width);
  const every = drawn.flatMap(line => line.points);
  if (!every.length) {
    canvas.append(svg("text", { x: width / 2, y: height / 2, class: "none" }, "no numbers"));
    return;
  }
  const ys = [...every.map(p => p[1]), ...marks.filter(m => m.y !== undefined).map(m => m.y)];
  const xs = [...new Set(every.map(p => p[0]))].sort((a, b) => a - b);
  let low = y.from ?? ys.reduce((a, b) => Math.min(a, b)), high = y.to ?? ys.reduce((a, b) => Math.max(a, b));
  if (high - low < 1e-9) [low, high] = [low - (Math.abs(low) * 0.1 || 0.5), high + (Math.abs(high) * 0.1 || 0.5)];
  const pad = (high - low) * 0.05;
  low = y.from ?? low - pad; high = y.to ?? high + pad;
  const scale = ticks(low, high, Math.max(2, Math.floor(height / 55)));
  const ends = methods ? drawn.filter(line => line.main) : [], direct = ends.length > DISTINCT;
  const left = widest(scale.at.map(scale.text)) + 12, right = direct ? widest(ends.map(line => cut(line.main, 0.3 * width))) + 22 : 14, top = 12, bottom = 38;
  const a = x.log ? Math.log10(xs[0]) : xs[0], b = x.log ? Math.log10(xs.at(-1)) : xs.at(-1);
  const gap = b - a || 1;
  const X = v => left + (b > a ? ((x.log ? Math.log10(v) : v) - a) / gap : 0.5) * (width - left - right);
  const Y = v => height - bottom - (v - low) / (high - low) * (height - bottom - top);

  const room = Math.max(2, Math.floor((width - left) / 70));
  const below = x.log ? decades(xs[0], xs.at(-1), room) : b > a ? ticks(a, b, room, x.whole) : { at: [a], text: String };
  for (const v of scale.at) {
    canvas.append(svg("line", { x1: left, x2: width - right, y1: Y(v), y2: Y(v), class: "grid" }),
      svg("text", { x: left - 6, y: Y(v) + 4, class: "tick end" }, scale.text(v)));
  }
  for (const v of below.at) canvas.append(svg("text", { x: X(v), y: height - bottom + 17, class: "tick" }, below.text(v)));
  canvas.append(svg("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, class: "axis" }),
    svg("text", { x: (left + width - right) / 2, y: height - 4, class: "label" }, x.label));
  for (const mark of marks) {
    const line = mark.x !== undefined ? { x1: X(mark.x), x2: X(mark.x), y1: top, y2: height - bottom }
      : { x1: left, x2: width - right, y1: Y(mark.y), y2: Y(mark.y) };
    canvas.append(svg("line", { ...line, class: "guide" }));
  }
  if (at !== undefined && at >= xs[0] && at < xs.at(-1)) {
    canvas.append(svg("line", { x1: X(at), x2: X(at), y1: top, y2: height - bottom, class: "now" }));
  }
  for (const line of drawn) {
    const style = { stroke: line.colour || "currentColor", "stroke-width": line.width || 2, "stroke-dasharray": line.dash || null, opacity: line.faint ? 0.55 : null };
    const path = line.points.map(([u, v], k) => `${k ? "L" : "M"}${X(u).toFixed(1)} ${Y(v).toFixed(1)}`).join("");
    canvas.append(line.points.length > 1 ? svg("path", { d: path, class: "curve", ...style })
      : svg("circle", { cx: X(line.points[0][0]), cy: Y(line.points[0][1]), r: 4, fill: style.stroke }));
    for (const [u, v, from, to] of line.points.filter(p => p.length > 2)) {
      canvas.append(svg("line", { x1: X(u), x2: X(u), y1: Y(from), y2: Y(to), class: "whisker" }), svg("circle", { cx: X(u), cy: Y(v), r: 3, fill: style.stroke }));
    }
  }
  if (direct) nameEnds(canvas, ends.map(line => ({ name: cut(line.main, 0.3 * width), colour: line.colour, x: X(line.points.at(-1)[0]), y: Y(line.points.at(-1)[1]) })), width - right + 14, top, height - bottom);
  if (methods) sayHidden(host, ends.map(line => [line.main, JSON.stringify(line.points)]));
  const cursor = svg("g", { class: "cursor" });
  canvas.append(cursor);

  let place = -1;
  const answer = (k, height_) => {
    cursor.replaceChildren();
    place = k;
    if (k < 0) return null;
    const value = xs[k];
    // Charts against traffic have no x in common: there every line answers with its nearest point.
    const hits = drawn.map(line => [line, line.points.reduce((p, q) => (Math.abs(X(q[0]) - X(value)) < Math.abs(X(p[0]) - X(value)) ? q : p))])
      .filter(([, p]) => x.log ? Math.abs(X(p[0]) - X(value)) < 12 : p[0] === value);
    const near = height_ === undefined ? hits : [...hits].sort((p, q) => Math.abs(Y(p[1][1]) - height_) - Math.abs(Y(q[1][1]) - height_));
    const shown = near.slice(0, limit).sort((p, q) => q[1][1] - p[1][1]);
    cursor.append(svg("line", { x1: X(value), x2: X(value), y1: top, y2: canvas.viewBox.baseVal.height - bottom, class: "guide" }),
      ...shown.map(([line, p]) => svg("circle", { cx: X(p[0]), cy: Y(p[1]), r: 3.5, fill: line.colour || "currentColor" })));
    const more = hits.length - shown.length;
    return {
      lines: [`${x.name || x.label} ${x.text ? x.text(value) : value}`, ...shown.map(([line, p]) => `${line.name}: ${y.text(p[1])}${p.length > 2 ? ` (95 % interval ${y.text(p[2])} to ${y.text(p[3])})` : ""}`), ...(more ? [`and ${more} more`] : [])],
      x: X(value), y: height_ ?? (shown.length ? Y(shown[0][1][1]) : top),
    };
  };
  askable(canvas, {
    find: (px, py) => {
      if (px < left - 8 || px > width || py < 0) return answer(-1);
      return answer(xs.reduce((best, v, k) => (Math.abs(X(v) - px) < Math.abs(X(xs[best]) - px) ? k : best), 0), py);
    },
    move: (dx) => (dx ? answer(clamp(place < 0 ? (dx > 0 ? 0 : xs.length - 1) : place + dx, 0, xs.length - 1)) : null),
    click: pick ? px => pick(xs.reduce((best, v) => (Math.abs(X(v) - px) < Math.abs(X(best) - px) ? v : best))) : null,
  });
}

/* Names beside the ends of curves, none over another. */
function nameEnds(canvas, ends, x, top, bottom) {
  const step = Math.min(12, (bottom - top) / Math.max(1, ends.length - 1));
  let free = top;
  [...ends].sort((a, b) => a.y - b.y).forEach((end, k) => {
    const y = clamp(end.y, free, bottom - step * (ends.length - 1 - k));
    free = y + step;
    canvas.append(svg("line", { x1: end.x, x2: x - 3, y1: end.y, y2: y, stroke: end.colour, "stroke-width": 0.6 }),
      svg("text", { x, y: y + 3.5, class: "start", style: `fill: ${end.colour}; font-size: ${Math.min(10.5, step)}px` }, end.name));
  });
}

/* A note below a chart on curves that lie on one another: named: [[name, points as text]]. */
function sayHidden(host, named) {
  host.querySelector(".note")?.remove();
  const alike = new Map();
  for (const [name, points] of named) alike.set(points, [...(alike.get(points) || []), name]);
  const same = [...alike.values()].filter(names => names.length > 1).map(names => names.join(" = "));
  if (same.length) host.append(html("p", { class: "note" }, `Curves that coincide: ${same.join("; ")}.`));
}

/* The markers of looks by number, around (0, 0): corners, turned by a share of a corner, and how deep it goes in between. */
const MARKERS = [[4, 0.5], [4, 0], [0, 0], [3, 0], [3, 0.5], [4, 0, 0.35], [3, 0.75], [4, 0.5, 0.35], [3, 0.25], [5, 0], [5, 0, 0.42], [6, 0]];
function glyph(marker, x, y, r, attributes) {
  const [corners, turn, deep] = MARKERS[marker ?? 2];
  if (!corners) return svg("circle", { cx: x, cy: y, r, ...attributes });
  const points = span(deep ? 2 * corners : corners).map(k => {
    const angle = 2 * Math.PI * (k / (deep ? 2 * corners : corners) + turn / corners) - Math.PI / 2, far = r * 1.2 * (deep && k % 2 ? deep : 1);
    return `${(x + far * Math.cos(angle)).toFixed(1)},${(y + far * Math.sin(angle)).toFixed(1)}`;
  });
  return svg("polygon", { points: points.join(" "), ...attributes });
}

/* Powers of ten on an axis, and steps between where there are few of those. */
function decades(low, high, room) {
  const found = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++) {
    for (const m of high / low > 300 ? [1] : [1, 2, 5]) found.push(m * 10 ** k);
  }
  const inside = found.filter(v => v >= low * 0.999 && v <= high * 1.001);
  const step = Math.ceil(inside.length / room);
  const text = v => (v >= 1 ? v.toLocaleString("en") : String(Number(v.toPrecision(2))));
  return { at: inside.filter((_, k) => k % step === 0), text };
}

/* How a client's line looks: its hidden group's colour, or one of its own; the second ten clients are dashed. */
const clientLook = (run, i) => (run.groups.length ? { colour: PALETTE[run.groups[i] % PALETTE.length] }
  : { colour: PALETTE[i % PALETTE.length], dash: i % (2 * PALETTE.length) < PALETTE.length ? null : "5 2.5" });
const groupEntries = run => groupsOf(run).map(g => ({ name: `hidden group ${g + 1}`, colour: PALETTE[g % PALETTE.length], dot: true }));

/* Which line is whose, while no two clients look alike; `more` comes last. */
function clientKey(run, more = []) {
  if (run.groups.length) return legend([...groupEntries(run), ...more]);
  const few = run.clients.length <= 2 * PALETTE.length;
  const entries = few ? run.clients.map((name, i) => ({ name, ...clientLook(run, i) })) : [];
  return entries.length + more.length ? legend([...entries, ...more]) : null;
}
const recurring = run => (run.groups.length || run.clients.length <= 2 * PALETTE.length ? "" : ` With ${run.clients.length} clients, colours repeat: point at a line for its name.`);

/* What the colours of a chart stand for; with `toggle` entries are buttons that hide and show. */
function legend(entries, toggle) {
  const swatch = entry => svg("svg", { width: 24, height: 12, "aria-hidden": "true" },
    entry.dot ? glyph(entry.marker, 12, 6, 5, { fill: entry.colour || "currentColor" })
      : entry.bar ? svg("rect", { x: 4, width: 16, height: 12, fill: entry.colour || "currentColor" })
      : svg("line", { x1: 1, x2: 23, y1: 6, y2: 6, stroke: entry.colour || "currentColor", "stroke-width": entry.width || 2.4, "stroke-dasharray": entry.dash || null }));
  return html("ul", { class: "legend" }, entries.map((entry, k) => html("li", {}, toggle
    ? html("button", { type: "button", "aria-pressed": String(!entry.off), onclick: () => toggle(k), id: `legend-${k}` }, swatch(entry), entry.name)
    : [swatch(entry), entry.name])));
}
