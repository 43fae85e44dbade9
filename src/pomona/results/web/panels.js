/* Every figure of the page: where it stands, its words, and how it is drawn for the reader's choices. */

const ink = ({ look }) => ({ colour: dark() ? look.bright : look.colour, dash: look.dash.map(v => 2 * v).join(" "), marker: look.marker });
const shownRuns = () => DATA.runs.filter((_, k) => !choice.hidden.has(k));
const runNow = () => DATA.runs[choice.run];
const who = () => (choice.client < 0 ? "mean over clients" : runNow().clients[choice.client] ?? `client ${choice.client}`);
const over = (table, t) => (choice.client < 0 ? mean(span(table.n).map(i => table.at(t, i))) : choice.client < table.n ? table.at(t, choice.client) : NaN);
const groupsOf = run => [...new Set(run.groups)].sort((a, b) => a - b);
const ROUNDS = { label: "round", whole: true };
const capital = text => text[0].toUpperCase() + text.slice(1);

/* A value of a metric in the unit that people read, and as they write it. */
const scaled = ({ percent }, value) => (percent ? 100 * value : value);
const plain = ({ percent, decimals }, value) => (percent ? value.toFixed(2) : decimals ? value.toFixed(decimals) : figure(value)).replace("-", "−");
const noted = metric => value => (Number.isFinite(value) ? plain(metric, value) + (metric.percent ? " %" : "") : NOTHING);
const better = ({ higher }) => (higher ? "higher is better" : "lower is better");

/* The runs of a figure that holds one kind of value: those that are judged as the chosen one is. */
const alike = () => shownRuns().filter(run => run.metric.name === runNow().metric.name);
const metricNow = () => runNow().metric;

/* "after round 40"; where runs are compared by different rounds, each its own. */
function lastRound(runs) {
  const ends = [...new Set(runs.map(outcome).filter(Boolean).map(({ view, t }) => view.rounds[t]))];
  return ends.length === 1 ? `after round ${ends[0]}` : "after the round that each run is compared by";
}

/* The evaluation of a run's first view that runs are compared by: {t, view}, or null. */
function outcome(run) {
  const view = run.views[0];
  return view && view.rounds.length ? { view, t: view.rounds.indexOf(run.moment) } : null;
}

/* Each client's value there, scaled. */
function outcomes(run) {
  const last = outcome(run);
  return last ? span(last.view.value.n).map(i => scaled(run.metric, last.view.value.at(last.t, i))) : [];
}

function testLines(runs) {
  return runs.flatMap(run => run.views.map((view, k) => ({
    name: `${run.label}, ${view.model} ${view.when}`, ...ink(run), ...(k ? { dash: "2 3", width: 2 } : { width: 2.4, main: run.label }),
    points: view.rounds.map((r, t) => [r, scaled(run.metric, over(view.value, t))]),
  })));
}

/* Runs that may share a panel: trained in one place with one loss; or tested in one place by one metric. */
const kinds = key => [...new Set(DATA.runs.map(run => JSON.stringify(key(run))))].map(kind => DATA.runs.filter(run => JSON.stringify(key(run)) === kind));
const LOSSES = kinds(run => [run.place, run.minimised]);
const TESTS = kinds(run => [run.place, run.metric.name]);
const several = key => new Set(DATA.runs.map(key)).size > 1;
const within = (runs, name) => name + (several(run => run.place) ? `, ${runs[0].place}` : "");
const drawnOf = runs => runs.filter(run => shownRuns().includes(run));

