/* Every figure of the page: where it stands, its words, and how it is drawn for the reader's choices. */

const ink = run => ({ colour: run.colour, dash: run.method === "separate" ? "5 4" : DASHES[run.twin % DASHES.length] });
const shownRuns = () => DATA.runs.filter((_, k) => !choice.hidden.has(k));
const runNow = () => DATA.runs[choice.run];
const who = () => (choice.client < 0 ? "mean over clients" : runNow().clients[choice.client] ?? `client ${choice.client}`);
const over = (table, t) => (choice.client < 0 ? mean(span(table.n).map(i => table.at(t, i))) : choice.client < table.n ? table.at(t, choice.client) : NaN);
const accurate = view => known([...view.accuracy.flat]).length > 0;
const byAccuracy = DATA.runs.some(run => run.views.some(accurate));
const groupsOf = run => [...new Set(run.groups)].sort((a, b) => a - b);
const ROUNDS = { label: "round", whole: true };
const noted = value => (Number.isFinite(value) ? byAccuracy ? `${value.toFixed(2)} %` : figure(value) : NOTHING);

/* The last evaluation of a run's first view: {t, view}, or null. */
function outcome(run) {
  const view = run.views[0];
  return view && view.rounds.length ? { view, t: view.rounds.length - 1 } : null;
}

function outcomes(run, what = byAccuracy ? "accuracy" : "loss") {
  const last = outcome(run);
  return last ? span(last.view[what].n).map(i => last.view[what].at(last.t, i)) : [];
}

function curveLines(where) {
  const runs = shownRuns().filter(run => run.place === where);
  const loss = runs.map(run => ({ name: run.label, ...ink(run), points: run.rounds.map((r, t) => [r, over(run.loss, t)]) }));
  const test = runs.flatMap(run => run.views.map((view, k) => {
    const table = byAccuracy ? view.accuracy : view.loss, scale = byAccuracy ? 100 : 1;
    return { name: `${run.label}, ${view.model} ${view.when}`, ...ink(run), ...(k ? { dash: "1.5 3", width: 1.4 } : {}), points: view.rounds.map((r, t) => [r, scale * over(table, t)]) };
  }));
  return { loss, test };
}

const PLACES = [...new Set(DATA.runs.map(run => run.place))];
const measure = byAccuracy ? "test accuracy (%)" : "test loss";
const Measure = measure[0].toUpperCase() + measure.slice(1);

