"use strict";

// The page asks for the same messages as hsctl does and draws them. Whatever comes from the cluster becomes text, never markup.

const JOBS = 300; // shown at most, the newest
const EVENTS = 30;
const ROWS = 100; // of users and of servers that are shown at most; others are found by their names
const CHARTS = 24;
const WORDS = 16; // at most, by which jobs are found
const EVERY_MS = 3000; // between two looks, or ten times as long as one takes
const HOUR_S = 3600;
const HUES = [212, 28, 140, 340, 262, 48, 180, 8, 300, 95, 235, 160];
const ORDER = { running: 0, starting: 1, suspended: 2, queued: 3 };

const by = (id) => document.getElementById(id);
let seen = null; // what was seen last
let pool = ""; // of the charts; empty: all
const inOrder = new Intl.Collator(undefined, { numeric: true }).compare; // v2 before v10
const typed = (id) => by(id).value.toLowerCase().split(/\s+/).filter(Boolean);
const has = (words, text) => words.every((word) => text.toLowerCase().includes(word));

class Refused extends Error {}

const NOT_KNOWN = "The controller does not answer, so it is not known whether that was done: look before you say it again.";

async function ask(call, request = {}) {
  const answer = await fetch("/api/" + call, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(request),
  });
  return taken(answer);
}

async function taken(answer) {
  if (answer.status === 401) {
    location.replace("/login" + location.hash);
    throw new Refused("signed out");
  }
  const said = await answer.json();
  if (!answer.ok) throw new Refused(said.error);
  return said;
}

