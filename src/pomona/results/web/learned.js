/* What the chosen run's method learned: a matrix and its graph, numbers a client, or clusters; over the rounds. */

const whatNow = () => runNow().learned.find(what => what.name === choice.what) || runNow().learned[0];
const timeOf = what => { const r = choice.at() ?? Infinity; let t = 0; while (t + 1 < what.rounds.length && what.rounds[t + 1] <= r) t++; return t; };
const entry = what => { const symbol = what.symbol.replace(/\(.*\)/, ""); return (i, j) => (what.symbol.includes("(") ? `${symbol}(${i}, ${j})` : `${what.symbol} of ${i} for ${j}`); };
const approximately = what => (what.values.exact ? "" : "about ");
const series = (what, i, j) => what.rounds.map((r, t) => [r, what.values.at(t, i, j)]);

function offDiagonal(what, t) {
  const values = [];
  for (let i = 0; i < what.values.n; i++) for (let j = 0; j < what.values.n; j++) if (i !== j) values.push(what.values.at(t, i, j));
  return values;
}

/* One scale for all rounds, so that colours and widths compare between them. */
function scaleOf(what) {
  const size = what.values.n * what.values.width;
  const at = t => (what.kind === "matrix" ? offDiagonal(what, t) : [...what.values.flat.slice(t * size, (t + 1) * size)]);
  const moments = [...new Set([0, what.rounds.length >> 1, what.rounds.length - 1])].map(at);
  // A round in which nothing was there yet, all zeros, does not stretch the scale.
  const some = moments.filter(values => values.some(v => v));
  return what.scale ??= { name: what.symbol, under: some.length < moments.length, ...ends((some.length ? some : moments).flat()) };
}

/* Stretches of the order that belong to one group, as frames on the diagonal. */
function groupFrames(run, order) {
  const frames = [];
  order.forEach((i, k) => {
    if (k && run.groups[order[k - 1]] === run.groups[i]) frames.at(-1).rows++;
    else frames.push({ row: k, rows: 1 });
  });
  return run.groups.length ? frames.filter(f => f.rows > 1).map(f => ({ ...f, column: f.row, columns: f.rows })) : [];
}

const KINDS = {
  matrix: (run, what) => [
    { id: "matrix", half: true, title: what.title, words: () => `${run.label}, round ${what.rounds[timeOf(what)]}: ${what.meaning} Each client's own entry is left out${run.groups.length ? "; frames are the hidden groups, which no client knows" : ""}.`, draw: matrixMap },
    { id: "graph", half: true, title: "Who helps whom", words: () => `An arrow runs from the client that helps to the one that is helped, the wider the more${run.groups.length ? ", in a hidden group's colour if both clients are in it" : ""}; choose a client to see only its own arrows in full.`, draw: helpGraph, tools: threshold, key: () => graphKey(run, what) },
    ...(what.rounds.length > 1 ? [{ id: "history", title: what.history, words: () => `${what.symbol} over the rounds, ${choice.client < 0 ? "one panel per client i and " : `i = ${who()}, `}a line for each client j, ${run.groups.length ? "coloured by j's hidden group" : "one colour per client"}; thick: its entry for itself${choice.client < 0 && what.values.n > 12 ? ". The first 12 clients" : ""}.${recurring(run)}`, draw: histories, key: () => clientKey(run) }] : []),
    ...(what.own && what.rounds.length > 1 ? [{ id: "own", title: what.own, words: () => `${entry(what)("i", "i")}, each client's entry for itself, over the rounds${run.groups.length ? "; one colour per hidden group" : ""}.${recurring(run)}`, draw: own, key: () => clientKey(run) }] : []),
  ],
  values: (run, what) => [
    { id: "values", half: true, title: what.title, words: () => `${run.label}: ${what.meaning} ${what.values.width > 1 ? `A line ${article(what.entries)} ${what.entries}, ${who()}.` : `Thin lines are clients, the thick one their mean.${recurring(run)}`}`, draw: valueLines, key: () => (what.values.width > 1 ? entryKey(what) : clientKey(run, [{ name: "mean over clients", width: 2.8 }])) },
    what.values.width > 1
      ? { id: "entries", half: true, title: `By client, round ${what.rounds.at(-1)}`, heading: () => `By client, round ${what.rounds[timeOf(what)]}`, words: () => `After the chosen round, of every client (row) and ${what.entries} (column): ${what.symbol}.`, draw: valueMap }
      : { id: "bars", half: true, title: "By client", heading: () => `By client, round ${what.rounds[timeOf(what)]}`, words: () => `After the chosen round, of every client: ${what.symbol}.`, draw: valueBars },
  ],
  clusters: (run, what) => [{ id: "clusters", title: what.title, words: () => `${run.label}: ${what.meaning} One colour per cluster; clients are sorted by their last cluster${run.groups.length ? ", the number after a name is the hidden group" : ""}.`, draw: clusterMap, key: () => legend(clustersOf(what).map((c, k) => ({ name: `cluster ${figure(c)}`, colour: PALETTE[k % PALETTE.length], dot: true }))) }],
  norms: (run, what) => [
    { id: "mean-norm", half: true, title: "Norm of a cluster's mean update", words: () => `${run.label}: ${what.meaning}`, draw: host => norms(host, what, 1) },
    { id: "largest-norm", half: true, title: "Norm of a cluster's largest update", words: () => "The largest norm of one member's update, by round.", draw: host => norms(host, what, 2) },
  ],
  epochs: (run, what) => [{ id: "epochs", half: true, title: what.title, words: () => `${run.label}: ${what.meaning} ${choice.client >= 0 && what.stage[choice.client] ? `Dashed: ${who()} ends its initial stage after ${what.stage[choice.client]} epochs.` : `One line per client.${recurring(run)}`}`, draw: epochLines, key: () => clientKey(run) }],
};
const article = word => (word ? "a" : "");

