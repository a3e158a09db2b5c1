"use strict";
// The console's page: receives snapshots as server-sent events and renders them.
//
// Names, locations and wait reasons come from the inspected program and are untrusted: they reach the document as text nodes only.
// A snapshot is first merged into `tasks` and `loops` (rates need the previous one), then drawn in one animation frame. The task
// list is virtual: only the rows in view exist, so a snapshot costs one sort of the tasks plus about thirty rows.
const $ = (id) => document.getElementById(id);
const el = (tag, cls, ...children) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  node.append(...children);
  return node;
};
/* Writes only what changed: most cells stay the same from one snapshot to the next. */
const text = (node, value) => {
  if (node.shown !== value) node.textContent = node.shown = value;
};
const attr = (node, name, value) => {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
};
/* Control characters and bidirectional overrides would let a name disguise itself. */
const clean = (s) => String(s).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
const store = {
  get(key) { try { return localStorage.getItem("windlass." + key); } catch { return null; } },
  set(key, value) {
    try {
      if (value === null) localStorage.removeItem("windlass." + key);
      else localStorage.setItem("windlass." + key, value);
    } catch { /* storage is disabled: the choice lasts until the page is closed */ }
  },
};

// ---- Formats ----
const known = (x) => typeof x === "number" && isFinite(x);
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const digits = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));
const count = (x) => (!known(x) ? "–" : x < 1e7 ? whole.format(x) : x < 1e10 ? digits(x / 1e6) + " M" : digits(x / 1e9) + " G");
const rate = (x) => (!known(x) ? "–" : x === 0 ? "0" : x < 10 ? x.toFixed(1) : x < 1e5 ? whole.format(x) : digits(x / 1e3) + " k");
const share = (x) => (!known(x) ? "–" : x === 0 ? "0 %" : x < 0.001 ? "< 0.1 %" : (100 * x).toFixed(x < 0.1 ? 1 : 0) + " %");
const bytes = (x) => (!known(x) ? "–" : x < 1 << 20 ? (x / 1024).toFixed(0) + " KiB" : x < 2 ** 30 ? digits(x / 2 ** 20) + " MiB" : digits(x / 2 ** 30) + " GiB");
const time = (s) => {
  if (s === Infinity) return "> 1 s";
  if (!known(s)) return "–";
  if (s <= 0) return "0";
  if (s < 1e-6) return (s * 1e9).toFixed(0) + " ns";
  if (s < 0.9995e-3) return digits(s * 1e6) + " µs"; // what rounds to 1000 has the next unit
  if (s < 0.9995) return digits(s * 1e3) + " ms";
  if (s < 60) return digits(s) + " s";
  const t = Math.floor(s), d = Math.floor(t / 86400), h = Math.floor(t / 3600) % 24, m = Math.floor(t / 60) % 60;
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : `${m} min ${t % 60} s`;
};
const micros = (us) => time(us / 1e6);
const edge = (us) => (us < 1000 ? us + " µs" : us < 1e6 ? us / 1000 + " ms" : us / 1e6 + " s");
const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
/* Without the folders of cargo's registry and of the standard library: a path then starts with the crate. */
const cratePath = (at) => at.replace(/^.*\/registry\/src\/[^/]+\/|^\/rustc\/[^/]+\/library\//, "");
/* What fits a column: the end of the path, without the column number. */
const shortPath = (at) => {
  const path = cratePath(at).replace(/(:\d+):\d+$/, "$1");
  return path.length > 30 ? "…/" + path.split("/").slice(-2).join("/") : path;
};

// ---- State ----
const COLUMNS = [
  // key, title, class, key of the server's sort, value
  ["name", "Task", "name", "name", (r) => r.order],
  ["at", "Spawned at", "loc", "name", (r) => r.at],
  ["state", "State", "st", "state", (r) => r.t.state],
  ["waits", "Waits for", "wait", "state", waits],
  ["since", "Since", "num since", "since", (r) => r.t.since_s || 0],
  ["rate", "Polls/s", "num rate", "polls", (r) => r.rate || 0],
  ["polls", "Polls", "num polls", "polls", (r) => r.t.polls],
  ["share", "Busy", "num sh", "busy", (r) => r.share || 0],
  ["busy", "Busy time", "num bt", "busy", (r) => r.t.busy_s],
  ["longest", "Longest poll", "num long", "longest", (r) => r.t.longest_s],
  ["id", "Id", "", "id", (r) => r.t.id],
];
const TEXT_KEYS = ["name", "at", "state", "waits"];
const column = (key) => COLUMNS.find((c) => c[0] === key);
const HISTORY = 120;
const tasks = new Map(); // "loop:id" -> record
const loops = new Map(); // id -> record
let snap = null, held = null, generation = 0, cpu = null, partial = false;
const ui = {
  paused: false, filter: "", only: null, view: store.get("view") === "tree" ? "tree" : "table", sort: "busy", down: true,
  limit: ["500", "2000", "10000"].includes(store.get("limit")) ? store.get("limit") : "500",
  active: null, pane: null, recent: false, closed: new Set(), announced: new Map(),
};
{
  const saved = store.get("sort") || "";
  const key = saved.replace("-", "");
  if (column(key)) { ui.sort = key; ui.down = saved[0] === "-"; }
}

// ---- Connection ----
const query = new URLSearchParams(location.search);
const token = query.get("token");
if (token !== null) {
  history.replaceState(null, "", location.pathname);
  $("links").hidden = true; // links carry no Authorization header
}
let source = null, address = "", failures = 0, retryAt = 0, retryTimer = 0, reason = "";

function url() {
  const q = new URLSearchParams({ limit: ui.limit });
  // The browser sorts and filters by itself as long as it gets all tasks.
  if (partial) {
    q.set("sort", (ui.down ? "-" : "") + column(ui.sort)[3]);
    if (ui.filter) q.set("filter", ui.filter);
    if (ui.pane && ui.pane.kind === "task") q.set("follow", ui.pane.id);
  }
  if (token !== null) q.set("token", token);
  return "/events?" + q;
}
function connect() {
  clearTimeout(retryTimer);
  if (source) source.close();
  address = url();
  const mine = source = new EventSource(address);
  mine.addEventListener("snapshot", (e) => { if (mine === source) receive(e.data); });
  mine.onerror = () => { if (mine === source) lost(mine.readyState === EventSource.CLOSED); };
  showLink();
}
/* Asks the server again when what it must sort, filter or include has changed. */
const requery = (() => {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(() => { if (source && url() !== address) connect(); }, 250);
  };
})();
function lost(refused) {
  source.close();
  source = null;
  failures += 1;
  const wait = Math.min(10000, 500 * 2 ** Math.min(failures - 1, 5)) * (0.8 + 0.4 * Math.random());
  retryAt = Date.now() + wait;
  retryTimer = setTimeout(connect, wait);
  reason = "";
  if (refused) explain();
  showLink();
}
/* An EventSource hides the status of a refused request; one plain request tells it. */
async function explain() {
  const stop = new AbortController();
  try {
    const { status } = await fetch(address, { signal: stop.signal });
    if (status === 401 || status === 403) reason = "The console requires a token: open it as /?token=… again.";
    else if (status === 503 || status === 429) reason = "The console has reached its limit of viewers.";
    else if (status !== 200) reason = `The console answered with status ${status}.`;
    showLink();
  } catch { /* unreachable: the general text holds */ } finally { stop.abort(); }
}
function showLink() {
  const lostNow = !source || failures > 0;
  const kind = lostNow ? "lost" : ui.paused ? "paused" : snap ? "live" : "connecting";
  $("link").className = "link " + kind;
  text($("link-text"), { lost: "Reconnecting", paused: "Paused", live: "Live", connecting: "Connecting" }[kind]);
  $("notice").hidden = !lostNow;
  if (lostNow) {
    const left = Math.ceil((retryAt - Date.now()) / 1000);
    text($("notice").firstElementChild, (reason || (snap ? "Connection lost." : "The console cannot be reached.")) +
      (snap ? ` Data of ${clock(snap.at_ms)}.` : "") + (!source && left > 0 ? ` Next attempt in ${left} s.` : " Connecting now."));
  }
}
setInterval(() => { if (!source || failures) showLink(); }, 500);

