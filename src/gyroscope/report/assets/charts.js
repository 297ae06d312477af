// The figures: three kinds, each in blocks of charts; a chart is drawn when it comes near the view.
const KINDS = {
  measured: {
    name: onlyAccuracy ? "Accuracy" : "Test metric",
    hint: `${onlyAccuracy ? "Accuracy" : "Each task's metric"} on the test set: mean over the seeds, with a band of one standard deviation. ✕ marks a run that diverged.`,
  },
  ratio: {
    name: "Variance-norm ratio", axis: "ratio (log scale)",
    hint: "Variance-norm ratio of the gradients that honest workers send: mean over the seeds, with a band from the smallest "
      + "to the largest. Below the dotted bound the rule is proven resilient.",
  },
  straightness: {
    name: "Straightness", axis: "s_t",
    hint: "Straightness s_t of the honest gradients' path: mean over the seeds, with a band of one standard deviation. "
      + "Positive: the gradients keep their direction.",
  },
};
const BOUND = { colour: -1, dash: "dot", marker: "" };
const CONFIG = {
  responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg" }, displayModeBar: touch.matches ? true : "hover",
  modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
  // plotly.js offers by default to send a chart and its data to its maker's servers: not from this page.
  showSendToCloud: false, plotlyServerURL: "",
};
const drawings = new Map(); // chart element -> a function that says what to draw
const drawn = new Set();
const painters = []; // of the legends' samples

function draw(element) {
  if (drawn.has(element)) return;
  drawn.add(element);
  const { traces, layout, clicked } = drawings.get(element)();
  Plotly.newPlot(element, traces, layout, CONFIG);
  if (clicked) element.on("plotly_click", clicked);
}

function redraw() {
  for (const paint of painters) paint();
  for (const element of drawn) {
    const { traces, layout } = drawings.get(element)();
    Plotly.react(element, traces, layout, CONFIG);
  }
}

const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }
}, { rootMargin: "250px" });

function lazily(element, drawing) {
  drawings.set(element, drawing);
  near.observe(element);
}

function frame(more) {
  const now = theme();
  const axis = { gridcolor: now.grid, linecolor: now.line, zeroline: false, ticks: "outside", tickcolor: now.line, automargin: true };
  return {
    font: { family: "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif", size: 12, color: now.ink },
    paper_bgcolor: now.paper, plot_bgcolor: now.paper, showlegend: false, uirevision: "kept",
    margin: { l: 52, r: 14, t: 28, b: 42 }, dragmode: touch.matches ? false : "zoom", hovermode: "x unified",
    hoverlabel: { bgcolor: now.raised, bordercolor: now.line, font: { color: now.ink, size: 12 }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: now.soft, activecolor: now.ink },
    ...(printing ? { width: 335, height: 250 } : { autosize: true }), ...more,
    xaxis: { ...axis, ...more.xaxis },
    yaxis: { ...axis, ...more.yaxis },
  };
}

// With `positive` the band stays above zero, as a logarithmic axis needs it.
function band(series, positive) {
  const below = (mean, deviation) => positive ? Math.max(mean - deviation, mean / 10) : mean - deviation;
  const low = series.low || (series.deviation && series.mean.map((m, i) => m === null ? null : below(m, series.deviation[i])));
  const high = series.high || (series.deviation && series.mean.map((m, i) => m === null ? null : m + series.deviation[i]));
  if (!low) return null;
  const known = series.x.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  const back = known.slice().reverse();
  return { x: known.concat(back).map((i) => series.x[i]), y: known.map((i) => high[i]).concat(back.map((i) => low[i])) };
}

function curveTraces(kind, curve, hidden) {
  const setup = data.setups[curve.setup];
  const series = setup[kind];
  const style = data.styles[curve.label];
  const colour = colourOf(style);
  const common = { visible: !hidden.has(curve.label), meta: { curve: curve.label, setup: curve.setup }, name: plain(curve.label) };
  const traces = [];
  const area = band(series, kind === "measured" && setup.metric.extreme === "minimum");
  if (area) {
    traces.push({ ...common, ...area, mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: translucent(colour, .16), hoverinfo: "skip" });
  }
  const deviation = series.deviation;
  const percent = kind === "measured" && setup.metric.percent;
  const digits = percent ? ".1f" : kind === "measured" ? ".4~g" : ".3~g";
  const spread = deviation ? ` ± %{customdata:${digits}}` : "";
  traces.push({
    ...common, x: series.x, y: series.mean, customdata: deviation, mode: style.marker ? "lines+markers" : "lines",
    line: { color: colour, width: 2, dash: style.dash }, marker: { symbol: style.marker || "circle", size: 7, color: colour, maxdisplayed: 9 },
    hovertemplate: `%{y:${digits}}${spread}${percent ? " %" : ""}`,
  });
  if (kind === "measured" && setup.ends.length) {
    traces.push({
      ...common, x: setup.ends.map((end) => end.x), y: setup.ends.map((end) => end.y), mode: "markers+text", cliponaxis: false,
      marker: { symbol: "x", size: 10, color: colour, line: { color: theme().paper, width: 1 } },
      text: setup.ends.map((_, i) => i ? "" : "diverged"), textposition: "middle right", textfont: { color: colour },
      customdata: setup.ends.map((end) => `seed ${end.seed}: diverged at step ${end.step}`), hovertemplate: "%{customdata}<extra></extra>",
    });
  }
  return traces;
}

