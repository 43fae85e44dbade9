const DATA = JSON.parse(document.getElementById("record").textContent);
const PALETTE = ["#1f83c9", "#d55e00", "#009e73", "#cc79a7", "#c98a00", "#4aa5dd", "#9467bd", "#9c7b50", "#17a2b0", "#8a8f1c"];
const DISTINCT = 12; // looks that differ in colour, dash and marker
const NOTHING = "-"; // as in the tables that the page was made with

/* Numbers as page_data.py packs them: `at(t, i, j)` reads one of shape (T, n) or (T, n, K). */
function unpack(packed) {
  const raw = Uint8Array.from(atob(packed.bytes), c => c.charCodeAt(0));
  const step = (packed.high - packed.low) / 254;
  const flat = packed.low === undefined
    ? new Float32Array(raw.buffer)
    : Float32Array.from(raw, k => (k === 255 ? NaN : packed.low + k * step));
  const [, n, width = 1] = packed.shape;
  return { flat, n, width, length: packed.shape[0], exact: packed.low === undefined, at: (t, i, j = 0) => flat[(t * n + i) * width + j] };
}

for (const run of DATA.runs) {
  run.loss = unpack(run.loss);
  for (const view of run.views) Object.assign(view, { value: unpack(view.value), loss: unpack(view.loss) });
  for (const what of run.learned) if (what.values) what.values = unpack(what.values);
}

function element(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node[name] = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined));
  return node;
}
const html = (tag, attributes = {}, ...children) => element(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  element(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const known = values => values.filter(v => Number.isFinite(v));
const mean = values => { const some = known(values); return some.length ? some.reduce((a, b) => a + b, 0) / some.length : NaN; };
const span = n => Array.from({ length: n }, (_, i) => i);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const figure = value => {
  if (!Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  return String(size && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : Number(value.toPrecision(4))).replace("-", "−");
};

/* The width of a text as drawings write it, in their own units. */
const ruler = document.createElement("canvas").getContext("2d");
function widthOfText(text, size = 11.5) {
  ruler.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}
/* A name as far as it fits: of one that is too wide both ends, since names often differ in their last letters alone. */
function cut(text, room) {
  let left = widthOfText(text, 12.5) <= room ? text.length : Math.min(text.length - 1, Math.ceil(room / 2));
  const shown = n => (n >= text.length ? text : `${text.slice(0, Math.ceil(n * 0.6))}…${text.slice(text.length - Math.floor(n * 0.4))}`);
  while (left > 2 && widthOfText(shown(left), 12.5) > room) left--;
  return shown(left);
}
const widest = (texts, size) => texts.reduce((most, text) => Math.max(most, widthOfText(text, size)), 0);

/* About `count` round numbers from low to high, and how many decimals they need. */
function ticks(low, high, count, whole = false) {
  const rough = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map(k => k * power).find(s => s >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step || 0);
  const decimals = clamp(Math.ceil(-Math.log10(step) + (String(step).includes("25") ? 1 : 0)), 0, 8);
  return { at: found, step, text: v => (Math.abs(v) >= 1e5 ? v.toExponential(0) : (Math.abs(v) < step / 1e6 ? 0 : v).toFixed(decimals)).replace("-", "−") };
}

/* Whether the page is dark now: as the reader chose, else as the system says; paper is white. */
const printing = matchMedia("print");
const darkness = matchMedia("(prefers-color-scheme: dark)");
const dark = () => !printing.matches && (document.documentElement.dataset.theme || (darkness.matches ? "dark" : "light")) === "dark";

/* The box that says what is under the pointer or the keyboard's cursor. */
const tip = document.getElementById("tip");
function tell(lines, x, y) {
  tip.replaceChildren(...lines.map((line, k) => html(k ? "span" : "strong", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
  tip.style.left = `${clamp(left, 4, Math.max(4, innerWidth - box.width - 4))}px`;
  tip.style.top = `${clamp(y - box.height - 10 < 4 ? y + 16 : y - box.height - 10, 4, Math.max(4, innerHeight - box.height - 4))}px`;
}
function hush() { tip.hidden = true; }
addEventListener("scroll", hush, { passive: true });
addEventListener("keydown", event => { if (event.key === "Escape") hush(); });

/* The width that a host has for its drawing; 0 while it is hidden, or not laid out yet. */
const widthOf = host => (host.clientWidth < 120 ? 0 : host.clientWidth);

/* The drawing inside a host, empty and as wide as its place; the element stays, so that it keeps the focus. */
function stage(host, height, label, width) {
  let canvas = host.querySelector("svg");
  if (!canvas) host.append(canvas = svg("svg", { role: "img" }));
  element(canvas, { viewBox: `0 0 ${width} ${height}`, width, height, "aria-label": label }, []);
  canvas.replaceChildren();
  return canvas;
}

/* Where an event of the pointer is, in the drawing's own units. */
function spot(canvas, event) {
  const box = canvas.getBoundingClientRect(), view = canvas.viewBox.baseVal;
  return [(event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * view.height / box.height];
}

/* Let pointer and keyboard ask a drawing: `find(x, y)` and `move(dx, dy)` give what to tell, or null, and where. */
function askable(canvas, { find, move, click }) {
  element(canvas, { tabindex: 0, role: "application", "aria-roledescription": "chart, arrow keys read values" }, []);
  const show = (answer) => {
    if (!answer) return hush();
    const box = canvas.getBoundingClientRect(), view = canvas.viewBox.baseVal;
    tell(answer.lines, box.left + answer.x * box.width / view.width, box.top + answer.y * box.height / view.height);
  };
  canvas.onpointermove = event => show(find(...spot(canvas, event)));
  canvas.onpointerleave = () => { find(-1e9, -1e9); hush(); };
  canvas.onblur = canvas.onpointerleave;
  canvas.onclick = click ? event => click(...spot(canvas, event)) : null;
  canvas.onkeydown = event => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    show(move(...step));
  };
}
