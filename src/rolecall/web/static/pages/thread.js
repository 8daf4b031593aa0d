// One thread: its graph with live state, waterfall, chain and files, and the actions that a person can take.
import { html, Prose, useEffect, useMemo, useRef, useState } from "../parts/html.js";
import { get, makeTurns, me, useGet } from "../parts/net.js";
import { problems, useDebounced, useEvents, watchThread } from "../parts/live.js";
import { route, setQuery, title } from "../parts/route.js";
import { Boundary, Empty, Loading, More, Problem, Status, Tabs, When } from "../parts/controls.js";
import {
  agentName, count, duration, isLimited, moment, money, plural, roleName, shortId, statusOf,
} from "../parts/format.js";
import { Graph } from "../parts/graph.js";
import { Waterfall } from "../parts/waterfall.js";
import { Question } from "../parts/question.js";
import { StepCard } from "../parts/step.js";
import { Diff } from "../parts/diff.js";
import { Actions, SendComments } from "../parts/actions.js";

const PAGE = 40;
const MOST_HEARD = 500; // how many recent events are kept
const TABS = [["chain", "Chain"], ["time", "Time"], ["files", "Files"], ["task", "Task"], ["facts", "Facts"]];
const WORDS = ["text", "tool_call", "usage", "session", "process", "permission"]; // do not change the thread's state

const UNRUN = ["idle", "queued", "crashed"]; // the statuses of threads that no process runs

export default function Thread({ thread: given }) {
  const { data, error, reload } = useGet(`/threads/${given}`);
  const graph = useGet(data && data.status !== "damaged" ? `/threads/${given}/graph` : null);
  const id = data?.thread;
  const steps = useSteps(data?.status === "damaged" ? null : id, data?.head);
  const [work, hear] = useWork(data);
  const soon = useDebounced(() => { reload(); graph.reload(); }, 100, 800);
  useEffect(() => {
    if (!id) return undefined;
    watchThread(id, data.lastEvent);
    return () => watchThread("");
  }, [id]);
  useEvents((event) => {
    if (event.kind === "back" || event.kind === "reset") { soon(); steps.refresh(); return; }
    if (event.kind === "member" || (event.thread && event.thread !== id && data?.group)) soon();
    if (event.thread !== id) return;
    hear(event);
    if (!WORDS.includes(event.kind)) soon();
    if (event.kind === "step" || event.kind === "resumed") steps.refresh();
  });
  useEffect(() => { if (data) title.value = data.title || shortId(data.thread); }, [data?.title]);

  if (error && !data) {
    return html`<h1>Thread ${given}</h1>
      <${Problem} error=${error} retry=${error.code === "not_found" ? null : reload} />
      <p><a class="button" href="/threads">All threads</a></p>`;
  }
  if (!data) return html`<${Loading} />`;
  if (data.status === "damaged") return html`<${Damaged} data=${data} />`;
  const problem = UNRUN.includes(data.status) && (problems.value[id] || data.problem);
  return html`<${Head} data=${data} reload=${() => { reload(); steps.refresh(); }} />
    ${problem ? html`<div class="problem" role="alert"><p><b>It could not be run.</b></p>
      <pre tabindex="0">${problem}</pre></div>` : null}
    <${Boundary} what="What it waits for"><${Question} thread=${data} onDone=${reload} /></${Boundary}>
    ${graph.error ? html`<p class="faint">Its workflow cannot be shown: ${graph.error.message}. The chain below is
      complete.</p>` : null}
    <${Boundary} what="The workflow">
      <${WorkflowGraph} data=${data} graph=${graph.data} steps=${steps.list} /></${Boundary}>
    <${CurrentWork} work=${work} data=${data} />
    <${SendComments} thread=${data} onDone=${reload} />
    <${Views} data=${data} steps=${steps} />`;
}

