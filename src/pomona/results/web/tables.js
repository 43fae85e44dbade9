/* Tables sort by a button in each heading: once from high to low (texts from a to z), again the other way. */

/* What a cell counts as: its first number, or its text; nothing where it is undefined. */
function worth(cell, numeric) {
  const text = cell.dataset.value ?? (cell.firstChild?.nodeType === 3 ? cell.firstChild.textContent : cell.firstElementChild?.textContent || cell.textContent).trim();
  if (!text || text === NOTHING) return null;
  return numeric ? Number.parseFloat(text.replaceAll(",", "").replace("−", "-")) : text;
}

function sortable(table) {
  const heads = [...table.querySelectorAll("thead th[data-column]")];
  for (const head of heads) {
    const numeric = head.classList.contains("number"), column = Number(head.dataset.column);
    const button = html("button", { type: "button", class: "sort" }, ...head.childNodes);
    head.replaceChildren(button);
    button.onclick = () => {
      const now = head.getAttribute("aria-sort"), rising = now ? now === "descending" : !numeric;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const body = table.tBodies[0];
      const keyed = [...body.rows].map((row, k) => [worth(row.cells[column], numeric), k, row]);
      keyed.sort(([a, i], [b, j]) => {
        if (a === null || b === null) return (a === null) - (b === null) || i - j;
        const order = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
        return (rising ? order : -order) || i - j;
      });
      body.append(...keyed.map(([, , row]) => row));
    };
  }
}
document.querySelectorAll("table.sortable").forEach(sortable);

/* Rows of the settings that hold a word. */
const filter = document.getElementById("filter");
if (filter) filter.oninput = () => {
  const word = filter.value.trim().toLowerCase();
  for (const row of document.querySelectorAll("#settings tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(word);
  const rest = document.querySelector("#settings details");
  rest.open = word !== "" && !!rest.querySelector("tbody tr:not([hidden])");
};