// ---- Snapshots ----
function receive(data) {
  const start = performance.now();
  let next;
  try { next = JSON.parse(data); } catch { return; }
  if (next.v !== 1) {
    reason = `This page does not understand version ${next.v} of the snapshots.`;
    return;
  }
  failures = 0;
  reason = "";
  if (ui.paused) { held = next; announce(next); } else { ingest(next); draw(performance.now() - start); }
  showLink();
}

function ingest(next) {
  if (snap && (next.pid !== snap.pid || next.uptime_s < snap.uptime_s - 1)) { tasks.clear(); loops.clear(); ui.announced.clear(); cpu = null; }
  const p = next.process || {};
  if (snap && snap.process && next.at_ms > snap.at_ms && next.pid === snap.pid) {
    const used = (p.cpu_s - snap.process.cpu_s) / ((next.at_ms - snap.at_ms) / 1000);
    cpu = known(used) && used >= 0 ? used : null;
  }
  snap = next;
  generation += 1;
  let total = 0, shown = 0;
  next.loops.sort((a, b) => (a.shard ?? -1) - (b.shard ?? -1) || a.id - b.id); // shards start in any order
  for (const raw of next.loops) {
    mergeLoop(raw, next.at_ms);
    total += raw.tasks_matching ?? raw.tasks_total;
    shown += raw.tasks.length;
  }
  for (const [id, l] of loops) if (l.seen !== generation) loops.delete(id);
  for (const [key, r] of tasks) {
    if (r.seen === generation) continue;
    if (ui.pane && ui.pane.key === key) r.gone = true;
    else {
      tasks.delete(key);
      if (loops.has(r.loop)) loops.get(r.loop).tasks.delete(r.t.id);
    }
  }
  const filtered = address.includes("filter=");
  if (!filtered && partial !== shown < total) { partial = shown < total; requery(); }
  announce(next);
}

function mergeLoop(raw, now) {
  let l = loops.get(raw.id);
  if (!l) loops.set(raw.id, l = { id: raw.id, tasks: new Map(), history: [], sampled: -1 });
  // A stalled loop repeats its last snapshot: rates refer to the time at which it was taken.
  // Before its first snapshot the age is null and the numbers are zero.
  const sampled = now - 1000 * raw.snapshot_age_s, span = (sampled - l.sampled) / 1000;
  const fresh = known(raw.snapshot_age_s) && (l.sampled < 0 || span > 0.1);
  if (fresh && l.sampled >= 0) {
    const a = l.raw, d = (k) => raw.times[k] - a.times[k];
    const all = d("idle_s") + d("driver_s") + d("running_s");
    l.busy = all > 0 ? Math.max(0, d("running_s") / all) : null;
    l.driver = all > 0 ? Math.max(0, d("driver_s") / all) : null;
    l.turnRate = (raw.counters.turns - a.counters.turns) / span;
    l.pollRate = (raw.counters.polls - a.counters.polls) / span;
  }
  if (fresh) {
    l.history.push({ at: sampled, turn: raw.turn_us.counts, wake: raw.wake_us.counts });
    while (l.history.length > 2 && l.history[1].at <= sampled - 10000) l.history.shift();
    l.sampled = sampled;
  }
  l.raw = raw;
  l.seen = generation;
  l.label = clean(raw.name || "loop " + raw.id);
  const keep = raw.tasks.length <= 2000;
  for (const t of raw.tasks) mergeTask(l, t, fresh, span, keep);
  // The tasks are as of before the stall; this much is known about the present.
  for (const s of raw.stalls || []) {
    const r = s.ongoing && s.task && l.tasks.get(s.task.id);
    if (r) Object.assign(r.t, { state: "running", waits: [], since_s: s.duration_s });
  }
}

function mergeTask(l, t, fresh, span, keep) {
  let r = l.tasks.get(t.id);
  const before = r && r.t;
  if (!r) {
    l.tasks.set(t.id, r = { key: l.id + ":" + t.id, loop: l.id, rate: null, share: null, rates: [], shares: [], waiting: null, waits: "" });
    tasks.set(r.key, r);
  }
  if (!before || before.name !== t.name || before.at !== t.at) {
    r.label = t.name === null || t.name === undefined || t.name === "" ? "task " + t.id : clean(t.name);
    r.named = r.label !== "task " + t.id;
    r.at = clean(t.at || "");
    r.path = shortPath(r.at);
    r.hay = (r.label + "\n" + r.at).toLowerCase();
    r.order = r.label.slice(0, 200).toLowerCase().replace(/\d+/g, (n) => n.padStart(9, "0")); // 9 comes before 10
  }
  if (fresh && before) {
    r.rate = Math.max(0, (t.polls - before.polls) / span);
    r.share = Math.min(1, Math.max(0, (t.busy_s - before.busy_s) / span));
    if (keep || (ui.pane && ui.pane.key === r.key)) {
      r.rates.push(r.rate);
      r.shares.push(r.share);
      if (r.rates.length > HISTORY) { r.rates.shift(); r.shares.shift(); }
    }
  }
  r.t = t;
  r.seen = generation;
  r.gone = false;
}

/* Joined on demand: few of many tasks are in view. */
function waits(r) {
  if (r.waiting !== r.t) {
    r.waiting = r.t;
    r.waits = r.t.waits && r.t.waits.length ? clean(r.t.waits.join(", ")) : "";
  }
  return r.waits;
}
const loopName = (id) => (loops.has(id) ? loops.get(id).label : "loop " + id);
const spawnedAt = (s) => (s.task && s.task.at ? clean(s.task.at) : "");
const culprit = (s) => (s.task ? (s.task.name ? clean(s.task.name) : "task " + s.task.id) : clean(s.what || "unknown"));
function stallsOf(from, only) {
  const all = [];
  for (const l of from.loops) if (only === null || l.id === only) for (const s of l.stalls || []) all.push({ s, loop: l.id, key: l.id + ":" + s.id });
  return all.sort((a, b) => b.s.ongoing - a.s.ongoing || b.s.began_ms - a.s.began_ms);
}
/* Each stall is announced when it is first seen and when it ends, not each time its duration grows. */
function announce(from) {
  for (const { s, loop, key } of stallsOf(from, null)) {
    const before = ui.announced.get(key);
    if (s.ongoing && !before) text($("alert"), `Loop ${loopName(loop)} is stalled by ${culprit(s)}${spawnedAt(s) && ", spawned at " + spawnedAt(s)}.`);
    if (!s.ongoing && before === "ongoing") {
      text($("alert"), "");
      text($("status"), `The stall of loop ${loopName(loop)} ended after ${time(s.duration_s)}.`);
    }
    ui.announced.set(key, s.ongoing ? "ongoing" : "ended");
  }
}