function Views({ data, steps }) {
  const tab = route.value.query.tab || "chain";
  const choose = (name) => setQuery({ tab: name === "chain" ? "" : name });
  const top = useRef(null);
  const isLinked = useRef(tab !== "chain").current;
  useEffect(() => { if (isLinked) top.current.scrollIntoView(); }, []);
  return html`<div ref=${top} class="views-top"></div>
    <${Tabs} label="Views of the thread" chosen=${tab} choose=${choose} tabs=${TABS} />
    <div role="tabpanel" class=${isLinked ? "linked" : ""} aria-label=${tab}><${Boundary} what="This view" key=${tab}>
      ${tab === "chain" ? html`<${Chain} data=${data} steps=${steps} />` : null}
      ${tab === "time" ? html`<${Time} steps=${steps} />` : null}
      ${tab === "files" ? html`<${Files} data=${data} />` : null}
      ${tab === "task" ? html`<${Prose} html=${data.promptHtml} class="card" />` : null}
      ${tab === "facts" ? html`<${Facts} data=${data} />` : null}</${Boundary}>
    </div>`;
}

function Damaged({ data }) {
  return html`<p class="crumbs"><a href="/threads">Threads</a> / <code>${shortId(data.thread)}</code></p>
    <h1>This thread is damaged</h1>
    <p><${Status} is="damaged" /></p>
    <${Problem} error=${{ message: data.reason || "Its record cannot be read." }} />
    <p>Other threads are not affected. <code>rolecall cas verify</code> says what is missing.</p>
    <p><a class="button" href="/threads">All threads</a></p>`;
}

// The loaded steps, newest first. `refresh` adds the steps that were taken since they were loaded.
function useSteps(id, head) {
  const [state, setState] = useState({ list: null, before: null, error: null });
  const known = useRef(null);
  known.current = state.list;
  const asked = useRef("");
  const [takeTurn] = useState(makeTurns);
  const load = async (before = "", max = PAGE) => {
    if (before && asked.current === before) return; // this page has been requested already
    asked.current = before;
    const isInTime = before ? () => true : takeTurn();
    try {
      const page = await get(`/threads/${id}/steps`, { before, max });
      setState((old) => {
        if ((before && old.before !== before) || !isInTime()) return old;
        return { list: before ? [...old.list, ...page.steps] : page.steps, before: page.before, error: null };
      });
    } catch (error) {
      asked.current = "";
      setState((old) => ({ ...old, error }));
    }
  };
  const refresh = async () => {
    if (!known.current?.length) { await load(); return; }
    const isInTime = takeTurn();
    try {
      const page = await get(`/threads/${id}/steps`, { max: 20 });
      setState((old) => {
        if (!isInTime()) return old;
        const at = page.steps.findIndex((step) => step.id === old.list[0]?.id);
        if (at < 0) return { list: page.steps, before: page.before, error: null };
        return { ...old, list: [...page.steps.slice(0, at), ...old.list], error: null };
      });
    } catch (error) {
      setState((old) => ({ ...old, error }));
    }
  };
  useEffect(() => { if (id) load(); }, [id]);
  const hasList = state.list !== null;
  useEffect(() => { if (hasList && known.current[0]?.id !== head) refresh(); }, [head, hasList]);
  return { ...state, older: (max) => load(state.before, max), refresh };
}

// What the agent of a running thread has done in this step, and a function that processes further events.
function useWork(data) {
  const [work, setWork] = useState(null);
  const heard = useRef([]); // recent events, which might arrive before the reply with the earlier ones
  const known = useRef(0); // the newest event in that reply
  const isRunning = data?.status === "running";
  useEffect(() => {
    setWork(null);
    heard.current = [];
    if (!isRunning) return undefined;
    let isCurrent = true;
    get(`/threads/${data.thread}/work`).then(({ events }) => {
      if (!isCurrent) return;
      known.current = events.at(-1)?.seq || 0;
      const later = heard.current.filter((event) => event.seq > known.current);
      setWork([...events, ...later].reduce(follow, null));
    }, () => {}); // after an error, later events are still shown
    return () => { isCurrent = false; };
  }, [data?.thread, isRunning]);
  const hear = (event) => {
    if (event.seq <= known.current) return;
    heard.current = [...heard.current.slice(-MOST_HEARD), event];
    setWork((old) => follow(old, event));
  };
  return [work, hear];
}