// --- making elements

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name === "style") for (const [key, text] of Object.entries(value)) made.style.setProperty(key, text);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function svg(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function table(heads, rows, empty) {
  if (!rows.length) return el("div", { class: "dim" }, empty);
  const cells = heads.map((head) => el("th", { class: head.num ? "num" : "" }, head.text ?? head));
  return el("table", {}, el("thead", {}, el("tr", {}, cells)), el("tbody", {}, rows));
}

const td = (...children) => el("td", {}, ...children);
const num = (...children) => el("td", { class: "num" }, ...children);

// What is drawn anew has the focus where it had it: else a keyboard would begin at the top of the page every few seconds.
function show(id, ...children) {
  const focused = by(id).contains(document.activeElement) ? keyOf(document.activeElement) : "";
  by(id).replaceChildren(...children);
  if (focused) [...by(id).querySelectorAll("a, button, input, pre")].find((made) => keyOf(made) === focused)?.focus({ preventScroll: true });
}

const keyOf = (made) => `${made.tagName} ${made.dataset.key ?? made.getAttribute("href") ?? made.textContent}`;

// --- words

const gpus = (value) => value.toFixed(2);
// The browser's time, with the date when it is not today's.
function clock(at) {
  const moment = new Date(at * 1000);
  const time = moment.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return moment.toDateString() === new Date().toDateString() ? time : `${moment.toLocaleDateString()} ${time}`;
}

const whole = (text) => Number(text ?? 0); // 64-bit numbers come as text

function span(seconds) {
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}

const bytes = (value) => (value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${(value / 2 ** 20).toFixed(0)} MiB`);
const state = (word) => el("span", { class: `state ${word}` }, word);
const colour = (user) => {
  const at = Math.max(0, seen.users.indexOf(user));
  return `hsl(${HUES[at % HUES.length]} 62% ${at < HUES.length ? 52 : 38}%)`;
};
const named = (user) => el("span", { class: "user short", style: { "--of": colour(user) }, title: user }, user);
const short = (text) => el("span", { class: "short", title: text }, text);

// --- looking

async function look() {
  const words = typed("filter").slice(0, WORDS);
  const [info, shares, nodes, jobs, trades, events, history] = await Promise.all([
    ask("Info"),
    ask("Shares", { window_s: HOUR_S }),
    ask("ListNodes"),
    ask("ListJobs", { limit: JOBS, words, totals: true }),
    ask("ListTrades"),
    ask("Events", { tail: EVENTS }),
    fetch("/history" + whoseHistory()).then(taken),
  ]);
  const users = [...new Set([...shares.shares.map((s) => s.user), ...jobs.jobs.map((j) => j.user)])].sort(inOrder);
  nodes.nodes.sort((a, b) => inOrder(a.name, b.name));
  seen = { info, shares, nodes: nodes.nodes, jobs: jobs.jobs, totals: jobs.totals, words: words.join(" "), trades: trades.trades, events, history, users };
}

function chosenUsers() {
  const words = typed("users");
  return seen && words.length ? seen.users.filter((user) => has(words, user)).slice(0, CHARTS) : null; // null: who has most
}

function whoseHistory() {
  const chosen = chosenUsers();
  if (chosen === null) return "";
  return "?" + (chosen.length ? chosen : [""]).map((user) => `user=${encodeURIComponent(user)}`).join("&"); // nobody is called ""
}

function draw() {
  drawHead();
  const chosen = location.hash.match(/^#job\/(\d+)$/);
  by("overview").hidden = Boolean(chosen);
  by("job").hidden = !chosen;
  if (chosen) return drawJob(chosen[1]);
  drawTiles();
  if (!editing) drawWho(); // else it would be drawn anew under who types
  drawCharts();
  drawServers();
  drawJobs();
  drawTrades();
  drawEvents();
  return null;
}

function drawHead() {
  const info = seen.info;
  show("head", `${info.policy} · quantum ${info.quantum_s} s · up ${span(info.uptime_s)} · ${info.version}`);
  show("you", `${info.you}${info.admin ? " (admin)" : ""}`);
  show("banner", info.read_only ? "The controller cannot write its journal: nothing can be changed; jobs go on." : "");
}

// --- the overview

function tile(title, value, kind, more, part) {
  const bar = part === undefined ? null : el("div", { class: "track" }, el("i", { style: { width: `${100 * part}%` } }));
  return el("div", { class: "tile" }, el("div", { class: "dim" }, title), el("b", { class: kind }, value), el("div", { class: "dim" }, more), bar);
}

function perUser() {
  const found = new Map(seen.users.map((user) => [user, { due: 0, got: 0, now: 0, tickets: 0, pools: new Map() }]));
  for (const share of seen.shares.shares) {
    const user = found.get(share.user);
    user.due += share.due_gpus;
    user.now += share.entitled_gpus;
    user.got += share.received_gpus;
    user.tickets = share.tickets;
    user.pools.set(share.gpu_model, share);
  }
  return found;
}

function drawTiles() {
  const tiles = seen.shares.pools.map((p) => {
    const there = seen.nodes.filter((node) => node.state === "up").flatMap((node) => node.gpus).filter((gpu) => gpu.model === p.gpu_model);
    const utilized = there.reduce((sum, gpu) => sum + gpu.utilization_percent, 0) / Math.max(1, there.length);
    const out = p.gpus - p.away - p.healthy;
    const more = `${utilized.toFixed(0)} % utilized${out ? `, ${out} not usable` : ""}${p.away ? `, ${p.away} away` : ""}`;
    return tile(`${p.gpu_model}: busy`, `${p.busy} of ${p.healthy}`, "", more, p.busy / Math.max(1, p.healthy));
  });
  const lost = seen.totals.lost_gpu_s;
  tiles.push(tile("Lost work of these jobs", `${lost.toFixed(0)} GPU-s`, lost >= 1 ? "bad" : "good", "must read 0"));
  const ratios = [...perUser()].filter(([, u]) => u.now > 0 && u.due > 0).map(([user, u]) => [u.got / u.due, user]).sort((a, b) => a[0] - b[0]);
  if (ratios.length && seen.shares.fair) {
    const [ratio, user] = ratios[0];
    tiles.push(tile("Furthest below its share", `${(100 * ratio).toFixed(0)} %`, ratio < 0.8 ? "warn" : "good", `${user}, of the last ${span(seen.shares.window_s)}`));
  }
  tiles.push(tile("Jobs", `${seen.totals.jobs}`, "", `${seen.totals.queued} without a place`));
  show("tiles", ...tiles);
}

function given(user) {
  const sums = new Map();
  for (const t of seen.trades.filter((t) => !t.undone)) {
    const sides = [[t.gives, t.fast, t.slow, t.fast_gpus, t.slow_gpus], [t.receives, t.slow, t.fast, t.slow_gpus, t.fast_gpus]];
    for (const [who, gives, receives, out, back] of sides) {
      if (who !== user) continue;
      const key = `${gives} → ${receives}`;
      const sum = sums.get(key) ?? [0, 0];
      sums.set(key, [sum[0] + out, sum[1] + back]);
    }
  }
  return [...sums].map(([key, [out, back]]) => el("div", { class: "nowrap" }, `${gpus(out)} ${key.replace("→", `→ ${gpus(back)}`)}`));
}

function shareCell(share, most, user) {
  if (!share) return td("");
  const part = (value) => `${Math.min(100, (100 * value) / Math.max(most, 1e-9))}%`;
  const bar = el("div", { class: "share", style: { "--of": colour(user) } }, el("i", { style: { width: part(share.received_gpus) } }), el("u", { style: { left: part(share.due_gpus) } }));
  const known = !seen.shares.read_only; // what users are entitled to is not, while nothing can be written
  const other = known && Math.abs(share.entitled_gpus - share.due_gpus) >= 0.005;
  const now = other ? el("span", { class: "dim" }, ` now ${gpus(share.entitled_gpus)}`) : "";
  return td(el("span", { class: "nowrap" }, `${gpus(share.received_gpus)} / ${known ? gpus(share.due_gpus) : "–"}`, now), bar);
}

let editing = null; // tickets as typed, by user, while an administrator changes them

function edit(on) {
  editing = on ? new Map() : null;
  show("preview");
  drawWho();
}

function ticketsCell(user, tickets) {
  if (!editing) return num(`${tickets}`);
  const field = el("input", { class: "tickets", type: "number", min: "0.001", step: "any", value: `${editing.get(user) ?? tickets}`, "aria-label": `tickets of ${user}` });
  field.addEventListener("input", () => { editing.set(user, Number(field.value)); });
  return el("td", { class: "num" }, field);
}

async function preview() {
  try {
    const answer = await fetch("/preview", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ tickets: Object.fromEntries(editing) }) });
    const rows = (await taken(answer)).map((r) => {
      const grown = r.then - r.now;
      const kind = grown > 0.005 ? "more" : grown < -0.005 ? "less" : "dim";
      return el("tr", {}, td(named(r.user)), td(r.gpu_model), num(gpus(r.now)), num(gpus(r.then)), el("td", { class: `num ${kind}` }, `${grown >= 0 ? "+" : ""}${gpus(grown)}`));
    });
    const heads = ["user", "model", { text: "entitled now", num: true }, { text: "with these tickets", num: true }, { text: "", num: true }];
    show("preview", table(heads, rows, "The policy in office entitles nobody to anything, whatever the tickets."));
  } catch (error) {
    show("preview", el("div", { class: "bad" }, error instanceof Refused ? error.message : "The controller does not answer."));
  }
}

async function setTickets() {
  const changed = [...editing];
  edit(false);
  for (const [name, tickets] of changed) await change("SetUser", { name, tickets });
}

function drawEdit() {
  if (!seen.info.admin) return show("edit");
  const button = (text, action) => el("button", { onclick: action }, text);
  if (!editing) return show("edit", button("Change tickets", () => edit(true)));
  return show("edit", button("Preview", preview), " ", button("Set", setTickets), " ", button("Leave as it is", () => edit(false)));
}

function drawWho() {
  drawEdit();
  const pools = seen.shares.pools;
  const words = typed("users");
  const all = [...perUser()];
  const found = all.filter(([user]) => has(words, user));
  const most = (u) => u.due + u.got;
  const shown = found.length > ROWS ? found.sort((a, b) => most(b[1]) - most(a[1])).slice(0, ROWS) : found;
  const largest = new Map(pools.map((p) => [p.gpu_model, Math.max(0, ...all.map(([, u]) => u.pools.get(p.gpu_model)).filter(Boolean).flatMap((s) => [s.received_gpus, s.due_gpus]))]));
  const rows = shown.map(([user, u]) => {
    const ratio = u.due > 0 && seen.shares.fair ? `${(100 * u.got / u.due).toFixed(0)} %` : "–";
    return el("tr", {}, td(named(user)), ticketsCell(user, u.tickets), pools.map((p) => shareCell(u.pools.get(p.gpu_model), largest.get(p.gpu_model), user)), num(ratio), td(given(user)));
  });
  const heads = ["user", { text: "tickets", num: true }, ...pools.map((p) => p.gpu_model), { text: "received", num: true }, "gives → receives"];
  show("who", table(heads, rows, all.length ? "No user has such a name." : "Nobody has submitted a job yet."));
  show("window", `GPUs received / ${seen.shares.fair ? "entitled to" : "what tickets come to"}, on average of the last ${span(seen.shares.window_s)}${seen.shares.fair ? "" : `, which ${seen.shares.policy} does not hold shares to`}`);
  show("users-sum", shown.length < found.length ? `the ${ROWS} who have most, of ${found.length}` : `${found.length} of ${all.length}`);
}

function added(series, name, length) {
  const sum = new Array(length).fill(0);
  for (const one of series) one[name].forEach((value, at) => { sum[at] += value; });
  return sum;
}

function smooth(values, width) {
  return values.map((_, at) => {
    const part = values.slice(Math.max(0, at - width + 1), at + 1);
    return part.reduce((a, b) => a + b, 0) / part.length;
  });
}

function path(values, at, top, stepped) {
  const x = (t) => (300 * (t - at[0])) / Math.max(1, at[at.length - 1] - at[0]);
  const y = (value) => 88 - (84 * value) / top;
  return values.map((value, i) => (i === 0 ? `M${x(at[0])} ${y(value)}` : stepped ? `H${x(at[i])}V${y(value)}` : `L${x(at[i])} ${y(value)}`)).join("");
}

function drawCharts() {
  const { at, series, every_s } = seen.history;
  const models = [...new Set(series.map((s) => s.gpu_model))].sort();
  const select = by("pool");
  if (select.dataset.models !== models.join()) {
    select.replaceChildren(...["", ...models].map((m) => el("option", { value: m }, m || "all GPUs")));
    select.dataset.models = models.join();
    pool = models.includes(pool) ? pool : "";
    select.value = pool;
  }
  if (at.length < 2) return show("charts", el("div", { class: "dim" }, "There is nothing to draw yet."));
  const chosen = chosenUsers();
  const many = chosen ? `, of ${chosen.length} users who are looked for` : seen.users.length > CHARTS ? `, of the ${CHARTS} users who have most` : "";
  show("span", `the last ${span(at[at.length - 1] - at[0])}, each mean of ${span(5 * every_s)}${many}`);
  const mine = series.filter((s) => !pool || s.gpu_model === pool);
  const lines = seen.users.filter((user) => series.some((s) => s.user === user)).map((user) => {
    const own = mine.filter((s) => s.user === user);
    return { user, due: added(own, "entitled", at.length), got: smooth(added(own, "received", at.length), 5) };
  }).filter((line) => line.due.some(Boolean) || line.got.some(Boolean));
  const top = Math.max(1, ...lines.flatMap((line) => [...line.due, ...line.got]));
  show("charts", ...lines.map((line) => {
    const picture = svg("svg", { viewBox: "0 0 300 90", preserveAspectRatio: "none", role: "img", "aria-label": `${line.user}: entitled and received GPUs` });
    picture.append(
      svg("path", { class: "base", d: "M0 88H300" }),
      svg("path", { class: "got", d: path(line.got, at, top, false) }),
      svg("path", { class: "due", d: path(line.due, at, top, true) }),
    );
    const now = `${gpus(line.got[line.got.length - 1])} / ${gpus(line.due[line.due.length - 1])}`;
    return el("div", { class: "chart", style: { "--of": colour(line.user) } }, el("div", { class: "head" }, named(line.user), el("span", { class: "dim" }, now)), picture);
  }));
  return null;
}

function square(gpu, use, node) {
  const kinds = ["gpu"];
  const style = {};
  const words = [`GPU ${gpu.index} ${gpu.model}`];
  if (node.state !== "up") kinds.push("away");
  if (use && whole(use.running_job)) {
    kinds.push("busy");
    style["--of"] = colour(use.user);
    words.push(`job ${use.running_job} of ${use.user}`);
    if (whole(use.second_job)) {
      kinds.push("two");
      style["--of2"] = colour(use.second_user);
      words.push(`and job ${use.second_job} of ${use.second_user}`);
    }
  }
  if (use && use.bound_jobs.length) {
    kinds.push("sliced");
    words.push(`suspended: ${use.bound_jobs.join(", ")}`);
  }
  if (!gpu.healthy) {
    kinds.push("sick");
    words.push(gpu.why_unhealthy);
  } else if (node.draining || node.drained_gpus.includes(gpu.index)) {
    kinds.push("drained");
    words.push("drained");
  }
  words.push(`${gpu.utilization_percent} % utilized`);
  if (!seen.info.admin) return el("div", { class: kinds.join(" "), style, role: "img", title: words.join("\n"), "aria-label": words.join(", ") });
  words.push(`click to ${node.drained_gpus.includes(gpu.index) ? "undrain" : "drain"} it`);
  return el("button", { class: kinds.join(" "), style, "data-key": `${node.name}/${gpu.index}`, title: words.join("\n"), "aria-label": words.join(", "), onclick: () => drainGpu(node, gpu) });
}

async function change(call, request) {
  try {
    await ask(call, { key: crypto.randomUUID(), ...request });
  } catch (error) {
    alert(error instanceof Refused ? error.message : NOT_KNOWN);
  }
  await turn();
}

function drain(node) {
  if (node.draining) return change("UndrainNode", { node: node.name });
  const reason = prompt(`Why is ${node.name} to be emptied? Its jobs move to other servers.`);
  return reason === null ? null : change("DrainNode", { node: node.name, reason });
}

function drainGpu(node, gpu) {
  const drained = node.drained_gpus.includes(gpu.index);
  const asked = drained ? `Give jobs GPU ${gpu.index} of ${node.name} again?` : `Give no job GPU ${gpu.index} of ${node.name} any more? Those on it go on elsewhere.`;
  return confirm(asked) ? change("SetGpuDrain", { node: node.name, gpus: [gpu.index], drain: !drained }) : null;
}

const stateOf = (node) => (node.state !== "up" ? "away" : node.draining ? "draining" : "up");
const isWell = (node) => stateOf(node) === "up" && !node.warnings.length && !node.drained_gpus.length && node.gpus.every((gpu) => gpu.healthy);

function drawServers() {
  const words = typed("server");
  const found = seen.nodes.filter((node) => has(words, [node.name, stateOf(node), ...node.gpus.map((gpu) => gpu.model), isWell(node) ? "" : "trouble"].join(" ")));
  const shown = found.length > ROWS ? found.sort((a, b) => isWell(a) - isWell(b)).slice(0, ROWS) : found;
  const rows = shown.map((node) => {
    const uses = new Map(node.uses.map((use) => [use.gpu_id, use]));
    const models = [...new Set(node.gpus.map((gpu) => gpu.model))].sort().join(", ");
    const total = whole(node.memory_bytes);
    const left = total ? `${Math.round((100 * whole(node.memory_available_bytes)) / total)} % of ${bytes(total)}` : "";
    const word = stateOf(node);
    const note = node.draining ? node.drain_reason : node.warnings[0] ?? "";
    const button = seen.info.admin ? td(el("button", { "data-key": node.name, "aria-label": `${node.draining ? "Undrain" : "Drain"} ${node.name}`, onclick: () => drain(node) }, node.draining ? "Undrain" : "Drain")) : null;
    return el("tr", {}, td(short(node.name)), el("td", { class: word === "up" ? "good" : word === "away" ? "bad" : "warn" }, word), el("td", { class: "nowrap" }, models),
      td(el("div", { class: "gpus" }, node.gpus.map((gpu) => square(gpu, uses.get(gpu.id), node)))), num(`${node.jobs}`), el("td", { class: "nowrap" }, left), el("td", { class: note ? "told" : "" }, note), button);
  });
  const up = seen.nodes.filter((node) => node.state === "up").length;
  const some = shown.length < found.length ? `, ${ROWS} of ${found.length} shown, those with trouble first` : words.length ? `, ${found.length} shown` : "";
  show("servers-sum", `${up} of ${seen.nodes.length} up${some}`);
  const heads = ["server", "state", "model", "GPUs", { text: "jobs", num: true }, "memory left", "", ...(seen.info.admin ? [""] : [])];
  show("servers", table(heads, rows, seen.nodes.length ? "No server is like that." : "No server has joined yet: hsctl node enroll NAME."));
}

function why(job) {
  return job.moving_to ? `moving to ${job.moving_to}: ${job.moving_why}` : job.reason_text;
}

const taskOf = (job) => (whole(job.array_id) && typeof job.array_index === "number" ? `${job.array_id}_${job.array_index}` : "");

function drawJobs() {
  const words = typed("filter");
  const fits = (job) => has(words, [job.id, taskOf(job), job.name, job.user, job.state, job.reason, job.hosts.join(" "), job.gpu_model].join(" "));
  const order = (job) => ORDER[job.state] ?? 4;
  const found = seen.jobs.filter(fits).sort((a, b) => order(a) - order(b) || inOrder(a.user, b.user) || whole(a.id) - whole(b.id));
  const rows = found.map((job) => el("tr", { class: "link", onclick: () => { location.hash = `job/${job.id}`; } },
    num(el("a", { href: `#job/${job.id}` }, job.id), taskOf(job) ? ` (${taskOf(job)})` : ""), el("td", { class: "name" }, job.name), td(named(job.user)), td(state(job.state)), num(`${job.gpus}`), td(job.hosts.length ? short(job.hosts.join(", ")) : "–"), el("td", { class: "nowrap" }, job.gpu_model),
    num(job.tickets ? gpus(job.entitled_gpus) : "–"), num(job.steps_per_s ? job.steps_per_s.toFixed(1) : "–"), num(`${job.suspends} / ${job.migrations}`), el("td", { class: "told" }, why(job))));
  const heads = [{ text: "job", num: true }, "name", "user", "state", { text: "GPUs", num: true }, "on", "model", { text: "share", num: true }, { text: "steps/s", num: true }, { text: "suspends / moves", num: true }, "why, and what next"];
  show("jobs", table(heads, rows, seen.totals.jobs ? "No job is like that." : "There is no job."));
  const like = seen.words === words.slice(0, WORDS).join(" ") ? seen.totals.found : 0; // not known until the next look
  const newest = like > found.length && seen.jobs.length >= JOBS;
  show("jobs-sum", newest ? `the newest ${found.length} of ${like}` : `${found.length} of ${seen.totals.jobs}`);
}

