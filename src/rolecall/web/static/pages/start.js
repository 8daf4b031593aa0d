// Starts a thread: a person chooses a workflow, sees its graph, and says what to do.
import { html, Prose, useState } from "../parts/html.js";
import { me, post, postOnce, useGet } from "../parts/net.js";
import { navigate } from "../parts/route.js";
import { ActionButton, Checkbox, Field, Loading, notify, Problem } from "../parts/controls.js";
import { count, duration, money, plural, roleName, shortId } from "../parts/format.js";
import { Graph } from "../parts/graph.js";

export default function Start({ name }) {
  const { data, error, reload } = useGet("/workflows");
  if (error) return html`<h1>Start</h1><${Problem} error=${error} retry=${reload} />`;
  if (!data) return html`<h1>Start</h1><${Loading} />`;
  if (name) {
    const chosen = decodeURIComponent(name);
    return html`<p class="crumbs"><a href="/start">Start</a> / ${chosen}</p>
      <${Workflow} key=${chosen} name=${chosen} />`;
  }
  const own = data.workflows.filter((one) => one.origin !== "gallery");
  const gallery = data.workflows.filter((one) => one.origin === "gallery");
  return html`<h1>Start a thread</h1>
    ${own.length ? html`<h2>Your own</h2><${Choices} workflows=${own} />` : null}
    <h2>From the gallery</h2>
    <p class="faint">These come with Rolecall and work in any project. <code>rolecall new NAME</code> copies one into${" "}
      <code>.workflows/</code>, where you can change it.</p>
    <${Choices} workflows=${gallery} />`;
}

function Choices({ workflows }) {
  return html`<ul class="cards grid">${workflows.map((one) => html`<li class="card">
    <h3><a data-row href="/start/${encodeURIComponent(one.name)}">${one.name}</a></h3>
    <p>${one.description || html`<span class="faint">A workflow in Python</span>`}</p></li>`)}</ul>`;
}

function Workflow({ name }) {
  const { data, error } = useGet(`/workflows/${encodeURIComponent(name)}`);
  if (error) {
    return html`<h1>${name}</h1><${Problem} error=${error} />
      <p><a class="button" href="/start">All workflows</a></p>`;
  }
  if (!data) return html`<h1>${name}</h1><${Loading} />`;
  const places = data.places.map((id) => ({ id, text: roleName(id), isGroup: id in data.groups }));
  return html`<h1>${name}</h1><${Prose} html=${data.descriptionHtml} />
    ${data.isPython ? html`<p class="faint">A workflow in Python. Its code runs when you start it, not when you look at it.</p>`
    : html`<${Graph} label=${`Workflow ${name}`} places=${places} lines=${data.lines} />`}
    <${Powers} powers=${data.powers || []} />
    <${Problem} error=${data.refused && { message: data.refused.error, hint: data.refused.hint }} />
    <${Order} name=${name} data=${data} />`;
}

// What a workflow from a pack may do.
function Powers({ powers }) {
  if (!powers.length) return null;
  return html`<section class="card"><h2>What it may do</h2>${powers.map(({ workflow, lines }) => html`
    <p><b>${workflow}</b></p><ul>${lines.map((line) => html`<li>${line}</li>`)}</ul>`)}</section>`;
}

