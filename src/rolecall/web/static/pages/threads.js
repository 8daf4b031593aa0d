// All threads, newest first and updated live. The filters are part of the address.
import { html, useEffect, useRef, useState } from "../parts/html.js";
import { get, makeTurns, useGet } from "../parts/net.js";
import { useDebounced, useEvents } from "../parts/live.js";
import { route, setQuery } from "../parts/route.js";
import { Empty, Loading, More, Problem, Status, When } from "../parts/controls.js";
import { count, moment, money, roleName, shortId, statusOf } from "../parts/format.js";

const OPEN = ["running", "queued", "suspended", "waiting", "idle", "crashed"];
const ENDED = ["completed", "failed", "killed", "discarded"];
const AGES = [["", "any age"], ["1", "today"], ["7", "7 days"], ["30", "30 days"], ["90", "90 days"]];
const STARTING = ["started", "queued", "forked", "imported", "triggered"];
const MOVING = ["step_started", "step", "suspended", "resumed", "limited", "waiting", "crashed", ...ENDED];
const DAY = 86_400_000;

export default function Threads() {
  const { status = "", workflow = "", text = "", age = "", cost = "" } = route.value.query;
  const since = age ? Math.floor(Date.now() / DAY - Number(age)) * DAY : "";
  const { rows, next, error, load } = useThreads({ status, workflow, text, cost, since });
  const isFiltered = status || workflow || text || age || cost;
  return html`<h1>Threads</h1>
    <${Filters} ...${{ status, workflow, text, age, cost }} />
    <${Problem} error=${error} retry=${() => load()} />
    ${!rows && !error ? html`<${Loading} />` : null}
    ${rows?.length ? html`<${List} rows=${rows} />` : null}
    ${rows?.length === 0 && next ? html`<p class="faint" role="status">Looking further back…</p>` : null}
    ${rows?.length === 0 && !next ? html`<${NoThreads} isFiltered=${isFiltered} />` : null}
    ${next ? html`<${More} load=${() => load(next)}>Show older threads</${More}>` : null}`;
}

// The loaded pages of threads that match a query, updated by events.
function useThreads(query) {
  const key = JSON.stringify(query);
  const [state, setState] = useState({ rows: null, next: null, error: null });
  const wanted = useRef(key);
  const asked = useRef("");
  const newest = useRef(0); // the number of the newest event that this page has received
  const [takeTurn] = useState(makeTurns);
  const load = async (after = "") => {
    if (after && asked.current === after) return; // this page has been requested already
    asked.current = after;
    wanted.current = key;
    const isInTime = after ? () => true : takeTurn();
    try {
      const page = await get("/threads", { ...query, after, max: 50 });
      if (wanted.current !== key || !isInTime()) return;
      setState((old) => (after ? append(old, page, after) : renew(old, page, key)));
      if (newest.current > page.lastEvent) soon(); // something happened after the page was read
    } catch (error) {
      asked.current = "";
      if (wanted.current === key) setState((old) => ({ ...old, error }));
    }
  };
  useEffect(() => { load(); }, [key]);
  const soon = useDebounced(() => load(), 300, 3000);
  useEvents((event) => {
    if (["back", "reset", "crashed"].includes(event.kind)) soon();
    if (!event.thread) return;
    newest.current = event.seq || newest.current;
    const update = (row) => (row.thread === event.thread ? applyEvent(row, event) : row);
    const isKnown = state.rows?.some((row) => row.thread === event.thread);
    if (isKnown) setState((old) => ({ ...old, rows: old.rows.map(update) }));
    // An event gives a row its status, but not what the thread has used, nor whether the row still matches a filter.
    const isUsed = isKnown && event.kind === "step";
    if (isUsed || STARTING.includes(event.kind) || (query.status && MOVING.includes(event.kind))) soon();
  });
  return { ...state, load };
}

function append(old, page, after) {
  if (old.next !== after) return old;
  return { ...old, rows: [...old.rows, ...page.threads], next: page.next, error: null };
}

// A refresh of the first page keeps the older rows that are already shown.
function renew(old, page, key) {
  const at = old.key === key && page.next ? old.rows.findIndex((row) => row.thread === page.next) : -1;
  const isOlder = (row) => page.next && row.thread < page.next; // the page can end at a thread that does not match
  const older = at < 0 ? (old.key === key && old.rows || []).filter(isOlder) : old.rows.slice(at + 1);
  const fresh = new Set(page.threads.map((row) => row.thread));
  const rows = [...page.threads, ...older.filter((row) => !fresh.has(row.thread))];
  return { key, rows, next: older.length ? old.next : page.next, error: null };
}