function drawTrades() {
  const rows = seen.trades.slice().reverse().map((t) => el("tr", {}, el("td", { class: "nowrap" }, clock(t.at)),
    td(named(t.gives), ` gives ${gpus(t.fast_gpus)} ${t.fast} to `, named(t.receives), ` for ${gpus(t.slow_gpus)} ${t.slow}`),
    num(t.price.toFixed(2)), el("td", { class: "nowrap num" }, `${t.giver_speedup.toFixed(2)} / ${t.taker_speedup.toFixed(2)}`)));
  show("trades", table(["since", "trade", { text: "price", num: true }, { text: "speed-ups", num: true }], rows, "No trade stands."));
}

function drawEvents() {
  const rows = seen.events.slice().reverse().map((e) => el("tr", {}, el("td", { class: "at dim" }, clock(e.at)),
    td(whole(e.job_id) ? el("a", { class: "nowrap", href: `#job/${e.job_id}` }, `job ${e.job_id}`) : short(e.host || e.user)), td(e.text)));
  show("events", table(["at", "of", "what"], rows, "Nothing has happened yet."));
}

// --- a job's page

const STATES = { submitted: "queued", placed: "starting", starting: "starting", ready: "suspended", running: "running", suspended: "suspended", moving: "moving",
  left: "moving", lost: "queued", retried: "queued", succeeded: "", failed: "", cancelled: "" };