// What the agent is doing after an event, or null between two steps.
function follow(old, { kind, body = {}, at }) {
  const nothing = { since: at, text: "", calls: [], tokens: 0 };
  if (kind === "step_started") return { ...nothing, role: body.role, agent: body.agent };
  if (["step", "attempt_failed", "suspended", "killed", "completed", "failed"].includes(kind)) return null;
  const work = old || nothing;
  if (kind === "text") return { ...work, text: (work.text + body.text).slice(-6000) };
  if (kind === "tool_call") {
    return { ...work, calls: [...work.calls, { name: body.name, about: gist(body) }].slice(-5) };
  }
  if (kind === "usage") return { ...work, tokens: (body.input_tokens || 0) + (body.output_tokens || 0) };
  return old;
}

function gist(body) {
  const given = body.arguments ?? body.input ?? "";
  if (typeof given === "string") return given.slice(0, 160);
  return String(given.command || given.path || given.file_path || JSON.stringify(given)).slice(0, 160);
}

function Head({ data, reload }) {
  const limits = Object.entries(data.limits || {});
  return html`<div class="thread-head"><div class="grow">
      <p class="crumbs"><a href="/threads">Threads</a> /${" "}
        <a href="/threads?workflow=${encodeURIComponent(data.name || "")}">${data.name}</a>
        ${data.parent ? html` / <a href="/threads/${data.parent}">${shortId(data.parent)}</a>` : null} /${" "}
        <code title=${data.thread}>${shortId(data.thread)}</code></p>
      <h1>${data.title}</h1>
      <${Summary} data=${data} />
      ${data.until ? html`<p>${isLimited(data) ? html`It waits until <b>${moment(data.until)}</b>, because its agent has
        reached a limit.` : html`Its agent had reached a limit. The limit ended <b>${moment(data.until)}</b>, but
        no process runs the thread.`}</p>` : null}
      ${data.reason && !data.question ? html`<p class="reason">${data.reason}</p>` : null}
      ${limits.length && !data.done ? html`<p class="limits">${limits.map(([name, most]) => html`
        <${Limit} name=${name} most=${most} used=${usedOf(data.usage || {}, name)} />`)}</p>` : null}
    </div><${Actions} data=${data} reload=${reload} /></div>`;
}

function Summary({ data }) {
  const used = data.usage || {};
  const origin = data.forkedThread;
  return html`<p class="facts"><${Status} is=${statusOf(data)} />
    ${data.currentRole && !data.done ? html`<span>${data.status === "running" ? "" : "next: "}
      <b>${roleName(data.currentRole)}</b></span>` : null}
    <span>${plural(data.steps, "step")}</span>
    ${used.tokens ? html`<span>${count(used.tokens)} tokens</span>` : null}
    ${used.cost ? html`<span>${money(used.cost)}</span>` : null}
    ${used.minutes ? html`<span>${duration(used.minutes * 60_000)} of work</span>` : null}
    <span>changed <${When} at=${data.updated} /></span>
    ${origin ? html`<span>fork of <a href="/threads/${origin}">${shortId(origin)}</a> ·${" "}
      <a href="/compare?one=${origin}&other=${data.thread}">compare</a></span>` : null}</p>`;
}

// How much of a limit, such as `cost` or `worker.steps`, has been used.
function usedOf(used, name) {
  const [role, kind] = name.includes(".") ? name.split(".") : [null, name];
  return (role ? used.roles?.[role]?.[kind] : used[kind]) || 0;
}

function Limit({ name, most, used }) {
  const isNear = used > most * 0.8;
  const show = name.endsWith("cost") ? money : (amount) => count(Math.round(amount * 100) / 100);
  return html`<label class="limit ${isNear ? "near" : ""}">${name}${" "}
    <meter min="0" max=${most} high=${most * 0.8} optimum="0" value=${used}></meter>${" "}
    ${show(used)} of ${show(most)}</label>`;
}

