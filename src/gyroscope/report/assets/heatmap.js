// Suspicion: how much of the aggregate each worker had, worker by step.
let heatMapOf = -1;

function heatMapHeight(setup) {
  return Math.max(380, 170 + 8 * setup.workers);
}

function heatMapDrawing() {
  const setup = data.setups[heatMapOf];
  const heat = setup.heat;
  const honest = setup.workers - setup.byzantine;
  const now = theme();
  const top = Math.max(...heat.z.flat().filter((share) => share !== null), 1e-9);
  const label = (text, y) => ({
    text, x: 1, xshift: 6, xref: "paper", xanchor: "left", y, yref: "y", showarrow: false, font: { size: 11, color: now.ink },
  });
  // Black and white in turns: seen on every colour of the map.
  const shapes = !setup.byzantine ? [] : [["#000000", "solid"], ["#ffffff", "dash"]].map(([color, dash]) => (
    { type: "line", xref: "paper", x0: 0, x1: 1, y0: honest - .5, y1: honest - .5, line: { color, width: 3, dash } }));
  const height = heatMapHeight(setup);
  const margin = { l: 52, r: 66, t: 28, b: 120 };
  const annotations = [label("honest", (honest - 1) / 2)];
  if (setup.byzantine) annotations.push(label("Byzantine", honest + (setup.byzantine - 1) / 2));
  const scale = [[0, "#0b1b33"], [.25, "#2d4a7c"], [.5, "#8a6f86"], [.75, "#e0a15a"], [1, "#fff1b8"]];
  const traces = [{
    type: "heatmap", x: heat.x, y: heat.z.map((_, worker) => worker), z: heat.z, zmin: 0, zmax: top, colorscale: scale,
    colorbar: { orientation: "h", y: -50 / (height - margin.t - margin.b), yanchor: "top", thickness: 12, len: .9, title: { text: "share in the aggregate", side: "top" }, tickformat: "~p", outlinewidth: 0, nticks: 5 },
    hovertemplate: "worker %{y}, about step %{x:.0f}: %{z:.2~%}<extra></extra>",
  }];
  const layout = frame({
    ...(printing ? { width: 690 } : {}), height, margin, hovermode: "closest", shapes, annotations, uirevision: "heat-" + heatMapOf,
    xaxis: { title: { text: "step", standoff: 4 }, showgrid: false },
    yaxis: { title: { text: "worker", standoff: 6 }, range: [setup.workers - .5, -.5], showgrid: false },
  });
  return { traces, layout };
}

function heatMapWords(setup) {
  if (!setup.heat) return `The rule ${setup.rule} takes each coordinate from another worker, so no worker has a share of its own in the aggregate and there is no heat-map.`;
  const taken = `mean over ${setup.seeds.length} ${setup.seeds.length === 1 ? "seed" : "seeds"}` + (setup.heat.width > 1 ? ` and ${setup.heat.width} steps per column` : "");
  if (!setup.byzantine) return `All workers are honest; ${taken}.`;
  const fair = number(100 * setup.byzantine / setup.workers, 0);
  const share = setup.heat.byzantine_share;
  const part = share === null ? "an unknown part" : number(100 * share, 1) + " %";
  return `The Byzantine workers had ${part} of the weight; an equal share for everyone would give them ${fair} % (${taken}).`;
}

function selectHeatMap(index) {
  heatMapOf = index;
  const setup = data.setups[index];
  byId("heat-setup").value = String(index);
  byId("heat-words").textContent = heatMapWords(setup);
  const element = byId("heat-map");
  byId("heat-figure").hidden = !setup.heat;
  if (!setup.heat) return;
  byId("heat-title").textContent = setup.label;
  element.setAttribute("aria-label", `Heat-map of every worker's share per step, ${setup.label}. ${heatMapWords(setup)}`);
  element.style.height = heatMapHeight(setup) + "px";
  if (drawn.has(element)) {
    const { traces, layout } = heatMapDrawing();
    Plotly.react(element, traces, layout, CONFIG);
  }
}

function showHeatMaps() {
  const body = byId("suspicion-body");
  if (!data.setups.length) {
    body.append(el("p", { class: "notice" }, "There are no finished runs."));
    return;
  }
  const groups = new Map();
  data.setups.forEach((setup, index) => {
    const name = `${setup.task} · ` + (setup.attack === "none" ? "no attack" : `${setup.attack} f=${setup.byzantine}`);
    if (!groups.has(name)) groups.set(name, el("optgroup", { label: name }));
    const text = setup.label.slice(name.length + 3) + (setup.heat ? "" : " (no shares)");
    groups.get(name).append(el("option", { value: index }, text));
  });
  const choice = el("select", { id: "heat-setup", "aria-label": "Setup of the heat-map", onchange: () => selectHeatMap(Number(choice.value)) }, [...groups.values()]);
  const element = el("div", { class: "chart", id: "heat-map", role: "group" });
  body.append(
    el("p", { class: "hint" }, "Every worker's share in the aggregate, step by step. A dark row is a worker that the rule suspects; Byzantine workers are the last rows, below the line."),
    el("div", { class: "choices" }, choice),
    el("p", { id: "heat-words", role: "status" }),
    el("figure", { id: "heat-figure" }, el("figcaption", { id: "heat-title" }), element));
  const first = data.setups.findIndex((setup) => setup.heat && setup.byzantine);
  selectHeatMap(first >= 0 ? first : Math.max(0, data.setups.findIndex((setup) => setup.heat)));
  lazily(element, heatMapDrawing);
}