const ARRIVED = ["migrated", "reshaped", "restored", "move-abandoned"]; // its state, if that is another, was told just before

// What each event made of it: [event, word].
function states(story) {
  let [word, before, paused] = ["", "", false];
  const told = [];
  for (const e of story) {
    if (e.kind in STATES) {
      if (STATES[e.kind] === "moving" && word !== "moving") before = word;
      word = STATES[e.kind];
    } else if (ARRIVED.includes(e.kind)) {
      if (word === "moving") word = before;
    } else if (e.kind === "paused") paused = true;
    else if (e.kind === "resumed") {
      paused = false;
      if (word !== "queued" && word !== "starting") word = "suspended";
    } else continue;
    told.push([e, paused && word ? "paused" : word]);
  }
  return told;
}

function timeline(view, story, now) {
  const known = states(story);
  const told = known.map(([e]) => e);
  if (!told.length) return el("div", { class: "dim" }, "Nothing is known of it any more.");
  const end = view.ended_at || now;
  const parts = known.map(([e, word], at) => ({ word, from: e.at, to: told[at + 1]?.at ?? end, text: e.text })).filter((p) => p.word && p.to > p.from);
  const total = Math.max(1e-9, end - told[0].at);
  const spent = new Map();
  for (const p of parts) spent.set(p.word, (spent.get(p.word) ?? 0) + p.to - p.from);
  const summed = [...spent].map(([word, s]) => `${word} for ${span(s)}`).join(", ");
  const bar = el("div", { class: "line", role: "img", "aria-label": summed }, parts.map((p) => el("i", { class: p.word, style: { width: `${(100 * (p.to - p.from)) / total}%` }, title: `${clock(p.from)} ${p.word} for ${span(p.to - p.from)}\n${p.text}` })));
  const words = [...spent.keys()];
  return el("div", {}, bar, el("div", { class: "legend" }, `${clock(told[0].at)} to ${view.ended_at ? clock(end) : "now"}`, words.map(state)));
}

