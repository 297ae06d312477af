// The configuration behind a curve or a table's row, in a panel that stays while the page moves to the chart.
const homes = new Map(); // setup -> the id of the chart where it is a curve of its own

function goTo(target) {
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  target.scrollIntoView({ block: "start", behavior: still ? "auto" : "smooth" });
}

function flash(figure) {
  figure.classList.add("flash");
  setTimeout(() => figure.classList.remove("flash"), 2500);
}

function goToChart(index) {
  const figure = byId(homes.get(index));
  if (!figure) return;
  selectKind("measured");
  goTo(figure);
  flash(figure);
}

function copy(text, button) {
  const done = () => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const area = el("textarea", {}, text);
  document.body.append(area);
  area.select();
  if (document.execCommand("copy")) done();
  area.remove();
}

function closePanel() {
  byId("panel").hidden = true;
  for (const row of document.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
}

function summaryOf(setup) {
  const { words, extreme, percent } = setup.metric;
  const named = percent ? extreme : `${extreme} ${words}`;
  const [best, final] = [setup.best, setup.final].map((value) => moments(value, setup.metric) + (percent ? " %" : ""));
  return `${named[0].toUpperCase()}${named.slice(1)} ${best}, final ${final}, ${setup.status}.`;
}

function showConfiguration(index) {
  const setup = data.setups[index];
  const panel = byId("panel");
  const copier = el("button", { onclick: () => copy(setup.toml, copier) }, "Copy");
  panel.replaceChildren(
    el("button", { class: "close", "aria-label": "Close the configuration", onclick: closePanel }, "×"),
    el("h3", {}, setup.label),
    el("p", { class: "hint" }, summaryOf(setup)),
    el("div", { class: "panel-tools" }, copier,
      el("button", { onclick: () => goToChart(index) }, "Chart"),
      el("button", { onclick: () => { selectHeatMap(index); goTo(byId("suspicion")); } }, "Suspicion"),
      el("button", { onclick: () => goTo(byId("row-" + index)) }, "Table")),
    el("pre", {}, el("code", {}, setup.toml)));
  panel.hidden = false;
  panel.scrollTop = 0;
  for (const row of document.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
  byId("row-" + index).classList.add("chosen");
}

document.addEventListener("keydown", (event) => { if (event.key === "Escape") closePanel(); });
