// The shell: navigation, the connection, keyboard shortcuts, and which page is shown.
import { html, render, useEffect, useState } from "./parts/html.js";
import { fetchEarly, firstEvent, get, makeTurns, me, needsSignIn, post, signIn } from "./parts/net.js";
import { connection, problems, startStream, useDebounced, useEvents } from "./parts/live.js";
import { navigate, route, title } from "./parts/route.js";
import { ActionButton, Boundary, Dialog, Field, Loading, Messages, Problem } from "./parts/controls.js";

const NAV = [
  ["/", "Inbox", "i"], ["/threads", "Threads", "t"], ["/start", "Start", "s"], ["/plan", "Plan", "p"],
  ["/evals", "Evals", "e"], ["/spend", "Spend", "c"], ["/service", "Service", "v"], ["/search", "Search", "f"],
];
const PAGES = [
  [/^\/$/, () => import("./pages/inbox.js")],
  [/^\/threads$/, () => import("./pages/threads.js")],
  [/^\/threads\/(?<thread>[^/]+)$/, () => import("./pages/thread.js")],
  [/^\/start(?:\/(?<name>.+))?$/, () => import("./pages/start.js")],
  [/^\/compare$/, () => import("./pages/compare.js")],
  [/^\/plan$/, () => import("./pages/plan.js")],
  [/^\/evals(?:\/(?<run>[^/]+))?$/, () => import("./pages/evals.js")],
  [/^\/spend$/, () => import("./pages/spend.js")],
  [/^\/service$/, () => import("./pages/service.js")],
  [/^\/search$/, () => import("./pages/search.js")],
];

const MOVING = [
  "suspended", "resumed", "step", "killed", "crashed", "folder_merged", "problem", "back", "reset",
];

function App() {
  const [error, setError] = useState(null);
  const load = () => get("/me").then((found) => {
    me.value = found;
    needsSignIn.value = null;
    setError(null);
  }, setError);
  useEffect(() => { load(); }, []);
  if (needsSignIn.value) return html`<${SignIn} />`;
  if (me.value) return html`<${Shell} />`;
  return error ? html`<main><${Problem} error=${error} retry=${load} /></main>` : html`<${Loading} />`;
}

function Shell() {
  const [isHelp, setHelp] = useState(false);
  const [takeTurn] = useState(makeTurns);
  const refresh = useDebounced(() => {
    const isInTime = takeTurn();
    get("/me").then((found) => { if (isInTime()) me.value = found; }, () => {});
  }, 400, 3000);
  useEvents(({ kind, body, thread }) => {
    const isMended = kind === "step_started" && thread in problems.value;
    if (isMended || (MOVING.includes(kind) && (kind !== "step" || body?.status !== "idle"))) refresh();
  });
  useShortcuts(() => setHelp(true));
  const { waiting, project, folder, readOnly } = me.value;
  useEffect(() => {
    document.title = `${waiting ? `(${waiting}) ` : ""}${title.value} · ${project} · Rolecall`;
  }, [waiting, title.value]);
  return html`<a class="skip" href="#main">Skip to content</a>
    <header class="top">
      <a class="brand" href="/"><img src=${new URL("icon.svg", import.meta.url).href} alt="" width="24" height="24" />
        Rolecall</a>
      <span class="project" title=${folder}>${project}</span>
      ${readOnly ? html`<span class="tag">read-only</span>` : null}
      <span class="grow"></span>
      <${Connection} /><${SettingsButton} />
    </header>
    <nav class="side" aria-label="Pages">${NAV.map(([path, name]) => html`
      <a href=${path} aria-current=${isHere(path) ? "page" : undefined}>${name}
        ${name === "Inbox" && waiting ? html`<b class="badge">${waiting > 99 ? "99+" : waiting}</b>` : null}</a>`)}
    </nav>
    <main id="main" tabindex="-1"><${Page} /></main>
    <${Messages} />
    ${isHelp ? html`<${Help} onClose=${() => setHelp(false)} />` : null}`;
}

const isHere = (path) => (path === "/" ? route.value.path === "/" : route.value.path.startsWith(path));

const loaded = new Map();

function Page() {
  const { path } = route.value;
  const found = PAGES.map(([pattern, load]) => [pattern.exec(path), load]).find(([match]) => match);
  const [, redraw] = useState(0);
  const [error, setError] = useState(null);
  const load = found?.[1];
  useEffect(() => {
    document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    title.value = NAV.find(([one]) => isHere(one))?.[1] || (path === "/compare" ? "Compare" : "Nothing is here");
  }, [path]);
  useEffect(() => {
    setError(null);
    if (load && !loaded.has(load)) {
      load().then((module) => { loaded.set(load, module.default); redraw((old) => old + 1); }, setError);
    }
  }, [load]);
  const Found = loaded.get(load);
  const isShown = !found || error || Found;
  // The stream begins with events since the first page's data was read, so the first page must be listening by then.
  useEffect(() => { if (isShown) firstEvent().then(startStream); }, [!isShown]);
  if (!found) {
    return html`<h1>Nothing is here</h1><p>There is no page at <code>${path}</code>. <a href="/">Go to the inbox</a></p>`;
  }
  if (error) return html`<${Problem} error=${error} retry=${() => location.reload()} />`;
  if (!Found) return html`<${Loading} />`;
  return html`<${Boundary} what="This page" key=${path}><${Found} ...${found[0].groups || {}} /></${Boundary}>`;
}

function Connection() {
  if (connection.value !== "lost") return null;
  return html`<span class="lost" role="status">Connection lost, trying again…</span>`;
}