// ---- Drawing ----
let queued = false, spent = 0;
function draw(before = 0) {
  spent += before;
  if (queued) return;
  queued = true;
  // A hidden page gets no animation frames, but its title must still show a stall.
  if (document.hidden) setTimeout(drawNow, 0); else requestAnimationFrame(drawNow);
}
function drawNow() {
  queued = false;
  if (!snap) return;
  const start = performance.now();
  drawHeader();
  if (!document.hidden) {
    drawLoops();
    drawStalls();
    drawHistograms();
    drawTasks();
    drawSide();
    drawPane();
  }
  document.body.dataset.snapshot = generation;
  document.body.dataset.renderMs = (performance.now() - start + spent).toFixed(1);
  spent = 0;
}

const facts = (list, entries) => {
  entries.forEach(([name, value, cls], i) => {
    let box = list.children[i];
    if (!box) list.append(box = el("div", "", el("dt"), el("dd")));
    text(box.firstChild, name);
    text(box.lastChild, value);
    if (box.lastChild.className !== (cls || "")) box.lastChild.className = cls || "";
  });
  while (list.children.length > entries.length) list.lastChild.remove();
};

function drawHeader() {
  const p = snap.process || {};
  text($("program"), clean(snap.program));
  attr($("program"), "title", clean(snap.program));
  text($("version"), `pid ${snap.pid} · windlass ${clean(snap.windlass)}`);
  const full = p.descriptor_limit && p.descriptors / p.descriptor_limit > 0.8;
  facts($("vitals"), [
    ["Uptime", time(snap.uptime_s)], ["Memory", bytes(p.rss_bytes)], ["CPU", share(cpu)],
    ["Descriptors", count(p.descriptors) + (p.descriptor_limit ? " / " + count(p.descriptor_limit) : ""), full ? "warn" : ""], ["Threads", count(p.threads)],
    ["Tasks", count(snap.loops.reduce((n, l) => n + l.tasks_total, 0))],
  ]);
  const now = stallsOf(snap, null).filter((x) => x.s.ongoing);
  document.title = (now.length ? "⚠ stalled · " : "") + clean(snap.program) + " · windlass console";
  const box = $("alarm");
  box.hidden = !now.length;
  // Of many stalled loops the first is named; the list has all of them.
  const named = now.length > 2 ? [now[0], { more: now.length - 1 }] : now;
  rowsOf(box, named, () => el("div", "", el("strong"), el("span", "who"), el("span", "mono"), el("button", "", "Show the stack")), (row, { s, loop, key, more }) => {
    const [head, who, at, open] = row.children;
    who.hidden = at.hidden = open.hidden = !!more;
    if (more) return text(head, `${count(more)} more loops are stalled`);
    text(head, `Loop ${loopName(loop)} is stalled: ${time(s.duration_s)}`);
    text(who, `by ${culprit(s)}` + (spawnedAt(s) && ", spawned at"));
    text(at, spawnedAt(s));
    open.type = "button";
    open.dataset.stall = key;
  });
  text($("stamp"), `Snapshot of ${clock(snap.at_ms)}`);
}

/* Makes a container have one child for each item and updates all of them in place. */
function rowsOf(box, items, make, update) {
  while (box.children.length > items.length) box.lastChild.remove();
  items.forEach((item, i) => update(box.children[i] || box.appendChild(make()), item, i));
}