function boundTraces(chart, hidden) {
  const bounds = new Map();
  let last = 1;
  for (const curve of chart.curves) {
    const setup = data.setups[curve.setup];
    if (setup.bound !== null) bounds.set(setup.bound, curve.setup);
    last = Math.max(last, ...setup.ratio.x.slice(-1));
  }
  return [...bounds].map(([bound, setup]) => ({
    x: [0, last], y: [bound, bound], mode: "lines", line: { color: theme().ink, width: 1.5, dash: "dot" }, name: "bound",
    visible: !hidden.has("bound"), meta: { curve: "bound", setup }, hovertemplate: "%{y:.3~g}",
  }));
}

function chartDrawing(kind, chart, hidden) {
  return () => {
    const traces = chart.curves.flatMap((curve) => curveTraces(kind, curve, hidden));
    if (kind === "ratio") traces.push(...boundTraces(chart, hidden));
    const yaxis = { title: { text: KINDS[kind].axis, standoff: 6 } };
    if (kind === "measured") {
      const { metric } = data.setups[chart.curves[0].setup];
      yaxis.title.text = plain(metric.words) + (metric.percent ? " (%)" : "");
      const positive = chart.curves.every(({ setup }) => data.setups[setup].measured.mean.every((value) => value === null || value > 0));
      if (metric.percent) yaxis.range = [0, 101];
      else if (metric.extreme === "minimum" && positive) Object.assign(yaxis, { type: "log", tickformat: "~g" });
    }
    if (kind === "ratio") Object.assign(yaxis, { type: "log", tickformat: "~g", dtick: 1 });
    if (kind === "straightness") Object.assign(yaxis, { zeroline: true, zerolinecolor: theme().line, title: { text: "s<sub>t</sub>" } });
    const last = Math.max(1, ...chart.curves.flatMap(({ setup }) => data.setups[setup][kind].x.slice(-1)));
    const layout = frame({ xaxis: { title: { text: "step", standoff: 4 }, range: [0, 1.01 * last], unifiedhovertitle: { text: "step %{x}" } }, yaxis });
    return { traces, layout, clicked: (event) => showConfiguration(event.points[0].data.meta.setup) };
  };
}

function describe(kind, chart) {
  const says = chart.curves.map(({ label, setup }) => {
    const known = data.setups[setup][kind].mean.filter((value) => value !== null);
    const last = known.length ? known[known.length - 1] : null;
    return `${label} ends at ${last === null ? "nothing" : Number(last.toPrecision(3))}`;
  });
  return `${KINDS[kind].name} per step, ${chart.title}: ${says.join("; ")}`;
}

function chartFigure(kind, chart, hidden) {
  const thinned = Math.max(1, ...chart.curves.map(({ setup }) => data.setups[setup][kind].every));
  const small = thinned > 1 ? el("small", {}, `every ${thinned}th point is drawn`) : null;
  const figure = el("figure", { id: chart.id }, el("figcaption", {}, chart.title, small));
  const known = chart.curves.some(({ setup }) => data.setups[setup][kind].mean.some((value) => value !== null));
  if (!known) {
    figure.append(el("div", { class: "chart empty" }, chart.curves.length ? "nothing was measured" : "no runs"));
    return figure;
  }
  const element = el("div", { class: "chart", role: "group", "aria-label": describe(kind, chart) });
  figure.append(element);
  lazily(element, chartDrawing(kind, chart, hidden));
  return figure;
}

const SHAPES = {
  "circle": "M15 7m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "square": "M11.5 3.5h7v7h-7z", "triangle-up": "M15 2.5l4.6 8h-9.2z",
  "diamond": "M15 2l5 5l-5 5l-5-5z", "triangle-down": "M15 11.5l4.6-8h-9.2z", "star": "M15 2l1.5 3.4 3.6.4-2.7 2.4.8 3.6-3.2-1.9-3.2 1.9.8-3.6-2.7-2.4 3.6-.4z",
  "pentagon": "M15 2.5l4.5 3.3-1.7 5.2h-5.6l-1.7-5.2z",
};
const STROKES = { solid: "", dash: "6 4", dashdot: "6 3 1.5 3", longdash: "10 4", dot: "2 3" };

