/* The reader's choices, kept in the address; the controls; and the drawing of what a choice changes. */

const controls = { run: document.getElementById("run"), client: document.getElementById("client"), round: document.getElementById("round"), play: document.getElementById("play"), what: document.getElementById("what") };
const shownRound = document.getElementById("round-now");

/* client: -1 for all; round: null for the last; what: the name of a learned quantity. */
const choice = {
  run: DATA.first, client: -1, round: null, what: "", section: "", hidden: new Set(),
  at() { return this.round ?? DATA.runs[this.run].rounds.at(-1); },
};

function readAddress() {
  const [section, query = ""] = location.hash.slice(1).split("?");
  const given = new URLSearchParams(query), number = name => (given.has(name) && /^\d+$/.test(given.get(name)) ? Number(given.get(name)) : null);
  const run = DATA.runs.findIndex(one => one.key === given.get("run"));
  choice.run = run < 0 ? DATA.first : run;
  choice.client = number("client") !== null && number("client") < runNow().clients.length ? number("client") : -1;
  choice.round = runNow().rounds.includes(number("round")) ? number("round") : null;
  choice.what = given.get("what") || "";
  choice.section = section;
  choice.hidden = new Set((given.get("hide") || "").split(",").map(key => DATA.runs.findIndex(one => one.key === key)).filter(k => k >= 0));
}

function writeAddress() {
  const given = new URLSearchParams();
  if (choice.run !== DATA.first) given.set("run", runNow().key);
  if (choice.client >= 0) given.set("client", choice.client);
  if (choice.round !== null) given.set("round", choice.round);
  if (choice.what) given.set("what", choice.what);
  if (choice.hidden.size) given.set("hide", [...choice.hidden].map(k => DATA.runs[k].key).join(","));
  const query = given.toString();
  history.replaceState(null, "", `#${choice.section}${query ? `?${query}` : ""}`);
}

function setRun(k) {
  const had = runNow().clients;
  choice.run = k;
  if (choice.client >= runNow().clients.length || runNow().clients[choice.client] !== had[choice.client]) choice.client = -1;
  if (!runNow().rounds.includes(choice.round)) choice.round = null;
  choice.what = "";
  update();
}
function setClient(i) { choice.client = i; update(); }
function setRound(r) {
  const { rounds } = runNow();
  if (!rounds.length) return;
  const t = rounds.reduce((best, v, k) => (Math.abs(v - r) < Math.abs(rounds[best] - r) ? k : best), 0);
  choice.round = t === rounds.length - 1 ? null : rounds[t];
  update();
}

/* The controls as the choices are. */
function showChoices() {
  const run = runNow(), { rounds } = run;
  controls.run.value = choice.run;
  if (controls.client.dataset.of !== run.key) {
    controls.client.dataset.of = run.key;
    controls.client.replaceChildren(html("option", { value: -1 }, "all clients"), ...run.clients.map((name, i) => html("option", { value: i }, name)));
  }
  controls.client.value = choice.client;
  controls.round.max = Math.max(0, rounds.length - 1);
  controls.round.value = rounds.includes(choice.at()) ? rounds.indexOf(choice.at()) : 0;
  controls.round.setAttribute("aria-valuetext", `round ${choice.at() ?? NOTHING}`);
  controls.round.disabled = controls.play.disabled = rounds.length < 2;
  shownRound.textContent = rounds.length ? `${choice.at()} of ${run.planned ?? rounds.at(-1)}` : NOTHING;
  const names = run.learned.map(what => what.name).join();
  if (controls.what && controls.what.dataset.of !== `${run.key} ${names}`) {
    controls.what.dataset.of = `${run.key} ${names}`;
    controls.what.replaceChildren(...run.learned.map(what => html("option", { value: what.name }, what.title)));
    controls.what.closest("p").hidden = run.learned.length < 2;
  }
  if (controls.what && run.learned.length) controls.what.value = whatNow().name;
}

/* Figures on the page: built once, drawn again when a choice or their width changes. */
const built = [];
const widths = new ResizeObserver(entries => {
  for (const { target } of entries) {
    const panel = built.find(one => one.host === target);
    if (panel && panel.width !== target.clientWidth) { panel.width = target.clientWidth; redraw(panel); }
  }
});

function redraw(panel) {
  if (!panel.host.clientWidth) return;
  panel.caption.textContent = panel.words();
  if (panel.heading) panel.title_.textContent = panel.heading();
  if (panel.key) panel.legend_.replaceChildren(panel.key() ?? "");
  panel.draw(panel.host, panel);
}

function build(panel, place) {
  const id = `figure-${panel.id}`;
  panel.host = html("div", { class: "plot" });
  panel.caption = html("figcaption", { id: `${id}-words` });
  panel.title_ = html("h3", { id: `${id}-heading` }, panel.title);
  panel.legend_ = html("div", { class: "key" });
  panel.redraw = () => redraw(panel);
  place.append(html("figure", { id, class: panel.half ? "half" : "", "aria-labelledby": `${id}-heading` }, panel.title_, panel.tools ? panel.tools(panel) : null, panel.host, panel.key ? panel.legend_ : null, panel.caption));
  built.push(panel);
  panel.width = panel.host.clientWidth;
  widths.observe(panel.host);
}

