"use strict";
// The page: what its address names is shown, and what is chosen becomes its address.
(async () => {
  const MOST_FOUND = 40;
  let site, walk = null, walked = null, names = null, theorems = null;
  let turn = 0; // of the latest address: what an earlier one asked for is dropped

  const byId = (id) => document.getElementById(id);
  const address = () => new URLSearchParams(location.hash.slice(1));

  function go(changes, replace) {
    const next = address();
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") next.delete(key);
      else next.set(key, value);
    }
    const hash = "#" + next;
    if (replace) { history.replaceState(null, "", hash); show(); }
    else location.hash = hash;
  }

  function linkTo(changes) {
    const next = address();
    for (const [key, value] of Object.entries(changes)) value === null ? next.delete(key) : next.set(key, value);
    return "#" + next;
  }

  const partOf = (node, part) => linkTo({ view: null, part, node });

  function say(error) {
    byId("error").hidden = !error;
    byId("error").textContent = error ? error.message : "";
  }

  function chosen(data) {
    if (data.source) {
      fill("selected", element("pre", null, data.label || "a call"));
    } else if (data.opens) {
      go({ part: data.opens, node: null });
    } else {
      go({ node: data.id });
    }
  }

  function describe(part, states, node) {
    const found = states && node ? states.nodes.find((each) => each.id === node) : null;
    const met = found && site.verdicts ? site.verdicts.met[node] || 0 : null;
    const witnesses = site.witnesses.filter((each) => each.node && each.node[1] === node);
    fill("selected",
      part && part.text ? element("pre", null, part.text) : null,
      states && states.left_out ? element("p", { class: "quiet" }, count(states.left_out) + " more states are not drawn.") : null,
      states && site.verdicts ? element("p", { class: "quiet" }, metIn(states)) : null,
      found ? element("h2", null, found.id + (found.is_end ? " (an end)" : "")) : null,
      found ? element("pre", null, found.text) : null,
      met === null ? null : element("p", { class: "quiet" }, met
        ? "Verified at " + count(met) + " pairs of states."
        : "No word that was verified leads here."),
      witnesses.map((each) => element("p", { class: "refusal" }, each.law + ": " + each.remark)));
  }

  function metIn(states) {
    const own = states.nodes.filter((each) => !each.part), met = own.filter((each) => site.verdicts.met[each.id]);
    return met.length ? count(met.length) + " of " + count(own.length) + " states stand in words that were verified." : "";
  }

  async function showMachine(asked, mine) {
    const id = asked.get("part") || "", node = asked.get("node");
    const part = site.parts.find((each) => each.id === id);
    fill("crumbs", element("a", { href: linkTo({ part: null, node: null }) }, "machine"), part ? " › " + part.label : " · ",
      part ? null : element("a", { href: linkTo({ view: "theorems", part: null, node: null }) }, "theorems"));
    if (!part) {
      machine.overview(site, chosen);
      byId("legend").textContent = site.remark + ". A click opens a part." + (machine.leftOut()
        ? " " + count(machine.leftOut()) + " terminals stand in the rules that use them, and are found by the search." : "");
      describe(null, null, null);
      return;
    }
    const states = await inspection.load("part-" + part.id);
    if (mine !== turn) return;
    machine.part(part.id, states, site, chosen);
    byId("legend").textContent = count(part.size || states.nodes.length) + " states. Dashed boxes are other parts.";
    describe(part, states, node);
    if (node) machine.select(node);
  }

  // The statements that masks and samplers rest on; what shows each of them is said where one is chosen.
  async function showTheorems(asked, mine) {
    theorems = theorems || (await inspection.load("theorems"));
    if (mine !== turn) return;
    const part = theorems.parts.find((each) => each.id === asked.get("part"));
    fill("crumbs", element("a", { href: linkTo({ view: null, part: null, node: null }) }, "machine"), " · theorems");
    machine.overview({ ...theorems, wrong: [] }, (data) => data.source || go({ part: data.opens }), "theorems");
    byId("legend").textContent = "Arrows lead to what a statement rests on. Green is proven in Coq, blue is checked for a given grammar or " +
      "schema, dashed is an assumption; the others are argued in the documentation.";
    describe(part, null, null);
    if (part) machine.select(part.id);
  }

  async function showText(asked, mine) {
    const typed = asked.get("typed"), number = typed === null ? Number(asked.get("text") || 0) : null;
    const key = typed === null ? (site.texts.length > number ? "walk-" + number : null) : "typed " + typed;
    fill("texts", site.texts.length > 1 ? site.texts.map((text, place) => element("a", {
      class: "token", href: linkTo({ text: place, typed: null, step: null }), "aria-current": place === number ? "true" : null },
      text)) : null);
    if (key === null) {
      walk = null;
      fill("tokens"); fill("details"); fill("step", element("p", { class: "quiet" }, site.served
        ? "Type a text to step through it." : "No text was given by --text."));
      byId("why").hidden = true;
      return;
    }
    if (typed !== null && !site.served) {
      throw new Error("Run outlines-phi inspect serve to step through other texts. This page was built for those of --text.");
    }
    if (walked !== key) {
      const found = typed === null ? await inspection.load(key) : await inspection.ask("walk", { text: typed });
      if (mine !== turn) return;
      walk = found; walked = key;
    }
    const last = walk.steps.length - 1;
    const at = Math.min(Math.max(0, Number(asked.get("step") || 0)), last);
    const step = walk.steps[at];
    const before = walk.steps.slice(0, at).map((each) => each.text).join("");
    fill("tokens", steps.chips(walk, at, (place) => go({ step: place })));
    fill("step", element("h2", null, "Step " + at + " of " + last + (before ? ", behind " : ", at the beginning"),
      before ? element("code", null, before.slice(-60)) : null), steps.summary(step, partOf));
    fill("details", steps.details(step, walk.masses && walk.masses[at], partOf));
    fill("reason");
    byId("why").hidden = !site.served;
    machine.mark(step.nodes);
  }

  async function show() {
    const mine = ++turn, asked = address();
    try {
      await (asked.get("view") === "theorems" ? showTheorems : showMachine)(asked, mine);
      if (mine === turn) await showText(asked, mine);
      if (mine === turn) say(null);
    } catch (error) {
      if (mine === turn) say(error);
    }
  }

  async function search() {
    const query = byId("query").value.trim().toLowerCase();
    byId("found").hidden = !query;
    if (!query) return;
    names = names || (await inspection.load("names"));
    theorems = theorems || (await inspection.load("theorems"));
    const parts = site.parts.filter((part) => (part.label + " " + part.text).toLowerCase().includes(query));
    parts.sort((a, b) => b.label.toLowerCase().startsWith(query) - a.label.toLowerCase().startsWith(query));
    const nodes = names.filter(([, node, said]) => node === query || said.toLowerCase().includes(query));
    const items = [
      ...parts.map((part) => [linkTo({ view: null, part: part.id, node: null }), part.kind + " " + part.label]),
      ...nodes.map(([part, node, said]) => [linkTo({ view: null, part, node }), node + " " + said.replaceAll("\n", "; ")]),
      ...theorems.parts.filter((part) => part.text.toLowerCase().includes(query))
        .map((part) => [linkTo({ view: "theorems", part: part.id, node: null }), "statement " + part.label]),
    ];
    fill("found", items.length
      ? items.slice(0, MOST_FOUND).map(([href, said]) => element("li", null, element("a", { href }, said)))
      : element("li", { class: "quiet" }, "Nothing is named so."),
      site.searched ? null : element("li", { class: "quiet" }, "States are too many to be searched for by name."),
      items.length > MOST_FOUND ? element("li", { class: "quiet" }, count(items.length - MOST_FOUND) + " more") : null);
  }

  byId("search").addEventListener("submit", async (event) => {
    event.preventDefault();
    await search();
    const first = byId("found").querySelector("a");
    if (first) first.click();
  });
  byId("query").addEventListener("input", search);
  byId("found").addEventListener("click", () => { byId("found").hidden = true; byId("query").value = ""; });
  byId("typed").addEventListener("submit", (event) => {
    event.preventDefault();
    go({ typed: byId("typed-text").value, text: null, step: null });
  });
  byId("why").addEventListener("submit", async (event) => {
    event.preventDefault();
    const at = Number(address().get("step") || 0), asked = byId("why-token").value;
    try {
      const found = await inspection.ask("why", { ids: walk.ids.slice(0, at), token: asked });
      fill("reason", found.tokens.map((each) => each.refusal
        ? steps.refusal(each.refusal, partOf)
        : element("p", null, element("span", { class: "token" }, each.text || asked), " is live.")));
    } catch (error) {
      fill("reason", element("p", { class: "refusal" }, error.message));
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input")) {
      if (event.key === "Escape") { event.target.blur(); byId("found").hidden = true; }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = Number(address().get("step") || 0);
    if (event.key === "ArrowRight" && walk && at < walk.steps.length - 1) go({ step: at + 1 }, true);
    else if (event.key === "ArrowLeft" && walk && at > 0) go({ step: at - 1 || null }, true);
    else if (event.key === "Escape") go({ view: null, part: null, node: null });
    else if (event.key === "/") byId("query").focus();
    else return;
    event.preventDefault();
  });
  window.addEventListener("hashchange", show);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => machine.restyle());

  try {
    site = await inspection.load("site");
  } catch (error) {
    say(error);
    return;
  }
  site.witnesses = site.verdicts ? site.verdicts.witnesses : [];
  site.wrong = site.verdicts ? site.verdicts.checks.filter((check) => check.verdict === "COUNTEREXAMPLE").map((check) => check.about) : [];
  document.title = site.name + " – outlines-phi inspect";
  byId("name").textContent = site.name;
  byId("kind").textContent = [site.kind, count(site.tokens) + " tokens", site.budget === null ? null : "at most " + count(site.budget) +
    " in a text", site.banned ? count(site.banned) + " banned phrases" : null, site.prompt === null ? null : "after " +
    JSON.stringify(site.prompt)].filter(Boolean).join(", ");
  byId("typed").hidden = !site.served;
  fill("verdicts", steps.verdicts(site, partOf));
  await show();
})();
