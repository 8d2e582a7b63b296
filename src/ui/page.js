// The page of hearth: what the server does, and why requests were slow. No framework, no build step.
//
// Texts of clients and models come in as text nodes only (h() below): nothing on this page is parsed as markup. Data
// come from one stream (GET /events), which is closed while the page is hidden, and from the endpoints that programs use.
"use strict";

// ---------------------------------------------------------------- elements

const $ = (id) => document.getElementById(id);
// Said aloud, since the narrow layout takes them away from tables.
const ROLES = { table: "table", thead: "rowgroup", tbody: "rowgroup", tr: "row", th: "columnheader", td: "cell" };

/** An element; `props` are attributes, handlers (onclick), or properties behind a dot (".value"). */
function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (ROLES[name]) element.setAttribute("role", ROLES[name]);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.startsWith(".")) element[key.slice(1)] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function s(tag, props, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(props || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Makes `parent` hold one element per item, in order; those that are there stay, and so does the focus in them. */
function sync(parent, items, keyOf, make, fill) {
  const old = new Map([...parent.children].map((child) => [child.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = old.get(key);
    if (element) old.delete(key);
    else { element = make(item); element.key = key; }
    if (fill) fill(element, item);
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  for (const element of old.values()) element.remove();
}

/** New children for an element, unless `state` is what it shows already. The focus stays at its place. */
function renew(element, state, children) {
  const text = JSON.stringify(state);
  if (element.shows === text) return;
  element.shows = text;
  const stops = () => [...element.querySelectorAll("a, button")];
  const place = stops().indexOf(document.activeElement);
  element.replaceChildren(...children().flat().filter((child) => child !== null));
  if (place >= 0) stops()[Math.min(place, stops().length - 1)]?.focus();
}

// ---------------------------------------------------------------- numbers and words

const count = (n) => Math.round(n || 0).toLocaleString("en-US");
const percent = (part, whole) => whole > 0 ? Math.round(100 * part / whole) + " %" : "–";
const sum = (list, of) => list.reduce((total, one) => total + (of(one) || 0), 0);
const plural = (n, word, words) => count(n) + " " + (n === 1 ? word : words || word + "s");

function time(ms) {
  if (!(ms >= 0)) return "–";
  if (ms < 10) return ms.toFixed(1) + " ms";
  if (ms < 995) return Math.round(ms) + " ms";
  if (ms < 59950) return (ms / 1000).toFixed(1) + " s";
  const minutes = ms / 60000;
  return minutes < 90 ? Math.floor(minutes) + " min " + Math.round(ms / 1000) % 60 + " s" : (minutes / 60).toFixed(1) + " h";
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1000 && unit < 4) { n /= 1024; unit++; }
  return (unit && n < 10 ? n.toFixed(1) : Math.round(n)) + " " + units[unit];
}

const rate = (tokens, us) => us > 0 && tokens > 0 ? count(1e6 * tokens / us) : "–";
const clock = (text) => new Date(text).toLocaleTimeString("en-GB");

function ago(seconds) {
  const past = Date.now() / 1000 - seconds;
  return past < 60 ? "just now" : past < 3600 ? Math.floor(past / 60) + " min ago"
    : past < 86400 ? Math.floor(past / 3600) + " h ago" : Math.floor(past / 86400) + " d ago";
}

/** A text in which `code` stands between backquotes. Options can be copied. */
function rich(text) {
  return text.split("`").map((part, i) => i % 2 === 0 ? part
    : /^--[a-z-]+ [^A-Z]/.test(part) ? h("span", {}, h("code", {}, part), copier(part)) : h("code", {}, part));
}

function copier(text) {
  return h("button.small", { type: "button", "aria-label": "Copy " + text, onclick: async (event) => {
    event.stopPropagation();
    const button = event.currentTarget;
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
    catch { button.textContent = "Select it by hand"; }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } }, "Copy");
}

const WORDS = { volatile_line: "a line that changes", edited_message: "an edited message", calls_reprinted: "calls written anew", compacted: "compacted",
  messages_moved: "messages moved", tools_changed: "other tools", arguments_changed: "other template arguments",
  template_rewrites: "the template rewrites", evicted: "evicted", state_gone: "state not kept",
  no_snapshot: "no snapshot", restore_failed: "restore failed", cache_off: "cache off", queued: "waited for a lane",
  short_of_cells: "KV cache full", preempted: "preempted", slow_disk: "slow disk", scanning: "disk scan",
  workers: "threads busy", preparing: "preparing", new_conversation: "new conversation", new_text: "new text",
  shared: "shared the machine", slow_store: "slow shared store",
  cold_model: "cold model", slow_upload: "slow upload", slow_reader: "slow reader", same_prefix: "shared a prefix", client_left: "client left",
  long_reply: "long reply" };
const isFine = (verdict) => verdict.kind === "no_loss", isWait = (verdict) => verdict.kind === "wait"; // else: computed again
const word = (cause) => WORDS[cause] || cause.replaceAll("_", " ");
const QUEUE_WORDS = { lane: "every lane is busy", prefix: "another request computes the same beginning",
  cells: "the KV cache is full", disk: "its state is read from disk", scan: "the disk is being scanned",
  preempted: "preempted: it goes on from where it was", worker: "all threads that prepare requests are busy" };

// ---------------------------------------------------------------- the server

const server = { info: {}, now: {}, before: [], clients: null, requests: new Map(), state: "connecting" };
const KEPT = 500;
let key = sessionStorage.getItem("hearth-key") || "";

const headers = (more) => ({ ...(key ? { Authorization: "Bearer " + key } : {}), ...more });

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers(options.headers) });
  if (answer.status === 401) { askForKey(); throw new Error("a key is needed"); }
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    throw new Error(told?.error?.message || "the server said " + answer.status);
  }
  return answer;
}
const get = async (path) => (await ask(path)).json();
const send = async (path, method, body) =>
  (await ask(path, { method, headers: { "Content-Type": "application/json" }, body: body && JSON.stringify(body) })).json();

/** The data of server-sent events, as they come. */
async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5));
      if (data.length) yield data.join("\n").trim();
    }
  }
}

let stream = null, retry = 0, keyless = false; // `keyless`: the server wants a key, and there is none

function told(state, text) {
  server.state = state;
  $("link").className = state;
  set($("link"), text);
}

