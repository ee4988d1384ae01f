"use strict";
// The graph of the page, and the step of the text that its address names.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const READABLE = 0.75; // A graph that does not fit at this scale is shown from its start on
  const graph = (window.drawnGraph = cytoscape({
    container: document.getElementById("graph"), minZoom: 0.05, maxZoom: 3,
    elements: [...data.nodes.map((node) => ({ data: node })), ...data.edges.map((edge) => ({ data: edge }))],
    layout: { name: "null" },
    style: [
      { selector: "node", style: {
        label: "data(label)", "text-valign": "center", "font-size": 11, color: color("--ink"), shape: "round-rectangle", height: 24,
        width: (node) => Math.min(170, 16 + 6.6 * node.data("label").length), "text-max-width": 160, "text-wrap": "ellipsis",
        "background-color": color("--panel"), "border-color": color("--quiet"), "border-width": 1 } },
      { selector: "node[kind='proven']", style: { "border-color": color("--good"), "border-width": 2 } },
      { selector: "node[kind='checked']", style: { "border-color": color("--accent"), "border-width": 2 } },
      { selector: "node[kind='assumption']", style: { "border-style": "dashed" } },
      { selector: "node[?start]", style: { "border-width": 3 } },
      { selector: "node[?end]", style: { "border-style": "double", "border-width": 4 } },
      { selector: "node.marked, node:selected", style: { "background-color": color("--soft"), "border-color": color("--accent") } },
      { selector: "edge", style: {
        label: "data(label)", "font-size": 9, color: color("--quiet"), width: 1, "line-color": color("--edge"), "arrow-scale": 0.7,
        "target-arrow-color": color("--quiet"), "target-arrow-shape": "triangle", "curve-style": "bezier", "min-zoomed-font-size": 7 } },
      { selector: "edge:loop", style: { "loop-direction": "0deg", "loop-sweep": "50deg", "control-point-step-size": 60 } },
    ],
  }));
  // Layers by distance from the start, which dagre finds fast; other edges are drawn between the places that these give.
  const depth = new Map();
  graph.elements().bfs({ roots: graph.nodes("[?start]"), directed: true, visit: (node, edge, from, place, far) => { depth.set(node.id(), far); } });
  const layers = graph.edges().filter((edge) => depth.get(edge.target().id()) === depth.get(edge.source().id()) + 1);
  graph.nodes().union(layers).layout({ name: "dagre", rankDir: data.whole === undefined ? "LR" : "TB", nodeSep: 14, rankSep: 42, animate: false }).run();
  if (graph.zoom() < READABLE) {
    const at = graph.nodes("[?start]").position();
    graph.zoom(READABLE);
    graph.pan({ x: graph.width() / 2 - at.x * READABLE, y: 30 - at.y * READABLE });
  }
  const select = (node) => { document.getElementById("selected").textContent = node.data("text"); };
  graph.on("tap", "node", (event) => select(event.target));

  const steps = [...document.querySelectorAll(".step")];
  const current = () => Math.max(0, steps.findIndex((step) => "#" + step.id === location.hash));
  function show() {
    if (!steps.length) return;
    graph.nodes().removeClass("marked");
    const node = graph.getElementById(steps[current()].dataset.node).addClass("marked");
    if (node.nonempty()) { graph.center(node); select(node); }
    document.querySelectorAll("#tokens a").forEach((token, place) => token.toggleAttribute("aria-current", place === current()));
  }
  addEventListener("hashchange", show);
  addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by && steps.length && event.target === document.body) {
      location.hash = "#" + steps[Math.min(Math.max(0, current() + by), steps.length - 1)].id;
      event.preventDefault();
    }
  });
  show();
})();
