// Compares two threads from the step at which they diverge.
import { html, Prose, useState } from "../parts/html.js";
import { useGet } from "../parts/net.js";
import { route } from "../parts/route.js";
import { Boundary, Empty, Loading, Problem, Status } from "../parts/controls.js";
import { count, duration, money, plural, roleName, shortId } from "../parts/format.js";
import { Diff } from "../parts/diff.js";

const FACTS = [
  ["Status", (one) => html`<${Status} is=${one.status} />`],
  ["Steps", (one) => count(one.steps)],
  ["Tokens", (one) => count(one.usage?.tokens || 0)],
  ["Cost", (one) => (one.usage?.cost != null ? money(one.usage.cost) : "unknown")],
  ["Work", (one) => duration((one.usage?.minutes || 0) * 60_000)],
];

export default function Compare() {
  const { one, other } = route.value.query;
  const { data, error } = useGet(one && other ? "/compare" : null, { one, other });
  if (!one || !other) {
    return html`<h1>Compare</h1><${Empty} title="Choose two threads.">
      <p>Open a thread and press “Compare”.</p>
      <p><a class="button main" href="/threads">Threads</a></p></${Empty}>`;
  }
  if (error) return html`<h1>Compare</h1><${Problem} error=${error} />`;
  if (!data) return html`<h1>Compare</h1><${Loading} />`;
  return html`<h1>Compare</h1>
    <${Summaries} pair=${data.summaries} />
    <p>They share ${data.commonSteps ? `${plural(data.commonSteps, "step")} and part after that` : "no step"}.</p>
    ${data.prompt.length ? html`<section class="card"><h2>Task</h2><${Lines} lines=${data.prompt} /></section>` : null}
    ${data.steps.map((step) => html`<${Boundary} what="This step"><${StepPair} step=${step} /></${Boundary}>`)}
    <section class="card"><h2>Files</h2>
      ${data.filesProblem ? html`<p class="faint">${data.filesProblem}</p>` : null}
      ${data.files.map((part) => html`<${Diff} part=${part} source=${`/threads/${one}/diff`} query=${{ other }} />`)}
    </section>`;
}

function Summaries({ pair }) {
  return html`<div class="table-box"><table class="list pair">
    <thead><tr><td></td>${pair.map((one) => html`<th scope="col"><a href="/threads/${one.thread}">${one.title}</a>${" "}
      <code>${shortId(one.thread)}</code></th>`)}</tr></thead>
    <tbody>${FACTS.map(([name, show]) => html`<tr><th scope="row">${name}</th>
      ${pair.map((one) => html`<td>${show(one)}</td>`)}</tr>`)}</tbody></table></div>`;
}

function StepPair({ step }) {
  const title = step.steps.map((one) => (one ? `${one.number} ${roleName(one.role)}` : "—")).join(" ↔ ");
  const prompts = html`<${Prompts} steps=${step.steps.filter(Boolean)} />`;
  if (!step.output.length && !step.body.length) {
    return html`<div class="card faint"><p>${title}: the same answer.</p>${prompts}</div>`;
  }
  return html`<section class="card"><h2>${title}</h2>
    ${step.output.length ? html`<h3>Output</h3><${Lines} lines=${step.output} />` : null}
    ${step.body.length ? html`<h3>Answer</h3><${Lines} lines=${step.body} />` : null}
    ${prompts}</section>`;
}

// The prompts of the roles, side by side.
function Prompts({ steps }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Prompts</summary>
    ${isOpen ? html`<div class="columns">${steps.map((one) => html`<${Prompt} key=${one.id} step=${one.id} />`)}
    </div>` : null}</details>`;
}

function Prompt({ step }) {
  const { data, error } = useGet(`/steps/${step}`);
  if (error) return html`<${Problem} error=${error} />`;
  return html`<section>${data ? html`<${Prose} html=${data.promptHtml} class="prompt" />` : html`<${Loading} />`}
  </section>`;
}

const LINE_KINDS = { "+": "added", "-": "removed", "@": "hunk" };

// A unified diff, whose first two lines name the sides.
function Lines({ lines }) {
  return html`<pre class="lines" tabindex="0">${lines.slice(2).map((line) => html`
    <span class=${LINE_KINDS[line[0]] || ""}>${line}${"\n"}</span>`)}</pre>`;
}
