// The header, then every section; colours follow the system, and printing is always dark on white.
function showFacts() {
  const one = (count, singular, plural) => el("li", {}, el("b", {}, count.toLocaleString("en")), el("span", {}, count === 1 ? singular : plural));
  byId("facts").append(
    one(data.runs, "run", "runs"), one(data.setups.length, "setup", "setups"),
    el("li", {}, el("b", {}, spans(data.seeds)), el("span", {}, data.seeds.length === 1 ? "seed" : "seeds")),
    el("li", {}, el("b", {}, data.tasks.join(", ") || "–"), el("span", {}, data.tasks.length === 1 ? "task" : "tasks")));
  if (data.diverged) byId("facts").append(one(data.diverged, "run diverged", "runs diverged"));
  if (data.claims.length) {
    for (const [word, { symbol, kind, plural }] of Object.entries(VERDICTS)) {
      const count = data.verdicts[word];
      if (!count) continue;
      byId("facts").append(el("li", {}, el("b", { class: "verdict " + kind }, `${symbol} ${count}`),
        el("span", {}, `${count === 1 ? "claim" : "claims"} ${count === 1 ? word : plural}`)));
    }
  }
  byId("common").textContent = data.common && `All runs: ${data.common}.`;
  byId("environment").append(...data.environment.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  byId("machine").hidden = !data.environment.length;
}

// 1, 2, 3, 7 -> 1–3, 7
function spans(numbers) {
  const parts = [];
  for (const value of numbers) {
    const last = parts[parts.length - 1];
    if (last && value === last[1] + 1) last[1] = value; else parts.push([value, value]);
  }
  return parts.map(([first, last]) => first === last ? String(first) : `${first}–${last}`).join(", ") || "–";
}

showFacts();
showClaims();
showFigures();
showGrids();
showTable();
showHeatMaps();
dark.addEventListener("change", redraw);
window.addEventListener("beforeprint", () => {
  printing = true;
  for (const element of drawings.keys()) if (element.offsetParent) draw(element);
  redraw();
});
window.addEventListener("afterprint", () => { printing = false; redraw(); });
document.documentElement.dataset.ready = "yes";
