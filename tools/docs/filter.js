// A box above the first table of class `filtered`: rows stay that have every word that is typed.
const spelled = (text) => text.toLowerCase().replace(/is(?=ation|ing|ed?\b)/g, "iz");

function makeFilter(tables) {
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
  const texts = rows.map((row) => spelled(row.textContent));
  const line = document.createElement("p");
  const box = document.createElement("input");
  const said = document.createElement("output");
  function filter() {
    const words = spelled(box.value).split(/[\s,:]+/);
    rows.forEach((row, i) => (row.hidden = !words.every((word) => texts[i].includes(word))));
    for (const table of tables) table.hidden = [...table.tBodies[0].rows].every((row) => row.hidden);
    said.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  }
  Object.assign(box, { type: "search", placeholder: "name, number, recipe, idea", ariaLabel: "Rows with these words" });
  box.addEventListener("input", filter);
  line.className = "filter";
  line.append(box, said);
  (tables[0].closest(".table-wrapper") ?? tables[0]).before(line);
  filter();
}

document.addEventListener("DOMContentLoaded", () => {
  const tables = [...document.querySelectorAll("table.filtered")];
  if (tables.length) makeFilter(tables);
});
