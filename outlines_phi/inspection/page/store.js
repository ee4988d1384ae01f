"use strict";
// What was received, by its key. Data come as scripts, which a page that was opened from a folder may load.
const inspection = (() => {
  const waiting = new Map();
  const received = new Map();

  function receive(key, value) {
    received.set(key, value);
    const known = waiting.get(key);
    if (known) known.resolve(value);
  }

  function load(key) {
    if (received.has(key)) return Promise.resolve(received.get(key));
    if (waiting.has(key)) return waiting.get(key).promise;
    const entry = {};
    entry.promise = new Promise((resolve, reject) => {
      entry.resolve = resolve;
      const script = document.createElement("script");
      script.src = "data/" + encodeURIComponent(key) + ".js";
      script.onerror = () => {
        waiting.delete(key);
        reject(new Error("Reload the page. The data " + key + " cannot be read."));
      };
      document.head.append(script);
    });
    waiting.set(key, entry);
    return entry.promise;
  }

  async function ask(path, given) {
    const answer = await fetch(path, { method: "POST", body: JSON.stringify(given) });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found;
  }

  return { receive, load, ask };
})();
