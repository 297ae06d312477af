// The data, and what every other part uses: elements without innerHTML, numbers as text, the colours of the theme.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function byId(id) {
  return document.getElementById(id);
}

function number(value, digits) {
  if (value === null || value === undefined) return "–";
  const text = value.toFixed(digits);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

// Tables show accuracies in percent with one digit after the point, and other metrics with four digits.
const onlyAccuracy = data.setups.every((setup) => setup.metric.words === "accuracy");
const figure = (value, metric) => metric.percent ? number(value, 1) : value === null ? "–" : String(Number(value.toPrecision(4))).replace("-", "−");

function moments([mean, deviation], metric) {
  if (mean === null) return "–";
  return deviation === null ? figure(mean, metric) : figure(mean, metric) + " ± " + figure(deviation, metric);
}

function points(value, metric) {
  const text = figure(value, metric);
  return value !== null && value > 0 && Number(text) !== 0 ? "+" + text : text;
}

// plotly.js reads a little HTML in its texts; names from a configuration must not be taken for it.
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const touch = window.matchMedia("(pointer: coarse)");
let printing = false;

const PALETTES = {
  light: ["#c85200", "#0072b2", "#00805d", "#a64d8a", "#9a6b00", "#5a4fcf"],
  dark: ["#ff9249", "#5cb8f0", "#2fd0a0", "#ec9fcd", "#f0c24b", "#b3a9ff"],
};

function theme() {
  const night = dark.matches && !printing;
  return {
    night,
    ink: night ? "#eceff2" : "#16191d",
    soft: night ? "#a5aeb8" : "#545c66",
    grid: night ? "#2b3138" : "#e7eaee",
    line: night ? "#59636e" : "#aab2bb",
    paper: night ? "#14171b" : "#ffffff",
    raised: night ? "#262b31" : "#ffffff",
    palette: night ? PALETTES.dark : PALETTES.light,
  };
}

function colourOf(style) {
  const now = theme();
  return style.colour < 0 ? now.ink : now.palette[style.colour];
}

function translucent(hex, alpha) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}