function take(event) {
  const news = event.requests || [];
  if (event.server) {
    server.info = event.server;
    if (!news.some((one) => server.requests.has(one.id))) server.requests.clear(); // another server, or a long time ago
  }
  for (const one of news.reverse()) server.requests.set(one.id, one);
  for (const id of server.requests.keys()) {
    if (server.requests.size <= KEPT) break;
    server.requests.delete(id);
  }
  if (event.clients) server.clients = event.clients;
  delete event.requests;
  delete event.clients;
  delete event.server;
  server.now = event;
  server.before.push({ at: performance.now(), ...event.stats });
  if (server.before.length > 6) server.before.shift();
  set($("model"), server.info.model || "");
  view?.update?.();
}

async function listen() {
  if (stream || document.hidden) return;
  const mine = stream = new AbortController();
  let why = "no connection";
  try {
    const answer = await ask("/events", { signal: mine.signal });
    told("live", "live");
    retry = 0;
    server.before = [];
    for await (const event of eventsOf(answer)) take(JSON.parse(event));
  } catch (error) { why = error instanceof TypeError || error.name === "AbortError" ? why : error.message; }
  if (stream !== mine) return;
  stream = null;
  if (document.hidden || keyless) return;
  told("lost", why + ", trying again");
  setTimeout(listen, Math.min(8000, 500 * 2 ** retry++));
}

function hush() {
  const old = stream;
  stream = null;
  old?.abort();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) { hush(); told("", "paused"); } else { retry = 0; listen(); }
});

// ---------------------------------------------------------------- dialogs

function dialog(title, children, accept, act) {
  const box = $("dialog"), trouble = h("p.bad", { role: "alert" });
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try { await act(form); box.close(); } catch (error) { set(trouble, error.message); }
  } }, h("h1", { id: "dialog-title" }, title), ...children, trouble, h(".row", {},
    h("button", { type: "button", onclick: () => box.close() }, "Cancel"), h("button.main", { type: "submit" }, accept)));
  box.setAttribute("aria-labelledby", "dialog-title");
  box.replaceChildren(form);
  if (!box.open) box.showModal();
  form.querySelector("input")?.focus();
  form.querySelector("input")?.select();
}

function askForKey() {
  keyless = true;
  told("lost", "a key is needed");
  $("link").append(h("button.small", { type: "button", onclick: askForKey }, "Enter a key"));
  if ($("dialog").open) return;
  dialog("This server wants a key", [h("p.note", {}, "It is kept in this tab only, and is gone when you close it."),
    h("label", {}, "API key", h("input", { type: "password", name: "key", autocomplete: "off", required: true }))],
    "Open", async (form) => {
      key = form.elements.key.value.trim();
      const answer = await fetch("/v1/models", { headers: headers() });
      if (!answer.ok) { key = ""; throw new Error("the server does not know this key"); }
      sessionStorage.setItem("hearth-key", key);
      keyless = false;
      setTimeout(() => { listen(); show(); });
    });
}

// ---------------------------------------------------------------- what is wasted

const wasteOf = (request) => (request.verdicts || []).filter((verdict) => !isFine(verdict));

const who = (one) => [h("b", {}, one.client || "no name"), one.session ? h("span", {}, one.session) : null];
const recentLink = (client) => "#recent?" + new URLSearchParams(client.client ? { client: client.client } : {});

/** "a line that changes", in how many requests, what it cost together, one in full, and what to do. */
function causeCell(client) {
  const [main, ...others] = client.causes;
  if (!main) return [h("span.soft", {}, "nothing: what could be reused was reused")];
  const fine = isFine(main), often = main.times > 1, brief = often && isWait(main);
  return [h("p" + (fine ? ".soft" : ""), {}, h("b", {}, word(main.cause)), client.requests > 1 ? ` in ${main.times} of ${count(client.requests)} requests` : "",
    often ? `, ${time(main.lost_ms)}` : "", ...(brief ? [] : [often ? ". The last: " : ": ", ...rich(main.text)])),
  h("p.cure", {}, main.advice.startsWith("nothing") ? null : h("b", {}, "To do: "), ...rich(main.advice), " ",
    h("a", { href: "#request/" + main.request, "aria-label": "The last request with this cause" }, "Look at one")),
  others.length ? h("p.note", {}, "Also: " + others.slice(0, 3).map((cause) => `${word(cause.cause)} ${time(cause.lost_ms)}`).join(", ")) : null];
}

function wasteRow(row, { client, keyed }) {
  renew(row, [client, keyed], () => [
    h("td.who.wide", {}, h("a", { href: recentLink(client) }, h("b", {}, client.client || "no name")),
      keyed && client.key ? h("span", {}, "key " + client.key) : null,
      client.session ? h("span", {}, client.sessions > 1 ? `${client.sessions} sessions, most in ${client.session}` : client.session) : null),
    h("td.num", { "data-name": "lost" }, h("span.big", {}, client.lost_ms > 0 ? time(client.lost_ms) : "–")),
    h("td.num", { "data-name": "computed again" }, count(client.again_tokens), h("small", {}, `of ${count(client.computed_tokens)}`)),
    h("td.num", { "data-name": "waited" }, client.waited_ms > 0 ? time(client.waited_ms) : "–"),
    h("td.wide", {}, causeCell(client)),
  ]);
}

/** What all of them lost together, in a sentence. */
const wasteSum = (waste) => `${plural(waste.requests, "request")} since ${clock(waste.since)}. ` + (waste.again_tokens > 0
  ? `Of ${count(waste.computed_tokens)} prompt tokens that were computed, ${count(waste.again_tokens)} (${percent(waste.again_tokens, waste.computed_tokens)}) had been computed before: ${time(waste.lost_ms)} lost.`
  : "Nothing was computed twice.");

const FIRST_ROWS = 6;

function wasteTable() {
  const body = h("tbody"), told = h("p.lead"), all = h("button", { type: "button", onclick: () => { all.open = true; all.fill(); } });
  const column = (name, text, title) => h("th" + name, { scope: "col", title }, text);
  const box = h(".card", {}, h("table.waste", {}, h("thead", {}, h("tr", {}, column("", "Client"),
    column(".num", "Lost", "Time spent on computing what had been computed before"),
    column(".num", "Computed again", "Prompt tokens, of all that were computed for it"),
    column(".num", "Waited", "For other requests, or for the machine"), column("", "Main cause, and what to do"))), body), h(".more", {}, all));
  const none = firstSteps();
  const fill = (waste) => {
    const clients = waste?.data || [], keyed = new Set(clients.map((one) => one.key)).size > 1;
    const left = clients.length > FIRST_ROWS + 1 ? clients.length - FIRST_ROWS : 0;
    box.hidden = told.hidden = clients.length === 0;
    none.hidden = clients.length > 0;
    if (clients.length) set(told, wasteSum(waste));
    all.fill = () => fill(waste);
    all.parentElement.hidden = !left || all.open;
    set(all, `Show ${left} more clients`);
    sync(body, (all.open || !left ? clients : clients.slice(0, FIRST_ROWS)).map((client) => ({ client, keyed })),
      ({ client }) => JSON.stringify([client.client, client.key]), () => h("tr"), wasteRow);
  };
  return { nodes: [told, box, none], fill };
}

