// The project's plan: issues and decisions, tasks as a board and as a graph.
import { html, Prose, useState } from "../parts/html.js";
import { me, post, useGet } from "../parts/net.js";
import { useEvents } from "../parts/live.js";
import { ActionButton, Dialog, Empty, Field, Loading, Problem } from "../parts/controls.js";
import { plural } from "../parts/format.js";
import { Graph } from "../parts/graph.js";

const COLUMNS = [["blocked", "Blocked"], ["ready", "Ready"], ["in_progress", "In progress"], ["completed", "Done"]];

export default function Plan() {
  const { data, error, reload } = useGet("/project");
  useEvents((event) => { if (["project", "back", "reset"].includes(event.kind)) reload(); });
  const [dialog, setDialog] = useState(null);
  if (error && !data) return html`<h1>Plan</h1><${Problem} error=${error} retry=${reload} />`;
  if (!data) return html`<h1>Plan</h1><${Loading} />`;
  if (data.problem) {
    return html`<h1>Plan</h1><${Empty} title="There is no project here."><p>${data.problem}.</p>
      <p>A plan belongs to a git repository: run <code>git init</code> in this folder, or start the page in another.</p>
    </${Empty}>`;
  }
  const { plan, tasks, history } = data;
  const hasTasks = tasks.tasks?.length > 0;
  const isEmpty = !plan.active && !hasTasks;
  const finish = () => {
    setDialog(null);
    reload();
  };
  return html`<h1>Plan ${plan.active ? html`<small>${plan.topic}</small>` : null}</h1>
    ${me.value.readOnly ? null : html`<p class="buttons">
      ${plan.active ? html`<button onClick=${() => setDialog("issue")}>Add an issue</button>`
    : html`<button class="main" onClick=${() => setDialog("plan")}>Start a plan</button>`}
      <button onClick=${() => setDialog("task")}>Add a task</button>
      ${isEmpty ? null : html`<button onClick=${() => setDialog("close")}>Close the cycle</button>`}</p>`}
    ${isEmpty ? html`<${Empty} title="There is no plan yet."><p>A plan is a list of questions to decide; tasks carry the
      decisions out. Agents and people use the same plan.</p></${Empty}>` : null}
    ${plan.active ? html`<${Issues} plan=${plan} reload=${reload} />` : null}
    ${hasTasks ? html`<${Board} tasks=${tasks.tasks} reload=${reload} /><${TaskGraph} tasks=${tasks.tasks} />` : null}
    ${history.cycles?.length ? html`<section><h2>Closed cycles</h2><ul>${history.cycles.map((cycle) => html`
      <li>${cycle.topic || cycle.goal || cycle.plan?.topic || "(no plan)"}${" "}
        <span class="faint">${cycle.completed_at || ""}</span></li>`)}</ul></section>` : null}
    ${dialog ? html`<${PlanDialog} kind=${dialog} tasks=${tasks.tasks || []} onDone=${finish}
      onClose=${() => setDialog(null)} />` : null}`;
}

function Issues({ plan, reload }) {
  const open = plan.issues.filter((one) => one.status !== "decided").length;
  return html`<section><h2>Issues <small>${plural(open, "open question")}</small></h2>
    ${plan.researchHtml ? html`<details class="card"><summary>What is known</summary>
      <${Prose} html=${plan.researchHtml} /></details>` : null}
    <ul class="cards">${plan.issues.map((issue) => html`
      <${Issue} key=${issue.id} issue=${issue} reload=${reload} />`)}</ul>
  </section>`;
}

function Issue({ issue, reload }) {
  const [decision, setDecision] = useState("");
  const [title, setTitle] = useState(null); // the new title while a person edits it, otherwise null
  const isDecided = issue.status === "decided";
  const change = (verb, body) => async () => {
    await post(`/project/${verb}`, { issue: issue.id, ...body });
    reload();
  };
  const canWrite = !me.value.readOnly;
  const rename = async () => {
    await change("issue", { action: "edit", title })();
    setTitle(null);
  };
  if (title != null) {
    return html`<li class="card" data-submit>
      <${Field} label="Question"><input value=${title} onInput=${(event) => setTitle(event.target.value)} /></${Field}>
      <p class="buttons"><${ActionButton} class="main" disabled=${!title.trim()} run=${rename}>Rename</${ActionButton}>
        <button onClick=${() => setTitle(null)}>Cancel</button></p></li>`;
  }
  return html`<li class="card" data-submit><h3>${issue.id}. ${issue.title}</h3>
    ${isDecided ? html`<p><b>Decided:</b> ${issue.decision}</p>` : null}
    ${issue.how_agents?.length ? html`<p class="faint">with ${issue.how_agents.join(", ")}</p>` : null}
    ${!isDecided && !canWrite ? html`<p class="faint">open</p>` : null}
    ${isDecided && canWrite ? html`<p class="buttons">
      <${ActionButton} run=${change("issue", { action: "reopen" })}>Reopen</${ActionButton}></p>` : null}
    ${!isDecided && canWrite ? html`
      <${Field} label="Decision"><textarea rows="2" value=${decision}
        onInput=${(event) => setDecision(event.target.value)}></textarea></${Field}>
      <p class="buttons">
        <${ActionButton} class="main" disabled=${!decision.trim()} run=${change("decide", { decision })}>
          Decide</${ActionButton}>
        <button onClick=${() => setTitle(issue.title)}>Rename</button>
        <${ActionButton} run=${change("issue", { action: "remove" })}>Remove</${ActionButton}></p>` : null}</li>`;
}