// Returns a row updated with what an event says.
function applyEvent(row, { kind, body = {}, at }) {
  const next = { ...row, updated: at || row.updated };
  const reason = body.reason || null;
  if (kind === "step_started") return { ...next, status: "running", currentRole: body.role, reason: null, until: null };
  if (kind === "step") {
    const isOver = ENDED.includes(body.status) || body.status === "suspended";
    const status = isOver ? body.status : row.status;
    return { ...next, steps: row.steps + 1, status, currentRole: body.next || null, reason };
  }
  if (["suspended", "waiting", "queued", "crashed", ...ENDED].includes(kind)) return { ...next, status: kind, reason };
  if (kind === "limited") return { ...next, status: "idle", reason, until: body.until };
  if (kind === "resumed") return { ...next, status: "idle", reason: null, until: null };
  return next;
}

function Filters({ status, workflow, text, age, cost }) {
  const workflows = (useGet("/workflows").data?.workflows || []).map((one) => one.name);
  const [words, setWords] = useState(text);
  const typed = useRef(text); // the words that this field has put into the address
  useEffect(() => { if (text !== typed.current) setWords(typed.current = text); }, [text]);
  const soon = useDebounced(() => setQuery({ text: (typed.current = words.trim()) }), 250);
  const type = (event) => {
    setWords(event.target.value);
    soon();
  };
  const choose = (name) => (event) => setQuery({ [name]: event.target.value });
  const known = workflow && !workflows.includes(workflow) ? [workflow, ...workflows] : workflows;
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <input type="search" aria-label="Words in title, workflow, reason or id" placeholder="Words in title, reason or id"
      value=${words} onInput=${type} />
    <select aria-label="Status" value=${status} onChange=${choose("status")}>
      <option value="">any status</option><option value=${OPEN.join(",")}>not ended</option>
      ${[...OPEN, ...ENDED, "damaged"].map((one) => html`<option value=${one}>${one}</option>`)}</select>
    <select aria-label="Workflow" value=${workflow} onChange=${choose("workflow")}>
      <option value="">any workflow</option>
      ${known.map((one) => html`<option value=${one}>${one}</option>`)}</select>
    <select aria-label="Age" value=${age} onChange=${choose("age")}>
      ${AGES.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select>
    <select aria-label="Cost" value=${cost} onChange=${choose("cost")}>
      <option value="">any cost</option>
      ${["0.1", "1", "5", "20"].map((one) => html`<option value=${one}>from $${one}</option>`)}</select>
  </form>`;
}

function List({ rows }) {
  return html`<div class="table-box"><table class="list"><thead><tr><th>Status</th><th>Thread</th><th>Next</th>
    <th class="number">Steps</th><th class="number">Tokens</th><th class="number">Cost</th><th>Changed</th></tr></thead>
    <tbody>${rows.map((row) => html`<${Row} key=${row.thread} row=${row} />`)}</tbody></table></div>`;
}

const firstLine = (text) => text.split("\n")[0];

function Row({ row }) {
  const [isOpen, setOpen] = useState(false);
  const { used } = row;
  return html`<tr><td><${Status} is=${statusOf(row)} /></td>
    <td class="wide"><a data-row href="/threads/${row.thread}">${row.title || "(no task)"}</a>
      ${used.hasMembers ? html` <button class="plain fold" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
        ${isOpen ? "▾" : "▸"} members</button>` : null}
      <div class="faint"><span>${row.name || "?"}</span> <code>${shortId(row.thread)}</code>
        ${row.until ? ` · waits until ${moment(row.until)}` : null}
        ${row.reason ? html` · <span class="clip">${firstLine(row.reason)}</span>` : null}</div></td>
    <td>${row.currentRole ? roleName(row.currentRole) : ""}</td>
    <td class="number" data-unit=${row.steps === 1 ? "step" : "steps"}>${count(row.steps)}</td>
    <td class="number" data-unit="tokens">${count(used.tokens)}</td>
    <td class="number">${used.cost != null ? money(used.cost) : ""}</td>
    <td class="nowrap"><${When} at=${row.updated} /></td></tr>
    ${isOpen ? html`<${Members} thread=${row.thread} />` : null}`;
}

function Members({ thread }) {
  const { data, error } = useGet(`/threads/${thread}/members`);
  if (error || !data) {
    return html`<tr class="member"><td></td><td colspan="6">${error ? error.message : "Loading…"}</td></tr>`;
  }
  return data.groups.flatMap(({ role, members }) => members.map((one) => {
    const title = one.title || `${role} ${one.number}`;
    return html`<tr class="member" key=${one.id || one.number}><td><${Status} is=${one.status} /></td>
      <td colspan="6">${one.id ? html`<a data-row href="/threads/${one.id}">${title}</a>` : title}
        ${one.reason ? html` <span class="faint clip">${firstLine(one.reason)}</span>` : null}</td></tr>`;
  }));
}

function NoThreads({ isFiltered }) {
  if (isFiltered) {
    return html`<${Empty} title="No thread matches these filters.">
      <p><a class="button" href="/threads">Show all threads</a></p></${Empty}>`;
  }
  return html`<${Empty} title="There are no threads yet.">
    <p>A thread is one run of a workflow. Start one here, or with <code>rolecall run WORKFLOW -p TEXT</code>.</p>
    <p><a class="button main" href="/start">Start a thread</a></p></${Empty}>`;
}