/** For a server that has had no request: how an agent finds it. */
function firstSteps() {
  const line = (what, text) => h("li", {}, what, " ", h("code", {}, text), copier(text));
  const token = key ? "YOUR-KEY" : "none";
  return h(".card.pad", {}, h("p", {}, "No request has ended yet. Once agents talk to the server, this says which of them wastes what, and why."),
    h("ul.steps", {}, line("Claude Code and what speaks Messages:", `export ANTHROPIC_BASE_URL=${location.origin} ANTHROPIC_AUTH_TOKEN=${token}`),
      line("what speaks OpenAI's dialects:", `export OPENAI_BASE_URL=${location.origin}/v1 OPENAI_API_KEY=${token}`),
      h("li", {}, "or ", h("a", { href: "#chat" }, "talk to the model"), " here")));
}

// ---------------------------------------------------------------- bars

function segments(bar, parts, whole) {
  sync(bar, parts, (part) => part[0], (part) => h("i." + part[0]), (element, part) => {
    element.style.width = Math.min(100, whole > 0 ? 100 * part[1] / whole : 0) + "%";
  });
  return bar;
}

const PHASES = ["prepare", "queue", "restore", "prefill"];
const phases = (ms) => [["prepare", ms.prepare], ["queue", ms.queue], ["restore", ms.plan + ms.restore], ["prefill", ms.prefill]];
const phaseText = (ms) => phases(ms).filter(([, value]) => value >= 0.05).map(([name, value]) => name + " " + time(value)).join(", ");
const legend = (...names) => h("p.legend", {}, names.map((name) => h("span", {}, h("i." + name), name)));
const reusedOf = (tokens) => tokens.reused.live + tokens.reused.ram + tokens.reused.disk + (tokens.reused.remote || 0);

// ---------------------------------------------------------------- Now

function nowView(main) {
  const figures = h("dl.figures"), lanes = h("div.card", { role: "list" }), queue = h("tbody"), trouble = h("p.bad");
  const laneNote = h("p"), queueNote = h("p"), table = wasteTable();
  const queueTable = h(".card", {}, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Client"),
    h("th.num", { scope: "col" }, "Waits"), h("th.num", { scope: "col" }, "Prompt"), h("th", { scope: "col" }, "Why"))), queue));
  const queueSection = h("section", { "aria-label": "Queue" }, h("header", {}, h("h2", {}, "Waiting"), queueNote), queueTable);
  main.append(h("h1.hidden", {}, "Now"), trouble, figures,
    h("section", { "aria-label": "Waste" }, h("header", {}, h("h2", {}, "What is wasted, and why"),
      h("p", {}, "by client, the costliest first")), ...table.nodes),
    h("section", { "aria-label": "Lanes" }, h("header", {}, h("h2", {}, "Lanes"), laneNote), lanes), queueSection);

  const figure = ([name, value, unit, part]) => [h("dt", {}, name), h("dd", {}, value, " ", h("small", {}, unit || "")),
    part === undefined ? null : h("dd", { "aria-hidden": "true" }, segments(h(".bar.slim"), [["computed", part]], 1))];

  function figureRows() {
    const { stats, disk, remote, lanes: list, queue: waiting } = server.now, info = server.info;
    const rows = [];
    if (stats) {
      const first = server.before[0], moved = (name) => stats[name] - (first?.[name] ?? stats[name]);
      const reused = stats.prompt_reused_live_tokens + stats.prompt_reused_ram_tokens + stats.prompt_reused_disk_tokens + stats.prompt_reused_remote_tokens;
      const seconds = first ? performance.now() - first.at : 0;
      rows.push(["Prompts", rate(moved("prompt_computed_tokens"), moved("prefill_us")), "tokens/s"]);
      rows.push(["Replies", rate(moved("generated_tokens"), seconds * 1000), "tokens/s"]);
      rows.push(["Reused", percent(reused, reused + stats.prompt_computed_tokens), "of prompt tokens"]);
      const held = stats.page_bytes + stats.snapshot_bytes;
      rows.push(["RAM", bytes(held), info.cache_bytes ? "of " + bytes(info.cache_bytes) : "cache is off",
        info.cache_bytes ? held / info.cache_bytes : 0]);
      rows.push(disk?.state === "off" || !disk ? ["Disk", "off", "", 0]
        : ["Disk", bytes(disk.bytes), (disk.state === "ok" ? "of " + bytes(disk.budget_bytes) : disk.state), disk.bytes / disk.budget_bytes]);
      if (remote && remote.state !== "off") rows.push(["Shared store", remote.state === "ok" ? bytes(remote.bytes) : remote.state,
        remote.trouble || (remote.budget_bytes ? "of " + bytes(remote.budget_bytes) : "known to this box"), remote.budget_bytes ? remote.bytes / remote.budget_bytes : undefined]);
    }
    if (list) {
      const busy = list.filter((lane) => lane.state !== "idle").length;
      rows.push(["Lanes", `${busy} of ${list.length}`, waiting.waiting ? `busy, ${waiting.waiting} waiting` : "busy", busy / list.length]);
    }
    return rows;
  }

  function fillLane(row, lane) {
    const [, name, doing, bar, speed, left] = row.children;
    const idle = lane.state === "idle", known = lane.prompt_tokens !== undefined;
    row.className = idle ? "lane idle" : "lane";
    renew(name, [lane.client, lane.session, idle, known], () => idle ? ["idle"] : known ? who(lane) : ["another key's request"]);
    const reused = lane.reused_tokens || 0, computed = lane.computed_tokens || 0, prompt = lane.prompt_tokens || 0;
    const decodes = lane.state === "decode", most = lane.max_tokens > 0 ? lane.max_tokens : 0;
    set(doing, !known ? "" : decodes ? `replies: ${count(lane.generated_tokens)}${most ? " of " + count(most) : ""} tokens`
      : `reads its prompt: ${count(reused + computed)} of ${count(prompt)} tokens`);
    const done = decodes ? (most ? lane.generated_tokens / most : 1) : prompt ? (reused + computed) / prompt : 0;
    segments(bar, decodes ? [["computed", done]] : [["reused", prompt ? reused / prompt : 0], ["computed", prompt ? computed / prompt : 0]], 1);
    bar.setAttribute("aria-valuenow", Math.round(100 * done));
    bar.setAttribute("aria-label", `Lane ${lane.id}: ${doing.textContent || lane.state}`);
    set(speed, lane.tokens_per_second > 0 ? `${count(lane.tokens_per_second)} tokens/s` : "");
    const rest = decodes ? (most ? most - lane.generated_tokens : 0) : prompt - reused - computed;
    set(left, idle || !known || !(lane.tokens_per_second > 0) ? "" : decodes && !most ? "until it ends"
      : (decodes ? "at most " : "about ") + time(1000 * rest / lane.tokens_per_second));
  }

  return {
    title: "Now",
    update() {
      const { lanes: list, queue: waiting, health } = server.now;
      set(trouble, (health || []).map((one) => one.message).join("; "));
      trouble.hidden = !trouble.textContent;
      sync(figures, figureRows(), (row) => row[0], () => h("div"), (element, row) => renew(element, row, () => figure(row)));
      table.fill(server.clients);
      set(laneNote, list ? "" : "off (--no-slots)");
      sync(lanes, list || [], (lane) => lane.id, (lane) => h(".lane", { role: "listitem" }, h("span", {}, String(lane.id)),
        h(".who"), h(".doing"), h(".bar", { role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 }), h(".rate"), h(".left")), fillLane);
      const rows = waiting?.requests || [], others = (waiting?.waiting || 0) - rows.length;
      queueSection.hidden = !waiting?.waiting;
      queueTable.hidden = rows.length === 0;
      set(queueNote, others > 0 ? count(others) + (rows.length ? " more" : " of other keys") : "");
      sync(queue, rows, (one) => one.request_id || one.id_task, () => h("tr"), (row, one) =>
        renew(row, one, () => [h("td.who", {}, who(one)), h("td.num", { "data-name": "waits" }, time(one.waited_ms)),
          h("td.num", { "data-name": "prompt" }, count(one.prompt_tokens)), h("td.wide", {}, QUEUE_WORDS[one.wait] || one.wait)]));
    },
  };
}