function columnOf(task, byId) {
  if (task.status !== "pending") return task.status;
  return task.deps.every((dep) => byId[dep]?.status === "completed") ? "ready" : "blocked";
}

const indexTasks = (tasks) => Object.fromEntries(tasks.map((task) => [task.id, task]));

function Board({ tasks, reload }) {
  const byId = indexTasks(tasks);
  return html`<section><h2>Tasks</h2><div class="board">${COLUMNS.map(([column, name]) => {
    const mine = tasks.filter((task) => columnOf(task, byId) === column);
    return html`<section aria-label=${name}><h3>${name} <small>${mine.length}</small></h3>
      <ul class="cards">${mine.map((task) => html`<${Task} key=${task.id} task=${task} byId=${byId} column=${column}
        reload=${reload} />`)}</ul></section>`;
  })}</div></section>`;
}

function Task({ task, byId, column, reload }) {
  const missing = task.deps.filter((dep) => byId[dep]?.status !== "completed");
  const setStatus = (status) => async () => {
    await post("/project/task/status", { task: task.id, status });
    reload();
  };
  return html`<li class="card"><p><b>${task.id}. ${task.title}</b></p>
    <p class="clip-lines faint">${task.context}</p>
    ${task.acceptance ? html`<p class="faint">Done when: ${task.acceptance}</p>` : null}
    ${task.owner ? html`<p><span class="tag">${task.owner}</span></p>` : null}
    ${column === "blocked" ? html`<p class="faint">waits for${" "}
      ${missing.map((dep) => `${dep}. ${byId[dep]?.title || "(gone)"}`).join(", ")}</p>` : null}
    ${me.value.readOnly ? null : html`<p class="buttons">
      ${column === "ready" ? html`<${ActionButton} run=${setStatus("in_progress")}>Begin</${ActionButton}>` : null}
      ${column === "in_progress" ? html`<${ActionButton} run=${setStatus("completed")}>Done</${ActionButton}>` : null}
      ${task.status !== "pending" ? html`<${ActionButton} run=${setStatus("pending")}>Back</${ActionButton}>` : null}
    </p>`}</li>`;
}

function TaskGraph({ tasks }) {
  const lines = tasks.flatMap((task) => task.deps.map((dep) => (
    { source: String(dep), target: String(task.id), label: "" })));
  if (!lines.length) return null;
  const byId = indexTasks(tasks);
  const classes = { completed: "done", in_progress: "active", ready: "due", blocked: "" };
  const places = tasks.map((task) => {
    const title = task.title.length > 28 ? `${task.title.slice(0, 27)}…` : task.title;
    const text = `${task.id}. ${title}`;
    return { id: String(task.id), text, title: task.title, class: classes[columnOf(task, byId)] };
  });
  return html`<section><h2>Order</h2>
    <${Graph} label="Tasks by dependency" places=${places} lines=${lines} /></section>`;
}

const DIALOGS = {
  plan: { title: "Start a plan", name: "Topic", more: "Questions to decide, one per line" },
  issue: { title: "Add an issue", name: "Question" },
  task: { title: "Add a task", name: "Title", more: "What you need to know to do it" },
  close: { title: "Close the cycle?" },
};

const OPTIONAL = [["acceptance", "Done when (optional)"], ["owner", "Who does it (optional)"]];

function PlanDialog({ kind, tasks, onDone, onClose }) {
  const [name, setName] = useState("");
  const [more, setMore] = useState("");
  const [rest, setRest] = useState({ acceptance: "", owner: "" }); // the other fields of a task
  const [deps, setDeps] = useState([]);
  const [error, setError] = useState(null);
  const words = DIALOGS[kind];
  const send = async () => {
    const lines = more.split("\n").map((one) => one.trim()).filter(Boolean);
    if (kind === "plan") await post("/project/plan", { topic: name, issues: lines });
    if (kind === "issue") await post("/project/issue", { action: "add", title: name });
    if (kind === "task") await post("/project/task", { title: name, context: more, deps, ...rest });
    if (kind === "close") await post("/project/close");
    onDone();
  };
  const setDep = (id, isOn) => setDeps(isOn ? [...deps, id] : deps.filter((one) => one !== id));
  return html`<${Dialog} title=${words.title} onClose=${onClose}>
    ${kind === "close" ? html`<p>The plan and its tasks go to the history, finished or not.</p>` : null}
    ${words.name ? html`<${Field} label=${words.name}>
      <input value=${name} onInput=${(event) => setName(event.target.value)} /></${Field}>` : null}
    ${words.more ? html`<${Field} label=${words.more}>
      <textarea rows="4" value=${more} onInput=${(event) => setMore(event.target.value)}></textarea></${Field}>` : null}
    ${kind === "task" ? OPTIONAL.map(([key, label]) => html`<${Field} label=${label}><input value=${rest[key]}
      onInput=${(event) => setRest({ ...rest, [key]: event.target.value })} /></${Field}>`) : null}
    ${kind === "task" && tasks.length ? html`<fieldset class="choices"><legend>After</legend>
      ${tasks.map((task) => html`<label><input type="checkbox" checked=${deps.includes(task.id)}
        onChange=${(event) => setDep(task.id, event.target.checked)} />${task.id}. ${task.title}</label>`)}
    </fieldset>` : null}
    <${Problem} error=${error} />
    <p class="buttons">
      <${ActionButton} class="main" disabled=${words.name && !name.trim()} run=${send} onError=${setError}>
        ${kind === "close" ? "Close it" : "Save"}</${ActionButton}>
      <button onClick=${onClose}>Cancel</button></p></${Dialog}>`;
}
