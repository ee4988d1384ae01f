"use strict";
// What was received, by its key. A server gives data to who has the token of its address; a page that was opened from a
// folder may read no JSON, and loads data as scripts.
const inspection = (() => {
  const waiting = new Map();
  const received = new Map();

  function receive(key, value) {
    received.set(key, value);
    const known = waiting.get(key);
    if (known) known.resolve(value);
  }

  const token = new URLSearchParams(location.search).get("token");

  function load(key) {
    if (received.has(key)) return Promise.resolve(received.get(key));
    if (waiting.has(key)) return waiting.get(key).promise;
    const entry = {};
    entry.promise = new Promise((resolve, reject) => {
      entry.resolve = resolve;
      const failed = (error) => { waiting.delete(key); reject(error); };
      if (token) {
        ask("data/" + encodeURIComponent(key) + ".json").then((value) => receive(key, value), failed);
        return;
      }
      const script = document.createElement("script");
      script.src = "data/" + encodeURIComponent(key) + ".js";
      script.onerror = () => failed(new Error("Reload the page. The data " + key + " cannot be read."));
      document.head.append(script);
    });
    waiting.set(key, entry);
    return entry.promise;
  }

  async function ask(path, given) {
    const asked = { headers: { "X-Outlines-Phi-Token": token } };
    const answer = await fetch(path, given ? { ...asked, method: "POST", body: JSON.stringify(given) } : asked);
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found;
  }

  return { receive, load, ask };
})();
