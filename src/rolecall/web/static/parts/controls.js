// Small components that several pages use.
import { html, useEffect, useErrorBoundary, useRef, useState } from "./html.js";
import { ago, moment } from "./format.js";
import { signal } from "@preact/signals";

const SIGNS = {
  running: "▶", queued: "…", idle: "○", waiting: "◔", suspended: "‖", completed: "✓", failed: "✗", killed: "■",
  discarded: "–", crashed: "!", damaged: "!", done: "✓", stopped: "■", open: "○", set_aside: "!",
};

export function Status({ is }) {
  const text = (is || "").replace("_", " ");
  return html`<span class="status ${is}"><i aria-hidden="true">${SIGNS[is] || "·"}</i>${text}</span>`;
}

const now = signal(Date.now());
setInterval(() => { now.value = Date.now(); }, 30_000);

export function When({ at }) {
  if (!at) return null;
  const text = ago(at, Math.max(now.value, at));
  return html`<time datetime=${new Date(at).toISOString()} title=${moment(at)}>${text}</time>`;
}

export function Problem({ error, retry }) {
  if (!error) return null;
  return html`<div class="problem" role="alert">
    <p><b>${error.message}</b>${error.hint ? html`<br />${error.hint}` : null}</p>
    ${error.problems?.length ? html`<ul>${error.problems.map((one) => html`<li>${one}</li>`)}</ul>` : null}
    ${retry ? html`<button onClick=${retry}>Try again</button>` : null}
  </div>`;
}

// Shows its children. If they cannot be drawn, shows the error instead, so that the rest of the page still works.
export function Boundary({ what, children }) {
  const [error, reset] = useErrorBoundary((problem) => console.error(problem));
  if (!error) return children;
  return html`<${Problem} error=${{ message: `${what} cannot be shown.`, hint: String(error) }} retry=${reset} />`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children}</div>`;
}

export const Loading = () => html`<p class="loading" role="status">Loading…</p>`;

// A button that shows whether its action is running, and what went wrong.
export function ActionButton({ run, children, class: name = "", onError = notifyError, disabled, ...rest }) {
  const [isBusy, setBusy] = useState(false);
  const press = async () => {
    setBusy(true);
    try {
      await run();
    } catch (error) {
      onError(error);
    } finally {
      setBusy(false);
    }
  };
  return html`<button type="button" class=${name} disabled=${isBusy || disabled} aria-busy=${isBusy}
    onClick=${press} ...${rest}>${children}</button>`;
}

// Messages at the edge of the page.
const messages = signal([]);
let number = 0;

export function notify(text, isBad = false) {
  const one = { id: ++number, text, isBad };
  const remove = () => { messages.value = messages.value.filter((other) => other.id !== one.id); };
  messages.value = [...messages.value, one];
  setTimeout(remove, isBad ? 12_000 : 5_000);
}

export function notifyError(error) {
  notify([error.message, error.hint].filter(Boolean).join(". "), true);
}

export function Messages() {
  return html`<div class="messages" role="status" aria-live="polite">
    ${messages.value.map((one) => html`<p key=${one.id} class=${one.isBad ? "bad" : ""}>${one.text}</p>`)}
  </div>`;
}

export function Dialog({ title, onClose, children }) {
  const box = useRef(null);
  const wasPressed = useRef(false); // outside the dialog; a text selection that only ends outside must not close it
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onClose=${onClose}
    onPointerDown=${(event) => { wasPressed.current = event.target === box.current; }}
    onClick=${(event) => event.target === box.current && wasPressed.current && onClose()}>
    <form method="dialog" class="dialog-head"><h2 id="dialog-title">${title}</h2>
      <button class="plain" aria-label="Close">✕</button></form>
    <div class="dialog-body" data-submit>${children}</div>
  </dialog>`;
}

export function Tabs({ tabs, chosen, choose, label }) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex(([name]) => name === chosen);
    const next = tabs[(at + step + tabs.length) % tabs.length][0];
    choose(next);
    event.currentTarget.querySelector(`[data-tab="${next}"]`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>
    ${tabs.map(([name, text]) => html`<button type="button" role="tab" data-tab=${name}
      aria-selected=${name === chosen} tabindex=${name === chosen ? 0 : -1}
      onClick=${() => choose(name)}>${text}</button>`)}
  </div>`;
}

export function Field({ label, hint, error, children }) {
  return html`<label class="field"><span class="field-name">${label}</span>${children}
    ${hint ? html`<small>${hint}</small>` : null}
    ${error ? html`<small class="wrong" role="alert">${error}</small>` : null}</label>`;
}

export function Checkbox({ label, hint, error, value, set }) {
  return html`<label class="field check">
    <input type="checkbox" checked=${value} onChange=${(event) => set(event.target.checked)} />
    <span class="field-name">${label}</span>
    ${hint ? html`<small>${hint}</small>` : null}
    ${error ? html`<small class="wrong" role="alert">${error}</small>` : null}</label>`;
}

// A button that loads the next page when the button comes into view.
export function More({ load, children }) {
  const box = useRef(null);
  const newest = useRef(load);
  newest.current = load;
  useEffect(() => {
    const look = ([entry]) => { if (entry.isIntersecting) newest.current(); };
    const observer = new IntersectionObserver(look, { rootMargin: "600px" });
    observer.observe(box.current);
    return () => observer.disconnect();
  });
  return html`<p ref=${box}><button onClick=${load}>${children}</button></p>`;
}