function matrixMap(host) {
  const run = runNow(), what = whatNow(), t = timeOf(what), { order, values } = what, name = entry(what);
  const names = order.map(i => run.clients[i]);
  heatMap(host, {
    label: `${what.symbol} between clients, round ${what.rounds[t]}`, rows: names, columns: names, scale: scaleOf(what), axes: ["client i", "client j"],
    value: (r, c) => (r === c ? null : values.at(t, order[r], order[c])), marks: groupFrames(run, order), chosen: order.indexOf(choice.client), pick: r => setClient(order[r]),
    says: (r, c) => [name(names[r], names[c]), `${approximately(what)}${figure(values.at(t, order[r], order[c]))} in round ${what.rounds[t]}`],
  });
}

function helpGraph(host, panel) {
  const run = runNow(), what = whatNow(), t = timeOf(what), n = what.values.n;
  const { bound, largest } = arrows(what);
  const count = graph(host, {
    label: `Who helps whom in round ${what.rounds[t]}`, names: run.clients, groups: run.groups, order: what.order, chosen: choice.client, pick: i => setClient(i === choice.client ? -1 : i),
    value: (i, j) => what.values.at(t, i, j), least: bound, largest,
    says: (i, edges) => {
      const from = edges.filter(e => e[0] === i).sort((p, q) => Math.abs(q[2]) - Math.abs(p[2])), to = edges.filter(e => e[1] === i);
      return [run.clients[i] + (run.groups.length ? `, hidden group ${run.groups[i] + 1}` : ""),
        from.length ? `helped by ${from.slice(0, 6).map(e => `${run.clients[e[1]]} (${figure(e[2])})`).join(", ")}${from.length > 6 ? `, ${from.length - 6} more` : ""}` : "helped by no client at this threshold",
        to.length ? `helps ${to.slice(0, 6).map(e => run.clients[e[0]]).join(", ")}${to.length > 6 ? `, ${to.length - 6} more` : ""}` : "helps no client at this threshold"];
    },
  });
  panel.output.textContent = `≥ ${figure(bound)}: ${count} of ${n * (n - 1)}`;
}