// ---------------------------------------------------------------- Recent

function recentView(main, query) {
  const field = (label, input) => h("label", {}, label, input);
  const search = (name) => h("input", { list: name + "s", ".value": query.get(name) || "",
    oninput: changed });
  const client = search("client"), session = search("session");
  const slow = h("select", { onchange: changed }, [["0", "any"], ["500", "0.5 s or more"], ["2000", "2 s or more"],
    ["10000", "10 s or more"]].map(([value, text]) => h("option", { value, selected: query.get("slow") === value }, text)));
  const wasteful = h("input", { type: "checkbox", ".checked": query.get("waste") === "1", onchange: changed });
  const clients = h("datalist", { id: "clients" }), sessions = h("datalist", { id: "sessions" });
  const body = h("tbody"), note = h("p.empty"), total = h("p.note", {});
  const table = h("table.recent", { onkeydown: arrows }, h("thead", {}, h("tr", {}, ["Ended", "Client", "First token", "", "Computed", "Why"]
    .map((text, i) => h("th" + (i === 2 ? ".num" : ""), { scope: "col" }, i === 3 ? legend(...PHASES) : text)))), body);
  main.append(h("section", { "aria-label": "Recent requests" }, h("header", {}, h("h1", {}, "Recent requests"), total),
    h(".filter", {}, field("Client", client), field("Session", session), field("Time to the first token", slow),
      h("label.check", {}, wasteful, "only what wasted something"), clients, sessions)), h(".card", {}, table, note));

  // Those that the stream did not bring: all of a client or session that the server keeps, however long ago.
  let older = [], timer = 0, closed = false;
  async function look() {
    const filter = { client: client.value, session: session.value, slow: slow.value === "0" ? "" : slow.value };
    const text = new URLSearchParams(Object.entries(filter).filter(([, value]) => value));
    try { older = (await get(`/requests?limit=${KEPT}&${text}`)).data.reverse(); } catch { older = []; }
    if (!closed) update();
  }

  function changed() {
    clearTimeout(timer);
    timer = setTimeout(look, 300);
    const filter = { client: client.value, session: session.value, slow: slow.value === "0" ? "" : slow.value, waste: wasteful.checked ? "1" : "" };
    const text = new URLSearchParams(Object.entries(filter).filter(([, value]) => value)).toString();
    history.replaceState(null, "", "#recent" + (text && "?" + text));
    update();
  }

  function wanted(one) {
    return one.tokens && (!client.value || (one.client || "").startsWith(client.value))
      && (!session.value || (one.session || "").startsWith(session.value))
      && (one.ms.ttft || one.ms.total) >= Number(slow.value) && (!wasteful.checked || wasteOf(one).length > 0);
  }

  function make(one) {
    const reused = reusedOf(one.tokens), [verdict, ...others] = one.verdicts, also = others.filter((other) => !isFine(other)).map((other) => word(other.cause));
    return h("tr.open", { onclick: (event) => { if (!event.target.closest("a, button")) location.hash = "#request/" + one.id; } },
      h("td", {}, h("a", { href: "#request/" + one.id }, clock(Date.parse(one.at) + one.ms.total))),
      h("td.who", {}, who(one)),
      h("td.num", { "data-name": "first token" }, one.ms.ttft ? time(one.ms.ttft) : "–"),
      h("td.wide", {}, h(".bar", { role: "img", title: phaseText(one.ms), "aria-label": phaseText(one.ms) || "no time" })),
      h("td.wide", {}, h("p.sum", {}, h("span", {}, h("b", {}, count(one.tokens.computed)), " of " + count(one.tokens.prompt))),
        segments(h(".bar.slim", { role: "img", "aria-label": `${count(reused)} reused` }), [["reused", reused], ["computed", one.tokens.computed]], one.tokens.prompt)),
      h("td.wide", {}, one.end === "stop" || one.end === "length" ? null : h("p.bad", {}, one.error || one.end),
        verdict ? h("p" + (isFine(verdict) ? ".soft" : ""), {}, ...rich(verdict.text)) : h("p.soft", {}, "nothing: it was as quick as it could be"),
        also.length ? h("p.note", {}, "Also: " + also.join(", ")) : null));
  }

  function update() {
    const all = [...new Map([...older, ...server.requests.values()].map((one) => [one.id, one])).values()]
      .filter((one) => one.tokens).reverse(), shown = all.filter(wanted).slice(0, 200);
    const longest = Math.max(1, ...shown.map((one) => one.ms.ttft || 0));
    sync(body, shown, (one) => one.id, make, (row, one) => segments(row.querySelector(".bar"), phases(one.ms), longest));
    for (const [list, of] of [[clients, "client"], [sessions, "session"]]) {
      sync(list, [...new Set(all.map((one) => one[of]).filter(Boolean))].sort(), (text) => text, (text) => h("option", { value: text }));
    }
    table.hidden = shown.length === 0;
    note.hidden = shown.length > 0;
    set(note, server.info.requests === false ? "Requests are not kept (--keep-requests 0)."
      : all.length ? "No request is like that." : "No request has ended yet.");
    const computed = sum(shown, (one) => one.tokens.computed), prompt = sum(shown, (one) => one.tokens.prompt);
    set(total, shown.length ? `${plural(shown.length, "request")}; ${percent(prompt - computed, prompt)} of ${count(prompt)} prompt tokens reused` : "");
  }
  look();
  return { title: "Recent", update, close() { closed = true; clearTimeout(timer); } };
}

