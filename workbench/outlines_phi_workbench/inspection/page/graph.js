"use strict";
// The machine: an overview of its parts, and the states of a part once it is opened. A layout is computed once.
const machine = (() => {
  const ROOM = 60; // Characters of a label of an edge that are drawn
  const READABLE = 0.75; // A graph that does not fit at this scale is shown from its start on
  const MANY = 60; // Parts of an overview beyond which it leaves terminals to the rules that use them
  let drawn = null; // the graph of cytoscape
  let shown = null; // the part that is open, "" for the overview
  const positions = new Map();
  let marks = [];
  let left = 0; // Parts that the overview leaves out

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function style() {
    return [
      { selector: "node", style: {
        label: "data(label)", "text-valign": "center", "text-halign": "center", "font-size": 11, color: color("--ink"),
        "background-color": color("--panel"), "border-color": color("--quiet"), "border-width": 1, shape: "round-rectangle",
        width: (node) => Math.min(170, 16 + 6.6 * node.data("label").length), height: 24, "text-max-width": 160, "text-wrap": "ellipsis" } },
      { selector: "node[kind='terminal']", style: { shape: "ellipse", "border-color": color("--good") } },
      { selector: "node[kind='lexer']", style: { shape: "hexagon", "border-color": color("--warm") } },
      { selector: "node[kind='proven']", style: { "border-color": color("--good"), "border-width": 2 } },
      { selector: "node[kind='checked']", style: { "border-color": color("--accent"), "border-width": 2 } },
      { selector: "node[kind='assumption']", style: { "border-style": "dashed" } },
      { selector: "node[kind='other']", style: { "border-style": "dashed", color: color("--accent") } },
      { selector: "node[?start]", style: { "border-width": 3 } },
      { selector: "node[?end]", style: { "border-style": "double", "border-width": 4 } },
      { selector: "node[?wrong]", style: { "border-color": color("--bad"), color: color("--bad") } },
      { selector: "node.marked", style: { "background-color": color("--soft"), "border-color": color("--accent"), "border-width": 3 } },
      { selector: "node:selected", style: { "overlay-color": color("--accent"), "overlay-opacity": 0.18 } },
      { selector: "edge", style: {
        label: "data(short)", "font-size": 9, color: color("--quiet"), width: 1, "line-color": color("--edge"),
        "target-arrow-color": color("--quiet"), "target-arrow-shape": "triangle", "arrow-scale": 0.7, "curve-style": "bezier",
        "text-background-color": color("--panel"), "text-background-opacity": 0.85, "min-zoomed-font-size": 7 } },
      { selector: "edge:loop", style: { "loop-direction": "0deg", "loop-sweep": "50deg", "control-point-step-size": 60 } },
      { selector: "edge[kind='call'], edge[kind='goto']", style: { "line-style": "dashed" } },
      { selector: "edge[kind='emit']", style: { "line-color": color("--warm"), "line-style": "dotted" } },
      { selector: "edge.near, edge:selected", style: { "line-color": color("--accent"), width: 2 } },
    ];
  }

  function elementsOf(nodes, edges) {
    return [
      ...nodes.map((node) => ({ data: node })),
      ...edges.map((edge, place) => ({ data: {
        id: "e" + place, source: edge.source, target: edge.target, kind: edge.kind, label: edge.label,
        short: edge.label.length > ROOM ? edge.label.slice(0, ROOM) + "…" : edge.label } })),
    ];
  }

  // The nodes, and the edges that lead one step further from the start: layers by distance, which dagre finds fast. Other edges are
  // drawn between the places that these give.
  function layered(graph) {
    const depth = new Map();
    graph.elements().bfs({
      roots: graph.nodes("[?start]"), directed: true, visit: (node, edge, from, place, far) => { depth.set(node.id(), far); } });
    return graph.nodes().union(graph.edges().filter((edge) => depth.get(edge.target().id()) === depth.get(edge.source().id()) + 1));
  }

  function draw(key, elements, onSelect) {
    if (drawn) drawn.destroy();
    drawn = cytoscape({
      container: document.getElementById("graph"), elements, style: style(), layout: { name: "null" }, minZoom: 0.05, maxZoom: 3,
      hideEdgesOnViewport: elements.length > 800, textureOnViewport: elements.length > 800,
    });
    const known = positions.get(key);
    if (known) drawn.layout({ name: "preset", positions: (node) => known[node.id()], fit: true, padding: 20 }).run();
    else layered(drawn).layout({ name: "dagre", rankDir: key === "theorems" ? "LR" : "TB", nodeSep: 14, rankSep: 42, animate: false, fit: true, padding: 20 }).run();
    if (!known) {
      const found = {};
      drawn.nodes().forEach((node) => { found[node.id()] = { ...node.position() }; });
      positions.set(key, found);
    }
    if (drawn.zoom() > 1.4) { drawn.zoom(1.4); drawn.center(); }
    if (drawn.zoom() < READABLE) {
      drawn.zoom(READABLE);
      const at = drawn.nodes("[?start]").position();
      drawn.pan({ x: drawn.width() / 2 - at.x * READABLE, y: 30 - at.y * READABLE });
    }
    drawn.on("tap", "node", (event) => onSelect(event.target.data()));
    drawn.on("mouseover", "node", (event) => event.target.connectedEdges().addClass("near"));
    drawn.on("mouseout", "node", (event) => event.target.connectedEdges().removeClass("near"));
    drawn.on("tap", "edge", (event) => onSelect(event.target.data()));
    window.drawnGraph = drawn;
    mark(marks);
  }

  function overview(site, onSelect, key = "") {
    if (shown === key) return;
    shown = key;
    const wrong = new Set(site.wrong);
    const parts = site.parts.length > MANY ? site.parts.filter((part) => part.kind !== "terminal") : site.parts;
    const nodes = parts.map((part) => ({
      id: part.id, label: part.label, kind: part.kind, start: part.is_start, text: part.text, size: part.size, opens: part.id,
      wrong: wrong.has(part.kind) }));
    const ids = new Set(nodes.map((node) => node.id));
    const calls = site.calls.filter((call) => ids.has(call.source) && ids.has(call.target));
    left = site.parts.length - parts.length;
    draw(key, elementsOf(nodes, calls), onSelect);
  }

  function part(id, states, site, onSelect) {
    if (shown === id) return;
    shown = id;
    const wrong = new Set(site.witnesses.map((each) => each.node && each.node[1]));
    const met = site.verdicts ? site.verdicts.met : {};
    const nodes = states.nodes.map((node) => ({
      id: node.id, label: node.label, kind: node.part ? "other" : "state", start: node.is_start, end: node.is_end, text: node.text,
      opens: node.part, wrong: wrong.has(node.id), met: met[node.id] }));
    draw(id, elementsOf(nodes, states.edges), onSelect);
  }

  function mark(pairs) {
    marks = pairs;
    if (!drawn) return;
    drawn.nodes().removeClass("marked");
    for (const [where, node] of pairs) drawn.getElementById(shown === "" ? where : node).addClass("marked");
  }

  function select(id) {
    if (!drawn) return;
    drawn.elements().unselect();
    const found = drawn.getElementById(id);
    if (found.empty()) return;
    found.select();
    if (drawn.zoom() < READABLE) drawn.zoom(0.8);
    drawn.center(found);
  }

  function restyle() {
    if (drawn) drawn.style(style());
  }

  return { overview, part, mark, select, restyle, leftOut: () => left };
})();
