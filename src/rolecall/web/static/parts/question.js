// What a thread waits for, and the controls that continue the thread: a form, a text, a higher limit, another try.
import { html, Prose, signal, useEffect, useRef, useState } from "./html.js";
import { me, post, useGet } from "./net.js";
import { ActionButton, Field, notify, Problem, When } from "./controls.js";
import { Form } from "./form.js";
import { agentName, answeredBy, roleName, stepAfter } from "./format.js";
import { comments, forgetComments, PendingComments } from "./comments.js";
import { forgetDraft, readDraft, useDraft } from "./drafts.js";

// The ids of the threads for which a person is writing an answer on this page.
export const drafts = signal({});

function markDraft(thread, isTyped) {
  const { [thread]: _, ...rest } = drafts.value;
  if (isTyped) rest[thread] = true;
  if (isTyped !== thread in drafts.value) drafts.value = rest;
}

const KINDS = { answer: AnswerRole, reply: AnswerQuestion, raise: RaiseLimit, retry: Retry, crashed: RunAgain };

// `level` is the tag of the heading, and `more` is an extra button. An answer belongs to the head that the person saw.
// If the thread moves on, the typed text stays, and nothing is sent until the person has seen what happened.
export function Question({ thread, onDone = () => {}, level = "h2", more = null }) {
  const current = thread.question;
  const isKept = useRef(current && readDraft(thread.thread, current.head) !== null).current;
  const draft = useRef({ question: isKept ? current : null, isTyped: isKept, number: 0 }).current;
  const [, redraw] = useState(0);
  useEffect(() => {
    markDraft(thread.thread, Boolean(isKept));
    return () => markDraft(thread.thread, false);
  }, []);
  if (!draft.isTyped) draft.question = current;
  const { question } = draft;
  if (!question) return null;

  const setTyped = (isTyped) => {
    draft.isTyped = isTyped;
    markDraft(thread.thread, isTyped);
  };
  const keep = () => { // keeps the typed text for the question that is asked now
    draft.question = current;
    redraw((old) => old + 1);
  };
  const finish = () => {
    forgetDraft(thread.thread, question.head);
    setTyped(false);
    draft.number += 1;
    redraw((old) => old + 1);
    onDone();
  };
  const lose = () => { // another person was first: loads what happened, and keeps the typed text
    setTyped(true);
    onDone();
  };
  const Kind = KINDS[question.kind];
  const hasMoved = current?.head !== question.head;
  return html`<section class="question" aria-label="What it waits for" data-submit onInput=${() => setTyped(true)}>
    ${hasMoved ? html`<${WentOn} thread=${thread} question=${question} keep=${current && keep} forget=${finish} />`
    : null}
    <div inert=${hasMoved}>
      <${Kind} key=${`${question.kind} ${question.role} ${draft.number}`} thread=${thread} question=${question}
        onDone=${finish} onLate=${lose} level=${level} more=${more} /></div>
  </section>`;
}

// Says who answered first.
function WentOn({ thread, question, keep, forget }) {
  const { data } = useGet(`/threads/${thread.thread}/steps`, { max: 40, head: thread.head });
  const first = data && stepAfter(data.steps, question.head);
  const by = first && answeredBy(first);
  const who = by ? `${by.person} (${by.door})` : first && agentName(first.agent);
  return html`<div class="problem" role="alert">
    <p><b>Nothing was sent: the thread continued before you answered.</b></p>
    ${first ? html`<p>${who} answered as ${roleName(first.role)} <${When} at=${first.timestamp} />.</p>` : null}
    ${keep ? html`<p>It asks again. Read what happened first.</p>` : null}
    <p class="buttons">${keep ? html`<button onClick=${keep}>I have read it</button>` : null}
      <button onClick=${forget}>${keep ? "Forget what I wrote" : "OK"}</button></p></div>`;
}

const RUNNERS = { service: "The service runs it.", process: "It runs.", nobody: "" };

function useSend(thread, onDone, onLate) {
  const [error, setError] = useState(null);
  const send = async (path, body) => {
    setError(null);
    try {
      const done = await post(`/threads/${thread.thread}/${path}`, body);
      forgetComments(thread.thread);
      notify(done.problem || `Sent. ${RUNNERS[done.runs] || ""}`, Boolean(done.problem));
      onDone();
    } catch (problem) {
      setError(problem);
      if (problem.status === 409) onLate();
    }
  };
  return { error, send };
}