// ---- Loops ----
const colors = {};
function readColors() {
  const probe = el("i");
  document.body.append(probe);
  for (const name of ["text", "dim", "line", "bar", "warn-bar", "bad-bar", "accent"]) {
    probe.style.color = `var(--${name})`;
    colors[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}
function canvas2d(node) {
  const ratio = window.devicePixelRatio || 1, w = node.clientWidth, h = node.clientHeight;
  if (node.width !== Math.round(w * ratio) || node.height !== Math.round(h * ratio)) { node.width = Math.round(w * ratio); node.height = Math.round(h * ratio); }
  const c = node.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, w, h);
  return [c, w, h];
}

function makeLoop() {
  const name = el("button", "loop-name"), view = el("canvas", "timeline");
  name.type = "button";
  view.setAttribute("role", "img");
  const node = el("article", "loop", el("div", "loop-top", name, el("span", "pill"), el("span", "driver")), el("p", "why"), el("dl", "stats"),
    el("div", "share-bar", el("i"), el("i")), view);
  name.addEventListener("click", () => pick(node.loop));
  view.addEventListener("pointermove", (e) => hover(node.loop, view, e));
  view.addEventListener("pointerleave", () => { $("tip").hidden = true; view.cursor = null; drawTimeline(loops.get(node.loop), view); });
  view.addEventListener("click", (e) => {
    const hit = stallAt(loops.get(node.loop), view, e.offsetX);
    if (hit) openStall(node.loop + ":" + hit.id);
  });
  resized.observe(view);
  return node;
}
const resized = new ResizeObserver(() => draw());

function drawLoops() {
  const list = [...loops.values()];
  scaleTimelines();
  if (ui.only !== null && !loops.has(ui.only)) ui.only = null;
  rowsOf($("loops"), list, makeLoop, (node, l) => {
    const raw = l.raw, k = raw.counters, [top, why, stats, bar, view] = node.children;
    const stuck = raw.state === "stalled", busy = stuck ? 1 : l.busy, driver = stuck ? 0 : l.driver;
    node.loop = l.id;
    node.className = `loop ${raw.state === "stalled" || raw.state === "closed" ? raw.state : ""}${ui.only === l.id ? " picked" : ""}`;
    text(top.children[0], l.label);
    attr(top.children[0], "aria-pressed", String(ui.only === l.id));
    attr(top.children[0], "title", "Show this loop alone");
    text(top.children[1], raw.state + (raw.snapshot_age_s > 1.5 ? `, data ${time(raw.snapshot_age_s)} old` : ""));
    top.children[1].className = "pill " + (/^\w+$/.test(raw.state) ? raw.state : "");
    text(top.children[2], clean(raw.driver));
    const more = raw.features && raw.features.length ? " · " + clean(raw.features.join(", ")) : "";
    text(why, clean(raw.reason || "") + more);
    attr(why, "title", clean(raw.reason || "") + more);
    facts(stats, [
      ["Running", share(busy)], ["Driver", share(driver)], ["Turns/s", rate(stuck ? 0 : l.turnRate)], ["Polls/s", rate(stuck ? 0 : l.pollRate)], ["Tasks", count(k.tasks)], ["Ready", count(k.ready)],
      ["Timers", count(k.timers)], ["In flight", count(k.in_flight)],
    ]);
    bar.children[0].style.width = 100 * (busy || 0) + "%";
    bar.children[1].style.width = 100 * (driver || 0) + "%";
    attr(bar, "title", `Running tasks ${share(busy)}, in the driver ${share(driver)}, idle for the rest`);
    drawTimeline(l, view);
  });
}

const GUTTER = 44, FLOOR = 15, CEILING = 8;
function scale(l) {
  const t = l.raw.timeline, bins = t.longest_us.length;
  return { t, bins, span: bins * t.bin_ms, from: t.end_ms - bins * t.bin_ms };
}
function stallAt(l, view, x) {
  const { span, from } = scale(l), w = view.clientWidth - GUTTER;
  const slack = (5 / w) * span, at = from + ((x - GUTTER) / w) * span;
  let best = null;
  for (const s of l.raw.stalls || []) {
    const far = Math.max(s.began_ms - at, at - s.began_ms - 1000 * s.duration_s, 0);
    if (far <= slack && (!best || far <= best.far)) best = { far, s };
  }
  return best && best.s;
}
/* The same scale for all loops, so that they can be compared: 100 ms, or more if a turn or a stall was longer. */
let topOfTimelines = 1e5;
function scaleTimelines() {
  topOfTimelines = 1e5;
  for (const l of loops.values()) {
    const { t, from } = scale(l);
    let longest = Math.max(0, ...t.longest_us);
    for (const s of l.raw.stalls || []) if (s.began_ms + 1000 * s.duration_s > from) longest = Math.max(longest, 1e6 * s.duration_s);
    while (topOfTimelines < longest) topOfTimelines *= 10;
  }
}
/* Bars of the longest turn per bin on a logarithmic scale; a stall is a red band with its whole duration as height. */
function drawTimeline(l, view) {
  if (!l) return;
  const { t, bins, span, from } = scale(l), [c, full, h] = canvas2d(view), w = full - GUTTER, low = h - FLOOR;
  const stalls = (l.raw.stalls || []).filter((s) => s.began_ms + 1000 * s.duration_s > from);
  const most = Math.max(0, ...t.longest_us), top = topOfTimelines;
  const decades = Math.log10(top) - 1;
  const y = (us) => low - (low - CEILING) * Math.max(0, Math.min(1, (Math.log10(Math.max(us, 1)) - 1) / decades));
  c.font = "11px " + getComputedStyle(document.body).fontFamily;
  c.textBaseline = "middle";
  c.textAlign = "right";
  for (let us = 10; us <= top; us *= 10) {
    c.fillStyle = colors.line;
    c.fillRect(GUTTER, Math.round(y(us)), w, 1);
    if (decades > 5 && Math.round(Math.log10(us)) % 2) continue;
    c.fillStyle = colors.dim;
    c.fillText(edge(us), GUTTER - 6, Math.max(y(us), 6));
  }
  c.textAlign = "center";
  c.fillStyle = colors.dim;
  c.textBaseline = "alphabetic";
  for (let part = 0; part < 4; part++) c.fillText(`−${Math.round(((span / 1000) * (4 - part)) / 4)} s`, Math.max(GUTTER + (w * part) / 4, GUTTER + 10), h - 2);
  c.textAlign = "right";
  c.fillText("now", full, h - 2);
  const step = w / bins;
  for (let i = 0; i < bins; i++) {
    const us = t.longest_us[i];
    if (!us && !t.turns[i]) continue;
    const head = Math.min(y(us), low - 1.5);
    const begins = from + i * t.bin_ms, stalled = stalls.some((s) => s.began_ms < begins + t.bin_ms && s.began_ms + 1000 * s.duration_s > begins - 20);
    c.fillStyle = us < 10000 ? colors.bar : stalled ? colors["bad-bar"] : colors["warn-bar"];
    c.fillRect(GUTTER + i * step, head, Math.max(step - (step > 3 ? 1 : 0.3), 0.8), low - head);
  }
  for (const s of stalls) {
    const x = Math.max(GUTTER, GUTTER + ((s.began_ms - from) / span) * w);
    const end = s.ongoing ? full : Math.min(full, GUTTER + ((s.began_ms + 1000 * s.duration_s - from) / span) * w);
    const wide = Math.max(end - x, 3), head = y(1e6 * s.duration_s);
    c.fillStyle = colors["bad-bar"];
    c.globalAlpha = 0.16;
    c.fillRect(x, CEILING, wide, low - CEILING);
    c.globalAlpha = 1;
    c.fillRect(x, head, wide, low - head);
    c.beginPath();
    c.moveTo(x + wide / 2 - 4, 0);
    c.lineTo(x + wide / 2 + 4, 0);
    c.lineTo(x + wide / 2, 6);
    c.fill();
  }
  if (known(view.cursor)) {
    c.fillStyle = colors.text;
    c.fillRect(Math.round(view.cursor), CEILING, 1, low - CEILING);
  }
  attr(view, "aria-label", `Longest turn per ${t.bin_ms} ms, last ${Math.round(span / 1000)} s: at most ${micros(most)}, ${plural(stalls.length, "stall")}`);
}
function hover(id, view, e) {
  const l = loops.get(id);
  if (!l) return;
  const { t, bins, span } = scale(l), w = view.clientWidth - GUTTER;
  const i = Math.max(0, Math.min(bins - 1, Math.floor(((e.offsetX - GUTTER) / w) * bins)));
  const hit = stallAt(l, view, e.offsetX);
  view.classList.toggle("hit", !!hit);
  view.cursor = GUTTER + ((i + 0.5) / bins) * w;
  const lines = [`${time((span * (bins - i)) / bins / 1000)} ago`, t.turns[i] ? `longest turn ${micros(t.longest_us[i])}, ${plural(t.turns[i], "turn")}` : "no turn ended"];
  if (hit) lines.push(`stall of ${time(hit.duration_s)}${hit.ongoing ? " so far" : ""}: ${culprit(hit).slice(0, 80)}`, "click to see the stack");
  tip(lines.join("\n"), e.clientX, e.clientY);
  drawTimeline(l, view);
}
function tip(value, x, y) {
  const box = $("tip");
  box.hidden = false;
  text(box, value);
  box.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.offsetWidth - 6)) + "px";
  box.style.top = (y + 18 + box.offsetHeight > innerHeight ? y - box.offsetHeight - 10 : y + 18) + "px";
}
function pick(id) {
  ui.only = ui.only === id ? null : id;
  draw();
}

// ---- Stalls and histograms ----
function drawStalls() {
  const list = stallsOf(snap, ui.only), box = $("stalls");
  const n = list.filter((x) => x.s.ongoing).length;
  text($("stalls-note"), !list.length ? "" : n ? `${count(n)} ongoing` : `${count(list.length)} recorded`);
  if (list.length && box.firstChild && box.firstChild.className === "none") box.replaceChildren();
  rowsOf(box, list, () => {
    const row = el("button", "stall", el("b"), el("span", "who"), el("span", "ago"), el("span", "mono"));
    row.type = "button";
    return row;
  }, (row, { s, loop, key }) => {
    const [long, who, ago, at] = row.children;
    row.className = s.ongoing ? "stall ongoing" : "stall";
    row.dataset.stall = key;
    text(long, time(s.duration_s));
    text(who, culprit(s) + (loops.size > 1 ? " · " + loopName(loop) : ""));
    text(ago, s.ongoing ? "now" : time(Math.max(1, Math.round((snap.at_ms - s.began_ms) / 1000 - s.duration_s))).replace(/\.\d+ s$/, " s") + " ago");
    text(at, cratePath(spawnedAt(s)) || clean(s.what || ""));
  });
  if (!list.length) box.replaceChildren(el("p", "none", `No turn has lasted longer than ${known(snap.stall_limit_s) ? time(snap.stall_limit_s) : "the limit"}.`));
}