function WorkflowGraph({ data, graph, steps }) {
  const { status, currentRole } = data;
  const shown = useMemo(() => graph && withState(graph, data, steps || []), [graph, status, currentRole, steps]);
  // On a phone, a link to a tab shows the tab without the graph above it.
  const isSmall = matchMedia("(max-width: 720px)").matches;
  const isLeftOut = useRef(isSmall && Boolean(route.value.query.tab)).current;
  if (!shown || isLeftOut) return null;
  const { role } = route.value.query;
  return html`<${Graph} label=${`Workflow ${graph.name}`} ...${shown} chosen=${role}
    onChoose=${(name) => setQuery({ role: role === name ? "" : name, tab: "" })} />`;
}

// The places and lines of a workflow, marked with what happened in this thread.
function withState(graph, data, steps) {
  const taken = new Set();
  const roles = [...steps].reverse().map((step) => step.role).filter((role) => !role.startsWith("$"));
  if (roles.length) taken.add(`$START ${roles[0]}`);
  roles.forEach((role, at) => { if (at) taken.add(`${roles[at - 1]} ${role}`); });
  if (data.done && roles.length) taken.add(`${roles.at(-1)} ${data.status === "failed" ? "$FAIL" : "$END"}`);
  const places = graph.places.map((id) => {
    const isGroup = id in graph.groups;
    // The usage of a group counts the steps of its members.
    const visits = isGroup ? roles.filter((role) => role === id).length : graph.visits[id];
    const title = visits ? `answered ${plural(visits, "time")}` : "";
    return { id, text: roleName(id), isGroup, badge: visits || "", title, class: stateOf(id, data, graph) };
  });
  const classOf = (line) => (taken.has(`${line.source} ${line.target}`) ? "taken" : "");
  return { places, lines: graph.lines.map((line) => ({ ...line, class: classOf(line) })) };
}

const CURRENT = { running: "active", suspended: "asks", crashed: "bad", waiting: "active" };

function stateOf(id, data, graph) {
  if (id === "$END" && data.status === "completed") return "done";
  if (id === "$FAIL" && data.status === "failed") return "bad";
  if (id === data.currentRole && !data.done) return CURRENT[data.status] || "due";
  return graph.visits[id] ? "done" : "";
}

function CurrentWork({ work, data }) {
  const box = useRef(null);
  useEffect(() => { if (box.current) box.current.scrollTop = box.current.scrollHeight; }, [work?.text]);
  if (data.status !== "running") return null;
  const since = work?.since || data.pending?.startedAt;
  const role = work?.role || data.pending?.role || data.currentRole;
  const agent = work?.agent || data.pending?.agent;
  const calls = work?.calls || [];
  return html`<section class="now card" aria-label="What happens now">
    <p><span class="pulse" aria-hidden="true"></span><b>${roleName(role || "")}</b> works
      ${agent ? html` as ${agentName(agent)}` : null}
      ${since ? html` · began <${When} at=${since} />` : null}
      ${work?.tokens ? html` · ${count(work.tokens)} tokens` : null}</p>
    ${calls.length ? html`<ul class="calls">${calls.map((call) => html`
      <li><b>${call.name}</b> <code>${call.about}</code></li>`)}</ul>` : null}
    ${work?.text ? html`<pre class="says" ref=${box} tabindex="0">${work.text}</pre>` : null}</section>`;
}

