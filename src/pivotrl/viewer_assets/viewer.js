"use strict";
/* Data come as `pivotrl(key, JSON)` from data/*.js. What they hold enters the page by `el` alone, as visible text. */
const FOLD = 1200, MORE = 50000, ROW = 24, KEPT = 40, LONGEST = 20000;
const SIGNS = {
  pivot: "◆", solved: "●", too_easy: "◕", doubtful: "◇", over_quota: "◈", low_spread: "≈", flat: "▬", hopeless: "○",
  unscored: "?", "not profiled": "·",
};
const $ = (id) => document.getElementById(id);
const sign = (state) => SIGNS[state] ?? "–";
const words = (state) => state.replaceAll("_", " ");
const number = (value) => value.toLocaleString("en");
const plain = (value) => (value === null ? "unknown" : String(Math.round(value * 1000) / 1000));
const outcome = (value) => (value === null ? "outcome unknown" : value === 1 ? "full reward" : "less than full reward");
const escape = (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
const visible = (value) => value.replace(/(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, escape);
function el(tag, name, ...children) {
  const node = Object.assign(document.createElement(tag), { className: name });
  node.append(...children.map((one) => (one instanceof Node ? one : visible(String(one).slice(0, LONGEST)))));
  return node;
}
const short = (name) => [...name].length > 30 ? `${[...name].slice(0, 14).join("")}…${[...name].slice(-14).join("")}` : name;
const many = (tag, values) => values.map((one) => el(tag, "", one));
const folded = (title, ...inside) => el("details", "", el("summary", "", title), ...inside);
const button = (name, label, act) => Object.assign(el("button", name, label), { onclick: act });
function long(value, first = FOLD) {
  const more = button("more", "", () => grow(MORE)), box = el("pre", "", more);
  let shown = 0;
  const grow = (size) => {
    more.before(visible(value.slice(shown, shown += size)));
    more.hidden = shown >= value.length;
    more.textContent = `${number(value.length - shown)} more characters`;
  };
  grow(first);
  return box;
}

/* Data */
const chunks = new Map(), waiting = new Map();
const policy = window.trustedTypes?.createPolicy("pivotrl", { createScriptURL: (name) => name });
window.pivotrl = (key, json) => waiting.get(key)?.(JSON.parse(json));
function load(key) {
  if (!chunks.has(key)) chunks.set(key, new Promise((done) => {
    const script = document.createElement("script"), name = `data/${key}.js`;
    waiting.set(key, done);
    script.onload = () => script.remove();
    script.onerror = () => done({ error: "This could not be loaded; is `pivotrl view` still running?" }, chunks.delete(key));
    script.src = policy ? policy.createScriptURL(name) : name;
    document.head.append(script);
  }));
  if (chunks.size > KEPT) chunks.delete(chunks.keys().next().value);
  return chunks.get(key);
}

/* The list. Its items are turns by number, and headings as ~trajectory */
let index, items = [], places = new Map(), current = -1, opened = true, texts = null;
const idOf = (at) => index.trajectories.id[index.turns.trajectory[at]];
const turnId = (at) => `${idOf(at)}@${index.turns.turn[at]}`;
const stateOf = (at) => index.turns.state[at];
function matches() {
  const { trajectories, turns } = index, found = [];
  const [state, tool, split, result] = ["state", "tool", "split", "outcome"].map((id) => $(id).value);
  const wanted = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length) texts ??= turns.trajectory.map((t, at) =>
    [turnId(at), trajectories.task[t], trajectories.title[t], turns.label[at]].join("\n").toLowerCase());
  turns.trajectory.forEach((t, at) => {
    if (state && stateOf(at) !== state || tool && !turns.tools[at].includes(tool)) return;
    if (split && trajectories.split[t] !== split || result && outcome(trajectories.outcome[t]) !== result) return;
    if (!wanted.every((one) => texts[at].includes(one))) return;
    if (!found.length || turns.trajectory[found.at(-1)] !== t) found.push(~t);
    found.push(at);
  });
  return found;
}
function filter() {
  items = matches();
  places = new Map(items.map((item, place) => [item, place]));
  const heads = items.filter((item) => item < 0).length;
  $("count").textContent = `${number(items.length - heads)} turns in ${number(heads)} trajectories`;
  $("rows").style.height = `${items.length * ROW}px`;
  reveal();
}
function row(item, place) {
  const { trajectories, turns } = index, node = el("div", item < 0 ? "row head" : "row turn");
  node.style.top = `${place * ROW}px`;
  node.onclick = () => go(items[item < 0 ? place + 1 : place], true);
  if (item < 0) {
    const won = trajectories.outcome[~item], note = won === null || won === 1 ? "  " : `  outcome ${plain(won)}  `;
    node.title = visible(trajectories.id[~item]);
    node.append(el("bdi", "", short(trajectories.id[~item])), note, el("bdi", "dim", trajectories.title[~item]));
    return node;
  }
  const mean = turns.mean[item], bar = el("span", mean === null ? "" : "bar"), label = el("bdi", "", turns.label[item]);
  bar.style.setProperty("--mean", `${(mean ?? 0) * 100}%`);
  node.append(el("span", "", sign(stateOf(item))), bar, el("span", "dim", mean?.toFixed(2) ?? ""), label);
  return Object.assign(node, { role: "option", ariaSelected: item === current, title: visible(`${turnId(item)}: ${words(stateOf(item))}`) });
}
function draw() {
  const list = $("list"), first = Math.max(0, Math.floor(list.scrollTop / ROW) - 10);
  const some = items.slice(first, first + Math.ceil(list.clientHeight / ROW) + 20);
  $("rows").replaceChildren(...some.map((item, nth) => row(item, first + nth)));
}
function reveal() {
  const list = $("list"), top = (places.get(current) ?? NaN) * ROW, bottom = list.scrollTop + list.clientHeight;
  if (top < list.scrollTop + ROW || top > bottom - 2 * ROW) list.scrollTop = top - list.clientHeight / 3;
  draw();
}
function step(by, whole) {
  const mine = index.turns.trajectory[current], fits = (item) => item >= 0 && (!whole || index.turns.trajectory[item] !== mine);
  let place = (places.get(current) ?? -1) + by;
  while (place in items && !fits(items[place])) place += by;
  if (whole && by < 0) while (items[place - 1] >= 0) place--;
  if (place in items) go(items[place]);
}

/* The conversation */
async function go(at, open = opened) {
  [current, opened] = [at, open];
  const id = encodeURIComponent(idOf(at)).replaceAll("%3A", ":").replaceAll("%2F", "/");
  history.replaceState(null, "", `#${id}@${index.turns.turn[at]}`);
  reveal();
  const t = index.turns.trajectory[at], block = index.trajectories.block[t], told = await load(String(block));
  if (current !== at) return;
  if (told.error) say(visible(told.error));
  else show(told[t - index.trajectories.block.indexOf(block)], at, index.turns.trajectory.indexOf(t));
}
function say(...parts) {
  $("conversation").replaceChildren(...parts);
  $("conversation").dataset.id = "";
  $("comparison").hidden = true;
}
function show({ trajectory, turns }, at, first) {
  const box = $("conversation"), turn = index.turns.turn[at], order = Object.keys(turns);
  if (box.dataset.id !== trajectory.id) {
    const mark = (place) => button("badge", "", () => go(first + order.indexOf(String(place)), true));
    box.replaceChildren(heading(trajectory), ...trajectory.messages.map((one, place) => message(one, place, turns[place], mark(place))));
    box.dataset.id = trajectory.id;
  }
  $("comparison").hidden = !opened;
  $("comparison").replaceChildren(...(opened ? comparison(trajectory.messages[turn], turns[turn], at) : []));
  for (const one of box.children) one.classList.toggle("picked", one.dataset.turn === String(turn));
  const picked = box.querySelector(".picked");
  picked.scrollIntoView({ block: picked.offsetHeight > box.clientHeight / 2 ? "start" : "center" });
}
function heading({ id, source, tools, task_id, parent_id, domain, outcome }) {
  const file = `${source.file}:${source.line ?? source.index ?? ""} (${source.format})`;
  const facts = Object.entries({ task: task_id, outcome, domain, "segment of": parent_id, source: file }).filter((one) => one[1] !== null);
  const told = tools?.map((one) => folded(one.name, long(`${one.description}\n${JSON.stringify(one.parameters, null, 1)}`)));
  return el("div", "", el("h2", "", el("bdi", "", id)), el("p", "dim", facts.map((one) => one.join(" ")).join("; ")),
    told ? folded(`${told.length} tools`, ...told) : "tools unknown");
}
function message(one, place, about, mark) {
  const name = el("span", "dim", `${one.name ?? ""} ${one.error ? "(error) " : ""}@${place}`), title = el("h3", "", one.role, name);
  name.title = `message ${place} of this trajectory, counted from 0`;
  const node = el("article", `message ${one.role}`, title, ...action(one), ...one.omitted.map((what) => el("p", "dim", `not text: ${what}`)));
  node.dataset.turn = place;
  if (about) title.append(mark);
  mark.append(visible(about ? `${sign(about.state)} ${about.profile?.mean?.toFixed(2) ?? ""} ${words(about.state)}` : ""));
  return node;
}
function action({ text, content = text, reasoning, calls, tool_calls = calls }) {
  const rows = (call) => values(call).map(([name, value]) => el("tr", "", el("th", "", name), el("td", "", long(value))));
  return [
    reasoning ? folded("reasoning", long(reasoning)) : "", content ? long(content) : "",
    ...tool_calls.map((call) => el("div", "call", el("code", "", call.name), el("table", "", ...rows(call)))),
  ];
}

/* Arguments as text: numbers as they were written, strings in quotes only where they could be taken for something else */
const exact = (_, value, from) => (typeof value === "number" && from && JSON.rawJSON ? JSON.rawJSON(from.source) : value);
const parsed = (text) => { try { return JSON.parse(text, exact); } catch { return undefined; } };
function written(value) {
  const short = JSON.stringify(value);
  if (typeof value !== "string") return short.length < 60 ? short : JSON.stringify(value, null, 1);
  const bare = value.includes("\n") || (value && value.trim() === value);
  return bare && parsed(value) === undefined ? value : short;
}
function values(call) {
  const found = parsed(call.arguments), object = found && typeof found === "object" && !JSON.isRawJSON?.(found);
  if (!object || Array.isArray(found)) return [["arguments", call.arguments ?? "(none given)"]];
  return Object.entries(found).map(([name, value]) => [name, written(value)]);
}

/* The comparison */
function comparison({ content, reasoning, tool_calls }, { profile, samples, state, detail }, at) {
  const facts = [`${sign(state)} ${words(state)}`, index.meanings[state]?.replace("PIVOTS: ", ""), detail];
  if (profile) facts.push(`mean reward ${plain(profile.mean)} of ${profile.n} scored`, `${profile.distinct_actions} distinct actions`);
  for (const kind of ["unscored", "truncated", "unparsable"]) if (profile?.[kind]) facts.push(`${profile[kind]} ${kind}`);
  const demonstrated = { text: content, reasoning, calls: tool_calls }, total = samples.flatMap((some) => some.samples).length;
  return [
    el("h2", "", el("bdi", "", turnId(at)), button("badge", "Close (Esc)", () => go(at, false))),
    el("p", "dim", facts.filter(Boolean).join("; ")), el("article", "assistant", el("h3", "", "demonstration"), ...action(demonstrated)),
    ...samples.map((some) => sample(some, demonstrated, total)), total ? "" : "Nothing was sampled here.",
  ];
}
function sample({ samples, verdict, action: done, text, finish_reason, parse_error }, demonstrated, total) {
  const value = verdict?.value ?? null, look = { 1: "right", 0: "wrong" }[value] ?? "part";
  const mark = { right: "✓", wrong: "✗" }[look] ?? (value === null ? "?" : "◐"), times = `${samples.length} of ${total}`;
  const failed = { length: "truncated", error: "the call failed" }[finish_reason] ?? (done ? "" : "no action");
  const title = [el("span", "sign", `${mark} reward ${plain(value)}`), ...(verdict ? word(verdict) : ["not judged"])];
  return el("article", `sample ${look}`, el("h3", "", ...title, el("span", "badge", times)), ...(verdict ? told(verdict) : []),
    failed ? el("p", "dim", `${failed} ${parse_error ?? ""}`) : "", text ? long(text) : "",
    done?.reasoning ? folded("reasoning", long(done.reasoning)) : "", done ? pairs(demonstrated, done) : "");
}

const word = ({ reason, verifier, version }) => [reason, el("span", "dim", ` ${verifier} ${version}`)];
function told({ detail, parts = [] }) {
  const inside = parts.map((one) => el("li", "", `reward ${plain(one.value)} `, ...word(one), ...told(one)));
  return [detail ? long(detail, 400) : "", parts.length ? el("ul", "", ...inside) : ""];
}
function pairs(one, other) {
  const rows = one.text || other.text ? [["text", one.text || undefined, other.text || undefined]] : [], left = [...other.calls];
  const like = (a, b) => (a.name === b.name) + (a.name === b.name && a.arguments === b.arguments);
  const take = (call) => left.sort((a, b) => like(call, b) - like(call, a)).shift();
  const both = one.calls.map((call) => [call, take(call)]);
  for (const [a, b] of [...both, ...left.map((call) => [undefined, call])]) {
    const [mine, theirs] = [a, b].map((call) => new Map(call ? values(call) : []));
    rows.push(["tool", a?.name, b?.name]);
    for (const name of new Set([...mine.keys(), ...theirs.keys()])) rows.push([name, mine.get(name), theirs.get(name)]);
  }
  if (rows.every(([, a, b]) => a === b)) return el("p", "dim", "the same as the demonstration");
  const line = ([name, a, b]) => el("tr", a === b ? "same" : "", el("th", "", name), ...cells(a, b));
  return el("table", "pairs", el("tr", "dim", ...many("td", ["", "demonstration", "sampled"])), ...rows.map(line));
}
function cells(a, b) {
  const wide = (inside) => Object.assign(el("td", "", inside), { colSpan: 2 });
  if (a === b) return [wide(long(a, 200))];
  if (a === undefined || b === undefined || a.length + b.length > LONGEST) {
    return [a, b].map((value, side) => el("td", "", value === undefined ? "—" : el(side ? "ins" : "del", "", long(value))));
  }
  if (/\n/.test(a + b) || a.length + b.length > 160) return [wide(lines(a.split("\n"), b.split("\n")))];
  const parts = diff(tokens(a), tokens(b));
  return [0, 1].map((side) => el("td", "", el("pre", "", ...marked(parts, side))));
}

const tokens = (text) => text.match(/[\p{L}\p{N}_]+|\s+|./gsu) ?? [];
const marked = (hunks, side) => hunks.map(([alike, ...texts]) =>
  alike ? texts[0].join("") : el(side ? "ins" : "del", "", texts[side].join("")));
function lines(a, b) {
  return el("pre", "", ...diff(a, b).flatMap(([alike, gone, come]) => {
    const some = gone.length > 8 ? [...gone.slice(0, 3), `… ${gone.length - 6} lines alike …`, ...gone.slice(-3)] : gone;
    if (alike) return [el("div", "alike", some.join("\n"))];
    const inside = diff(tokens(gone.join("\n")), tokens(come.join("\n")));
    return [gone, come].map((one, side) => (one.length ? el("div", side ? "come" : "gone", ...marked(inside, side)) : ""));
  }));
}

/* Hunks [alike, of a, of b] of two lists, by their longest common subsequence; long lists are one hunk */
function diff(a, b) {
  const width = b.length + 1, size = (a.length + 1) * width, best = size > 4e6 ? null : new Uint16Array(size), hunks = [];
  for (let i = a.length; best && i--;) for (let at = i * width + b.length; at-- > i * width;) {
    best[at] = a[i] === b[at - i * width] ? best[at + width + 1] + 1 : Math.max(best[at + width], best[at + 1]);
  }
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    const at = i * width + j, alike = Boolean(best) && i < a.length && j < b.length && a[i] === b[j];
    const mine = j === b.length || (i < a.length && (!best || best[at + width] >= best[at + 1]));
    if (hunks.at(-1)?.[0] !== alike) hunks.push([alike, [], []]);
    if (alike || mine) hunks.at(-1)[1].push(a[i++]);
    if (alike || !mine) hunks.at(-1)[2].push(b[j++]);
  }
  return hunks;
}

