// A member's work that could not be merged: the conflicts, and what a person can do about them.
import { html, useState } from "./html.js";
import { me, post } from "./net.js";
import { ActionButton, Dialog, notify, Problem } from "./controls.js";
import { shortId } from "./format.js";

export function SetAside({ item, onDone }) {
  const [error, setError] = useState(null);
  const [isRemoving, setRemoving] = useState(false);
  const { files = [], check } = item.conflict || {};
  const merge = async () => {
    setError(null);
    const done = await post(`/threads/${item.thread}/merge`);
    notify(`Merged into ${done.into}.`);
    onDone();
  };
  const remove = async () => {
    await post(`/threads/${item.thread}/folders/remove`, { force: true });
    notify("Its folder and branch were removed.");
    onDone();
  };
  return html`<section class="question" aria-label="What it waits for"><h3>Its work could not be merged</h3>
    <p class="reason">${item.reason}</p>
    <p>The branch <code>${item.branch}</code> has all of it, and nothing else was changed.${" "}
      <a href="/threads/${item.thread}?tab=files">See what it changed</a></p>
    ${files.map((file) => html`<${ConflictingFile} key=${file.path} file=${file} />`)}
    ${check ? html`<details><summary>Output of the check <code>${check.command.join(" ")}</code></summary>
      <pre class="log" tabindex="0">${check.output || "Nothing."}</pre></details>` : null}
    <${Problem} error=${error} />
    ${me.value.readOnly ? null : html`
      <p class="faint">Resolve ${check ? "what the check found" : "the conflict"} on that branch, then merge. A merge
        that still conflicts changes nothing.</p>
      <p class="buttons"><${ActionButton} class="main" run=${merge} onError=${setError}>Merge</${ActionButton}>
        <button class="danger" onClick=${() => setRemoving(true)}>Discard its work</button></p>`}
    ${isRemoving ? html`<${Dialog} title="Remove this work?" onClose=${() => setRemoving(false)}>
      <p>Its folder and the branch <code>${item.branch}</code> are removed, with work that exists nowhere else.
        The chain keeps its answers.</p>
      <p class="buttons"><${ActionButton} class="danger main" run=${remove}>Remove</${ActionButton}>
        <button onClick=${() => setRemoving(false)}>Cancel</button></p></${Dialog}>` : null}
  </section>`;
}

function ConflictingFile({ file }) {
  const others = (file.changed_by || []).map((one, at) => html`${at ? ", " : ""}
    ${one.thread ? html`<a href="/threads/${one.thread}">${shortId(one.thread)}</a>` : one.title}`);
  return html`<details><summary><code>${file.path}</code></summary>
    ${others.length ? html`<p class="faint">Also changed by ${others}.</p>` : null}
    ${file.hunks?.length ? file.hunks.map((hunk) => html`<pre class="log" tabindex="0">${hunk}</pre>`)
    : html`<p class="faint">${file.message}</p>`}</details>`;
}
