// The service: running threads, the queue and why threads in it wait, rates, triggers, machines, log.
import { html, useState } from "../parts/html.js";
import { me, post, postOnce, useGet } from "../parts/net.js";
import { useDebounced, useEvents } from "../parts/live.js";
import { ActionButton, Empty, Loading, notify, Problem, Status, When } from "../parts/controls.js";
import { moment, money, plural, shortId } from "../parts/format.js";

const MOVING = [
  "queued", "started", "step", "suspended", "completed", "failed", "killed", "discarded", "crashed", "fired",
  "triggered", "back", "reset",
];

export default function Service() {
  const { data, error, reload } = useGet("/service");
  const soon = useDebounced(reload, 300, 2000);
  useEvents((event) => { if (MOVING.includes(event.kind)) soon(); });
  if (error && !data) return html`<h1>Service</h1><${Problem} error=${error} retry=${reload} />`;
  if (!data) return html`<h1>Service</h1><${Loading} />`;
  return html`<h1>Service</h1>
    ${data.running ? html`<${AtWork} data=${data} />` : html`<${NoService} />`}
    <${Triggers} data=${data} reload=${reload} />
    ${data.fleet ? html`<${Machines} fleet=${data.fleet} />` : null}
    <${Log} />`;
}

function NoService() {
  return html`<${Empty} title="No service is running.">
    <p><code>rolecall serve --detach</code> starts one: it runs queued threads in parallel, keeps limits, recovers after
      crashes and fires triggers.</p>
    <p>Without it, each thread started here runs in a process of its own.</p></${Empty}>`;
}

function AtWork({ data }) {
  const { status } = data;
  const running = status.running || [];
  const queued = Object.entries(status.queued || {});
  const reasons = [...new Set(Object.values(status.waits || {}))].slice(0, 5);
  const rates = Object.entries(data.rates).map(([agent, rate]) => html`<span class="tag">${agent} ${rate}</span> `);
  const most = data.spendPerDay;
  return html`<p><${Status} is="running" /> as process ${data.pid}
      ${status.since ? html`, since <${When} at=${status.since} />` : null}</p>
    <dl class="tiles"><div><dt>Slots</dt><dd>${running.length} of ${status.limit}</dd></div>
      <div><dt>Waiting</dt><dd>${queued.reduce((sum, [, number]) => sum + number, 0)}</dd></div>
      <div><dt>Spent today</dt><dd>${money(status.spent || 0)}${most ? ` of ${money(most)}` : ""}</dd></div></dl>
    ${rates.length ? html`<p>Rates: ${rates}</p>` : null}
    ${Object.values(status.problems || {}).map((problem) => html`<div class="problem"><p>${problem}</p></div>`)}
    ${running.length ? html`<h2>At work</h2><div class="table-box"><table class="list">
      <thead><tr><th>Thread</th><th>Workflow</th><th>Process</th><th>Since</th><th>Trouble</th></tr></thead>
      <tbody>${running.map((one) => html`<tr key=${one.thread}>
        <td><a data-row href="/threads/${one.thread}">${shortId(one.thread)}</a></td><td>${one.workflow}</td>
        <td>${one.pid || ""}</td><td><${When} at=${one.since} /></td><td class="wrong">${one.trouble || ""}</td></tr>`)}
      </tbody></table></div>` : null}
    ${queued.length ? html`<h2>Queue</h2>
      <ul>${queued.map(([name, number]) => html`<li>
        <a href="/threads?status=queued&workflow=${encodeURIComponent(name)}">${plural(number, "thread")} of ${name}</a>
      </li>`)}</ul>
      <ul class="faint">${reasons.map((why) => html`<li>because ${why}</li>`)}</ul>` : null}`;
}

function Triggers({ data, reload }) {
  if (!data.hasProject) return null;
  return html`<h2>Triggers</h2>
    ${data.triggersProblem ? html`<div class="problem"><p>${data.triggersProblem}</p></div>` : null}
    ${!data.triggers.length ? html`<p class="faint">This project has none. They are written in
      <code>rolecall.yaml</code>.</p>` : html`<div class="table-box"><table class="list">
      <thead><tr><th>Trigger</th><th>State</th><th class="number">Fired</th><th>Last</th><th>Next</th><td></td></tr>
      </thead>
      <tbody>${data.triggers.map((one) => html`
        <${Trigger} key=${one.trigger} one=${one} isServed=${data.running} reload=${reload} />`)}
      </tbody></table></div>`}`;
}

function Trigger({ one, isServed, reload }) {
  const isPaused = one.state === "paused";
  const act = (verb) => async () => {
    const done = await (verb === "fire" ? postOnce : post)(`/triggers/${one.trigger}/${verb}`);
    notify(done.thread ? `It started thread ${shortId(done.thread)}.` : `${one.trigger} is ${done.state}.`);
    reload();
  };
  return html`<tr><td class="wide"><b>${one.trigger}</b><div class="faint">${one.does}</div>
      ${one.problem ? html`<div class="wrong">${one.problem}</div>` : null}</td>
    <td>${one.state}</td><td class="number" data-unit="times">${one.fired}</td>
    <td data-name="Last">${one.last ? html`<${When} at=${Date.parse(one.last)} />` : "–"}
      ${one.thread ? html`<br /><a href="/threads/${one.thread}">${shortId(one.thread)}</a>` : null}</td>
    <td data-name="Next" class="nowrap">${isServed && one.next ? moment(Date.parse(one.next)) : "–"}</td>
    <td class="nowrap">${me.value.readOnly ? null : html`
      <${ActionButton} run=${act("fire")}>Fire now</${ActionButton}>${" "}
      <${ActionButton} run=${act(isPaused ? "resume" : "pause")}>
        ${isPaused ? "Resume" : "Pause"}</${ActionButton}>`}</td></tr>`;
}

function Machines({ fleet }) {
  return html`<h2>Machines</h2><div class="table-box"><table class="list">
    <thead><tr><th>Machine</th><th>State</th><th class="number">Steps at once</th>
      <th class="number">Steps a minute</th><th>Agents</th></tr></thead>
    <tbody>${(fleet.machines || []).map((one) => html`<tr key=${one.machine}>
      <td class="wide"><b>${one.machine}</b>
        ${Object.values(one.problems || {}).map((problem) => html`<div class="wrong">${problem}</div>`)}</td>
      <td>${one.alive ? "alive" : "gone"}</td>
      <td class="number" data-unit="steps at once">${one.busy} of ${one.slots}</td>
      <td class="number" data-unit="steps a minute">${one.per_minute}</td>
      <td>${(one.agents || []).join(", ")}</td></tr>`)}</tbody></table></div>
    ${(fleet.stuck || []).map((one) => html`<div class="problem">
      <p>${plural(one.threads, "thread")} of ${one.workflow}: ${one.reason}</p></div>`)}`;
}

function Log() {
  const [isOpen, setOpen] = useState(false);
  const { data, error, reload } = useGet(isOpen ? "/service/log" : null);
  return html`<details class="card" onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Log</summary>
    <${Problem} error=${error} />
    ${data ? html`<pre class="log" tabindex="0">${data.lines.join("\n") || "It is empty."}</pre>
      <p><button onClick=${reload}>Read again</button></p>` : null}</details>`;
}