/** Arrow keys go from row to row. */
function arrows(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], links = [...event.currentTarget.querySelectorAll("tbody tr td:first-child a")];
  const at = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
  if (!step || at < 0) return;
  event.preventDefault();
  links[Math.max(0, Math.min(links.length - 1, at + step))].focus();
}

// ---------------------------------------------------------------- one request

/** The two texts where a prompt left an earlier one, with what differs marked. */
function sides(divergence) {
  const a = divergence.before, b = divergence.after;
  let from = 0, to = 0;
  while (from < a.length && from < b.length && a[from] === b[from]) from++;
  while (to < a.length - from && to < b.length - from && a[a.length - 1 - to] === b[b.length - 1 - to]) to++;
  const text = (whole) => h("pre.text", { tabindex: 0 }, whole.slice(0, from), h("mark", {}, whole.slice(from, whole.length - to)),
    whole.slice(whole.length - to));
  return h(".two", {}, h(".card.side", {}, h("h2", {}, "Before"), text(a)), h(".card.side", {}, h("h2", {}, "Now"), text(b)));
}

function requestView(main, query, id) {
  const back = h("p.crumb", {}, h("a", { href: "#recent", onclick: (event) => { if (history.length > 1) { event.preventDefault(); history.back(); } } }, "‹ Back"));
  main.append(back);
  const fact = (name, value) => value === null || value === undefined || value === "" ? [] : [h("div" + (String(value).length > 60 ? ".long" : ""), {}, h("dt", {}, name), h("dd", {}, value))];

  function print(one) {
    const tokens = one.tokens, ms = one.ms;
    main.append(h("section", { "aria-label": "Request" }, h("header", {}, h("h1", {}, `${one.client || "A request"} at ${clock(one.at)}`),
      h("p", {}, one.id)), h(".card", {}, h("dl.facts", {}, ...[["Session", one.session], ["Endpoint", one.endpoint], ["Key", one.key],
      ["Class", one.class], ["Ended with", one.error ? one.end + ": " + one.error : one.end], ["Status", String(one.status)],
      ["First token", ms?.ttft ? time(ms.ttft) : null], ["In all", ms ? time(ms.total) : null],
      ["Reply", tokens ? `${plural(tokens.generated, "token")}, ${one.tokens_per_second}/s` : null],
      ["Preempted", one.preemptions ? one.preemptions + " ×" : null], ["Came behind", one.behind ? plural(one.behind, "request") + (one.ahead ? ": " + one.ahead : "") : null],
      ["Trace", one.trace]].flatMap(([name, value]) => fact(name, value))))));
    if (!tokens) return;
    const reused = tokens.reused, seen = reusedOf(tokens), waits = Object.entries(one.waits_ms || {}).filter(([, value]) => value >= 1);
    main.append(h("section", { "aria-label": "Why" }, h("header", {}, h("h2", {}, "Why it took so long")), h(".card", {},
      one.verdicts.length ? one.verdicts.map((verdict) => h(".verdict" + (isFine(verdict) ? ".fine" : ""), {},
        h("p.lost", {}, time(verdict.lost_ms)), h("p", {}, h("b", {}, word(verdict.cause)), ": ", ...rich(verdict.text)), h("p.cure", {}, ...rich(verdict.advice))))
        : h("p.empty", {}, "There is nothing to say: what could be reused was reused."))));
    main.append(h(".two", {}, h(".card.pad", {}, h("h2", {}, "Time to the first token"),
      segments(h(".bar", { role: "img", "aria-label": phaseText(ms) }), phases(ms), ms.ttft || sum(phases(ms), (part) => part[1])),
      h("p.legend", {}, phases(ms).map(([name, value]) => h("span", {}, h("i." + name), `${name} ${time(value)}`))),
      waits.length ? h("p.note", {}, "Waited: " + waits.map(([name, value]) => `${time(value)}, ${QUEUE_WORDS[name] || name}`).join("; ")) : null),
      h(".card.pad", {}, h("h2", {}, "Prompt: " + plural(tokens.prompt, "token")),
        segments(h(".bar", { role: "img", "aria-label": `${count(seen)} reused, ${count(tokens.computed)} computed` }), [["reused", seen], ["computed", tokens.computed]], tokens.prompt),
        h("p.legend", {}, h("span", {}, h("i.reused"), `reused ${count(seen)}`), h("span", {}, h("i.computed"), `computed ${count(tokens.computed)}`)),
        h("p.note", {}, `From the engine ${count(reused.live)}, RAM ${count(reused.ram)}, disk ${count(reused.disk)}${reused.remote ? `, the shared store ${count(reused.remote)}` : ""}; new to the server ${count(tokens.new)}.`))));
    const parted = one.divergence;
    if (!parted) return;
    const place = [parted.message === null ? parted.field : `message ${parted.message + 1} (${parted.field})`, "token " + count(parted.token)].join(", ");
    main.append(h("section", { "aria-label": "Where it left the earlier prompt" }, h("header", {}, h("h2", {}, "Where it left the earlier prompt"),
      h("p", {}, `${place}: ${parted.cause_text || word(parted.cause)}. ` + (parted.saved_tokens ? `Behind it, ${plural(parted.saved_tokens, "token")} of both are the same.` : ""))),
      parted.before === undefined ? h("p.card.empty", {}, "The texts were not kept (--no-keep-texts).") : sides(parted)));
  }
  get("/requests/" + encodeURIComponent(id)).then(print, (error) => main.append(h("p.card.empty", {}, "This request cannot be shown: " + error.message + ".")));
  return { title: "Request", under: "recent" };
}