function quantile(bounds, counts, q) {
  const want = q * counts.reduce((a, b) => a + b, 0);
  let sum = 0;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] && sum + counts[i] >= want) {
      const low = i ? bounds[i - 1] : 0;
      return { bucket: i, us: i < bounds.length ? low + ((bounds[i] - low) * (want - sum)) / counts[i] : Infinity };
    }
    sum += counts[i];
  }
  return null;
}
function drawHistograms() {
  for (const [id, field, title] of [["turn", "turn_us", "Turn duration"], ["wake", "wake_us", "Wake-to-poll latency"]]) {
    let bounds = null, counts = [];
    for (const l of loops.values()) {
      if (ui.only !== null && l.id !== ui.only) continue;
      const h = l.raw[field];
      bounds = bounds || h.bounds;
      const base = ui.recent && l.history.length > 1 ? l.history[0][id] : null;
      h.counts.forEach((n, i) => { counts[i] = (counts[i] || 0) + n - (base ? base[i] : 0); });
    }
    bounds = bounds || [];
    const all = counts.reduce((a, b) => a + b, 0), most = Math.max(1, ...counts);
    const half = quantile(bounds, counts, 0.5), tail = quantile(bounds, counts, 0.99);
    const summary = all ? `p50 ${micros(half.us)} · p99 ${micros(tail.us)}` : "no samples";
    text($(id + "-note"), summary);
    attr($(id), "aria-label", `${title}: ${summary}`);
    rowsOf($(id), counts, () => el("div", "", el("i")), (bar, n, i) => {
      const high = n ? Math.max(2.5, (100 * n) / most) : 0;
      bar.className = (n ? "" : "zero") + (tail && i >= tail.bucket && i > half.bucket ? " tail" : "");
      bar.firstChild.style.height = high + "%";
      bar.style.setProperty("--v", high);
      const marks = all ? (i === half.bucket ? "p50" : "") + (i === tail.bucket && i !== half.bucket ? "p99" : i === tail.bucket ? " p99" : "") : "";
      attr(bar, "data-q", marks || null);
      attr(bar, "data-x", bounds[i] && Number.isInteger(Math.log10(bounds[i])) && (i % 3 === 0 || bounds[i] >= 1e5) && bounds[i] !== 1e5 ? "≤" + edge(bounds[i]) : null);
      attr(bar, "title", `${i ? edge(bounds[i - 1]) : "0"} to ${i < bounds.length ? edge(bounds[i]) : "∞"}: ${count(n)} (${share(all ? n / all : 0)})`);
    });
  }
}

// ---- Tasks ----
const grid = $("grid"), rowsBox = $("rows"), pool = [];
const narrow = matchMedia("(max-width: 760px)");
let view = []; // the rows in their order: { r, depth, kids, open, outside } or { l } for a loop
const rowHeight = () => (narrow.matches ? 100 : 32);
const headHeight = () => (narrow.matches ? 0 : 32);

function matches(r, needle) {
  return !needle || r.hay.includes(needle) || r.t.state.includes(needle) || waits(r).toLowerCase().includes(needle);
}
function sorter() {
  const value = column(ui.sort)[4], sign = ui.down ? -1 : 1;
  return (list) => {
    for (const r of list) r.k = value(r);
    return list.sort((a, b) => (a.k < b.k ? -sign : a.k > b.k ? sign : a.loop - b.loop || a.t.id - b.t.id));
  };
}
function buildView() {
  const needle = ui.filter.toLowerCase(), sort = sorter(), hits = [];
  const all = [];
  for (const r of tasks.values()) {
    if (r.gone || (ui.only !== null && r.loop !== ui.only)) continue;
    all.push(r);
    if (matches(r, needle)) hits.push(r);
  }
  view = ui.view === "table" ? sort(hits).map((r) => ({ r, key: r.key, depth: 0 })) : buildTree(all, hits, sort);
  return [hits.length, all.length];
}
/* Children below the task whose group they belong to; with a filter, the ancestors of each match stay visible. */
function buildTree(all, hits, sort) {
  const keep = new Set(), found = new Set(hits);
  const parentOf = (r) => (r.t.parent === null || r.t.parent === undefined || r.t.parent === r.t.id ? undefined : tasks.get(r.loop + ":" + r.t.parent));
  for (let r of hits) while (r && !keep.has(r)) { keep.add(r); r = parentOf(r); }
  const under = new Map();
  for (const r of sort(all.filter((r) => keep.has(r)))) {
    const p = parentOf(r), key = p && !p.gone ? p.key : "loop " + r.loop;
    if (under.has(key)) under.get(key).push(r); else under.set(key, [r]);
  }
  const out = [], several = loops.size > 1;
  for (const l of loops.values()) {
    const roots = under.get("loop " + l.id) || [], key = "loop " + l.id;
    if (!roots.length) continue;
    if (several) out.push({ l, key, depth: 0, kids: roots.length, open: !ui.closed.has(key) });
    if (several && ui.closed.has(key)) continue;
    const stack = roots.map((r) => [r, several ? 1 : 0]).reverse();
    while (stack.length) {
      const [r, depth] = stack.pop(), kids = under.get(r.key) || [], open = !ui.closed.has(r.key);
      out.push({ r, key: r.key, depth, kids: kids.length, open, outside: !found.has(r) });
      if (open) for (let i = kids.length - 1; i >= 0; i--) stack.push([kids[i], depth + 1]);
    }
  }
  return out;
}

