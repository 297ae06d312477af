// Heat-maps of the settings that vary: tables whose cells have the colours of the figures.
function hideSection(id) {
  byId(id).hidden = true;
  document.querySelector(`nav a[href="#${id}"]`).remove();
}

function heatTable(map, panel) {
  const head = [el("span", { role: "columnheader" }, map.axes.join(" \\ ")), map.columns.map((name) => el("span", { role: "columnheader" }, name))];
  const lines = map.rows.map((name, y) => el("div", { role: "row" }, el("span", { role: "rowheader" }, name),
    panel.cells[y].map(({ text, fill, ink }) => el("span", { role: "cell", class: fill ? null : "missing", style: fill ? `background: ${fill}; color: ${ink}` : null }, text))));
  return el("div", { class: "scroll" }, el("div", { class: "heat", role: "table", "aria-label": `${map.title} ${panel.title}`, style: `--columns: ${map.columns.length}` },
    el("div", { role: "row" }, head), lines));
}

function showGrids() {
  if (!data.heat_maps.length) return hideSection("grids");
  byId("grids-body").append(...data.heat_maps.map((map) => el("section", { class: "block", "aria-label": map.title }, el("h3", {}, map.title),
    map.panels.map((panel) => el("figure", {}, panel.title ? el("figcaption", {}, panel.title) : null, heatTable(map, panel))))));
}