/* From what weight on arrows are drawn: a place on the colour scale, at first so that about two a client are at the end. */
function arrows(what) {
  const { low, high, signs } = scaleOf(what), base = signs ? 0 : low, range = Math.max(high - base, 1e-12);
  if (what.least === undefined) {
    const sizes = offDiagonal(what, what.rounds.length - 1).filter(Number.isFinite).map(Math.abs).sort((a, b) => b - a);
    what.least = clamp(Math.floor(100 * ((sizes[2 * what.values.n] ?? sizes.at(-1) ?? 0) - base) / range) / 100, 0, 1);
  }
  return { bound: base + what.least * range, largest: Math.max(high, 1e-12) };
}

function threshold(panel) {
  arrows(whatNow());
  panel.output = html("output", { for: "threshold", id: "edges" });
  const slide = html("input", { type: "range", id: "threshold", min: 0, max: 100, step: 1, value: 100 * whatNow().least, oninput: () => { whatNow().least = slide.value / 100; panel.redraw(); } });
  return html("p", { class: "tools" }, html("label", { for: "threshold" }, "Arrows of weight"), slide, panel.output);
}


/* What the colours of the clients and of the arrows mean. */
function graphKey(run, what) {
  const arrows = [
    ...(run.groups.length ? [...groupEntries(run), { name: "across groups", colour: "var(--soft)" }] : []),
    ...(scaleOf(what).signs ? [{ name: "negative", colour: "#d55e00", dash: "5 3" }] : []),
  ];
  return arrows.length ? legend(arrows) : null;
}

/* A small chart a client, or one large one for the chosen client. */
function histories(host) {
  const run = runNow(), what = whatNow(), n = what.values.n;
  const some = choice.client >= 0 && choice.client < n ? [choice.client] : [...what.order].sort((i, j) => i - j).slice(0, 12);
  const grid = html("div", { class: some.length > 1 ? "small" : "" });
  host.replaceChildren(grid);
  const all = known(some.flatMap(i => span(n).flatMap(j => series(what, i, j).map(p => p[1]))));
  const low = all.reduce((a, b) => Math.min(a, b), 0), high = all.reduce((a, b) => Math.max(a, b), 0);
  for (const i of some) {
    const place = html("div", {});
    grid.append(html("div", {}, some.length > 1 ? html("h4", {}, run.clients[i]) : null, place));
    const lines = span(n).filter(j => j !== i).concat(i).map(j => ({ name: run.clients[j], ...clientLook(run, j), width: j === i ? 3 : n > 30 ? 0.5 : 1.2, points: series(what, i, j) }));
    lineChart(place, { label: `${what.symbol} of ${run.clients[i]} over rounds`, lines, x: ROUNDS, y: { text: figure, from: low, to: high * 1.05 || 1 }, at: choice.at(), pick: setRound, height: some.length > 1 ? 150 : 300, limit: 8 });
  }
}

function own(host) {
  const run = runNow(), what = whatNow();
  lineChart(host, { label: `${what.own}, over rounds`, x: ROUNDS, y: { text: figure }, at: choice.at(), pick: setRound, height: 270, limit: 12,
    lines: span(what.values.n).map(i => ({ name: run.clients[i], ...clientLook(run, i), width: i === choice.client ? 3.4 : 1.6, faint: choice.client >= 0 && i !== choice.client, points: series(what, i, i) })) });
}

function valueLines(host) {
  const run = runNow(), what = whatNow(), { n, width } = what.values;
  const average = j => what.rounds.map((r, t) => [r, mean(span(n).map(i => what.values.at(t, i, j)))]);
  const lines = width > 1
    ? span(width).map(j => ({ name: `${what.entries} ${j + 1}`, colour: PALETTE[j % PALETTE.length], points: choice.client < 0 ? average(j) : series(what, choice.client, j) }))
    : [...span(n).map(i => ({ name: run.clients[i], ...clientLook(run, i), width: i === choice.client ? 3 : 1.2, faint: choice.client >= 0 && i !== choice.client, points: series(what, i, 0) })), { name: "mean over clients", width: 2.8, points: average(0) }];
  lineChart(host, { label: `${what.symbol} over rounds`, lines, x: ROUNDS, y: { text: figure }, at: choice.at(), pick: setRound, height: 280 });
}

