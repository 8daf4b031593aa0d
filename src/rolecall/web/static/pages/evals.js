// Runs of suites, updated live: a list, and a single run with the same parts as its report.
import { html, useEffect, useRef, useState } from "../parts/html.js";
import { get, useGet } from "../parts/net.js";
import { useDebounced, useEvents } from "../parts/live.js";
import { route, setQuery } from "../parts/route.js";
import { Empty, Loading, More, Problem, Status, When } from "../parts/controls.js";
import { count, money, plural } from "../parts/format.js";

export default function Evals({ run }) {
  return run ? html`<${Run} run=${run} />` : html`<${Runs} />`;
}

const doneOf = ({ counts }) => counts.passed + counts.failed + counts.infrastructure;

function Runs() {
  const { data, error, reload } = useGet("/evals");
  const [older, setOlder] = useState({ runs: [], next: undefined });
  const soon = useDebounced(reload, 300, 2000);
  useEvents(({ kind }) => { if (["eval", "back", "reset"].includes(kind)) soon(); });
  if (!data) return html`<h1>Evals</h1>${error ? html`<${Problem} error=${error} retry=${reload} />` : html`<${Loading} />`}`;
  if (!data.runs.length) {
    return html`<h1>Evals</h1><${Empty} title="No suite has been run yet.">
      <p>A suite tries variants of a workflow on tasks: <code>rolecall eval run SUITE</code> runs it.</p></${Empty}>`;
  }
  const last = data.runs.at(-1).run;
  const rows = [...data.runs, ...older.runs.filter((one) => one.run < last)];
  const next = older.next === undefined ? data.next : older.next;
  const load = async () => {
    const page = await get("/evals", { after: next });
    setOlder((old) => ({ runs: [...old.runs, ...page.runs], next: page.next }));
  };
  return html`<h1>Evals</h1><${Problem} error=${error} retry=${reload} />
    <div class="table-box"><table class="list"><thead><tr><th>Status</th><th>Suite</th><th class="number">Done</th>
      <th class="number">Passed</th><th class="number">Failed</th><th class="number">Not judged</th>
      <th class="number">Cost</th><th>Began</th></tr></thead>
    <tbody>${rows.map((one) => html`<tr key=${one.run}><td><${Status} is=${one.status} /></td>
      <td class="wide"><a data-row href="/evals/${one.run}">${one.suite}</a>
        <div class="faint">${one.variants.join(", ")}</div></td>
      <td class="number" data-name="Done">${count(doneOf(one))} of ${count(one.threads)}</td>
      <td class="number" data-unit="passed">${count(one.counts.passed)}</td>
      <td class="number" data-unit="failed">${count(one.counts.failed)}</td>
      <td class="number" data-unit="not judged">${one.counts.infrastructure || ""}</td>
      <td class="number">${one.cost != null ? money(one.cost) : ""}</td>
      <td class="nowrap"><${When} at=${one.startedAt} /></td></tr>`)}</tbody></table></div>
    ${next ? html`<${More} load=${load}>Show older runs</${More}>` : null}`;
}

function Run({ run }) {
  const { base = "" } = route.value.query;
  const { data, error, reload } = useGet(`/evals/${run}`, { base });
  const soon = useDebounced(reload, 300, 2000);
  useEvents(({ kind, thread }) => {
    const isMine = kind === "eval" && thread === data?.run;
    if (isMine || kind === "back" || kind === "reset" || (kind === "started" && data?.status === "running")) soon();
  });
  const crumbs = html`<p class="crumbs"><a href="/evals">Evals</a></p>`;
  if (!data) return html`${crumbs}<h1>Run</h1>${error ? html`<${Problem} error=${error} retry=${reload} />` : html`<${Loading} />`}`;
  const { counts } = data;
  const report = `/api/evals/${data.run}/report${data.base ? `?base=${encodeURIComponent(data.base)}` : ""}`;
  return html`${crumbs}<div class="thread-head"><div class="grow"><h1>${data.suite}</h1>
      <p class="facts"><${Status} is=${data.status} />
        <span><b>${count(doneOf(data))}</b> of ${plural(data.threads, "thread")}</span>
        <span><b>${count(counts.passed)}</b> passed</span><span><b>${count(counts.failed)}</b> failed</span>
        ${counts.infrastructure ? html`<span><b>${count(counts.infrastructure)}</b> not judged</span>` : null}
        ${data.cost != null ? html`<span>${money(data.cost)}</span>` : null}<${When} at=${data.startedAt} /></p></div>
      <div class="actions">${data.variants.length > 1 ? html`<select aria-label="Show differences from"
        value=${data.base} onChange=${(event) => setQuery({ base: event.target.value })}>
        ${data.base ? null : html`<option value="">Differences from…</option>`}
        ${data.variants.map((one) => html`<option value=${one}>from ${one}</option>`)}</select>` : null}
        <a class="button" href=${report} download>Report</a></div></div>
    <${Problem} error=${error} retry=${reload} />
    ${data.reason ? html`<p class="reason">${data.reason}</p>` : null}
    ${data.sections.map((one) => html`<section class="card eval" key=${one.title}><h2>${one.title}</h2>
      <${Part} text=${one.html} /></section>`)}
    <${Tasks} run=${data.run} />`;
}

// HTML from the server. When the HTML changes, the scroll position and the focus stay the same.
function Part({ text }) {
  const box = useRef(null);
  useEffect(() => {
    const { scrollLeft = 0, scrollTop = 0 } = box.current.querySelector(".cells") || {};
    const held = box.current.contains(document.activeElement) && document.activeElement.getAttribute("href");
    box.current.innerHTML = text;
    box.current.querySelector(".cells")?.scrollTo(scrollLeft, scrollTop);
    if (held) box.current.querySelector(`a[href="${held}"]`)?.focus({ preventScroll: true });
  }, [text]);
  return html`<div ref=${box}></div>`;
}

function Tasks({ run }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="card eval" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>What the tasks ask for</summary>${isOpen ? html`<${TaskTexts} run=${run} />` : null}</details>`;
}

function TaskTexts({ run }) {
  const { data, error } = useGet(`/evals/${run}/tasks`);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  return data.tasks.map((one) => html`<section key=${one.task}><h3>${one.task}${" "}
    ${one.tags.map((tag) => html`<span class="tag">${tag}</span> `)}</h3><${Part} text=${one.html} /></section>`);
}
