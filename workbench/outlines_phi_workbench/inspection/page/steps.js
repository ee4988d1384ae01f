"use strict";
// A text, token by token: where the machine stands, which tokens are live, and why others are masked.
const steps = (() => {
  const where = (node, name, partOf) => (node ? element("a", { href: partOf(node[1], node[0]) }, name) : name);

  function chips(walk, at, go) {
    const masses = walk.masses;
    return walk.steps.map((step, place) => {
      const mass = masses && masses[place] ? masses[place].live : null;
      const title = mass === null ? null : "live mass " + share(mass);
      return element("button", {
        class: "token" + (step.refusal ? " masked" : ""), "aria-current": place === at ? "step" : null, title, onclick: () => go(place) },
        step.token === null ? "■" : step.text || "∅",
        mass === null ? null : element("span", { class: "mass", style: "width:" + Math.round(100 * mass) + "%" }));
    });
  }

  function refusal(found, partOf) {
    const fault = found.fault;
    return element("div", { class: "refusal" },
      element("p", null, element("span", { class: "token" }, found.text), " is masked by the " + fault.kind + ": ",
        where(fault.node, fault.what, partOf)),
      element("p", null, fault.because),
      found.read ? element("p", null, "Before it, ", element("span", { class: "token" }, found.read), " of the token is read.") : null,
      fault.expected.length ? element("p", null, "Expected: ", tokens(fault.expected)) : null);
  }

  function summary(step, partOf) {
    const facts = [
      ["stands at", step.nodes.length
        ? step.nodes.flatMap(([part, node], place) => [place ? ", " : "", element("a", { href: partOf(node, part) }, node)]).concat(
          " (" + step.label + ")")
        : [step.label]],
      ["live", [count(step.live) + " of " + count(step.tokens) + " tokens, in " + count(step.live_classes) + " of " +
        count(step.classes) + " classes, to " + count(step.targets) + " states"]],
      ["may end", [step.may_end ? "yes" : "no. " + step.why_no_end]],
      ["to the end", [step.distance === null ? "no end" : count(step.distance) + " tokens, the end included" +
        (step.left === null ? "" : "; " + count(step.left) + " are left")]],
    ];
    return [
      element("dl", null, facts.flatMap(([name, said]) => [element("dt", null, name), element("dd", null, ...said)])),
      step.refusal ? refusal(step.refusal, partOf) : null,
      step.stack.length ? element("h2", null, "Stack, top first") : null,
      step.stack.length ? element("ol", null, step.stack.map((entry) => element("li", null, element("code", null, entry)))) : null,
    ];
  }

  function masses(found) {
    if (!found) return [];
    // In one line, which a narrow screen scrolls.
    const bounds = ([lower, upper]) => share(lower) + "\u00a0…\u00a0" + share(upper);
    return [
      element("h2", null, "The model"),
      element("dl", null,
        element("dt", null, "live mass S"), element("dd", null, share(found.live) + ", of which masking loses log S = " +
          (found.live > 0 ? Math.log(found.live).toFixed(3) : "−∞") + " nats"),
        element("dt", null, "log S so far"), element("dd", null, String(typeof found.log_live === "number" ? found.log_live.toFixed(3) : found.log_live)),
        element("dt", null, "Φ here"), element("dd", null, bounds(found.phi))),
      element("h2", null, "Live mass, by the state that it leads to"),
      table(["lead to", "such as", "#mass", "adds to Φ"], found.targets.map((target) => [
        target.label, tokens(target.sample),
        [element("span", { class: "bar", style: "width:" + Math.max(1, Math.round(60 * target.mass)) + "px" }), share(target.mass)],
        bounds(target.adds)])),
      element("h2", null, "Likeliest live tokens"),
      table(["token", "#p", "Φ after it", "#masked p", "exact p"], found.branches.map((branch) => [
        tokens([branch.text]),
        [element("span", { class: "bar", style: "width:" + Math.max(1, Math.round(60 * branch.p)) + "px" }), share(branch.p)],
        bounds(branch.phi), share(branch.masked), bounds(branch.exact)])),
      found.lost.length ? element("h2", null, "Likeliest masked tokens") : null,
      found.lost.length ? table(["token", "#p", "masked by", "because"], found.lost.map((lost) => [
        tokens([lost.text]), share(lost.p), lost.refusal.fault.kind + ": " + lost.refusal.fault.what, lost.refusal.fault.because])) : null,
    ];
  }

  function details(step, found, partOf) {
    return [
      ...masses(found),
      element("h2", null, "Live tokens, by the state that they lead to"),
      table(["#tokens", "such as", "lead to", "#to the end"], step.groups.map((group) => [
        count(group.count), tokens(group.sample), group.label, group.distance === null ? "–" : count(group.distance)])),
      step.targets > step.groups.length
        ? element("p", { class: "quiet" }, "and to " + count(step.targets - step.groups.length) + " more states") : null,
      element("h2", null, "Masked tokens, by what refuses them"),
      table(["#tokens", "such as", "refused by", "of one of them"], step.masked.map((group) => [
        count(group.count), tokens(group.sample), [group.kind + ": ", where(group.node, group.what, partOf)],
        [group.because, group.expected.length ? " Expected: " + group.expected.join(", ") : ""]])),
      step.unlocated ? element("p", { class: "quiet" }, count(step.unlocated) + " more tokens are masked for other reasons.") : null,
    ];
  }

  function witnesses(site, partOf) {
    if (!site.witnesses.length) return [];
    return [
      element("h2", null, "Counterexamples"),
      table(["law", "text", "token", "at", ""], site.witnesses.map((each) => [
        each.law, [element("code", null, each.text || "the beginning")], tokens([each.token_text]), where(each.node, each.node && each.node[1], partOf),
        each.remark])),
    ];
  }

  function verdicts(site, partOf) {
    if (!site.verdicts) return [];
    return [
      ...witnesses(site, partOf),
      element("h2", null, "Verdicts on the masks: " + site.verdicts.reach),
      table(["check", "about", "verdict", "#cases", "witness"], site.verdicts.checks.map((check) => [
        [element("span", { title: check.meaning }, check.id + " " + check.statement)], check.about,
        [element("span", { class: check.verdict.split(" ")[0] }, check.verdict + (check.bound === null ? "" : "(" + check.bound + ")"))],
        count(check.cases), [check.witness, check.remark].filter(Boolean).join("; ")])),
    ];
  }

  return { chips, summary, details, refusal, verdicts };
})();
