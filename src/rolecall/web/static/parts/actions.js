// The actions that a person can take on a thread as a whole.
import { html, useState } from "./html.js";
import { me, post, postOnce, useGet } from "./net.js";
import { navigate } from "./route.js";
import { ActionButton, Checkbox, Dialog, Field, notify, Problem } from "./controls.js";
import { comments, forgetComments, PendingComments } from "./comments.js";
import { isLimited, plural, shortId } from "./format.js";

export function Actions({ data, reload }) {
  const [dialog, setDialog] = useState(null);
  const can = (name) => data.actions?.includes(name);
  const canRun = can("run") && data.status === "idle" && !isLimited(data);
  const close = () => setDialog(null);
  const run = async () => {
    await post(`/threads/${data.thread}/run`);
    reload();
  };
  const endWait = async () => {
    await post(`/threads/${data.thread}/resume`, { head: data.head });
    notify("The thread no longer waits.");
    reload();
  };
  return html`<div class="actions">
    ${canRun ? html`<${ActionButton} class="main" run=${run}>Run</${ActionButton}>` : null}
    ${can("run") && isLimited(data) ? html`<${ActionButton} run=${endWait}>Continue now</${ActionButton}>` : null}
    ${can("fork") ? html`<button onClick=${() => setDialog("fork")}>Fork</button>` : null}
    <button onClick=${() => setDialog("compare")}>Compare</button>
    <a class="button" href="/api/threads/${data.thread}/report" download>Report</a>
    ${can("kill") ? html`<button class="danger" onClick=${() => setDialog("kill")}>Kill</button>` : null}
    ${dialog === "fork" ? html`<${ForkDialog} data=${data} onClose=${close} />` : null}
    ${dialog === "kill" ? html`<${KillDialog} data=${data} onClose=${close} reload=${reload} />` : null}
    ${dialog === "compare" ? html`<${CompareDialog} data=${data} onClose=${close} />` : null}
  </div>`;
}

export function KillDialog({ data, onClose, reload }) {
  const [reason, setReason] = useState("");
  const kill = async () => {
    await post(`/threads/${data.thread}/kill`, { reason });
    onClose();
    notify("The thread was killed.");
    reload();
  };
  return html`<${Dialog} title="Kill this thread?" onClose=${onClose}>
    <p>This ends the thread and its process for good. Its steps stay, and you can fork it.</p>
    <${Field} label="Reason (optional)">
      <input value=${reason} onInput=${(event) => setReason(event.target.value)} /></${Field}>
    <p class="buttons"><${ActionButton} class="danger main" run=${kill}>Kill</${ActionButton}>
      <button onClick=${onClose}>Cancel</button></p></${Dialog}>`;
}

export function ForkDialog({ data, at, onClose }) {
  const [step, setStep] = useState(at == null ? "" : String(at));
  const [prompt, setPrompt] = useState("");
  const [agent, setAgent] = useState("");
  const [workflow, setWorkflow] = useState("");
  const [keepFiles, setKeepFiles] = useState(false);
  const [isRun, setRun] = useState(true);
  const [error, setError] = useState(null);
  const workflows = useGet("/workflows").data?.workflows || [];
  const fork = async () => {
    const order = { at: step, prompt, agent, workflow, keepFiles, run: isRun };
    const made = await postOnce(`/threads/${data.thread}/fork`, order);
    onClose();
    notify("The fork was created.");
    navigate(`/threads/${made.thread}`);
  };
  return html`<${Dialog} title="Fork" onClose=${onClose}>
    <p>A new thread with the same steps up to this one, and with their files, in a folder of its own.</p>
    <${Field} label="After step" hint="Leave it empty for the last step; “start” means before the first.">
      <input value=${step} onInput=${(event) => setStep(event.target.value)} /></${Field}>
    <${Field} label="Another task" hint="Leave it empty to keep the task.">
      <textarea rows="3" value=${prompt} onInput=${(event) => setPrompt(event.target.value)}></textarea></${Field}>
    <${Field} label="Another agent" hint="Plays every role. Leave it empty to keep the agents.">
      <input value=${agent} placeholder="claude:model=opus"
        onInput=${(event) => setAgent(event.target.value)} /></${Field}>
    <${Field} label="Another workflow">
      <select value=${workflow} onChange=${(event) => setWorkflow(event.target.value)}>
        <option value="">the same version</option>
        ${workflows.map((one) => html`<option value=${one.name}>${one.name}, as it is now</option>`)}
      </select></${Field}>
    <${Checkbox} label="Keep the files as they are now" value=${keepFiles} set=${setKeepFiles} />
    <${Checkbox} label="Run it at once" value=${isRun} set=${setRun} />
    <${Problem} error=${error} />
    <p class="buttons"><${ActionButton} class="main" run=${fork} onError=${setError}>Fork</${ActionButton}>
      <button onClick=${onClose}>Cancel</button></p></${Dialog}>`;
}

function CompareDialog({ data, onClose }) {
  const [other, setOther] = useState(data.forkedThread || "");
  const found = useGet("/threads", { workflow: data.name, max: 30 }).data?.threads || [];
  const others = found.filter((one) => one.thread !== data.thread).slice(0, 8);
  const addressOf = (id) => `/compare?one=${data.thread}&other=${encodeURIComponent(id)}`;
  return html`<${Dialog} title="Compare with" onClose=${onClose}>
    <${Field} label="Thread"><input value=${other} placeholder="its id, or a part of it"
      onInput=${(event) => setOther(event.target.value)} /></${Field}>
    ${others.length ? html`<p>Or one of the newest threads of ${data.name}:</p>` : null}
    <ul class="choose">${others.map((one) => html`<li><a href=${addressOf(one.thread)}>${one.title}
      <code>${shortId(one.thread)}</code></a></li>`)}</ul>
    <p class="buttons">
      <button class="main" disabled=${!other.trim()} onClick=${() => navigate(addressOf(other.trim()))}>Compare</button>
    </p></${Dialog}>`;
}

// Sends comments that no question accepts: to the role, or as part of the task of a fork.
export function SendComments({ thread, onDone }) {
  const mine = comments(thread.thread);
  const [error, setError] = useState(null);
  if (!mine.length || me.value.readOnly || ["answer", "reply"].includes(thread.question?.kind)) return null;
  const isRunning = ["running", "queued", "waiting"].includes(thread.status);
  const fork = async () => {
    const made = await postOnce(`/threads/${thread.thread}/fork`, { comments: mine });
    forgetComments(thread.thread);
    navigate(`/threads/${made.thread}`);
  };
  const answer = async () => {
    await post(`/threads/${thread.thread}/resume`, { comments: mine, head: thread.head });
    forgetComments(thread.thread);
    notify(`${plural(mine.length, "comment")} sent.`);
    onDone();
  };
  return html`<section class="card"><${PendingComments} thread=${thread.thread} /><${Problem} error=${error} />
    <p class="buttons">
      ${thread.status === "suspended" ? html`<${ActionButton} class="main" run=${answer} onError=${setError}>
        Send to the role</${ActionButton}>` : null}
      ${isRunning ? html`<span class="faint">They can be sent when the thread waits for a person or has ended.</span>`
    : html`<${ActionButton} run=${fork} onError=${setError}>
        Fork with these comments as part of the task</${ActionButton}>`}
    </p></section>`;
}
