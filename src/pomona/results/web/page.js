"use strict";
/* A link to a folded section unfolds it. */
function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target?.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();

/* What a cell counts as: its first number, or its text; nothing where it is undefined. */
function sortKey(cell, numeric) {
  const text = (cell.dataset.value ?? cell.firstChild?.textContent ?? "").trim();
  if (!text || text === "-") return null;
  return numeric ? Number.parseFloat(text.replaceAll(",", "").replace("−", "-")) : text;
}

function sortRows(table, column, numeric, rising) {
  const keyed = [...table.tBodies[0].rows].map((row, k) => [sortKey(row.cells[column], numeric), k, row]);
  keyed.sort(([a, i], [b, j]) => {
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    const order = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
    return (rising ? order : -order) || i - j;
  });
  table.tBodies[0].append(...keyed.map(([, , row]) => row));
}

/* Tables sort by a button in each heading: once from high to low (texts from a to z), again the other way. */
for (const head of document.querySelectorAll("table.sortable thead th[data-column]")) {
  const numeric = head.classList.contains("number"), table = head.closest("table");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "sort";
  button.append(...head.childNodes);
  head.replaceChildren(button);
  button.onclick = () => {
    const order = head.getAttribute("aria-sort"), rising = order ? order === "descending" : !numeric;
    for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    sortRows(table, Number(head.dataset.column), numeric, rising);
  };
}

/* Rows of the settings that hold a word. */
const filter = document.getElementById("filter");
filter.oninput = () => {
  const word = filter.value.trim().toLowerCase();
  for (const row of document.querySelectorAll("#settings tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(word);
  const rest = document.querySelector("#settings details");
  rest.open = word !== "" && !!rest.querySelector("tbody tr:not([hidden])");
};

/* The page of a running run reloads, but not while the reader uses it; an old one was left by a run that ended without a word. */
const live = document.querySelector(".live");
if (live) {
  const { seconds, written, patience } = live.dataset;
  if (Date.now() / 1000 - written > patience) {
    const since = new Date(1000 * written).toISOString().slice(0, 19).replace("T", " ");
    live.textContent = `No update since ${since} UTC; the run may have ended. Reload the page to look again.`;
  } else {
    let used = -Infinity;
    for (const kind of ["pointerdown", "pointermove", "keydown", "wheel", "touchmove"]) addEventListener(kind, () => { used = performance.now(); }, { passive: true });
    setInterval(() => { if (!document.hidden && performance.now() - used > 2500) location.reload(); }, 1000 * seconds);
  }
}
