// The table of setups: sorted by its headers, filtered by words, each row leading to its configuration and its chart.
const COLUMNS = [
  { name: "rule", text: (s) => s.rule, wide: true },
  { name: "task", text: (s) => s.task },
  { name: "attack", text: (s) => s.attack === "none" ? "–" : s.attack },
  { name: "f", text: (s) => String(s.byzantine), key: (s) => s.byzantine, number: true },
  { name: "lr", text: (s) => s.lr, key: (s) => s.rate, number: true },
  { name: "momentum", text: (s) => s.momentum },
  ...data.extras.map((name, i) => ({ name, text: (s) => s.extras[i] === null ? "–" : String(s.extras[i]), key: (s) => s.extras[i] })),
  ...onlyAccuracy ? [] : [{ name: "metric", text: (s) => s.metric.words + (s.metric.percent ? " (%)" : "") }],
  { name: onlyAccuracy ? "maximum (%)" : "best", short: onlyAccuracy ? "max" : "best", text: (s) => moments(s.best, s.metric), key: (s) => s.best[0], number: true },
  { name: onlyAccuracy ? "final (%)" : "final", short: "final", text: (s) => moments(s.final, s.metric), key: (s) => s.final[0], number: true },
  { name: onlyAccuracy ? "drop (points)" : "drop", short: "drop", text: (s) => points(s.drop, s.metric), key: (s) => s.drop, number: true },
  { name: "seeds", text: (s) => String(s.seeds.length), key: (s) => s.seeds.length, number: true },
  { name: "status", text: (s) => s.diverged ? "✕ " + s.status : s.status },
];

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function accuracyRow(setup, index) {
  const open = () => { showConfiguration(index); goToChart(index); };
  const cells = COLUMNS.map((column) => {
    const text = column.text(setup);
    const content = column.wide ? el("button", { "aria-label": "Configuration and chart of " + setup.label }, text) : text;
    const kinds = [column.number && "number", column.name === "lr" && "wraps", column.wide && "wide", column.name === "status" && setup.diverged && "diverged"];
    return el("td", { role: "cell", class: kinds.filter(Boolean).join(" ") || null, "data-label": column.wide ? null : (column.short || column.name) + ":" }, content);
  });
  return el("tr", { role: "row", id: "row-" + index, onclick: open }, cells);
}

function showTable() {
  const body = byId("accuracies-body");
  if (!data.setups.length) {
    body.append(el("p", { class: "notice" }, "There are no finished runs."));
    return;
  }
  const rows = data.setups.map((setup, index) => ({
    setup, row: accuracyRow(setup, index),
    words: [setup.label, setup.status, ...COLUMNS.map((column) => column.text(setup))].join(" ").toLowerCase(),
  }));
  const content = el("tbody", { role: "rowgroup" }, rows.map(({ row }) => row));
  const sort = (column, head) => {
    const rising = head.getAttribute("aria-sort") !== "ascending";
    for (const other of heads) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const key = column.key || column.text;
    const known = (entry) => key(entry.setup) !== null && key(entry.setup) !== "–";
    const sorted = rows.filter(known).sort((a, b) => (rising ? 1 : -1) * compare(key(a.setup), key(b.setup)));
    content.replaceChildren(...sorted.concat(rows.filter((entry) => !known(entry))).map(({ row }) => row));
  };
  const heads = COLUMNS.map((column) => {
    const head = el("th", { scope: "col", role: "columnheader", "aria-sort": "none", class: column.number ? "number" : null },
      el("button", { class: "sort", onclick: () => sort(column, head) }, column.name));
    return head;
  });
  const count = el("span", { class: "count", role: "status" });
  const empty = el("p", { class: "notice" }, "No setup matches these words.");
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const entry of rows) {
      entry.row.hidden = !words.every((word) => entry.words.includes(word));
      if (!entry.row.hidden) shown += 1;
    }
    count.textContent = `${shown} of ${rows.length} setups`;
    empty.hidden = shown > 0;
  };
  const input = el("input", { type: "search", id: "filter", placeholder: "Filter, e.g. little krum workers", "aria-label": "Filter the setups", oninput: filter });
  body.append(
    el("p", { class: "hint" }, onlyAccuracy ? "Top-1 accuracy on the test set in percent" : "Each task's metric on the test set, accuracies in percent",
      `, mean ± standard deviation over the seeds. The drop is how much worse the ${onlyAccuracy ? "maximum" : "best value"} is than that of`,
      " the unattacked average that is equal in everything else. A row leads to its configuration and its chart."),
    el("div", { class: "choices" }, input, count),
    el("div", { class: "scroll" }, el("table", { class: "accuracies", role: "table" },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads)), content)),
    empty);
  filter();
}