function Before({ before, thread }) {
  if (!before) return null;
  return html`${before.html ? html`<details class="before" open>
      <summary>From ${roleName(before.role)} (step ${before.number})</summary>
      <${Prose} html=${before.html} /></details>` : null}
    <p><a href="/threads/${thread.thread}?tab=files">See what changed</a></p>`;
}

function AnswerRole({ thread, question, onDone, onLate, level, more }) {
  const { error, send } = useSend(thread, onDone, onLate);
  const mine = comments(thread.thread);
  const submit = (output, body) => send("answer", { output, body, head: question.head, comments: mine });
  const about = question.description ? `: ${question.description}` : "";
  return html`<${level}>You are asked as ${question.role}${about}</${level}>
    <${Prose} html=${question.instructionHtml} />
    <${Before} before=${question.before} thread=${thread} />
    ${question.promptHtml ? html`<details><summary>Prompt and procedure</summary>
      <${Prose} html=${question.promptHtml} /><${Prose} html=${question.procedureHtml} /></details>` : null}
    ${question.problem ? html`<p class="wrong">${question.problem}</p>` : null}
    <${PendingComments} thread=${thread.thread} />
    ${me.value.readOnly ? null : html`<${Form} thread=${thread.thread} question=${question} error=${error}
      submit=${submit} more=${more} />`}`;
}

function AnswerQuestion({ thread, question, onDone, onLate, level, more }) {
  const { error, send } = useSend(thread, onDone, onLate);
  const [text, setText] = useDraft(thread.thread, question.head, "text", "");
  const mine = comments(thread.thread);
  const answer = () => send("resume", { text, head: question.head, comments: mine });
  const title = question.isAsked ? `${roleName(question.role)} asks` : "It cannot continue by itself";
  return html`<${level}>${title}</${level}>
    <p class="reason">${question.reason}</p>
    <${Before} before=${question.before} thread=${thread} />
    ${question.problem ? html`<p class="wrong">${question.problem}</p>` : null}
    <${PendingComments} thread=${thread.thread} />
    ${me.value.readOnly ? null : html`
      <${Field} label="Your answer">
        <textarea rows="4" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></${Field}>
      <${Problem} error=${error} />
      <p class="buttons"><${ActionButton} class="main" disabled=${!text.trim() && !mine.length} run=${answer}>
        Answer</${ActionButton}>${more}</p>`}`;
}

function RaiseLimit({ thread, question, onDone, onLate, level, more }) {
  const { error, send } = useSend(thread, onDone, onLate);
  const [value, setValue] = useDraft(thread.thread, question.head, "value", question.value || "");
  const raise = () => send("resume", { limits: { [question.limit]: Number(value) }, head: question.head });
  return html`<${level}>It reached a limit</${level}>
    <p class="reason">${question.reason}</p>
    ${me.value.readOnly ? null : html`
      <${Field} label=${`New limit on ${question.limit}`}><input type="number" class="amount" min="0" step="any"
        value=${value} onInput=${(event) => setValue(event.target.value)} /></${Field}>
      <${Problem} error=${error} />
      <p class="buttons"><${ActionButton} class="main" disabled=${!(Number(value) > 0)} run=${raise}>
        Raise the limit and continue</${ActionButton}>${more}</p>`}`;
}

function Retry({ thread, question, onDone, onLate, level, more }) {
  const { error, send } = useSend(thread, onDone, onLate);
  const [text, setText] = useDraft(thread.thread, question.head, "text", "");
  return html`<${level}>${roleName(question.role || "It")} could not continue</${level}>
    <pre class="reason" tabindex="0">${question.reason}</pre>
    ${me.value.readOnly ? null : html`
      <${Field} label="A message to the role" hint="Leave it empty to try again unchanged.">
        <textarea rows="2" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></${Field}>
      <${Problem} error=${error} />
      <p class="buttons"><${ActionButton} class="main" run=${() => send("resume", { text, head: question.head })}>
        Try again</${ActionButton}>${more}</p>`}`;
}

function RunAgain({ thread, onDone, onLate, level, more }) {
  const { error, send } = useSend(thread, onDone, onLate);
  return html`<${level}>The process that ran it is gone</${level}>
    <p>No answer is lost. Run it to continue where it stopped.</p>
    <${Problem} error=${error} />
    ${me.value.readOnly ? null : html`<p class="buttons">
      <${ActionButton} class="main" run=${() => send("run", {})}>Run</${ActionButton}>${more}</p>`}`;
}
