"use strict";
// Elements of the page. Texts are never read as markup.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

function fill(id, ...children) {
  document.getElementById(id).replaceChildren(...children.flat().filter((child) => child !== null && child !== false));
}

const count = (number) => Number(number).toLocaleString("en");
const share = (p) => (p >= 0.0005 || p === 0 ? Number(p).toFixed(4) : Number(p).toExponential(1));
const tokens = (texts) => texts.map((text) => element("span", { class: "token" }, text || "∅"));

function table(heads, rows) {
  const cells = (row, name) =>
    row.map((cell, place) => element(name, { class: heads[place].startsWith("#") ? "number" : null }, ...[cell].flat()));
  const head = element("tr", null, heads.map((title, place) =>
    element("th", { class: title.startsWith("#") ? "number" : null }, heads[place].replace(/^#/, ""))));
  return element("div", { class: "scroll" },
    element("table", null, element("thead", null, head),
      element("tbody", null, rows.map((row) => element("tr", null, cells(row, "td"))))));
}
