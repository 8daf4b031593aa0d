// Unsent comments on lines of diffs, by thread. The comments survive a reload of the page.
import { signal } from "@preact/signals";
import { html } from "./html.js";
import { plural } from "./format.js";

const all = signal(JSON.parse(sessionStorage.getItem("comments") || "{}"));

function keep(next) {
  all.value = next;
  sessionStorage.setItem("comments", JSON.stringify(next));
}

export const comments = (thread) => all.value[thread] || [];

export function addComment(thread, comment) {
  keep({ ...all.value, [thread]: [...comments(thread), comment] });
}

export function removeComment(thread, at) {
  keep({ ...all.value, [thread]: comments(thread).filter((_, number) => number !== at) });
}

export function forgetComments(thread) {
  const { [thread]: _, ...rest } = all.value;
  keep(rest);
}

export function PendingComments({ thread }) {
  const mine = comments(thread);
  if (!mine.length) return null;
  return html`<div class="pending"><p><b>${plural(mine.length, "comment")} on lines will be sent with it</b></p>
    <ul>${mine.map((one, at) => html`<li><code>${one.path}${one.line ? `:${one.line}` : ""}</code> ${one.text}
      <${RemoveButton} remove=${() => removeComment(thread, at)} /></li>`)}</ul></div>`;
}

export function RemoveButton({ remove }) {
  return html`<button class="plain" aria-label="Remove this comment" onClick=${remove}>✕</button>`;
}
