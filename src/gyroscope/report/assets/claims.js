// The claims: a table with the verdict first, rows that open, and a filter by verdict. What was not measured is the last section.
const VERDICTS = {
  "holds": { symbol: "✓", kind: "holds", plural: "hold" },
  "does not hold": { symbol: "✗", kind: "fails", plural: "do not hold" },
  "partly measured": { symbol: "◐", kind: "unknown", plural: "partly measured" },
  "not measured": { symbol: "–", kind: "unknown", plural: "not measured" },
};

function verdictBadge(word) {
  const known = VERDICTS[word] || VERDICTS["not measured"];
  return el("span", { class: "verdict " + known.kind },
    el("span", { class: "symbol", "aria-hidden": "true" }, known.symbol), word);
}

function claimRows(claim, index) {
  const details = el("tr", { class: "details", id: "claim-" + index, role: "row", hidden: true },
    el("td", { colspan: 4, role: "cell" }, el("dl", {},
      [["Where in the paper", claim.place], ["What is measured", claim.quantity], ["Criterion", claim.threshold],
        ["Note", claim.note], ["Claim", claim.id]]
        .filter(([, text]) => text)
        .map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]))));
  const toggle = el("button", {
    class: "expand", "aria-expanded": "false", "aria-controls": details.id,
    onclick: () => {
      details.hidden = !details.hidden;
      toggle.setAttribute("aria-expanded", String(!details.hidden));
    },
  }, el("span", {}, claim.statement));
  const row = el("tr", { class: "claim", role: "row", "data-verdict": claim.verdict },
    el("td", { role: "cell" }, verdictBadge(claim.verdict)),
    el("td", { role: "cell" }, toggle),
    el("td", { role: "cell", "data-label": "Paper:" }, claim.paper || "–"),
    el("td", { role: "cell", "data-label": "Measured:" }, claim.measured || "–"));
  return { row, details, toggle, verdict: claim.verdict };
}

function claimTable(claims) {
  const heads = ["Verdict", "Claim", "Paper", "Measured here"];
  return el("table", { class: "claims", role: "table" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" },
      heads.map((text) => el("th", { scope: "col", role: "columnheader" }, text)))),
    el("tbody", { role: "rowgroup" }, claims.map(({ row, details }) => [row, details])));
}

function showClaims() {
  const all = data.claims.map(claimRows);
  const missing = all.filter(({ verdict }) => verdict === "not measured");
  const claims = all.filter((claim) => !missing.includes(claim));
  if (missing.length) byId("unmeasured-body").append(claimTable(missing)); else hideSection("unmeasured");
  if (!claims.length) {
    byId("lead-claims").hidden = true;
    hideSection("claims");
    return;
  }
  const body = byId("claims-body");
  const choose = (word) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.verdict === word));
    for (const claim of claims) {
      claim.row.hidden = word !== "" && claim.verdict !== word;
      if (claim.row.hidden) {
        claim.details.hidden = true;
        claim.toggle.setAttribute("aria-expanded", "false");
      }
    }
    empty.hidden = claims.some((claim) => !claim.row.hidden);
  };
  const buttons = [["", `all ${claims.length}`]]
    .concat(Object.entries(VERDICTS).filter(([word]) => word !== "not measured").map(([word, { symbol }]) => [word, `${symbol} ${word} ${data.verdicts[word]}`]))
    .map(([word, text]) => el("button", { "data-verdict": word, "aria-pressed": "false", onclick: () => choose(word) }, text));
  const empty = el("p", { class: "notice" }, "No claim has this verdict.");
  body.append(
    el("p", { class: "hint" }, "Each criterion was taken from the paper's words. Open a claim for where it ",
      "stands, what is measured and when it counts as holding."),
    el("div", { class: "choices", role: "group", "aria-label": "Filter by verdict" }, buttons),
    claimTable(claims), empty);
  choose("");
}
