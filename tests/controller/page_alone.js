// The page's script without a browser: as much of one as it asks for. Answers, and what is done on the page, come as JSON on standard input; what stands there afterwards is written out.
"use strict";

const fs = require("node:fs");
const vm = require("node:vm");

class Element {
  constructor(tag) {
    Object.assign(this, { tagName: tag.toUpperCase(), children: [], attributes: {}, dataset: {}, heard: {}, value: "", hidden: false, scrollTop: 0 });
    this.style = { setProperty: (name, value) => { this.style[name] = value; } };
  }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) {
    this.attributes[name] = value;
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = value;
    if (name === "value") this.value = value;
  }
  getAttribute(name) { return this.attributes[name] ?? null; }
  addEventListener(kind, heard) { this.heard[kind] = heard; }
  contains(other) { return other === this || this.elements().includes(other); }
  elements() { return this.children.filter((child) => child instanceof Element).flatMap((child) => [child, ...child.elements()]); }
  querySelectorAll(tags) { return this.elements().filter((made) => tags.toUpperCase().split(", ").includes(made.tagName)); }
  querySelector(tags) { return this.querySelectorAll(tags)[0] ?? null; }
  focus() {}
  get textContent() { return this.children.map((child) => (child instanceof Element ? child.textContent : `${child}`)).join(" "); }
}

const [script, index] = process.argv.slice(2).map((file) => fs.readFileSync(file, "utf8"));
const page = Object.fromEntries([...index.matchAll(/\bid="([\w-]+)"/g)].map(([, id]) => [id, new Element("div")]));
const story = JSON.parse(fs.readFileSync(0, "utf8"));
const asked = [];
const held = {}; // calls that are answered when the story says so
let answers = {};
let next = null;
let quiet = () => {};

async function fetch(path, options = {}) {
  const call = path.split("?")[0].split("/").pop();
  const request = options.body ? JSON.parse(options.body) : null;
  asked.push([call, request]);
  const key = request?.job_id ? `${call} ${request.job_id}` : call;
  if (held[key]) {
    held[key].came();
    await held[key].until;
  }
  const answer = answers[key] ?? answers[call];
  if (answer === undefined) throw new TypeError(`no answer to ${key}`);
  return { ok: !answer.error, status: answer.error ? 404 : 200, json: async () => structuredClone(answer) };
}

const heard = {};
const world = {
  document: {
    activeElement: null, hidden: false, getElementById: (id) => page[id], createElement: (tag) => new Element(tag), createElementNS: (_, tag) => new Element(tag), addEventListener() {},
  },
  window: { addEventListener: (kind, what) => { heard[kind] = what; } },
  location: { hash: "", replace: (where) => asked.push(["gone to", where]) },
  setTimeout: (what) => { next = what; quiet(); return 1; },
  clearTimeout: () => {}, alert: (text) => asked.push(["told", text]), confirm: () => true, prompt: () => "",
  fetch, performance, crypto, atob, TextDecoder, console,
};
vm.createContext(world);

// Until the page has looked and waits for its next turn.
const settled = (begin) => new Promise((done) => { quiet = done; begin(); });

async function main() {
  const shown = [];
  let begun = false;
  for (const step of story) {
    answers = { ...answers, ...step.answers };
    if (step.hash !== undefined) world.location.hash = step.hash;
    for (const [id, text] of Object.entries(step.type ?? {})) {
      page[id].value = text;
      page[id].heard.input();
    }
    for (const [id, value] of Object.entries(step.choose ?? {})) {
      page[id].value = value;
      page[id].heard.change();
    }
    for (const [id, words] of Object.entries(step.press ?? {})) {
      const button = page[id].elements().find((made) => made.tagName === "BUTTON" && made.textContent === words);
      await settled(() => button.heard.click());
    }
    if (step.let) {
      const { go } = held[step.let];
      delete held[step.let];
      await settled(go);
    } else if (step.hold) {
      await new Promise((came) => {
        let go;
        held[step.hold] = { came, until: new Promise((done) => { go = done; }), go: () => go() };
        heard.hashchange();
      });
    } else if (!step.only_type && !step.press) {
      await settled(begun ? next : () => vm.runInContext(script, world));
    }
    begun = true;
    const text = (made) => made.textContent.replace(/\s+/g, " ").trim();
    const line = page.job.elements().find((made) => made.className === "line");
    shown.push({ ...Object.fromEntries(Object.entries(page).map(([id, made]) => [id, text(made)])), timeline: line?.elements().map((part) => part.className), spoken: Object.values(page).flatMap((part) => part.elements()).flatMap((made) => made.attributes["aria-label"] ?? []), asked: asked.splice(0) });
  }
  process.stdout.write(JSON.stringify(shown));
}

main();
