// Everything that waits for a person.
import { html, useRef, useState } from "../parts/html.js";
import { me, post, useGet } from "../parts/net.js";
import { useDebounced, useEvents } from "../parts/live.js";
import { ActionButton, Boundary, Empty, Loading, Problem, When } from "../parts/controls.js";
import { plural, roleName, shortId } from "../parts/format.js";
import { KillDialog } from "../parts/actions.js";
import { SetAside } from "../parts/conflict.js";
import { drafts, Question } from "../parts/question.js";

const KINDS = {
  answer: "waits for an answer", reply: "waits for an answer", raise: "reached a limit", retry: "could not continue",
  crashed: "crashed", conflict: "could not be merged", run: "could not be run",
};
const MOVING = [
  "suspended", "resumed", "killed", "crashed", "completed", "folder_merged", "problem", "back", "reset",
];

export default function Inbox() {
  const { data, error, reload, isLoading } = useGet("/inbox");
  const soon = useDebounced(reload, 200, 2000);
  const shown = useRef([]);
  useEvents(({ kind, body, thread }) => {
    const isMended = kind === "step_started" && shown.current.some((item) => item.thread === thread);
    if (isMended || (kind === "step" ? body?.status !== "idle" : MOVING.includes(kind))) soon();
  });
  if (error && !data) return html`<h1>Inbox</h1><${Problem} error=${error} retry=${reload} />`;
  if (!data) return html`<h1>Inbox</h1>${isLoading ? html`<${Loading} />` : null}`;
  const items = keepDrafts(shown.current, data.items);
  shown.current = items;
  if (!items.length) return html`<h1>Inbox</h1><${NothingWaits} />`;
  return html`<h1>Inbox <small>${plural(items.length, "item")}${data.more ? " and more" : ""}</small></h1>
    <ul class="cards">${items.map((item, at) => html`<${Boundary} what="This item" key=${item.thread}>
      <${Item} item=${item} isFirst=${at === 0} onDone=${reload} /></${Boundary}>`)}</ul>`;
}

// Keeps an item for which a person is typing an answer until the person has seen that the thread has continued.
function keepDrafts(before, items) {
  const found = [...items];
  before.forEach((old, at) => {
    const isGone = !items.some((one) => one.thread === old.thread);
    if (isGone && drafts.value[old.thread]) found.splice(Math.min(at, found.length), 0, old);
  });
  return found;
}

function NothingWaits() {
  return html`<${Empty} title="Nothing waits for you.">
    <p>Questions of agents, roles that a person plays, threads that reached a limit or could not continue, and work that
      could not be merged appear here.</p>
    <p><a class="button main" href="/start">Start a thread</a> <a class="button" href="/threads">See all threads</a></p>
  </${Empty}>`;
}

function Item({ item, isFirst, onDone }) {
  const [isOpen, setOpen] = useState(isFirst);
  const Body = { conflict: SetAside, run: NotRun }[item.kind] || Waiting;
  return html`<li class="card">
    <div class="card-head">
      <div class="grow"><h2><a data-row href="/threads/${item.thread}">${item.title || shortId(item.thread)}</a></h2>
        <p class="faint">${item.name} · ${item.currentRole ? html`<b>${roleName(item.currentRole)}</b> ` : null}
          ${KINDS[item.kind] || item.status} · <${When} at=${item.updated} />
          ${item.parent ? html` · member of <a href="/threads/${item.parent}">${shortId(item.parent)}</a>` : null}</p>
      </div>
      <button aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${isOpen ? "Hide" : "Show"}</button>
    </div>
    ${isOpen ? html`<${Body} item=${item} onDone=${onDone} />` : html`<p class="clip">${item.asks || item.reason}</p>`}
  </li>`;
}

function NotRun({ item, onDone }) {
  const run = async () => {
    await post(`/threads/${item.thread}/run`);
    onDone();
  };
  return html`<section class="question" aria-label="What it waits for"><h3>It could not be run</h3>
    <pre class="reason" tabindex="0">${item.reason}</pre>
    ${me.value.readOnly ? null : html`<p class="buttons">
      <${ActionButton} class="main" run=${run}>Run</${ActionButton}></p>`}</section>`;
}

function Waiting({ item, onDone }) {
  const { data, error, reload } = useGet(`/threads/${item.thread}`);
  const [isGivingUp, setGivingUp] = useState(false);
  useEvents((event) => { if (event.thread === item.thread && event.kind !== "step_started") reload(); });
  if (error) return html`<${Problem} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  const finish = () => {
    reload();
    onDone();
  };
  const giveUp = data.actions.includes("kill")
    ? html`<button class="danger" onClick=${() => setGivingUp(true)}>Give up</button>` : null;
  return html`<${Question} thread=${data} onDone=${finish} level="h3" more=${giveUp} />
    ${isGivingUp ? html`<${KillDialog} data=${data} onClose=${() => setGivingUp(false)} reload=${onDone} />` : null}`;
}