function sample(style) {
  const colour = style.colour < 0 ? "var(--ink)" : null;
  const line = svg("line", { x1: 0, y1: 7, x2: 30, y2: 7, "stroke-width": 2, "stroke-dasharray": STROKES[style.dash] || null });
  const mark = style.marker ? svg("path", { d: SHAPES[style.marker] }) : null;
  const picture = svg("svg", { width: 30, height: 14, "aria-hidden": "true" }, line, mark);
  const paint = () => {
    line.setAttribute("stroke", colour || colourOf(style));
    if (mark) mark.setAttribute("fill", colour || colourOf(style));
  };
  paint();
  painters.push(paint);
  return picture;
}

function legend(block, kind, hidden, container) {
  const labels = block.labels.map((label) => [label, data.styles[label]]);
  const bounded = block.charts.some((chart) => chart.curves.some(({ setup }) => data.setups[setup].bound !== null));
  if (kind === "ratio" && bounded) labels.push(["bound", BOUND]);
  const ends = new Set(block.charts.flatMap((chart) => chart.curves).filter(({ setup }) => data.setups[setup].diverged).map(({ label }) => label));
  const show = (label, visible, button) => {
    if (visible) hidden.delete(label); else hidden.add(label);
    button.setAttribute("aria-pressed", String(visible));
    for (const element of container.querySelectorAll(".chart")) {
      if (!drawn.has(element)) continue;
      const traces = element.data.map((trace, i) => trace.meta.curve === label ? i : -1).filter((i) => i >= 0);
      if (traces.length) Plotly.restyle(element, { visible }, traces);
    }
  };
  const buttons = labels.map(([label, style]) => {
    const text = ends.has(label) ? label + " (✕ diverged)" : label;
    const button = el("button", {
      "aria-pressed": "true", "data-curve": label, title: "Click to hide or show; double-click to show it alone",
      onclick: () => show(label, hidden.has(label), button),
      ondblclick: () => buttons.forEach((other, i) => show(labels[i][0], other === button, other)),
    }, sample(style), el("span", {}, text));
    return button;
  });
  return el("div", { class: "legend", role: "group", "aria-label": "Curves of " + block.title }, buttons);
}

function showBlock(kind, block) {
  const hidden = new Set();
  const section = el("section", { class: "block", id: block.id, "aria-label": block.title });
  const grid = el("div", { class: "grid", style: `--columns: ${Math.min(Math.max(block.columns, 2), 3)}` });
  section.append(el("h3", {}, block.title), legend(block, kind, hidden, grid), grid);
  for (const chart of block.charts) {
    grid.append(chartFigure(kind, chart, hidden));
    for (const { setup } of chart.curves) {
      if (kind === "measured" && !homes.has(setup) && ownBlock(block, setup)) homes.set(setup, chart.id);
    }
  }
  return section;
}

// A baseline appears in the blocks of every attack; its own block is the one without an attack.
function ownBlock(block, index) {
  const attacked = block.charts.some((chart) => chart.curves.some(({ setup }) => data.setups[setup].attack !== "none"));
  return !attacked || data.setups[index].attack !== "none";
}

function selectKind(kind) {
  for (const tab of document.querySelectorAll("[data-kind]")) {
    const chosen = tab.dataset.kind === kind;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    byId("kind-" + tab.dataset.kind).hidden = !chosen;
  }
}

function showFigures() {
  const body = byId("figures-body");
  if (!data.setups.length) {
    body.append(el("p", { class: "notice" }, "There are no finished runs."));
    return;
  }
  const names = Object.keys(KINDS);
  const tabs = names.map((kind) => el("button", {
    role: "tab", id: "tab-" + kind, "data-kind": kind, "aria-controls": "kind-" + kind, onclick: () => selectKind(kind),
    onkeydown: (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const next = names[(names.indexOf(kind) + move + names.length) % names.length];
      selectKind(next);
      byId("tab-" + next).focus();
    },
  }, KINDS[kind].name));
  body.append(el("div", { class: "choices", role: "tablist", "aria-label": "What the charts show" }, tabs));
  for (const kind of names) {
    const blocks = data.charts[kind];
    body.append(el("div", { id: "kind-" + kind, role: "tabpanel", "aria-labelledby": "tab-" + kind },
      el("p", { class: "hint" }, KINDS[kind].hint, " Point at a curve for its numbers, drag to zoom, double-click to zoom out, ",
        "click on a curve for its configuration, and on the legend to hide a curve."),
      el("div", { class: "toc" }, blocks.length > 1 ? blocks.map((block) => el("a", { href: "#" + block.id }, block.title)) : []),
      blocks.map((block) => showBlock(kind, block))));
  }
  selectKind("measured");
}