function Chain({ data, steps }) {
  const { role, step: wanted } = route.value.query;
  const isFurtherBack = wanted && steps.before && steps.list.at(-1).number > Number(wanted);
  useEffect(() => { if (isFurtherBack) steps.older(500); }, [isFurtherBack && steps.before]);
  if (steps.error) return html`<${Problem} error=${steps.error} retry=${steps.refresh} />`;
  if (!steps.list) return html`<${Loading} />`;
  const shown = role ? steps.list.filter((step) => step.role === role) : steps.list;
  return html`${role ? html`<p>Only steps of <b>${role}</b>.${" "}
      <button onClick=${() => setQuery({ role: "" })}>Show all</button></p>` : null}
    ${data.attempts?.length ? html`<${OpenAttempts} attempts=${data.attempts} />` : null}
    ${shown.length ? null : html`<${Empty} title=${`${role || "No role"} has ${role ? "not " : ""}answered yet.`}>
      <p>${statusOf(data) === "idle" ? "Nothing runs this thread. Press “Run”." : "The first answer appears here."}</p>
    </${Empty}>`}
    <ol class="chain" reversed>${shown.map((step, at) => html`
      <${Boundary} what=${`Step ${step.number}`} key=${step.id}>
        <${StepCard} step=${step} data=${data} isOpen=${at < 2}
          isWanted=${wanted === String(step.number)} />
      </${Boundary}>`)}</ol>
    ${steps.before ? html`<${More} load=${() => steps.older()}>Show earlier steps</${More}>`
    : html`<details class="card task"><summary>The task</summary><${Prose} html=${data.promptHtml} /></details>`}`;
}

function OpenAttempts({ attempts }) {
  return html`<div class="card attempts"><p><b>${plural(attempts.length, "failed attempt")} since the last step</b></p>
    <ul>${attempts.map((one) => html`<li>
      ${roleName(one.role)} · ${agentName(one.agent)} · ${one.ending || "failed"} · ${duration(one.durationMs)}
      <pre class="clip-lines" tabindex="0">${one.error}</pre></li>`)}</ul></div>`;
}

function Time({ steps }) {
  if (steps.error) return html`<${Problem} error=${steps.error} retry=${steps.refresh} />`;
  if (!steps.list) return html`<${Loading} />`;
  if (!steps.list.length) return html`<${Empty} title="No role has answered yet." />`;
  return html`<p class="faint">Working time in blue, failed attempts in red, waiting in grey. Waits are shortened.</p>
    <${Waterfall} steps=${steps.list} onChoose=${(step) => setQuery({ tab: "", step: step.number })} />
    ${steps.before ? html`<${More} load=${() => steps.older()}>Show earlier steps</${More}>` : null}`;
}

function Files({ data }) {
  const { data: newest, error } = useGet(`/threads/${data.thread}/diff`, { v: data.head });
  const shown = useRef(null); // shown until newer files have arrived, because a person might be writing a comment
  const found = (shown.current = newest || shown.current);
  if (error) return html`<${Problem} error=${error} />`;
  if (!found) return html`<${Loading} />`;
  if (found.problem) return html`<${Empty} title="No files were recorded."><p>${found.problem}</p></${Empty}>`;
  return found.parts.map((part) => html`
    <${Diff} part=${part} source=${`/threads/${data.thread}/diff`} thread=${data.thread}
      canComment=${!me.value.readOnly} />`);
}

function Facts({ data }) {
  const report = `/api/threads/${data.thread}/report`;
  const code = (text) => html`<code class="wrap">${text}</code>`;
  const showFolder = ({ cwd, branch }) => html`${code(cwd)}${branch ? html` on ${code(branch)}` : null}`;
  const entriesOf = (name) => Object.entries(data[name] || {});
  const rows = [
    ["Thread", code(data.thread)],
    ["Workflow", html`${data.name} ${code(data.workflow)}`],
    ["Head", code(data.head)],
    ["Started", new Date(data.created).toLocaleString()],
    ["Work folder", code(data.cwd)],
    ...entriesOf("folders").map(([kind, folder]) => [kind, showFolder(folder)]),
    ...entriesOf("agents").map(([role, agent]) => [`Agent of ${role}`, code(agent)]),
    ...entriesOf("limits").map(([name, most]) => [`Limit on ${name}`, `${most}`]),
    ["Run by", data.lease ? `${data.lease.holder}${data.lease.alive ? "" : " (gone)"}` : "nobody"],
    ["Report", html`<a href=${report} download>HTML</a> · <a href="${report}?format=markdown" download>Markdown</a>`],
  ];
  return html`<dl class="facts-list card">${rows.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}