// ---------------------------------------------------------------- Conversations

/** Sessions in the order of a tree: what was forked stands below what it was forked from. */
function tree(sessions) {
  const below = new Map();
  for (const one of sessions) {
    const parent = one.metadata?.forked_from, known = parent !== one.id && sessions.some((other) => other.id === parent);
    const at = known ? parent : "";
    below.set(at, [...(below.get(at) || []), one]);
  }
  const rows = [], seen = new Set();
  const walk = (parent, depth) => {
    for (const one of below.get(parent) || []) {
      if (seen.has(one.id)) continue;
      seen.add(one.id);
      rows.push({ ...one, depth });
      walk(one.id, depth + 1);
    }
  };
  walk("", 0);
  for (const one of sessions) if (!seen.has(one.id)) rows.push({ ...one, depth: 0 });
  return rows;
}

function conversationsView(main) {
  const body = h("tbody"), note = h("p.empty"), said = h("p", { role: "status" });
  const path = (name) => "/v1/sessions/" + encodeURIComponent(name);
  const table = h("table.tree", { onkeydown: arrows }, h("thead", {}, h("tr", {}, ["Conversation", "Turns", "Tokens", "State", "Used", ""].map((text, i) => h("th" + (i === 1 || i === 2 ? ".num" : ""), { scope: "col" }, text || h("span.hidden", {}, "Actions"))))), body);
  main.append(h("section", { "aria-label": "Conversations" }, h("header", {}, h("h1", {}, "Conversations"), said),
    h(".card", {}, table, note)));
  let closed = false;
  const states = new Map(); // by name: when it was asked for, and what was said

  /** Where a conversation's state is, one after the other: each is a moment of the server's. */
  async function look(sessions) {
    for (const one of sessions.slice(0, 50)) {
      const known = states.get(one.id);
      if (closed || document.hidden || !one.turns) continue;
      if (known && known.used === one.last_used_at && Date.now() - known.at < 10000) continue;
      try { states.set(one.id, { at: Date.now(), used: one.last_used_at, state: await get(path(one.id) + "/state") }); }
      catch { states.set(one.id, { at: Date.now(), used: one.last_used_at, state: null }); }
      if (!closed) show();
    }
  }
  function stateCell(state) {
    if (!state || !state.there) return h("span.note", {}, "–");
    const there = state.there, read = there.disk + there.remote, ms = state.restore_ms + state.prefill_ms;
    const parts = [["live", "in the engine"], ["ram", "in RAM"], ["disk", "on disk"], ["remote", "in the shared store"]].filter(([name]) => there[name] > 0).map(([name, text]) => (there[name] < state.tokens - 1 ? count(there[name]) + " " : "") + text);
    if (state.computed > 1) parts.push(count(state.computed) + " to compute");
    const cost = ms < 10 ? "back at once" : "back in " + time(ms) + (state.read_bytes ? ", " + bytes(state.read_bytes) + " read" : "");
    return h(".state", {}, segments(h(".bar.slim", { "aria-hidden": "true" }), [["reused", there.live + there.ram], ["restore", read], ["computed", state.computed]], state.tokens),
      h("span", {}, parts.join(", ")), h("span.note", {}, cost));
  }

  const act = (text, label, run) => h("button", { type: "button", "aria-label": label, onclick: run }, text);
  async function warm(one, button) {
    button.disabled = true;
    set(said, `bringing ${one.id} back …`);
    try {
      const answer = await send(path(one.id) + "/warm", "POST"), receipt = answer.hearth;
      set(said, receipt ? `${one.id}: ${count(reusedOf(receipt))} tokens were there, ${count(receipt.computed)} were computed`
        : `${one.id} has no tokens yet`);
    } catch (error) { set(said, error.message); }
    button.disabled = false;
    load();
  }
  function fork(one) {
    dialog("Fork " + one.id, [h("p.note", {}, "Another conversation that begins where this one stands. Nothing is copied or computed."),
      h("label", {}, "Name", h("input", { name: "name", required: true, ".value": one.id + "-fork" }))], "Fork", async (form) => {
      const name = form.elements.name.value.trim();
      await send(path(one.id) + "/fork", "POST", { name });
      load();
    });
  }
  function remove(one) {
    dialog("Delete " + one.id + "?", [h("p", {}, `Its ${plural(one.turns, "turn")} are gone for good, and its state in RAM and on disk as far as no other conversation begins alike.`)],
      "Delete", async () => { await send(path(one.id), "DELETE"); load(); });
  }

  let sessions = [];
  async function load() {
    try { sessions = (await get("/v1/sessions?limit=200")).data; } catch (error) { set(said, error.message); return; }
    if (closed) return;
    show();
    look(sessions);
  }
  function show() {
    table.hidden = sessions.length === 0;
    note.hidden = sessions.length > 0;
    set(note, "No conversation has a name yet: requests name one with session_id, and so does Chat.");
    sync(body, tree(sessions), (one) => one.id, () => h("tr"), (row, one) => renew(row, [one, states.get(one.id)?.state], () => [
      h("td.wide", {}, h(".name", {}, one.depth ? h("span.fork", { "aria-label": "fork" }, "\u00a0\u00a0\u00a0".repeat(one.depth - 1) + "└") : null,
        h("a", { href: "#chat/" + encodeURIComponent(one.id) }, h("b", {}, one.id)))),
      h("td.num", { "data-name": "turns" }, count(one.turns)), h("td.num", { "data-name": "tokens" }, one.tokens ? count(one.tokens) : "–"),
      h("td.wide", { "data-name": "state" }, stateCell(states.get(one.id)?.state)),
      h("td", { "data-name": "used" }, ago(one.last_used_at)),
      h("td.wide", {}, h(".acts", {}, act("Fork", "Fork " + one.id, () => fork(one)),
        act("Warm", "Warm " + one.id, (event) => warm(one, event.currentTarget)), act("Delete", "Delete " + one.id, () => remove(one))))]));
  }
  load();
  let seen = server.requests.size;
  return { title: "Conversations", close() { closed = true; }, update() { if (server.requests.size !== seen) { seen = server.requests.size; load(); } } };
}

