// One step of a chain: who answered, the answer and, on demand, the prompt, tool calls, files and failed attempts.
import { html, Prose, useEffect, useRef, useState } from "./html.js";
import { me, useGet } from "./net.js";
import { Loading, Problem, Status, Tabs, When } from "./controls.js";
import {
  agentName, answeredBy, count, duration, labelOf, money, plural, roleName, shortId, tokensOf,
} from "./format.js";
import { Diff } from "./diff.js";
import { ForkDialog } from "./actions.js";

const filesOf = (step) => (step.changes?.length || 0) + (step.moreChanges || 0);

export function StepCard({ step, data, isOpen: isOpenFirst, isWanted }) {
  const [isOpen, setOpen] = useState(isOpenFirst || isWanted);
  const title = useRef(null);
  useEffect(() => {
    if (!isWanted) return;
    title.current?.focus({ preventScroll: true });
    title.current?.closest("li").scrollIntoView();
  }, [isWanted]);
  if (step.role === "$FORK") {
    return html`<li class="mark" value=${step.number}>Forked here, with another prompt or workflow.${" "}
      <${When} at=${step.timestamp} /></li>`;
  }
  const isPerson = step.role === "$PERSON" || step.agent === "human";
  return html`<li class="card step ${isPerson ? "person" : ""}" value=${step.number}>
    <div class="step-head">
      <button class="plain title" ref=${title} aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
        <span class="step-no">${step.number}</span><b>${roleName(step.role)}</b>
        ${step.status ? html`<span class="outcome">${step.status}</span>` : null}</button>
      <${StepFacts} step=${step} isPerson=${isPerson} /></div>
    ${isOpen ? html`<${Details} step=${step} data=${data} />` : null}
  </li>`;
}

function StepFacts({ step, isPerson }) {
  const by = answeredBy(step);
  const tokens = tokensOf(step.usage);
  const files = filesOf(step);
  return html`<span class="faint step-facts">
    ${by ? html`<span title=${by.address || ""}>by ${by.person} (${by.door})</span>` : null}
    ${isPerson ? null : html`<span>${agentName(step.agent)}</span><span>${duration(step.durationMs)}</span>`}
    ${tokens ? html`<span>${count(tokens)} tokens</span>` : null}
    ${step.usage?.cost != null ? html`<span>${money(step.usage.cost)}</span>` : null}
    ${files ? html`<span>${plural(files, "file")}</span>` : null}
    ${step.reused ? html`<span class="tag">reused from${" "}
      <a href="/threads/${step.reused.thread}">${shortId(step.reused.thread)}</a></span>` : null}
    ${step.attempts?.length ? html`<span class="wrong">${plural(step.attempts.length, "failed attempt")}</span>` : null}
    <${When} at=${step.timestamp} /></span>`;
}

function Details({ step, data }) {
  const { data: found, error } = useGet(`/steps/${step.id}`);
  const [tab, choose] = useState("answer");
  const [isForking, setForking] = useState(false);
  if (error) return html`<${Problem} error=${error} />`;
  if (!found) return html`<${Loading} />`;
  const calls = found.turns.reduce((sum, turn) => sum + turn.tool_calls.length, 0);
  const tabs = [["answer", "Answer"], ["prompt", "Prompt"]];
  if (found.turns.length) tabs.push(["work", `Work${calls ? ` (${calls})` : ""}`]);
  if (filesOf(step)) tabs.push(["files", `Files (${filesOf(step)})`]);
  if (found.attempts?.length) tabs.push(["attempts", `Attempts (${found.attempts.length})`]);
  return html`<${Tabs} label=${`Step ${step.number}`} tabs=${tabs} chosen=${tab} choose=${choose} />
    <div role="tabpanel" aria-label=${tab}>
      ${tab === "answer" ? html`<${Answer} found=${found} step=${step} />` : null}
      ${tab === "prompt" ? html`<div class="prompt" tabindex="0"><${Prose} html=${found.promptHtml} /></div>` : null}
      ${tab === "work" ? html`<${Work} turns=${found.turns} />` : null}
      ${tab === "files" ? html`<${StepFiles} step=${step} thread=${data.thread} />` : null}
      ${tab === "attempts" ? html`<${Attempts} attempts=${found.attempts} />` : null}</div>
    ${me.value.readOnly ? null : html`<p class="buttons end">
      <button onClick=${() => setForking(true)}>Fork here</button></p>`}
    ${isForking ? html`<${ForkDialog} data=${data} at=${step.number} onClose=${() => setForking(false)} />` : null}`;
}

