const RAMPS = {
  light: { more: ["#f7f9fb", "#c3d7ea", "#6ba3d0", "#1f66a8", "#08306b"], signs: ["#1b5c9e", "#8fbcdd", "#f7f7f7", "#efa184", "#a81529"] },
  dark: { more: ["#1b2126", "#1d4469", "#2b78b5", "#7db8e4", "#e2f1fd"], signs: ["#9ccdf5", "#2f7bb8", "#20262a", "#b8503a", "#ffb59c"] },
};
const channels = hex => [1, 3, 5].map(k => parseInt(hex.slice(k, k + 2), 16));

/* The colour of a share in [0, 1] as [r, g, b]. */
function ramp(stops, share) {
  const place = clamp(share, 0, 1) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(place));
  const [from, to] = [channels(stops[k]), channels(stops[k + 1])];
  return from.map((c, i) => Math.round(c + (to[i] - c) * (place - k)));
}

/* The ends of a colour scale (beyond: some lie further out): around zero if there are both signs; a few extremes do not hide the rest. */
function ends(values) {
  let low = Infinity, high = -Infinity;
  const sizes = [];
  for (const v of values) {
    if (!Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
    if (v) sizes.push(Math.abs(v));
  }
  if (!Number.isFinite(low)) return { low: 0, high: 1, signs: false };
  sizes.sort((a, b) => a - b);
  const usual = sizes[Math.floor((sizes.length - 1) * 0.95)] ?? 1, largest = sizes.at(-1) ?? 1;
  const limit = largest > 3 * usual ? usual : largest;
  if (low < 0) return { low: -limit, high: limit, signs: true, beyond: largest > limit };
  return { low: low < limit ? low : 0, high: limit, signs: false, beyond: largest > limit };
}

/* A picture of one pixel a cell, to be stretched. */
function pixels(rows, columns, colour) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let k = 0; k < rows * columns; k++) {
    const shade = colour(Math.floor(k / columns), k % columns);
    if (shade) image.data.set([...shade, 255], 4 * k);
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

/* A heat map. rows, columns: names; value(r, c); scale: see ends; shade: colours of kinds instead of a scale;
says(r, c): what to tell of a cell; marks: [{row, column, rows, columns}] framed; chosen: the row set apart; pick(r, c). */
function heatMap(host, { label, rows, columns, value, scale, shade, says, marks = [], chosen, pick, upright = true, axes = [], text }) {
  const width = widthOf(host);
  if (!width) return;
  const short = rows.map(name => cut(name, 0.38 * width)), named = rows.length <= 45;
  const left = (named ? widest(short, 12.5) + 8 : 16) + (axes[0] ? 16 : 0);
  const side = upright ? clamp(340 / Math.max(rows.length, columns.length), 34, 58) : 90;
  const cell = Math.min(side, (width - left - 6) / columns.length), tall = upright ? Math.min(side, Math.max(cell, named ? 13 : 0)) : clamp(340 / rows.length, named ? 14 : 3, 26);
  const heads = columns.map(name => cut(String(name), 140)), turned = upright && widest(heads) > cell - 4;
  const crowded = cell < 11 && upright;
  const foot = (crowded ? 8 : turned ? widest(heads) + 10 : 18) + (axes[1] ? 18 : 0) + (scale ? 40 : 0);
  const across = cell * columns.length, down = tall * rows.length;
  const canvas = stage(host, down + foot + 4, label, width);
  const stops = RAMPS[dark() ? "dark" : "light"][scale?.signs ? "signs" : "more"];
  const share = v => (v - scale.low) / (scale.high - scale.low || 1);
  const missing = dark() ? [58, 64, 69] : [214, 218, 222];
  const paint = (r, c) => {
    const v = value(r, c);
    if (v === null) return null;
    if (!Number.isFinite(v)) return missing;
    return shade ? channels(shade(v)) : ramp(stops, share(v));
  };
  canvas.append(svg("image", { href: pixels(rows.length, columns.length, paint), x: left, y: 2, width: across, height: down, preserveAspectRatio: "none", class: "pixels" }),
    svg("rect", { x: left, y: 2, width: across, height: down, class: "frame" }));
  if (text && rows.length <= 12 && cell > 20) {
    for (const r of span(rows.length)) for (const c of span(columns.length)) {
      const shown = text(r, c), [red, green, blue] = paint(r, c) || missing;
      canvas.append(svg("text", { x: left + (c + 0.5) * cell, y: 2 + (r + 0.5) * tall + 4, style: `fill: ${0.3 * red + 0.59 * green + 0.11 * blue > 135 ? "#111" : "#fff"}` }, shown));
    }
  }
  if (named) short.forEach((name, r) => canvas.append(svg("text", { x: left - 5, y: 2 + (r + 0.5) * tall + 4, class: r === chosen ? "tick end chosen" : "tick end" }, name)));
  if (!crowded && upright) heads.forEach((name, c) => {
    const x = left + (c + 0.5) * cell, y = down + 10;
    canvas.append(turned ? svg("text", { class: "tick end", transform: `translate(${x + 4} ${y}) rotate(-90)` }, name) : svg("text", { x, y: y + 6, class: "tick" }, name));
  });
  if (!upright) {
    const every = Math.ceil(columns.length / Math.max(1, Math.floor(across / 46)));
    heads.forEach((name, c) => { if (c % every === 0) canvas.append(svg("text", { x: left + (c + 0.5) * cell, y: down + 16, class: "tick" }, name)); });
  }
  if (axes[0]) canvas.append(svg("text", { class: "label", transform: `translate(11 ${2 + down / 2}) rotate(-90)` }, axes[0]));
  if (axes[1]) canvas.append(svg("text", { x: left + across / 2, y: down + foot - (scale ? 40 : 0), class: "label" }, axes[1]));
  for (const m of marks) canvas.append(svg("rect", { x: left + m.column * cell, y: 2 + m.row * tall, width: m.columns * cell, height: m.rows * tall, class: "block" }));
  if (chosen !== undefined && chosen >= 0) canvas.append(svg("rect", { x: left, y: 2 + chosen * tall, width: across, height: tall, class: "picked" }));
  if (scale) {
    const wide = Math.min(170, across), y = down + foot - 28;
    const bar = pixels(1, 64, (_, c) => ramp(stops, c / 63));
    canvas.append(svg("image", { href: bar, x: left, y, width: wide, height: 9, preserveAspectRatio: "none" }),
      svg("rect", { x: left, y, width: wide, height: 9, class: "frame" }),
      svg("text", { x: left, y: y + 22, class: "tick start" }, `${scale.under || (scale.beyond && scale.signs) ? "≤ " : ""}${(scale.text || figure)(scale.low)}`),
      svg("text", { x: left + wide, y: y + 22, class: "tick end" }, `${scale.beyond ? "≥ " : ""}${(scale.text || figure)(scale.high)}`),
      svg("text", { x: left + wide + 8, y: y + 9, class: "tick start" }, scale.name || ""));
  }
  const cursor = svg("rect", { class: "cell", width: cell, height: tall, visibility: "hidden" });
  canvas.append(cursor);
  let here = null;
  const answer = (r, c) => {
    const inside = r >= 0 && c >= 0 && r < rows.length && c < columns.length;
    here = inside ? [r, c] : null;
    element(cursor, { visibility: inside ? "visible" : "hidden", x: left + c * cell, y: 2 + r * tall }, []);
    return inside ? { lines: says(r, c), x: left + (c + 0.5) * cell, y: 2 + r * tall } : null;
  };
  const cellAt = (x, y) => [Math.floor((y - 2) / tall), Math.floor((x - left) / cell)];
  askable(canvas, {
    find: (x, y) => answer(...cellAt(x, y)),
    move: (dx, dy) => answer(clamp((here?.[0] ?? 0) + dy * (here ? 1 : 0), 0, rows.length - 1), clamp((here?.[1] ?? 0) + dx * (here ? 1 : 0), 0, columns.length - 1)),
    click: pick ? (x, y) => { const [r, c] = cellAt(x, y); if (r >= 0 && r < rows.length) pick(r, c); } : null,
  });
}

/* Who helps whom: an arrow from client j to client i for every entry of size `least` or more. order: around the circle. */
function graph(host, { label, names, groups, order, value, least, largest, chosen, pick, says }) {
  const width = Math.min(widthOf(host), 520);
  if (!width) return 0;
  const n = order.length, named = n <= 30;
  const short = names.map(name => cut(name, 0.24 * width)), room = named ? widest(short, 12.5) + 16 : 18;
  const radius = Math.max(60, width / 2 - room), dot = clamp(120 / n, 3, 9), high = 2 * radius + 60;
  const canvas = stage(host, high, label, width);
  const middle = [width / 2, high / 2], place = [];
  order.forEach((i, k) => {
    const angle = 2 * Math.PI * k / n - Math.PI / 2;
    place[i] = [middle[0] + radius * Math.cos(angle), middle[1] + radius * Math.sin(angle), angle];
  });
  const edges = [];
  for (const i of order) for (const j of order) {
    const v = value(i, j);
    if (i !== j && Number.isFinite(v) && v && Math.abs(v) >= least) edges.push([i, j, v]);
  }
  edges.sort((p, q) => Math.abs(p[2]) - Math.abs(q[2]));
  const bend = (from, to) => {
    const dx = to[0] - from[0], dy = to[1] - from[1];
    // Toward the centre, and a little aside: the arrow back takes the other side.
    return [(from[0] + to[0]) / 2 * 0.55 + middle[0] * 0.45 - dy * 0.09, (from[1] + to[1]) / 2 * 0.55 + middle[1] * 0.45 + dx * 0.09];
  };
  for (const [i, j, v] of edges) {
    const from = place[j], to = place[i], control = bend(from, to);
    const wide = (0.6 + 4.4 * Math.abs(v) / largest) * clamp(25 / n, 0.25, 1), head = 4 + wide * 1.3;
    const away = Math.hypot(to[0] - control[0], to[1] - control[1]) || 1;
    const u = [(to[0] - control[0]) / away, (to[1] - control[1]) / away];
    const tipAt = [to[0] - u[0] * (dot + 1), to[1] - u[1] * (dot + 1)], neck = [tipAt[0] - u[0] * head, tipAt[1] - u[1] * head];
    const faded = chosen >= 0 && chosen !== i && chosen !== j;
    const kind = v < 0 ? "against" : groups.length && groups[i] === groups[j] ? "kin" : "edge";
    const wing = head * 0.45;
    canvas.append(svg("g", { class: `${kind}${faded ? " faded" : ""}`, "data-edge": `${j}-${i}`, style: kind === "kin" ? `color: ${PALETTE[groups[i] % PALETTE.length]}` : null },
      svg("path", { d: `M${from[0]} ${from[1]}Q${control[0]} ${control[1]} ${neck[0]} ${neck[1]}`, "stroke-width": wide }),
      svg("polygon", { points: `${tipAt[0]},${tipAt[1]} ${neck[0] - u[1] * wing},${neck[1] + u[0] * wing} ${neck[0] + u[1] * wing},${neck[1] - u[0] * wing}` })));
  }
  for (const i of order) {
    const [x, y, angle] = place[i], aside = Math.cos(angle);
    canvas.append(svg("circle", { cx: x, cy: y, r: dot, fill: groups.length ? PALETTE[groups[i] % PALETTE.length] : "currentColor", class: i === chosen ? "node picked" : "node", "data-node": i }));
    if (named) canvas.append(svg("text", { x: x + (dot + 5) * aside, y: y + (dot + 9) * Math.sin(angle) + 4, class: `tick ${aside > 0.2 ? "start" : aside < -0.2 ? "end" : ""}${i === chosen ? " chosen" : ""}` }, short[i]));
  }
  const nearest = (x, y) => order.reduce((best, i) => (Math.hypot(place[i][0] - x, place[i][1] - y) < Math.hypot(place[best][0] - x, place[best][1] - y) ? i : best), order[0]);
  const close = (x, y) => { const i = nearest(x, y); return Math.hypot(place[i][0] - x, place[i][1] - y) < 26 ? i : -1; };
  let here = -1;
  const answer = i => (i < 0 ? null : { lines: says(i, edges), x: place[i][0], y: place[i][1] });
  askable(canvas, {
    find: (x, y) => answer(close(x, y)),
    move: (dx, dy) => { here = (here + (dx || dy) + n + (here < 0 && dx + dy < 0 ? 1 : 0)) % n; return answer(order[here]); },
    click: (x, y) => { const i = close(x, y); if (i >= 0) pick(i); },
  });
  return edges.length;
}