// ---------------------------------------------------------------- Trends

const PLOT = { width: 600, height: 150 };

/** A chart of one or two lines, or of boxes, over the minutes. `of`: a function per line, null where there is nothing. */
function chart(title, minutes, of, show, names, boxes) {
  const top = Math.max(1e-9, ...minutes.flatMap((minute) => of.map((one) => one(minute) || 0))) * 1.05;
  const x = (i) => i * PLOT.width / (minutes.length - 1), y = (value) => PLOT.height * (1 - value / top);
  const svg = s("svg", { viewBox: `0 0 ${PLOT.width} ${PLOT.height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const part of [0, 0.5, 1]) svg.append(s("line", { class: "grid", x1: 0, x2: PLOT.width, y1: part * PLOT.height, y2: part * PLOT.height, "vector-effect": "non-scaling-stroke" }));
  of.forEach((one, line) => {
    const points = minutes.map((minute, i) => [x(i), one(minute)]).filter(([, value]) => value !== null);
    if (boxes) {
      for (const [at, value] of points) if (value > 0) svg.append(s("rect", { class: "box", x: Math.max(0, at - 4), width: 8, y: y(value), height: PLOT.height - y(value) }));
      return;
    }
    const path = points.map(([at, value], i) => `${i ? "L" : "M"}${at.toFixed(1)} ${y(value).toFixed(1)}`).join("");
    if (points.length === 1) svg.append(s("rect", { class: "box", x: points[0][0] - 3, width: 6, y: y(points[0][1]) - 2, height: 4 }));
    if (line === 0 && points.length > 1) svg.append(s("path", { class: "area", d: `${path}L${points.at(-1)[0]} ${PLOT.height}L${points[0][0]} ${PLOT.height}Z` }));
    svg.append(s("path", { class: line ? "two-nd" : "one", d: path, "vector-effect": "non-scaling-stroke" }));
  });
  const told = (minute) => `${clock(minute.at * 1000).slice(0, 5)}: ` + of.map((one, i) => `${names[i]} ${one(minute) === null ? "–" : show(one(minute))}`).join(", ");
  const last = [...minutes].reverse().find((minute) => of[0](minute) !== null) || minutes.at(-1), out = h("output", {}, told(last));
  let at = minutes.indexOf(last);
  const tell = (place) => {
    at = Math.max(0, Math.min(minutes.length - 1, place));
    set(out, told(minutes[at]));
    plot.setAttribute("aria-valuenow", at);
    plot.setAttribute("aria-valuetext", out.textContent);
  };
  const plot = h(".plot", { role: "slider", tabindex: 0, "aria-label": title + ", by minute", "aria-valuemin": 0, "aria-valuemax": minutes.length - 1,
    onkeydown: (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) { event.preventDefault(); tell(at + step); }
    }, onpointermove: (event) => {
      const box = svg.getBoundingClientRect();
      tell(Math.round((event.clientX - box.left) / box.width * (minutes.length - 1)));
    }, onpointerleave: () => tell(minutes.indexOf(last)) }, h("span.top", {}, show(top / 1.05)), svg);
  tell(at);
  return h("figure.card.chart", {}, h("figcaption", {}, h("h2", {}, title), out), plot, h(".axis", { "aria-hidden": "true" }, h("span", {}, "an hour ago"), h("span", {}, "now")));
}

/** What the server tells of the last hour, by minute, made of a key's own requests: those that are kept. */
function minutesOf(requests) {
  const now = Math.floor(Date.now() / 60000), minutes = Array.from({ length: 60 }, (_, i) => ({ at: (now - 59 + i) * 60, requests: 0, prompt_tokens: 0, computed_tokens: 0, preemptions: 0, ttft: [] }));
  for (const one of requests) {
    const minute = minutes[Math.floor(Date.parse(one.at) / 60000) - now + 59];
    if (!minute || !one.tokens) continue;
    minute.requests++;
    minute.prompt_tokens += one.tokens.prompt;
    minute.computed_tokens += one.tokens.computed;
    minute.preemptions += one.preemptions;
    if (one.ms.ttft > 0) minute.ttft.push(one.ms.ttft);
  }
  const part = (list, share) => list.length ? list.sort((a, b) => a - b)[Math.min(list.length - 1, Math.floor(share * list.length))] : null;
  return minutes.map(({ ttft, ...minute }) => ({ ...minute, ttft_p50_ms: part(ttft, 0.5), ttft_p99_ms: part(ttft, 0.99), evictions: null }));
}

function trendsView(main) {
  const charts = h(".charts"), note = h("p.card.empty", { ".hidden": true }), about = h("p", {}, "by minute, since the server was started");
  main.append(h("section", { "aria-label": "Trends" }, h("header", {}, h("h1", {}, "The last hour"), about), note, charts));
  let kept = null; // a key's own requests, asked for once; later ones come with the stream
  async function own() {
    kept ??= new Map((await get("/requests?limit=100000")).data.map((one) => [one.id, one]));
    for (const [id, one] of server.requests) kept.set(id, one);
    return kept.values();
  }
  const some = (of) => (minute) => minute.requests ? of(minute) : null;
  async function load() {
    let minutes;
    if (server.info.sees_all === undefined) return;
    try {
      if (!server.info.sees_all) set(about, "by minute, of this key's own requests that are kept");
      minutes = server.info.sees_all ? (await get("/trends")).data : minutesOf(await own());
    } catch (error) { note.hidden = false; set(note, error.message); return; }
    if (charts.shows === JSON.stringify(minutes)) return;
    charts.shows = JSON.stringify(minutes);
    note.hidden = true;
    charts.replaceChildren(
      chart("Time to the first token", minutes, [some((one) => one.ttft_p99_ms), some((one) => one.ttft_p50_ms)], time, ["slowest of a hundred", "median"]),
      chart("Prompt tokens reused", minutes, [some((one) => 100 * (one.prompt_tokens - one.computed_tokens) / Math.max(1, one.prompt_tokens))], (value) => Math.round(value) + " %", ["reused"]),
      chart("Requests", minutes, [(one) => one.requests], (value) => count(value), ["requests"], true),
      minutes[0].evictions === null ? "" : chart("Evictions", minutes, [(one) => one.evictions], (value) => count(value), ["pages and snapshots"], true),
      chart("Preemptions", minutes, [(one) => one.preemptions], (value) => count(value), ["requests"], true));
  }
  load();
  let seconds = 0;
  const timer = setInterval(() => { if (!document.hidden && ++seconds % 5 === 0) load(); }, 1000);
  return { title: "Trends", close: () => clearInterval(timer), update() { if (!charts.shows) load(); } };
}

// ---------------------------------------------------------------- Chat

function receiptOf(answer, ttft) {
  const receipt = answer.hearth, speed = answer.timings?.predicted_per_second;
  if (!receipt) return [];
  const reused = receipt.reused, there = reusedOf(receipt);
  const parts = [["live", "from the engine"], ["ram", "from RAM"], ["disk", "from disk"], ["remote", "from the shared store"]].filter(([name]) => reused[name] > 0);
  return [segments(h(".bar", { "aria-hidden": "true" }), [["reused", there], ["computed", receipt.computed]], there + receipt.computed),
    h("span", {}, `reused ${count(there)}${parts.length ? " (" + parts.map(([name, text]) => (parts.length > 1 ? count(reused[name]) + " " : "") + text).join(", ") + ")" : ""}, computed ${count(receipt.computed)}`),
    h("span", {}, `first token ${time(ttft)}`), speed ? h("span", {}, `${count(speed)} tokens/s`) : null].filter(Boolean);
}

function chatView(main, query, name) {
  const turns = h(".turns", { "aria-live": "off" }), said = h("p.hidden", { role: "status" });
  const box = h("textarea", { "aria-label": "Message", rows: 2, onkeydown: (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  } });
  const names = h("datalist", { id: "names" }), session = h("input", { list: "names", ".value": name, onchange: begin });
  const button = h("button.main", { type: "submit" }, "Send");
  const form = h("form.card.say", { onsubmit: (event) => { event.preventDefault(); if (running) running.abort(); else say(); } }, box,
    h(".row", {}, h("label", {}, "Session (empty: none)", session, names), h("span.note", {}, "Enter sends, Shift+Enter begins a line"), button));
  main.append(h("h1.hidden", {}, "Chat"), h(".chat", {}, turns, said, form));
  let history = [], running = null;

  function add(role, text) {
    const body = h(".said", {}, text);
    const turn = h(".turn." + role, {}, h("span.hidden", {}, role === "user" ? "You:" : "The model:"), body);
    turns.append(turn);
    return { turn, body };
  }

  async function begin() {
    const of = session.value.trim();
    history = [];
    turns.replaceChildren();
    if (!of) { turns.append(h("p.soft", {}, "A message to the model. With a session the server keeps the conversation, and this page sends only what is new.")); return; }
    try {
      const items = (await get(`/v1/conversations/${encodeURIComponent(of)}/items?limit=100&order=asc`)).data;
      if (session.value.trim() !== of) return;
      for (const item of items.filter((one) => one.type === "message" && (one.role === "user" || one.role === "assistant"))) {
        add(item.role, (item.content || []).map((part) => part.text || "").join(""));
      }
      window.scrollTo(0, document.body.scrollHeight);
    } catch { /* it begins now */ }
  }

  async function say() {
    const text = box.value.trim(), of = session.value.trim();
    if (!text) return;
    if (!turns.querySelector(".turn")) turns.replaceChildren();
    box.value = "";
    add("user", text);
    const { turn, body } = add("assistant", ""), thought = h("pre.text"), begun = performance.now();
    history.push({ role: "user", content: text });
    running = new AbortController();
    button.textContent = "Stop";
    let reply = "", ttft = NaN;
    try {
      const answer = await ask("/v1/chat/completions", { method: "POST", signal: running.signal, headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ messages: of ? [history.at(-1)] : history, stream: true, ...(of ? { session_id: of } : {}) }) });
      for await (const data of eventsOf(answer)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data), delta = chunk.choices?.[0]?.delta || {};
        if (chunk.error) throw new Error(chunk.error.message);
        if (delta.reasoning_content || delta.content) ttft = Number.isNaN(ttft) ? performance.now() - begun : ttft;
        if (delta.reasoning_content) {
          if (!thought.isConnected) turn.insertBefore(h("details", {}, h("summary", {}, "Thinking"), thought), body);
          thought.append(delta.reasoning_content);
        }
        if (delta.content) { reply += delta.content; body.append(delta.content); }
        if (chunk.hearth) turn.append(h("p.receipt", {}, ...receiptOf(chunk, ttft)));
        if (innerHeight + scrollY > document.body.scrollHeight - 160) window.scrollTo(0, document.body.scrollHeight);
      }
      set(said, "The model said: " + reply);
    } catch (error) {
      turn.append(h("p.bad", { role: "alert" }, running.signal.aborted ? "stopped" : error.message));
    }
    history.push({ role: "assistant", content: reply });
    running = null;
    button.textContent = "Send";
    box.focus();
  }
  begin();
  get("/v1/sessions?limit=100").then((list) => sync(names, list.data, (one) => one.id, (one) => h("option", { value: one.id })), () => {});
  return { title: "Chat", close: () => running?.abort() };
}

// ---------------------------------------------------------------- views

const VIEWS = { now: nowView, recent: recentView, conversations: conversationsView, trends: trendsView, chat: chatView };
const NAMES = { now: "Now", recent: "Recent", conversations: "Conversations", trends: "Trends", chat: "Chat" };
let view = null;

/** Shows what the address says: #now, #recent?client=x, #request/ID. */
function show() {
  const [, name, id, query] = location.hash.match(/^#([a-z]+)(?:\/([^?]*))?(?:\?(.*))?$/) || [];
  if (name === "main") return;
  const main = h("main", { id: "main", tabindex: -1, class: "live" });
  const open = name === "request" ? requestView : VIEWS[name] || nowView, first = view === null;
  view?.close?.();
  view = null;
  $("main").replaceWith(main);
  const shown = open(main, new URLSearchParams(query || ""), decodeURIComponent(id || ""));
  view = shown;
  const current = shown.under || (VIEWS[name] ? name : "now");
  for (const link of $("views").children) {
    if (link.hash === "#" + current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${shown.title} – hearth`;
  view.update?.();
  if (!first && !document.activeElement?.closest?.("header")) main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

$("views").append(...Object.entries(NAMES).map(([name, text]) => h("a", { href: "#" + name }, text)));
$("views").addEventListener("keydown", (event) => {
  const links = [...$("views").children], at = links.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || at < 0) return;
  event.preventDefault();
  links[(at + step + links.length) % links.length].focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("dialog").open && view?.under) location.hash = "#" + view.under;
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
window.addEventListener("hashchange", show);
show();
listen();