function drawTasks() {
  const [hits, all] = buildView();
  const total = [...loops.values()].reduce((n, l) => n + (ui.only === null || ui.only === l.id ? l.raw.tasks_total : 0), 0);
  const sent = total > all ? `, ${count(all)} received` : "";
  text($("tasks-note"), (ui.filter ? `${count(hits)} of ${count(total)}` : count(total)) + sent);
  attr($("tasks-note"), "title", sent ? "The console sends the first tasks in the order of the table; fetch more per loop with the menu." : null);
  $("only").hidden = ui.only === null;
  if (ui.only !== null) text($("only"), `${loopName(ui.only)} only ×`);
  $("empty").hidden = view.length > 0;
  text($("empty"), all ? "No task matches the filter." : "No tasks.");
  attr(grid, "role", ui.view === "tree" ? "treegrid" : "grid");
  grid.classList.toggle("tree", ui.view === "tree");
  attr(grid, "aria-rowcount", String(view.length + 1));
  drawHead();
  drawRows();
}
function drawHead() {
  const shown = COLUMNS.slice(0, -1);
  rowsOf($("cols"), shown, () => {
    const button = el("button");
    button.type = "button";
    button.tabIndex = -1;
    const cell = el("div", "", button);
    cell.setAttribute("role", "columnheader");
    return cell;
  }, (cell, [key, title, cls]) => {
    cell.className = cls.startsWith("num") ? "num" : "";
    attr(cell, "aria-sort", ui.sort === key ? (ui.down ? "descending" : "ascending") : null);
    text(cell.firstChild, title);
    cell.firstChild.dataset.sort = key;
  });
}
const CELLS = COLUMNS.slice(0, -1).map((c) => c[2]);
function makeRow() {
  const row = el("div", "row", ...CELLS.map((cls) => {
    const cell = el("span", cls);
    cell.setAttribute("role", "gridcell");
    return cell;
  }));
  row.setAttribute("role", "row");
  row.id = "row" + pool.length;
  return row;
}
function drawRows() {
  const high = rowHeight(), head = headHeight();
  const first = Math.max(0, Math.floor((grid.scrollTop - head) / high) - 3);
  const last = Math.min(view.length, Math.ceil((grid.scrollTop + grid.clientHeight) / high) + 3);
  rowsBox.style.height = view.length * high + "px";
  let active = null;
  for (let i = first; i < last; i++) {
    const slot = i - first;
    if (!pool[slot]) { pool[slot] = makeRow(); rowsBox.append(pool[slot]); }
    fillRow(pool[slot], view[i], i, high);
    if (view[i].key === ui.active) active = pool[slot].id;
  }
  for (let slot = Math.max(0, last - first); slot < pool.length; slot++) pool[slot].hidden = true;
  attr(grid, "aria-activedescendant", active);
}
function fillRow(row, v, i, high) {
  const cells = row.children, { r, l } = v;
  row.hidden = false;
  if (row.top !== i * high) row.style.transform = `translateY(${(row.top = i * high)}px)`;
  row.key = v.key;
  const state = r ? r.t.state : "";
  const cls = `row${/^\w+$/.test(state) ? " " + state : ""}${l ? " group" : ""}${v.key === ui.active ? " at" : ""}` +
    `${ui.pane && ui.pane.key === v.key ? " followed" : ""}${v.outside ? " outside" : ""}`;
  if (row.className !== cls) row.className = cls;
  attr(row, "aria-rowindex", String(i + 2));
  attr(row, "aria-selected", String(v.key === ui.active));
  attr(row, "aria-level", ui.view === "tree" ? String(v.depth + 1) : null);
  attr(row, "aria-expanded", v.kids ? String(v.open) : null);
  const depth = Math.min(v.depth, narrow.matches ? 5 : 14);
  if (row.depth !== depth) cells[0].style.setProperty("--d", row.depth = depth);
  const values = l
    ? [`${l.label} (${plural(v.kids, "root task")})`, clean(l.raw.driver), l.raw.state, "", "", rate(l.pollRate), count(l.raw.counters.polls), share(l.busy), time(l.raw.times.running_s), ""]
    : [r.label + (v.kids ? ` (${count(v.kids)})` : ""), r.path, state, waits(r), time(r.t.since_s), rate(r.rate), count(r.t.polls), share(r.share), time(r.t.busy_s), time(r.t.longest_s)];
  for (let c = 0; c < values.length; c++) text(cells[c], values[c]);
  attr(cells[0], "title", r ? `${r.label.slice(0, 300)} · id ${r.t.id} · ${loopName(r.loop)}` : null);
  attr(cells[1], "title", r ? r.at : null);
  attr(cells[3], "title", (r && r.waits) || null);
  const anon = r && !r.named ? "name anon" : "name";
  if (cells[0].className !== anon) cells[0].className = anon;
  const busy = r && r.share > 0.02 ? r.share.toFixed(2) : "0";
  if (row.busy !== busy) cells[7].style.setProperty("--v", row.busy = busy);
}
function moveTo(i) {
  if (!view.length) return;
  i = Math.max(0, Math.min(view.length - 1, i));
  ui.active = view[i].key;
  const high = rowHeight(), top = i * high, room = grid.clientHeight - headHeight();
  if (top < grid.scrollTop) grid.scrollTop = top;
  else if (top + high > grid.scrollTop + room) grid.scrollTop = top + high - room;
  drawRows();
}
const activeIndex = () => view.findIndex((v) => v.key === ui.active);
function toggleNode(key, open) {
  if (open) ui.closed.delete(key); else ui.closed.add(key);
  drawTasks();
}
function setSort(key, down) {
  ui.sort = key;
  ui.down = down;
  store.set("sort", (down ? "-" : "") + key);
  $("sort").value = (down ? "-" : "") + key;
  grid.scrollTop = 0;
  requery();
  draw();
}
function setView(name) {
  ui.view = name;
  store.set("view", name);
  attr($("as-table"), "aria-pressed", String(name === "table"));
  attr($("as-tree"), "aria-pressed", String(name === "tree"));
  draw();
}

// ---- Operations, timers, pools ----
const MOST = 40;
function taskLink(node, loop, id) {
  const known = id === null || id === undefined ? null : tasks.get(loop + ":" + id);
  text(node, id === null || id === undefined ? "no task" : known ? known.label : "task " + id);
  node.disabled = !known;
  node.classList.toggle("dim", !known);
  if (known) node.dataset.task = known.key; else delete node.dataset.task;
}
const go = () => {
  const button = el("button", "go");
  button.type = "button";
  return button;
};
function fill(id, items, make, update, none) {
  const box = $(id);
  let list = box.querySelector("ul");
  if (!list) box.append(list = el("ul"), el("p", "none"));
  rowsOf(list, items.slice(0, MOST), make, update);
  const rest = items.length - MOST;
  text(box.lastChild, !items.length ? none : rest > 0 ? `and ${count(rest)} more` : "");
  box.lastChild.hidden = items.length > 0 && rest <= 0;
}
function drawSide() {
  const ops = [], timers = [], pools = [], kinds = new Map();
  let flying = 0, armed = 0;
  for (const { raw, id } of loops.values()) {
    if (ui.only !== null && id !== ui.only) continue;
    flying += raw.counters.in_flight;
    armed += raw.counters.timers;
    for (const o of raw.ops || []) { ops.push([id, o]); kinds.set(o.name, (kinds.get(o.name) || 0) + 1); }
    for (const t of raw.timers || []) timers.push([id, t]);
    for (const p of raw.pools || []) pools.push([id, p]);
  }
  timers.sort((a, b) => (a[1].in_s ?? 1e12) - (b[1].in_s ?? 1e12));
  text($("ops-note"), count(flying));
  text($("timers-note"), count(armed));
  rowsOf($("ops-sum"), [...kinds].sort((a, b) => b[1] - a[1]).slice(0, 8), () => el("span", "", el("span"), el("b")), (chip, [name, n]) => {
    text(chip.firstChild, clean(name));
    text(chip.lastChild, count(n));
  });
  $("ops-sum").hidden = !kinds.size;
  fill("ops", ops, () => el("li", "", el("span"), el("span", "dim"), go()), (row, [loop, o]) => {
    text(row.children[0], clean(o.name));
    text(row.children[1], known(o.descriptor) && o.descriptor >= 0 ? "descriptor " + o.descriptor : "");
    taskLink(row.children[2], loop, o.task);
  }, "No operation is in flight.");
  fill("timers", timers, () => el("li", "", el("span"), go()), (row, [loop, t]) => {
    text(row.children[0], t.in_s > 0 ? "in " + time(t.in_s) : known(t.in_s) ? "due" : "never");
    taskLink(row.children[1], loop, t.task);
  }, "No timer is set.");
  fill("pools", pools, () => el("li", "", el("span"), el("i"), el("span", "dim")), (row, [loop, p]) => {
    const busy = Math.max(0, p.threads - p.idle);
    text(row.children[0], clean(p.name) + (loops.size > 1 ? " · " + loopName(loop) : ""));
    row.children[1].style.setProperty("--v", p.limit ? Math.min(1, busy / p.limit) : 0);
    text(row.children[2], `${count(busy)} of ${count(p.limit)} busy, ${count(p.queued)} queued`);
    attr(row, "title", plural(p.threads, "thread") + " started, " + count(p.idle) + " idle");
  }, "No pool was started.");
}

