// Asks the search of a built site, as its pages do: node search_worker.cjs SITE < QUERIES > PAGES
// Both are JSON: a list of queries, and for each the addresses of the pages that are found, best first.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const site = process.argv[2];
const workers = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(workers).find((name) => /^search\..*\.js$/.test(name));

let hear;
let answer;
const scope = {
  addEventListener: (_, listener) => (hear = listener),
  postMessage: (message) => answer(message.data),
  console,
};
scope.self = scope;
vm.runInNewContext(fs.readFileSync(path.join(workers, worker), "utf-8"), scope);

const SETUP = 0;
const QUERY = 2;

function asked(type, data) {
  return new Promise((resolve) => {
    answer = resolve;
    hear({ data: { type, data } });
  });
}

async function main() {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf-8"));
  await asked(SETUP, { ...index, options: { suggest: false } });
  const found = [];
  for (const query of JSON.parse(fs.readFileSync(0, "utf-8"))) {
    const { items } = await asked(QUERY, query);
    found.push(items.map((item) => item[0].location));
  }
  process.stdout.write(JSON.stringify(found));
}

main();