const PANELS = [
  ...LOSSES.map((runs, k) => ({
    id: `loss-${k}`, section: "training", half: true, title: within(runs, `Training loss${several(run => run.minimised) ? ` (${runs[0].minimised})` : ""}`),
    words: () => `The loss during local training, ${who()}, by round; lower is better.${several(run => run.minimised) ? " Runs that minimise a different loss have a separate figure." : ""}`,
    draw: host => lineChart(host, { label: `Training loss over rounds, ${who()}`, x: ROUNDS, y: { text: figure }, at: choice.at(), pick: setRound, methods: true,
      lines: drawnOf(runs).map(run => ({ name: run.label, main: run.label, ...ink(run), points: run.rounds.map((r, t) => [r, over(run.loss, t)]) })) }),
  })),
  ...TESTS.map((runs, k) => ({
    id: `test-${k}`, section: "training", half: true, title: within(runs, `Test ${runs[0].metric.title}`),
    words: () => `Test ${runs[0].metric.heading}, ${who()}; ${better(runs[0].metric)}. Thick lines are the headline models of the runs, dotted lines other models of the same run.`,
    draw: host => lineChart(host, { label: `Test ${runs[0].metric.title} over rounds, ${who()}`, lines: testLines(drawnOf(runs)), methods: true, x: ROUNDS, y: { text: noted(runs[0].metric) }, at: choice.at(), pick: setRound }),
  })),
  {
    id: "traffic", section: "training", half: true, title: `${capital(DATA.runs[0].metric.title)} against traffic`, heading: () => `${capital(metricNow().title)} against traffic`,
    has: () => DATA.runs.some(run => run.sent.at(-1) > 0 && run.views.length),
    words: () => `Test ${metricNow().heading}, ${who()}, against the total traffic so far, down and up (logarithmic): further left is cheaper, ${better(metricNow())}; a dashed horizontal line is a run that sends nothing.`,
    draw: host => {
      const runs = alike().filter(outcome), sent = run => new Map(run.rounds.map((r, t) => [r, run.sent[t]]));
      const lines = runs.map(run => {
        const to = sent(run), view = run.views[0];
        return { name: run.label, main: run.label, ...ink(run), points: view.rounds.map((r, t) => [to.get(r) ?? 0, scaled(run.metric, over(view.value, t))]) };
      });
      const silent = runs.filter(run => !(run.sent.at(-1) > 0)).map(run => ({ y: scaled(run.metric, over(run.views[0].value, outcome(run).t)) }));
      lineChart(host, { label: `Test ${metricNow().title} against megabytes sent, ${who()}`, lines, methods: true, marks: silent.filter(m => Number.isFinite(m.y)), x: { label: "MB sent so far, all clients", name: "MB", log: true, text: figure }, y: { text: noted(metricNow()) } });
    },
  },
  {
    id: "schedule", section: "training", half: true, title: "The loss scheduler λ(r)", has: () => DATA.runs.some(run => run.penalty),
    words: () => "The weight λ(r) of the penalty that holds the relationships near their start: while it is high, clients learn globally; as it falls, each follows its own objective (dashed: where it ends).",
    draw: host => {
      const runs = DATA.runs.filter(run => run.penalty);
      lineChart(host, {
        label: "The loss scheduler over rounds", x: ROUNDS, y: { text: figure, from: 0, to: 1.03 }, at: choice.at(), pick: setRound,
        lines: runs.map(run => ({ name: `${run.label}, ${run.penalty.kind}, μ = ${run.penalty.mu}`, ...ink(run), points: run.penalty.values })),
        marks: runs.filter(run => run.penalty.end !== null).map(run => ({ x: run.penalty.end })),
      });
    },
  },
  {
    id: "clients", section: "outcome", half: true, title: "Results by client", has: () => DATA.runs.some(outcome),
    words: () => `Test ${metricNow().heading} of each client with the headline model of its run, ${lastRound(alike())}; ${better(metricNow())}. Methods are in the order of the legend. Sorted by ${alike().filter(outcome)[sortedBy(alike().filter(outcome))]?.label ?? runNow().label}, best on top.`,
    key: () => clientsKey(alike().filter(outcome)),
    draw: host => perClient(host, alike().filter(outcome), {
      axis: `test ${metricNow().heading}`, ends: metricNow().ends.map(v => scaled(metricNow(), v)), best: metricNow().higher ? 1 : -1,
      bar: (run, i) => ({ value: outcomes(run)[i] }), sign: "",
      more: (run, i) => (run.intervals[i]?.every(v => v !== null) ? ` (95 % interval ${run.intervals[i].map(v => plain(run.metric, scaled(run.metric, v))).join(" to ")})` : ""),
    }),
  },
  {
    id: "gains", section: "outcome", half: true, title: "Gain over Separate by client", has: () => DATA.runs.some(run => run.base !== null && outcome(run)),
    words: () => `Gain of each client in ${metricNow().title} over separate training${metricNow().percent ? ", in percentage points" : ""}, ${lastRound(gaining())}: left of zero, the client did worse than alone on these samples. Whiskers are 95 % intervals on the same test samples${gaining().some(run => run.compared !== run.label) ? " and, of several seeds, cover other seeds" : ""}; a hollow bar or dot is a gain that is not significant (Holm's correction over all clients of a run).${gaining().length ? ` Sorted by the gain with ${gaining()[sortedBy(gaining())].compared}, largest on top.` : ""}`,
    key: () => clientsKey(gaining().map(run => ({ ...run, label: run.compared }))),
    draw: host => perClient(host, gaining(), { axis: `gain over Separate${metricNow().percent ? " (percentage points)" : ""}`, ends: [], best: 1, bar: gainBar, sign: "+", more: gainWords, name: run => run.compared }),
  },
  {
    id: "spread", section: "outcome", half: true, title: "Distribution over clients", has: () => DATA.runs.some(run => known(outcomes(run)).length > 1),
    words: () => `Test ${metricNow().heading} of all clients, ${lastRound(alike())}: one dot per client; the box is the middle half with the median, the cross the worst client, the diamond the ${metricNow().higher ? "10th" : "90th"} percentile.`,
    draw: host => strips(host, {
      label: `Distribution of the clients' ${metricNow().title}`, axis: `test ${metricNow().heading}`, metric: metricNow(),
      rows: alike().filter(run => known(outcomes(run)).length > 1).map(run => ({ run, names: run.clients, values: outcomes(run) })),
    }),
  },
  {
    id: "confusion", section: "outcome", half: true, title: "Confusion matrix", has: () => DATA.runs.some(run => run.confusion),
    words: () => `${runNow().label}, ${lastRound([runNow()])}: test samples of a true class (row) by predicted class (column), summed over clients; the colour is their share of the true class.`,
    draw: host => {
      const found = runNow().confusion;
      if (!found) return bare(host, `${runNow().label} recorded no final predictions, or of too many classes to draw.`);
      const { counts, classes } = found, totals = counts.map(row => row.reduce((a, b) => a + b, 0));
      const share = (r, c) => (totals[r] ? counts[r][c] / totals[r] : 0);
      heatMap(host, {
        label: `Confusion matrix of ${runNow().label}`, rows: classes, columns: classes, value: share, scale: { low: 0, high: 1, text: v => `${100 * v} %` },
        axes: ["true", "predicted"], text: (r, c) => counts[r][c] || "",
        says: (r, c) => [`${classes[r]} predicted as ${classes[c]}`, `${counts[r][c].toLocaleString("en")} of ${totals[r].toLocaleString("en")} samples (${(100 * share(r, c)).toFixed(1)} %)`],
      });
    },
  },
  {
    id: "calibration", section: "outcome", half: DATA.runs.every(run => run.calibration.length < 2), title: "Calibration", has: () => DATA.runs.some(run => run.calibration.length),
    words: () => `${runNow().label}, ${lastRound([runNow()])}: the share of cases over the mean probability, of test samples in up to ten groups of equal size by rising probability. Thick: all clients' samples, each predicted by its client's own headline model, with 95 % intervals; thin: ${choice.client < 0 ? "single clients" : who()}. Calibrated probabilities are on the dashed line; below it they are too high.`,
    draw: calibrations,
  },
  {
    id: "labels", section: "data", half: true, title: "Labels by client", has: () => Object.keys(DATA.partitions).length,
    words: () => `The area of a bubble is the number of training samples of a class at a client${held()?.groups.length ? "; clients of the same colour belong to the same hidden group" : ""}.`,
    key: () => (held()?.groups.length ? legend(groupEntries(held())) : null),
    draw: host => (held() ? bubbles(host, { label: "Training samples by client and class", held: held(), chosen: choice.client, pick: setClient }) : bare(host, "Not recorded for this run, or too large to draw.")),
  },
  {
    id: "holders", section: "data", half: true, title: "Clients by class", has: () => Object.keys(DATA.partitions).length,
    words: () => `One bar per class, divided among the clients that hold its training samples${held()?.groups.length ? "; one colour per hidden group" : ""}.${piecesRecur() ? " With more than ten clients, colours repeat: point at a piece for its client." : ""}`,
    key: () => holdersKey(),
    draw: host => (held() ? holders(host, { label: "Holders of each class", held: held(), chosen: choice.client }) : bare(host, "Not recorded for this run, or too large to draw.")),
  },
];