function epochLines(host) {
  const run = runNow(), what = whatNow(), { n, length } = what.values, i = choice.client;
  lineChart(host, { label: `${what.symbol} over epochs`, x: { label: "epoch of weight learning", whole: true }, y: { text: figure }, height: 280, marks: i >= 0 && what.stage[i] ? [{ x: what.stage[i] }] : [],
    lines: span(n).map(k => ({ name: run.clients[k], ...clientLook(run, k), width: k === i ? 3 : 1.2, faint: i >= 0 && k !== i, points: span(length).map(e => [e + 1, what.values.at(e, k)]) })) });
}

/* What the lines of a vector stand for, while there are few enough. */
const entryKey = ({ values, entries }) => (values.width > 1 && values.width <= PALETTE.length
  ? legend(span(values.width).map(j => ({ name: `${entries} ${j + 1}`, colour: PALETTE[j] }))) : null);

const clustersOf = what => [...new Set(known([...what.values.flat]))].sort((a, b) => a - b);

function valueBars(host) {
  const run = runNow(), what = whatNow(), t = timeOf(what);
  const values = span(what.values.n).map(i => what.values.at(t, i));
  clientBars(host, { label: `${what.symbol} by client, round ${what.rounds[t]}`, axis: what.symbol, from: known(values).some(v => v < 0) ? undefined : 0, runs: [{ label: what.symbol, ...ink(run) }], chosen: choice.client, pick: setClient,
    rows: values.map((value, i) => ({ name: run.clients[i], bars: [{ value }] })), text: bar => figure(bar.value) });
}

function valueMap(host) {
  const run = runNow(), what = whatNow(), t = timeOf(what);
  const columns = span(what.values.width).map(j => String(j + 1));
  heatMap(host, { label: `${what.symbol} by client and ${what.entries}`, rows: run.clients.slice(0, what.values.n), columns, scale: scaleOf(what), value: (r, c) => what.values.at(t, r, c), axes: [null, what.entries], chosen: choice.client, pick: setClient,
    says: (r, c) => [`${run.clients[r]}, ${what.entries} ${columns[c]}`, `${what.symbol} ${approximately(what)}${figure(what.values.at(t, r, c))} in round ${what.rounds[t]}`] });
}

function clusterMap(host) {
  const run = runNow(), what = whatNow(), { n } = what.values, last = what.rounds.length - 1;
  const kinds = clustersOf(what);
  const order = span(n).sort((i, j) => (what.values.at(last, i) || 0) - (what.values.at(last, j) || 0) || (run.groups[i] ?? 0) - (run.groups[j] ?? 0) || i - j);
  heatMap(host, { label: "The cluster of each client over rounds", rows: order.map(i => run.clients[i] + (run.groups.length ? ` · ${run.groups[i] + 1}` : "")), columns: what.rounds.map(String), upright: false,
    value: (r, c) => what.values.at(c, order[r]), shade: v => PALETTE[kinds.indexOf(v) % PALETTE.length], chosen: order.indexOf(choice.client), pick: (r, c) => { setClient(order[r]); setRound(what.rounds[c]); }, axes: [null, "round"],
    says: (r, c) => [`${run.clients[order[r]]}, round ${what.rounds[c]}`, `cluster ${figure(what.values.at(c, order[r]))}`, ...(run.groups.length ? [`hidden group ${run.groups[order[r]] + 1}`] : [])] });
}

function norms(host, what, which) {
  const lines = Object.entries(what.clusters).map(([c, points], k) => ({ name: `cluster ${c}`, colour: PALETTE[k % PALETTE.length], points: points.map(p => [p[0], p[which]]) }));
  lineChart(host, { label: "Norms by cluster over rounds", lines, x: ROUNDS, y: { text: figure, from: 0 }, marks: what.thresholds ? [{ y: what.thresholds[which - 1] }] : [], at: choice.at(), pick: setRound });
}