// ---- Details ----
let returnTo = null;
function openPane(pane) {
  if (!ui.pane) returnTo = document.activeElement;
  ui.pane = pane;
  $("pane-body").replaceChildren();
  $("pane-body").scrollTop = 0;
  $("pane").hidden = false;
  document.body.classList.add("open");
  if (narrow.matches) $("pane-close").focus();
  draw();
}
function closePane() {
  if (!ui.pane) return;
  const inside = $("pane").contains(document.activeElement);
  ui.pane = null;
  $("pane").hidden = true;
  document.body.classList.remove("open");
  if (inside && returnTo && returnTo.isConnected) returnTo.focus();
  requery();
  draw();
}
function follow(key) {
  const r = tasks.get(key);
  if (!r) return;
  ui.active = key;
  openPane({ kind: "task", key, id: r.t.id });
  text($("status"), "Following " + r.label.slice(0, 100));
  requery();
}
function openStall(key) { openPane({ kind: "stall", key: "stall " + key, stall: key }); }
function section(title, ...content) {
  const node = el("section", "", el("h3", "", el("span", "", title), el("b")), ...content);
  node.value = (v) => text(node.firstChild.children[1], v);
  $("pane-body").append(node);
  return node;
}
function sparkline(view, values, top, color) {
  const [c, w, h] = canvas2d(view), most = top || Math.max(1, ...values), step = w / (HISTORY - 1);
  const x = (i) => w - (values.length - 1 - i) * step, y = (v) => h - 3 - (h - 8) * Math.min(1, v / most);
  if (values.length < 2) return;
  c.beginPath();
  values.forEach((v, i) => c.lineTo(x(i), y(v)));
  c.strokeStyle = color;
  c.lineWidth = 1.5;
  c.stroke();
  c.lineTo(w, h);
  c.lineTo(x(0), h);
  c.fillStyle = color;
  c.globalAlpha = 0.18;
  c.fill();
  c.globalAlpha = 1;
}
function drawPane() {
  if (!ui.pane) return;
  if (ui.pane.kind === "task") drawTaskPane(); else drawStallPane();
}
function links(box, items, update) {
  rowsOf(box, items, () => el("li", "", go()), (row, item) => update(row.firstChild, item));
}
function drawTaskPane() {
  const r = tasks.get(ui.pane.key), body = $("pane-body");
  if (!r) return;
  if (!body.firstChild) {
    const p = ui.pane.parts = {};
    p.state = el("p");
    body.append(p.state);
    p.where = section("Spawned at", el("p", "mono"));
    p.waits = section("Waits for", el("ul"));
    p.rates = section("Polls per second", el("canvas", "spark"));
    p.shares = section("Busy share of the loop", el("canvas", "spark"));
    p.sums = el("dl");
    body.append(p.sums);
    p.parent = section("Parent", el("p", "", go()));
    p.children = section("Children", el("ul"));
    p.ops = section("Operations and timers", el("ul"));
    p.stalls = section("Stalls", el("ul"));
  }
  const p = ui.pane.parts, t = r.t, raw = loops.has(r.loop) ? loops.get(r.loop).raw : null;
  text($("pane-title"), r.label);
  if (!p.state.firstChild) p.state.append(el("span", "pill"), " ", el("span", "dim"));
  p.state.children[0].className = "pill " + (r.gone || !/^\w+$/.test(t.state) ? "" : t.state);
  text(p.state.children[0], r.gone ? "ended" : t.state);
  text(p.state.children[1], `id ${t.id} on ${loopName(r.loop)}`);
  text(p.where.lastChild, r.at || "unknown");
  p.waits.hidden = !(t.waits && t.waits.length) || r.gone;
  p.waits.value("for " + time(t.since_s));
  rowsOf(p.waits.lastChild, t.waits || [], () => el("li"), (row, w) => text(row, clean(w)));
  p.rates.value(rate(r.rate));
  p.shares.value(share(r.share));
  sparkline(p.rates.lastChild, r.rates, 0, colors.bar);
  sparkline(p.shares.lastChild, r.shares, Math.max(0.05, ...r.shares), colors["warn-bar"]);
  facts(p.sums, [["Polls", count(t.polls)], ["Busy time", time(t.busy_s)], ["Longest poll", time(t.longest_s), t.longest_s >= 0.1 ? "warn" : ""],
    ["Mean poll", t.polls ? time(t.busy_s / t.polls) : "–"]]);
  const parent = t.parent === null || t.parent === undefined ? null : tasks.get(r.loop + ":" + t.parent);
  p.parent.hidden = !parent;
  if (parent) taskLink(p.parent.lastChild.firstChild, r.loop, parent.t.id);
  const children = [];
  for (const x of tasks.values()) if (x.loop === r.loop && x.t.parent === t.id && !x.gone && x !== r) children.push(x);
  p.children.hidden = !children.length;
  p.children.value(count(children.length));
  links(p.children.lastChild, children.slice(0, 12), (node, x) => taskLink(node, r.loop, x.t.id));
  const held = [];
  if (raw && !r.gone) {
    for (const o of raw.ops || []) if (o.task === t.id) held.push(clean(o.name) + (known(o.descriptor) && o.descriptor >= 0 ? " on descriptor " + o.descriptor : ""));
    for (const x of raw.timers || []) if (x.task === t.id) held.push(x.in_s > 0 ? "timer in " + time(x.in_s) : "timer due");
  }
  p.ops.hidden = !held.length;
  rowsOf(p.ops.lastChild, held.slice(0, 12), () => el("li"), (row, value) => text(row, value));
  const stalls = stallsOf(snap, r.loop).filter((x) => x.s.task && x.s.task.id === t.id);
  p.stalls.hidden = !stalls.length;
  links(p.stalls.lastChild, stalls, (node, { s, key }) => {
    text(node, `${time(s.duration_s)} at ${clock(s.began_ms)}`);
    node.dataset.stall = key;
  });
}
const FOREIGN = /^(<?(std|core|alloc|windlass|tokio|futures\w*|backtrace|mio|rustix|test)::|<?&?(dyn )?(core|alloc|std|windlass)\b|__|_start|main$|clone|start_thread|rust_|\?|<unknown|0x|clock_nanosleep|nanosleep|syscall|libc|_?Unwind)/;
function drawStallPane() {
  const found = stallsOf(snap, null).find((x) => x.key === ui.pane.stall) || ui.pane.last, body = $("pane-body");
  if (!found) return;
  ui.pane.last = found;
  const { s, loop } = found;
  if (!body.firstChild) {
    const p = ui.pane.parts = {};
    p.state = el("p", "", el("span", "pill"), " ", el("span", "dim"));
    body.append(p.state);
    p.who = section("Culprit", el("p", "", go()));
    p.where = section("Spawned at", el("p", "mono"));
    p.stack = section("Stack of the loop's thread during the stall", el("ol", "stack"), el("p", "none", "No stack was captured."));
    const copy = el("button", "", "Copy");
    copy.type = "button";
    copy.addEventListener("click", () => navigator.clipboard && navigator.clipboard.writeText((ui.pane.last.s.stack || []).join("\n"))
      .then(() => { copy.textContent = "Copied"; setTimeout(() => { copy.textContent = "Copy"; }, 1500); }, () => {}));
    p.stack.firstChild.append(copy);
  }
  const p = ui.pane.parts, stack = s.stack || [];
  text($("pane-title"), `Stall of ${time(s.duration_s)}`);
  p.state.children[0].className = s.ongoing ? "pill ongoing" : "pill";
  text(p.state.children[0], s.ongoing ? "ongoing" : "ended");
  text(p.state.children[1], `began at ${clock(s.began_ms)} on ${loopName(loop)}`);
  const button = p.who.lastChild.firstChild;
  taskLink(button, loop, s.task ? s.task.id : null);
  text(button, culprit(s) + (s.task && s.what ? ` (${clean(s.what)})` : ""));
  p.where.hidden = !spawnedAt(s);
  text(p.where.lastChild, spawnedAt(s));
  const [head, list, none] = p.stack.children;
  none.hidden = stack.length > 0;
  list.hidden = head.lastChild.hidden = !stack.length;
  rowsOf(list, stack, () => el("li", "", el("span"), el("small")), (row, frame) => {
    const line = clean(frame), cut = line.lastIndexOf(" at ");
    text(row.firstChild, cut < 0 ? line : line.slice(0, cut));
    text(row.lastChild, cut < 0 ? "" : cratePath(line.slice(cut + 4)));
    row.className = FOREIGN.test(line) ? "" : "own";
  });
}