/* The figures of what was learned depend on the run and on the quantity: they are built anew when those change. */
let learnedOf = "";
function showLearned() {
  const place = document.getElementById("learned-figures"), run = runNow(), what = whatNow();
  const now = `${run.key} ${what?.name}`;
  if (!place || now === learnedOf) return;
  learnedOf = now;
  for (const panel of built.filter(one => place.contains(one.host))) { widths.unobserve(panel.host); built.splice(built.indexOf(panel), 1); }
  place.replaceChildren();
  if (!what) {
    const others = DATA.runs.filter(one => one.learned.length).map(one => one.label);
    return place.append(html("p", { class: "note" }, `${run.label} reports nothing beyond its models. ${others.length ? `Choose ${others.join(", ")} above.` : ""}`));
  }
  for (const panel of KINDS[what.kind](run, what)) build(panel, place);
}

function update() {
  showChoices();
  showLearned();
  showLegend();
  hush();
  for (const panel of built) redraw(panel);
  writeAddress();
}

function showLegend() {
  const place = document.getElementById("runs-legend");
  if (!place || DATA.runs.length < 2) return;
  const focus = document.activeElement?.id;
  place.replaceChildren(legend(DATA.runs.map((run, k) => ({ name: run.label, ...ink(run), off: choice.hidden.has(k) })), k => {
    choice.hidden.has(k) ? choice.hidden.delete(k) : choice.hidden.add(k);
    update();
  }));
  if (focus?.startsWith("legend-")) document.getElementById(focus)?.focus();
}

/* Playing: a round a step, from the start when it stands at the end. */
let playing = null;
function play() {
  const { rounds } = runNow();
  if (playing) { clearInterval(playing); playing = null; }
  else {
    if (choice.round === null) setRound(rounds[0]);
    playing = setInterval(() => {
      const next = rounds.indexOf(choice.at()) + 1;
      if (next >= rounds.length) return play();
      setRound(rounds[next]);
      if (choice.round === null) play();
    }, clamp(12000 / rounds.length, 120, 700));
  }
  controls.play.textContent = playing ? "Pause" : "Play";
  controls.play.setAttribute("aria-pressed", String(Boolean(playing)));
}

controls.run.append(...DATA.runs.map((run, k) => html("option", { value: k }, run.label)));
controls.run.onchange = () => { if (playing) play(); setRun(Number(controls.run.value)); };
controls.client.onchange = () => setClient(Number(controls.client.value));
controls.round.oninput = () => setRound(runNow().rounds[controls.round.value]);
controls.round.onkeydown = event => { if (event.key === " ") { event.preventDefault(); play(); } };
controls.play.onclick = play;
if (controls.what) controls.what.onchange = () => { choice.what = controls.what.value; update(); };

/* Light, dark, or as the system has it. */
const theme = document.getElementById("theme");
function remember(name, value) { try { value === undefined ? localStorage.removeItem(name) : localStorage.setItem(name, value); } catch { /* a page from a file may have no storage */ } }
function remembered(name) { try { return localStorage.getItem(name); } catch { return null; } }
function showTheme() {
  theme.textContent = dark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", dark() ? "Switch to light colours" : "Switch to dark colours");
}
theme.onclick = () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  remember("pomona-theme", document.documentElement.dataset.theme);
  showTheme();
  update();
};
if (["light", "dark"].includes(remembered("pomona-theme"))) document.documentElement.dataset.theme = remembered("pomona-theme");
for (const media of [darkness, printing]) media.addEventListener("change", () => { showTheme(); update(); });
let closed = [];
addEventListener("beforeprint", () => { closed = [...document.querySelectorAll("details:not([open])")]; closed.forEach(d => { d.open = true; }); });
addEventListener("afterprint", () => closed.forEach(d => { d.open = false; }));

/* Links within the page keep the choices. */
function unfold(section) {
  const target = document.getElementById(section);
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target?.scrollIntoView();
}
function go(section) {
  unfold(section);
  choice.section = section;
  writeAddress();
}
document.addEventListener("click", event => {
  const link = event.target.closest?.('a[href^="#"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const target = document.getElementById(link.hash.slice(1));
  go(link.hash.slice(1));
  if (target) { target.tabIndex = -1; target.focus({ preventScroll: true }); }
});
addEventListener("hashchange", () => { readAddress(); update(); });

readAddress();
for (const panel of PANELS) {
  const place = document.getElementById(`${panel.section}-figures`);
  if (place && (!panel.has || panel.has())) build(panel, place);
}
showTheme();
update();
if (choice.section) unfold(choice.section);

/* While the run lasts the page reloads, but not while the reader uses it. */
const news = document.getElementById("news"), pause = document.getElementById("pause");
function follow(seconds) {
  let held_ = remembered("pomona-pause") === "yes", touched = 0;
  const state = () => { pause.textContent = held_ ? "Resume refreshing" : "Stop refreshing"; pause.setAttribute("aria-pressed", String(held_)); };
  pause.onclick = () => { held_ = !held_; remember("pomona-pause", held_ ? "yes" : undefined); state(); };
  for (const kind of ["pointerdown", "pointermove", "keydown", "wheel", "touchmove"]) addEventListener(kind, () => { touched = performance.now(); }, { passive: true });
  state();
  setInterval(() => {
    if (held_ || playing || document.hidden || performance.now() - touched < 2500) return;
    remember("pomona-focus", document.activeElement?.id || undefined);
    location.reload();
  }, 1000 * seconds);
}

/* A page that is old when it is read was left by a run that ended without a word. */
function giveUp(written) {
  const since = new Date(1000 * written).toISOString().slice(0, 19).replace("T", " ");
  news.replaceChildren(html("strong", {}, `No news since ${since} UTC`), "; the run may have ended. This page no longer reloads.");
  pause.textContent = "Look again";
  pause.onclick = () => location.reload();
}

if (DATA.live) {
  const [seconds, written, patience] = DATA.live;
  if (Date.now() / 1000 - written > patience) giveUp(written);
  else follow(seconds);
  const focus = remembered("pomona-focus");
  if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
}