function Answer({ found, step }) {
  const children = (found.children || []).map((child) => html`
    <a href="/threads/${child}">thread ${shortId(child)}</a> `);
  return html`<${Output} output=${found.output} step=${step} />
    <${Prose} html=${found.bodyHtml} />
    ${found.notes?.length ? html`<ul class="faint">${found.notes.map((note) => html`<li>${note}</li>`)}</ul>` : null}
    ${found.sandbox ? html`<p class="faint">${sandboxText(found.sandbox)}</p>` : null}
    ${children.length ? html`<p>Played by ${children}</p>` : null}`;
}

// What the step's processes could reach, and how the kernel enforced it.
function sandboxText({ rules, enforced = [] }) {
  if (rules === "off") return "no sandbox (off)";
  const how = enforced.map((line) => line.replace(/^files: /, "")).join(", ");
  return `sandbox: ${rules} · ${how || "no process was started"}`;
}

// The typed fields of an answer. The members of a group are shown as a table.
function Output({ output, step }) {
  if (output == null || step.role === "$PERSON") return null;
  if (typeof output !== "object") return html`<pre>${String(output)}</pre>`;
  const members = step.agent === "group" && Array.isArray(output.members) ? output.members : null;
  const fields = Object.entries(output).filter(([name]) => !members || name !== "members");
  return html`${fields.length ? html`<dl class="output">${fields.map(([name, value]) => html`
      <dt>${labelOf(name)}</dt><dd><${Value} value=${value} /></dd>`)}</dl>` : null}
    ${members ? html`<div class="table-box"><table class="list members"><tbody>
      ${members.map((one) => html`<${Member} one=${one} role=${step.role} />`)}</tbody></table></div>` : null}`;
}

function Member({ one, role }) {
  const title = one.title || `${role} ${one.number}`;
  return html`<tr><td class="number">${one.number}</td><td><${Status} is=${one.status} /></td>
    <td class="wide">${one.id ? html`<a href="/threads/${one.id}">${title}</a>` : title}
      ${one.reason ? html`<div class="faint">${one.reason}</div>` : null}</td></tr>`;
}

function Value({ value }) {
  if (Array.isArray(value) && value.every((one) => typeof one !== "object")) {
    return html`<ul>${value.map((one) => html`<li>${String(one)}</li>`)}</ul>`;
  }
  if (value && typeof value === "object") return html`<pre>${JSON.stringify(value, null, 2)}</pre>`;
  return String(value);
}

function Work({ turns }) {
  return html`<ol class="turns">${turns.map((turn) => html`<li><${Prose} html=${turn.html} />
    ${turn.tool_calls.map((call) => html`<${ToolCall} call=${call} />`)}</li>`)}</ol>`;
}

function ToolCall({ call }) {
  const brief = call.arguments.replace(/\s+/g, " ").slice(0, 120);
  return html`<details class="call"><summary><b>${call.name}</b> <code>${brief}</code></summary>
    <pre tabindex="0">${call.arguments}</pre>
    ${call.result ? html`<pre class="result" tabindex="0">${call.result}</pre>` : null}</details>`;
}

function Attempts({ attempts }) {
  return attempts.map((one) => html`<div class="attempt">
    <p><b>${one.ending || "failed"}</b> · ${agentName(one.agent)} · ${duration(one.durationMs)}</p>
    <pre tabindex="0">${one.error}</pre>
    ${one.sandbox ? html`<p class="faint">${sandboxText(one.sandbox)}</p>` : null}
    ${one.raw ? html`<details><summary>What it said</summary><pre tabindex="0">${one.raw}</pre></details>` : null}
  </div>`);
}

function StepFiles({ step, thread }) {
  const { data, error } = useGet(`/threads/${thread}/diff`, { at: step.id });
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  if (data.problem) return html`<p class="faint">${data.problem}</p>`;
  return data.parts.map((part) => html`
    <${Diff} part=${part} source=${`/threads/${thread}/diff`} query=${{ at: step.id }} thread=${thread}
      canComment=${!me.value.readOnly} />`);
}