// ---- Controls ----
function setPaused(on) {
  ui.paused = on;
  attr($("pause"), "aria-pressed", String(on));
  text($("pause").lastElementChild, on ? "Resume" : "Pause");
  attr($("pause"), "aria-label", on ? "Resume" : "Pause");
  if (!on && held) { ingest(held); held = null; draw(); }
  showLink();
}
const system = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const saved = store.get("theme") || ui.theme || null;
  attr(document.documentElement, "data-theme", saved === "light" || saved === "dark" ? saved : null);
  const name = saved ? saved : "system";
  attr($("theme"), "aria-label", "Theme: " + name);
  attr($("theme"), "title", "Theme: " + name);
  readColors();
  draw();
}
/* From the system's theme to its opposite, to the same one chosen for good, and back. */
function nextTheme() {
  const dark = system.matches, now = document.documentElement.getAttribute("data-theme");
  const other = dark ? "light" : "dark", same = dark ? "dark" : "light";
  ui.theme = now === null ? other : now === other ? same : null;
  store.set("theme", ui.theme);
  applyTheme();
}
$("pause").addEventListener("click", () => setPaused(!ui.paused));
$("theme").addEventListener("click", nextTheme);
system.addEventListener("change", applyTheme);
narrow.addEventListener("change", () => draw());
$("retry").addEventListener("click", () => { if (!source) connect(); });
$("help-open").addEventListener("click", () => $("help").showModal());
$("help-close").addEventListener("click", () => $("help").close());
$("pane-close").addEventListener("click", closePane);
$("only").addEventListener("click", () => pick(ui.only));
$("as-table").addEventListener("click", () => setView("table"));
$("as-tree").addEventListener("click", () => setView("tree"));
for (const [id, recent] of [["hist-all", false], ["hist-10", true]]) {
  $(id).addEventListener("click", () => {
    ui.recent = recent;
    attr($("hist-all"), "aria-pressed", String(!recent));
    attr($("hist-10"), "aria-pressed", String(recent));
    draw();
  });
}
$("filter").addEventListener("input", (e) => {
  ui.filter = e.target.value.trim();
  grid.scrollTop = 0;
  requery();
  draw();
});
$("limit").value = ui.limit;
$("limit").addEventListener("change", (e) => {
  ui.limit = e.target.value;
  store.set("limit", ui.limit);
  requery();
});
for (const [key, title] of COLUMNS) {
  for (const down of [true, false]) {
    const option = el("option", "", `${title} ${down ? "↓" : "↑"}`);
    option.value = (down ? "-" : "") + key;
    $("sort").append(option);
  }
}
$("sort").value = (ui.down ? "-" : "") + ui.sort;
$("sort").addEventListener("change", (e) => setSort(e.target.value.replace("-", ""), e.target.value[0] === "-"));
$("cols").addEventListener("click", (e) => {
  const key = e.target.dataset.sort;
  if (key) setSort(key, ui.sort === key ? !ui.down : !TEXT_KEYS.includes(key));
});
grid.addEventListener("scroll", drawRows, { passive: true });
rowsBox.addEventListener("click", (e) => {
  const row = e.target.closest(".row");
  if (!row) return;
  ui.active = row.key;
  const v = view.find((x) => x.key === row.key), name = row.firstChild.getBoundingClientRect();
  const twisty = e.clientX < name.left + parseFloat(getComputedStyle(row.firstChild).paddingLeft) + 18;
  if (v && v.kids && (v.l || twisty)) toggleNode(v.key, !v.open); else follow(row.key);
});
document.addEventListener("click", (e) => {
  const target = e.target.closest("[data-task], [data-stall]");
  if (!target) return;
  if (target.dataset.task) follow(target.dataset.task); else openStall(target.dataset.stall);
});
grid.addEventListener("focus", () => { if (activeIndex() < 0 && view.length) moveTo(Math.ceil(grid.scrollTop / rowHeight())); });
grid.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target !== grid) return;
  const i = activeIndex(), v = view[i], page = Math.max(1, Math.floor(grid.clientHeight / rowHeight()) - 2);
  const goal = { ArrowDown: i + 1, ArrowUp: i < 0 ? 0 : i - 1, Home: 0, End: view.length - 1, PageDown: i + page, PageUp: i - page }[e.key];
  if (goal !== undefined) moveTo(goal);
  else if (e.key === "Enter" || e.key === " ") { if (v) { if (v.l) toggleNode(v.key, !v.open); else follow(v.key); } }
  else if (e.key === "ArrowRight" && v && v.kids) { if (v.open) moveTo(i + 1); else toggleNode(v.key, true); }
  else if (e.key === "ArrowLeft" && v) {
    if (v.kids && v.open && ui.view === "tree") toggleNode(v.key, false);
    else { let up = i; while (up > 0 && view[up].depth >= v.depth) up -= 1; if (view[up].depth < v.depth) moveTo(up); }
  } else return;
  e.preventDefault();
});
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented || $("help").open) return;
  const typing = e.target.closest("input, select, textarea");
  if (e.key === "Escape") {
    if (typing) { typing.blur(); grid.focus({ preventScroll: true }); } else closePane();
  } else if (typing) {
    if (e.target.id !== "filter" || (e.key !== "ArrowDown" && e.key !== "Enter")) return;
    grid.focus();
    moveTo(0);
  } else if (e.key === "/") { $("filter").focus(); $("filter").select(); }
  else if (e.key === "p") setPaused(!ui.paused);
  else if (e.key === "t") setView(ui.view === "table" ? "tree" : "table");
  else if (e.key === "?") $("help").showModal();
  else return;
  e.preventDefault();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) draw(); });

setView(ui.view);
applyTheme();
connect();
