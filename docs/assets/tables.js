// Big tables: a heading sorts, the field above filters. conf.py has put a .table-tools box with the CSV link before each.
"use strict";

const number = (text) => {
  const found = text.replace(/,/g, "").replace("−", "-").match(/^[~<>≤≥]?\s*([-+]?\d+(\.\d+)?)/);
  return found ? Number(found[1]) : NaN;
};

const empty = (text) => text === "" || text === "-" || text === "?";

function sort(table, column, descending) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [row.cells[column]?.textContent.trim() ?? "", row]);
  const filled = rows.filter(([text]) => !empty(text));
  const numeric = filled.filter(([text]) => !Number.isNaN(number(text))).length > filled.length / 2;
  const compare = (a, b) =>
    numeric ? (number(a) || 0) - (number(b) || 0) : a.localeCompare(b, "en", { numeric: true });
  rows.sort(([a], [b]) => empty(a) - empty(b) || (descending ? compare(b, a) : compare(a, b)));
  body.append(...rows.map(([, row]) => row));
}

function makeSortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort by this column";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const descending = heading.ariaSort === "ascending";
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.ariaSort = descending ? "descending" : "ascending";
      sort(table, column, descending);
    });
  });
}

function makeFilterable(table, tools) {
  const field = document.createElement("input");
  const shown = document.createElement("output");
  field.type = "search";
  field.placeholder = "filter rows";
  field.setAttribute("aria-label", "filter the rows of the table below");
  const rows = [...table.tBodies[0].rows];
  const apply = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    shown.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  field.addEventListener("input", apply);
  tools.prepend(field, shown);
  apply();
}

document.addEventListener("DOMContentLoaded", () => {
  for (const tools of document.querySelectorAll(".table-tools")) {
    const next = tools.nextElementSibling;
    const table = next.matches("table") ? next : next.querySelector("table");
    makeSortable(table);
    makeFilterable(table, tools);
  }
});