function SettingsButton() {
  const [isOpen, setOpen] = useState(false);
  return html`<button class="plain" onClick=${() => setOpen(true)}>Settings</button>
    ${isOpen ? html`<${Settings} onClose=${() => setOpen(false)} />` : null}`;
}

function Settings({ onClose }) {
  const [name, setName] = useState(localStorage.getItem("person") || "");
  const [theme, setTheme] = useState(localStorage.getItem("theme") || "");
  const [link, setLink] = useState("");
  const keepName = (event) => {
    setName(event.target.value);
    localStorage.setItem("person", event.target.value.trim());
  };
  const chooseTheme = (event) => {
    const { value } = event.target;
    setTheme(value);
    if (value) localStorage.setItem("theme", value);
    else localStorage.removeItem("theme");
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
  };
  const signOut = async () => {
    await post("/signout");
    location.reload();
  };
  const makeLink = async () => setLink(location.origin + (await post("/links")).path);
  return html`<${Dialog} title="Settings" onClose=${onClose}>
    <${Field} label="Your name" hint="Recorded with your answers.">
      <input value=${name} placeholder=${me.value.person} onInput=${keepName} maxlength="100" /></${Field}>
    <${Field} label="Theme"><select value=${theme} onChange=${chooseTheme}>
      <option value="">System</option><option value="light">Light</option><option value="dark">Dark</option>
    </select></${Field}>
    <p class="buttons">
      ${me.value.readOnly ? null : html`<${ActionButton} run=${makeLink}>Sign in another browser</${ActionButton}>`}
      <${ActionButton} run=${signOut}>Sign out</${ActionButton}>
    </p>
    ${link ? html`<p>Open this link once, in the other browser:<br /><code class="wrap">${link}</code></p>` : null}
    <p class="faint wrap">Rolecall ${me.value.version} · store ${me.value.store}</p>
  </${Dialog}>`;
}

function SignIn() {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const submit = (event) => {
    event.preventDefault();
    signIn(token.trim()).then(() => location.reload(), setError);
  };
  if (needsSignIn.value !== "token") {
    return html`<main class="signin"><h1>Rolecall</h1>
      <p>This browser is not signed in. Open the link that <code>rolecall web</code> printed in its terminal.
        Each link works once; after each use, the terminal shows a fresh one.</p></main>`;
  }
  return html`<main class="signin"><h1>Rolecall</h1><form onSubmit=${submit}>
    <${Field} label="Token"><input type="password" autocomplete="current-password" value=${token} required
      onInput=${(event) => setToken(event.target.value)} /></${Field}>
    <${Problem} error=${error} /><button class="main">Sign in</button>
    <p>Or open the link that <code>rolecall web</code> printed.</p></form></main>`;
}

let pending = "";

function useShortcuts(showHelp) {
  useEffect(() => {
    const press = (event) => {
      const isTyping = /^(input|textarea|select)$/i.test(event.target.tagName);
      if (isTyping) return submitBy(event);
      if (event.ctrlKey || event.metaKey || event.altKey) return undefined;
      if (pending === "g") {
        pending = "";
        const found = NAV.find(([, , key]) => key === event.key);
        if (found) navigate(found[0]);
      } else if (event.key === "g") pending = "g";
      else if (event.key === "/") {
        event.preventDefault();
        navigate("/search");
      } else if (event.key === "?") showHelp();
      else if (event.key === "j" || event.key === "k") moveFocus(event.key === "j" ? 1 : -1);
      return undefined;
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

// Enter in a one-line field, and Ctrl+Enter in a larger field, press the main button of the form.
function submitBy(event) {
  const { target, key, ctrlKey, metaKey } = event;
  if (key !== "Enter" || target.closest("form")) return;
  const isLine = target.tagName === "INPUT" && !["checkbox", "radio"].includes(target.type);
  if (!isLine && !ctrlKey && !metaKey) return;
  event.preventDefault();
  target.closest("[data-submit]")?.querySelector("button.main:not(:disabled)")?.click();
}

function moveFocus(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const at = rows.indexOf(document.activeElement?.closest("[data-row]"));
  rows[Math.min(rows.length - 1, Math.max(0, at + by))]?.focus();
}

function Help({ onClose }) {
  return html`<${Dialog} title="Keyboard" onClose=${onClose}><dl class="keys">
    ${NAV.map(([, name, key]) => html`<dt><kbd>g</kbd> <kbd>${key}</kbd></dt><dd>${name}</dd>`)}
    <dt><kbd>/</kbd></dt><dd>Search</dd><dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>next or previous item of a list</dd>
    <dt><kbd>Enter</kbd></dt><dd>open; in a one-line field: send</dd>
    <dt><kbd>Ctrl</kbd> <kbd>Enter</kbd></dt><dd>in a text: send</dd>
    <dt><kbd>?</kbd></dt><dd>this help</dd></dl></${Dialog}>`;
}

// Load the code and the data of the first page while the server says who we are.
const first = PAGES.find(([pattern]) => pattern.test(location.pathname));
first?.[1]();
const [, thread] = /^\/threads\/([^/]+)$/.exec(location.pathname) || [];
if (location.pathname === "/") fetchEarly("/inbox");
else if (location.pathname === "/threads" && !location.search) fetchEarly("/threads?max=50");
else if (thread) ["", "/steps?max=40", "/graph"].forEach((part) => fetchEarly(`/threads/${thread}${part}`));
render(html`<${App} />`, document.getElementById("app"));