const PANELS = [
  ...PLACES.flatMap((where, k) => [
    {
      id: `loss-${k}`, section: "training", half: true, title: `Training loss${PLACES.length > 1 ? `, ${where}` : ""}`, file: "curves", legend: k === 0,
      words: () => `The loss during local training, ${who()}, by round; lower is better.`,
      draw: host => lineChart(host, { label: `Training loss over rounds, ${who()}`, lines: curveLines(where).loss, x: ROUNDS, y: { text: figure }, at: choice.at(), pick: setRound }),
    },
    {
      id: `test-${k}`, section: "training", half: true, title: `${byAccuracy ? "Test accuracy" : "Test loss"}${PLACES.length > 1 ? `, ${where}` : ""}`, file: "curves",
      words: () => `${byAccuracy ? "Test accuracy in percent" : "Test loss"}, ${who()}: a thick line is the model that a run is judged by, a dotted one another model of the same run.`,
      draw: host => lineChart(host, { label: `${measure} over rounds, ${who()}`, lines: curveLines(where).test, x: ROUNDS, y: { text: noted }, at: choice.at(), pick: setRound }),
    },
  ]),
  {
    id: "traffic", section: "training", half: true, title: "Accuracy for the bytes it costs", file: "traffic",
    has: () => byAccuracy && DATA.runs.some(run => run.sent.at(-1) > 0 && run.views.length),
    words: () => `${Measure}, ${who()}, against all that was sent until then, down and up (logarithmic): further left is cheaper; a dashed level line is a run that sends nothing.`,
    draw: host => {
      const runs = shownRuns().filter(outcome), sent = run => new Map(run.rounds.map((r, t) => [r, run.sent[t]]));
      const lines = runs.map(run => {
        const to = sent(run), view = run.views[0];
        return { name: run.label, ...ink(run), points: view.rounds.map((r, t) => [to.get(r) ?? 0, 100 * over(view.accuracy, t)]) };
      });
      const silent = runs.filter(run => !(run.sent.at(-1) > 0)).map(run => ({ y: 100 * over(run.views[0].accuracy, outcome(run).t) }));
      lineChart(host, { label: `Test accuracy against megabytes sent, ${who()}`, lines, marks: silent.filter(m => Number.isFinite(m.y)), x: { label: "MB sent so far, all clients", name: "MB", log: true, text: figure }, y: { text: noted } });
    },
  },
  {
    id: "schedule", section: "training", half: true, title: "The loss scheduler λ(r)", file: "schedule", has: () => DATA.runs.some(run => run.penalty),
    words: () => "The weight λ(r) of the penalty that holds the relationships near their start: while it is high clients learn globally, as it falls each follows its own objective (dashed: where it ends).",
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
    id: "clients", section: "outcome", half: true, title: byAccuracy ? "What each client gets" : "Test loss of each client", file: "clients", has: () => DATA.runs.some(outcome),
    words: () => `${Measure} of each client with the model its run is judged by, after the last round evaluated, sorted by ${runNow().label}.`,
    draw: host => perClient(host, shownRuns().filter(outcome), run => outcomes(run).map(v => (byAccuracy ? 100 * v : v)), measure, byAccuracy ? [0, 100] : [0]),
  },
  {
    id: "gains", section: "outcome", half: true, title: "What each client gains over Separate", file: "clients", has: () => byAccuracy && DATA.runs.some(run => run.base !== null && outcome(run)),
    words: () => "Test accuracy minus that of separate training on the same client, in points: left of zero a client would have done better alone; sorted by the chosen method.",
    draw: host => perClient(host, shownRuns().filter(run => run.base !== null && outcome(run) && outcome(DATA.runs[run.base])),
      run => outcomes(run).map((v, i) => 100 * (v - (outcomes(DATA.runs[run.base])[i] ?? NaN))), "points over Separate", []),
  },
  {
    id: "spread", section: "outcome", half: true, title: "How evenly the clients fare", file: "spread", has: () => DATA.runs.some(run => known(outcomes(run)).length > 1),
    words: () => `${Measure} of all clients after the last round evaluated: a dot a client, the box the middle half with the median, a cross the worst, a diamond the 10th percentile.`,
    draw: host => strips(host, {
      label: `Distribution of the clients' ${measure}`, axis: measure,
      rows: shownRuns().filter(run => known(outcomes(run)).length > 1).map(run => ({ run, names: run.clients, values: outcomes(run).map(v => (byAccuracy ? 100 * v : v)) })),
    }),
  },
  {
    id: "confusion", section: "outcome", half: true, title: "What is taken for what", file: "confusion", has: () => DATA.runs.some(run => run.confusion),
    words: () => `${runNow().label}: test samples of a true class (row) that were taken for a class (column), added up over clients; the colour is their share of the true class.`,
    draw: host => {
      const found = runNow().confusion;
      if (!found) return bare(host, `${runNow().label} recorded no final predictions.`);
      const { counts, classes } = found, totals = counts.map(row => row.reduce((a, b) => a + b, 0));
      const share = (r, c) => (totals[r] ? counts[r][c] / totals[r] : 0);
      heatMap(host, {
        label: `Confusion matrix of ${runNow().label}`, rows: classes, columns: classes, value: share, scale: { low: 0, high: 1, text: v => `${100 * v} %` },
        axes: ["true", "predicted"], text: (r, c) => counts[r][c] || "",
        says: (r, c) => [`${classes[r]} taken for ${classes[c]}`, `${counts[r][c].toLocaleString("en")} of ${totals[r].toLocaleString("en")} samples (${(100 * share(r, c)).toFixed(1)} %)`],
      });
    },
  },
  {
    id: "labels", section: "data", half: true, title: "Which labels each client holds", file: "labels", has: () => Object.keys(DATA.partitions).length,
    words: () => `The area of a bubble is the number of training samples of a class at a client${held()?.groups.length ? "; clients of one colour belong to one hidden group" : ""}.`,
    key: () => (held()?.groups.length ? legend(groupEntries(held())) : null),
    draw: host => (held() ? bubbles(host, { label: "Training samples by client and class", held: held(), chosen: choice.client, pick: setClient }) : bare(host, "Not recorded for this run.")),
  },
  {
    id: "holders", section: "data", half: true, title: "Who holds each class", file: "holders", has: () => Object.keys(DATA.partitions).length,
    words: () => `A bar a class, divided among the clients that hold its training samples${held()?.groups.length ? "; a colour a hidden group" : ""}.${piecesRecur() ? " With more than ten clients colours come round again: point at a piece for its client." : ""}`,
    key: () => holdersKey(),
    draw: host => (held() ? holders(host, { label: "Holders of each class", held: held(), chosen: choice.client }) : bare(host, "Not recorded for this run.")),
  },
];

const held = () => DATA.partitions[runNow().partition];
const piecesRecur = () => Boolean(held()) && !held().groups.length && held().clients.length > PALETTE.length;
function holdersKey() {
  if (!held() || piecesRecur()) return null;
  return legend(held().groups.length ? groupEntries(held()) : held().clients.map((name, i) => ({ name, colour: PALETTE[i], dot: true })));
}
function bare(host, text) { host.replaceChildren(html("p", { class: "note" }, text)); }

function perClient(host, runs, values, axis, [from, to]) {
  const all = runs.map(values), n = Math.max(0, ...all.map(v => v.length));
  if (!n) return bare(host, "Nothing was evaluated.");
  host.querySelector("p")?.remove();
  const first = Math.max(0, runs.indexOf(runNow()));
  const sequence = span(n).filter(i => all.some(v => Number.isFinite(v[i]))).sort((i, j) => (all[first][j] ?? -1e9) - (all[first][i] ?? -1e9) || i - j);
  const names = runs[first].clients;
  const interval = (run, i) => (byAccuracy && from === 0 && run.intervals[i]?.every(v => v !== null) ? ` (95 % interval ${run.intervals[i].map(v => (100 * v).toFixed(2)).join(" to ")})` : "");
  clientBars(host, {
    label: `${axis} by client`, axis, from, to, runs, chosen: sequence.indexOf(choice.client), pick: r => setClient(sequence[r]),
    rows: sequence.map(i => ({ name: names[i] ?? `client ${i}`, bars: all.map((v, k) => ({ value: v[i], more: interval(runs[k], i) })) })),
    text: bar => (Number.isFinite(bar.value) ? `${from === undefined && bar.value > 0 ? "+" : ""}${byAccuracy ? bar.value.toFixed(2).replace("-", "−") : figure(bar.value)}${bar.more}` : NOTHING),
  });
}