/* The calibration curve of each outcome of the chosen run. */
function calibrations(host) {
  const run = runNow(), found = run.calibration;
  if (!found.length) return bare(host, `${run.label} recorded no final predictions, or of too many classes to draw.`);
  const grid = html("div", { class: found.length > 1 ? "small" : "" });
  host.replaceChildren(grid);
  for (const { name, groups, clients } of found) {
    const place = html("div", {});
    grid.append(html("div", {}, html("h4", {}, `Share of ${name}`), place));
    lineChart(place, {
      label: `Calibration of ${name}: share of cases over mean probability`, height: 260, x: { label: "mean probability", text: v => v.toFixed(2) }, y: { text: v => v.toFixed(2), from: 0, to: 1 },
      lines: [
        { name: "right", colour: "var(--soft)", dash: "4 3", width: 1, points: [[0, 0], [1, 1]] },
        ...clients.filter(([i]) => choice.client < 0 || choice.client === i).map(([i, points]) => ({ name: run.clients[i], colour: "var(--soft)", width: 1, faint: choice.client < 0, points })),
        { name: "all clients", ...ink(run), dash: null, width: 2.4, points: groups.map(group => group.slice(0, 4)) },
      ],
    });
  }
}

const held = () => DATA.partitions[runNow().partition];
const piecesRecur = () => Boolean(held()) && !held().groups.length && held().clients.length > PALETTE.length;
function holdersKey() {
  if (!held() || piecesRecur()) return null;
  return legend(held().groups.length ? groupEntries(held()) : held().clients.map((name, i) => ({ name, colour: PALETTE[i], dot: true })));
}
function bare(host, text) { host.replaceChildren(html("p", { class: "note" }, text)); }