function Order({ name, data }) {
  const [prompt, setPrompt] = useState("");
  const [agent, setAgent] = useState(localStorage.getItem(`agent ${name}`) || "");
  const [agents, setAgents] = useState({});
  const [limits, setLimits] = useState({});
  const [isReused, setReused] = useState(false);
  const [error, setError] = useState(null);
  const [forecast, setForecast] = useState(null);
  const named = Object.fromEntries(Object.entries(agents).filter(([, value]) => value.trim()));
  const order = () => {
    const given = Object.entries(limits).filter(([, value]) => Number(value) > 0);
    const numbers = Object.fromEntries(given.map(([kind, value]) => [kind, Number(value)]));
    return { workflow: name, prompt, agent, limits: numbers, ...(isReused ? { reuse: true } : {}) };
  };
  const look = async () => {
    setError(null);
    setForecast(await post("/forecast", order()));
  };
  const start = async () => {
    setError(null);
    localStorage.setItem(`agent ${name}`, agent);
    const made = await postOnce("/threads", { ...order(), ...(Object.keys(named).length ? { agents: named } : {}) });
    notify(made.problem || (made.runs === "service" ? "Queued for the service." : "It runs."), Boolean(made.problem));
    navigate(`/threads/${made.thread}`);
  };
  const cannot = !prompt.trim() || me.value.readOnly || Boolean(data.refused);
  const agentHint = data.missing.length ? "Required: some roles have no agent here." : "Leave it empty for each role's own agent.";
  return html`<div class="columns"><section class="grow" data-submit>
      <${Field} label="What should be done?">
        <textarea rows="6" value=${prompt} onInput=${(event) => setPrompt(event.target.value)}></textarea></${Field}>
      <${Field} label="Agent for every role" hint=${agentHint}><input value=${agent}
        placeholder=${data.defaultAgent || "claude"} onInput=${(event) => setAgent(event.target.value)} /></${Field}>
      <details><summary>Agents of single roles</summary><div class="row">${data.roleList
        .filter((role) => role.agent !== "human" && !role.agent?.startsWith("run:")).map((role) => html`
        <${Field} key=${role.name} label=${role.name}><input placeholder=${agent || role.agent || data.defaultAgent || ""}
          value=${agents[role.name] ?? ""}
          onInput=${(event) => setAgents({ ...agents, [role.name]: event.target.value })} /></${Field}>`)}</div></details>
      <details><summary>Limits</summary><div class="row">${me.value.limits.map((kind) => html`
        <${Field} key=${kind} label=${kind === "cost" ? "cost in $" : kind}>
          <input type="number" min="0" step="any" placeholder=${data.limits[kind] ?? ""} value=${limits[kind] ?? ""}
            onInput=${(event) => setLimits({ ...limits, [kind]: event.target.value })} /></${Field}>`)}</div></details>
      <${Checkbox} label="Reuse answers of earlier threads where nothing they depend on has changed"
        value=${isReused} set=${setReused} />
      <${Problem} error=${error} /><${Forecast} found=${forecast} />
      <p class="buttons"><${ActionButton} class="main" disabled=${cannot} run=${start} onError=${setError}>
          Start</${ActionButton}>
        <${ActionButton} disabled=${cannot} run=${look} onError=${setError}>What may it cost?</${ActionButton}></p>
    </section>
    <section><h2>Roles</h2><dl class="roles">${data.roleList.map((role) => html`<${Role} key=${role.name} role=${role}
      missing=${agent.trim() || named[role.name] ? [] : data.missing.filter((one) => one.role === role.name)} />`)}</dl></section></div>`;
}

function Role({ role, missing }) {
  return html`<dt>${role.name}</dt><dd>${role.description}${role.agent ? html` <code>${role.agent}</code>` : null}
    ${missing.map((one) => html`<p class="wrong">${one.error}</p>`)}</dd>`;
}

const AMOUNTS = {
  cost: money, tokens: (value) => `${count(Math.round(value))} tokens`, minutes: (value) => duration(value * 60_000),
};

// A forecast that is based on earlier threads of the workflow.
function Forecast({ found }) {
  if (!found) return null;
  const known = Object.entries(found.rest).filter(([, range]) => range);
  const amounts = known.map(([name, { low, median, high }]) => {
    const show = AMOUNTS[name];
    return `${show(median)} (${show(low)} to ${show(high)})`;
  });
  const outlook = amounts.length
    ? `The rest may use ${amounts.join(", ")}, based on ${plural(found.threads, "earlier thread")}.`
    : "No estimate: no earlier thread of this workflow has ended with known amounts.";
  const reused = found.reused.map((one) => html`
    <a href="/threads/${one.thread}">${one.number} ${one.role} from ${shortId(one.thread)}</a> `);
  return html`<div class="card" role="status">
    ${reused.length ? html`<p>${plural(reused.length, "step")} would be reused: ${reused}</p>` : null}
    ${found.asks ? html`<p><b>${found.asks}</b> would be asked first: ${found.reason}.</p><p>${outlook}</p>`
    : html`<p>Nobody would be asked: ${found.reason}.</p>`}</div>`;
}