function facts(rows) {
  return el("dl", {}, rows.filter(([, value]) => value !== "" && value !== null).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

async function logOf(id) {
  try {
    const chunks = await ask("Logs", { job_id: id, tail_lines: 100 });
    const text = chunks.map((chunk) => atob(chunk.data)).join("");
    const raw = Uint8Array.from(text, (c) => c.charCodeAt(0));
    return new TextDecoder().decode(raw) || "(empty)";
  } catch (error) {
    if (error instanceof Refused) return `(${error.message})`;
    throw error;
  }
}

const onIt = (id) => location.hash === `#job/${id}`;

async function drawJob(id) {
  let detail;
  let answer;
  try {
    [detail, answer] = await Promise.all([ask("GetJob", { job_id: id }), ask("Why", { job_id: id })]);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return onIt(id) ? show("job", el("section", {}, error.message)) : null;
  }
  const view = detail.view;
  const own = seen.info.admin || seen.info.you === view.user;
  const log = own ? await logOf(id) : `(only ${view.user} and administrators may read it)`;
  if (!onIt(id)) return null; // whoever looks has gone on to another meanwhile
  const mean = (sum, times) => (times ? `${times}, ${(sum / times).toFixed(2)} s each` : "none");
  const can = own && !view.ended_at;
  const button = (text, call) => el("button", { onclick: () => change(call, { job_ids: [id] }) }, text);
  const buttons = can ? [view.state === "paused" ? button("Resume", "Unpause") : button("Pause", "Pause"),
    el("button", { onclick: () => confirm(`Cancel job ${id}?`) && change("Cancel", { job_ids: [id] }) }, "Cancel")] : [];
  const old = by("job").querySelector("pre");
  const scrolled = old && old.dataset.key === id ? old.scrollTop : null;
  const rates = detail.rates.map((r) => el("tr", {}, td(r.gpu_model), num(r.steps_per_s.toFixed(2)), num(r.speedup ? `${r.speedup.toFixed(2)}×` : "–"), num(`${r.samples}`)));
  const story = detail.story.slice().reverse().map((e) => el("tr", {}, el("td", { class: "at dim" }, clock(e.at)), td(e.text)));
  show("job",
    el("section", {}, el("h2", {}, el("a", { href: "#" }, "←"), `Job ${view.id}${taskOf(view) ? ` (${taskOf(view)})` : ""}:`, el("bdi", {}, view.name), state(view.state), named(view.user), ...buttons),
      el("p", {}, why(view) || answer.text, answer.next_step ? el("span", { class: "dim" }, ` · ${answer.next_step}`) : ""), timeline(view, detail.story, detail.now)),
    el("div", { class: "two-columns" },
      el("section", {}, el("h2", {}, "What it has and had"), facts([
        ["GPUs", `${view.gpus}${view.nodes > 1 ? ` over ${view.nodes} servers` : ""}`], ["on", view.hosts.join(", ")], ["model", view.gpu_model], ["share", view.tickets ? `${gpus(view.entitled_gpus)} GPUs` : ""],
        ["steps", `${view.step}${view.steps_per_s ? `, ${view.steps_per_s.toFixed(2)} a second` : ""}`], ["GPU time", span(view.gpu_s)],
        ["submitted", new Date(view.submitted_at * 1000).toLocaleString()], ["started", view.started_at ? new Date(view.started_at * 1000).toLocaleString() : ""],
        ["checkpoint", whole(view.checkpoint_step) >= 0 && view.checkpoint_on.length ? `of step ${view.checkpoint_step}, on ${view.checkpoint_on.join(", ")}` : ""], ["note", view.note]])),
      el("section", {}, el("h2", {}, "What switching costs it"), facts([
        ["suspends", mean(view.suspend_s, whole(view.suspends))], ["resumes", mean(view.resume_s, whole(view.resumes))], ["moves", `${view.migrations}`], ["suspended last by", view.tier === "none" ? "" : view.tier],
        ["lost work", el("span", { class: view.lost_gpu_s >= 1 ? "bad" : "good" }, `${view.lost_gpu_s.toFixed(0)} GPU-seconds`)]]),
        el("h3", {}, `Rates of its class (${detail.job_class})`), table(["model", { text: "steps/s", num: true }, { text: "against the slowest", num: true }, { text: "measured", num: true }], rates, "Not measured yet."))),
    el("section", {}, el("h2", {}, "End of its log"), el("pre", { "data-key": id }, log)),
    el("section", {}, el("h2", {}, "Its story"), table(["at", "what"], story, "Nothing is known of it any more.")));
  const pre = by("job").querySelector("pre");
  pre.scrollTop = scrolled ?? pre.scrollHeight;
  return null;
}

// --- again and again

let waiting = 0;

async function turn() {
  clearTimeout(waiting);
  const began = performance.now();
  try {
    if (!document.hidden || seen === null) {
      await look();
      await draw();
    }
  } catch (error) {
    if (error instanceof Refused && error.message === "signed out") return;
    show("banner", error instanceof TypeError ? "The controller does not answer; agents and jobs go on." : `${error.message}`);
  }
  waiting = setTimeout(turn, Math.max(EVERY_MS, 10 * (performance.now() - began)));
}

by("pool").addEventListener("change", () => { pool = by("pool").value; if (seen) drawCharts(); });
by("filter").addEventListener("input", () => { if (seen) drawJobs(); });
by("server").addEventListener("input", () => { if (seen) drawServers(); });
by("users").addEventListener("input", () => { if (seen) drawWho(); });
by("users").addEventListener("change", turn); // the charts are of others now
by("filter").addEventListener("change", turn); // among all jobs
by("out").addEventListener("click", async () => { await fetch("/logout", { method: "POST" }); location.replace("/login"); });
window.addEventListener("hashchange", turn);
document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(); });
turn();