/* A client's gain over training alone, scaled; with its interval where the records hold both models' answers. */
function gainBar(run, i) {
  const gain = run.gains[i], end = value => (value ?? null) === null ? NaN : scaled(run.metric, value);
  return { value: end(gain?.value), low: end(gain?.low), high: end(gain?.high), hollow: !["better", "worse"].includes(gain?.verdict) };
}
function gainWords(run, i) {
  const gain = run.gains[i], bar = gainBar(run, i);
  if (gain?.pairs && gain.low === null) return " (too few test samples for an interval)";
  return gain?.pairs ? ` (95 % interval ${plain(run.metric, bar.low)} to ${plain(run.metric, bar.high)}), ${gain.verdict}` : "";
}

/* The runs that a chart of gains holds: those with separate training beside them. */
const gaining = () => alike().filter(run => run.base !== null && outcome(run) && outcome(DATA.runs[run.base]));

/* What the bars or dots of a chart of clients stand for. */
function clientsKey(runs) {
  const dots = asDots(runs.length, Math.max(0, ...runs.map(run => run.clients.length)));
  return runs.length ? legend(runs.map(run => ({ name: run.label, ...ink(run), dot: dots, bar: !dots }))) : null;
}

/* The place of the run that clients are sorted by: the chosen one, else the first of the page, else the first that is drawn. */
const sortedBy = runs => Math.max(0, runs.indexOf(runs.includes(runNow()) ? runNow() : DATA.runs[runNow().first]));

function perClient(host, runs, { axis, ends: [from, to], best, bar, sign, more, name = run => run.label }) {
  const all = runs.map(run => span(outcomes(run).length).map(i => bar(run, i))), n = Math.max(0, ...all.map(v => v.length));
  if (!n) return bare(host, "Nothing was evaluated.");
  host.querySelector("p")?.remove();
  const first = sortedBy(runs), rank = i => best * (all[first][i]?.value ?? NaN);
  const worth = i => (Number.isFinite(rank(i)) ? rank(i) : -Infinity);
  const sequence = span(n).filter(i => all.some(v => Number.isFinite(v[i]?.value))).sort((i, j) => (worth(j) > worth(i)) - (worth(j) < worth(i)) || i - j);
  const names = runs[first].clients;
  clientBars(host, {
    label: `${axis} by client`, axis, from, to, runs: runs.map(run => ({ ...run, ...ink(run), label: name(run) })), chosen: sequence.indexOf(choice.client), pick: r => setClient(sequence[r]),
    rows: sequence.map(i => ({ name: names[i] ?? `client ${i}`, bars: all.map((v, k) => ({ ...v[i], more: more(runs[k], i) })) })),
    text: (one, k) => (Number.isFinite(one.value) ? `${one.value > 0 ? sign : ""}${plain(runs[k].metric, one.value)}${one.more}` : NOTHING),
  });
}