/* The start, and keys */
function options(id, values, label = words) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  $(id).append(...sorted.map(([value, size]) => Object.assign(el("option", "", `${label(value)} (${number(size)})`), { value })));
  return sorted;
}
function legend(counts) {
  const pick = (state) => button("", words(state), () => { $("state").value = state; filter(); });
  return el("table", "", ...counts.map(([state, size]) =>
    el("tr", "", ...many("td", [sign(state), pick(state), number(size), index.meanings[state] ?? ""]))));
}
function follow() {
  let hash = location.hash.slice(1);
  try { hash = decodeURIComponent(hash); } catch { /* as it is */ }
  const at = index.turns.turn.findIndex((turn, at) => hash.endsWith(`@${turn}`) && turnId(at) === hash);
  if (at >= 0) go(at, true);
  else if (hash) say(`This run has no turn ${visible(hash)}.`);
}
async function start() {
  index = await load("index");
  if (index.error) return say(visible(index.error));
  const { trajectories, turns } = index;
  for (const [column, names] of [["state", "states"], ["tools", "toolsets"]]) turns[column] = turns[column].map((at) => index[names][at]);
  document.title = `${index.run} - PivotRL`;
  $("run").append(visible(index.run));
  $("about").append(...Object.entries(index.about).map(([name, value]) => el("div", "", el("dt", "", name), el("dd", "", value))));
  const states = options("state", turns.state, (state) => `${sign(state)} ${words(state)}`);
  options("tool", turns.tools.flat(), String);
  options("split", turns.trajectory.map((t) => trajectories.split[t]));
  options("outcome", turns.trajectory.map((t) => outcome(trajectories.outcome[t])));
  say(el("h2", "", "What became of the turns"), legend(states), "Choose a turn, or press j. Keys: ?");
  filter();
  follow();
}

const KEYS = {
  j: () => step(1), k: () => step(-1), J: () => step(1, true), K: () => step(-1, true), "?": () => $("help").showModal(),
  "/": () => { $("search").focus(); $("search").select(); }, Enter: () => (current < 0 ? step(1) : go(current, true)), Escape: () => current < 0 || go(current, false),
};

onkeydown = (event) => {
  const within = (what) => event.target.closest(what), leaves = ["Enter", "Escape"].includes(event.key), typing = within("input, select");
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS) || within("dialog[open]")) return;
  if (typing && !leaves || event.key === "Enter" && within("button, summary")) return;
  event.preventDefault();
  if (!typing) return KEYS[event.key]();
  $("list").focus();
  if (event.key === "Enter" && items.length) go(items[1], true);
};
$("filters").oninput = filter;
$("filters").onreset = () => setTimeout(filter);
$("filters").onsubmit = (event) => event.preventDefault();
$("help-button").onclick = KEYS["?"];
$("list").onscroll = () => requestAnimationFrame(draw);
onresize = draw;
onhashchange = follow;
start();
