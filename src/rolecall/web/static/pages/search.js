// Searches the texts of threads and the repository's knowledge.
import { html, useEffect, useRef, useState } from "../parts/html.js";
import { get, useGet } from "../parts/net.js";
import { route, setQuery } from "../parts/route.js";
import { Empty, Loading, Problem, Status, When } from "../parts/controls.js";
import { plural, shortId } from "../parts/format.js";

export default function Search() {
  const { q = "" } = route.value.query;
  const [words, setWords] = useState(q);
  const box = useRef(null);
  useEffect(() => { if (!q) box.current?.focus(); }, []);
  const search = (event) => {
    event.preventDefault();
    setQuery({ q: words.trim() });
  };
  return html`<h1>Search</h1>
    <form class="filters" role="search" onSubmit=${search}>
      <input ref=${box} type="search" aria-label="Words" placeholder="Words in tasks, answers and this repository"
        value=${words} onInput=${(event) => setWords(event.target.value)} />
      <button class="main">Search</button></form>
    ${q ? html`<div class="columns"><${Threads} q=${q} key=${`t${q}`} /><${Knowledge} q=${q} key=${`k${q}`} /></div>`
    : html`<${Empty} title="What are you looking for?"><p>The texts of all threads are searched, newest first, and the
        passages of this repository that answer best.</p></${Empty}>`}`;
}

function Threads({ q }) {
  const [state, setState] = useState({ found: [], searched: 0, next: null, isLoading: true, error: null });
  const load = async (after) => {
    setState((old) => ({ ...old, isLoading: true }));
    try {
      const { found, searched, next } = await get("/search", { q, after });
      setState((old) => ({
        found: [...old.found, ...found], searched: old.searched + searched, next, isLoading: false, error: null,
      }));
    } catch (error) {
      setState((old) => ({ ...old, error, isLoading: false }));
    }
  };
  useEffect(() => { load(); }, []);
  const outcome = `${state.found.length ? "" : "Nothing was found. "}${plural(state.searched, "thread")} searched.`;
  return html`<section class="grow"><h2>Threads</h2><${Problem} error=${state.error} />
    <ul class="cards">${state.found.map((one) => html`<${Found} key=${one.thread} one=${one} q=${q} />`)}</ul>
    ${state.isLoading ? html`<${Loading} />` : html`<p class="faint" role="status">${outcome}</p>`}
    ${state.next && !state.isLoading ? html`<p>
      <button onClick=${() => load(state.next)}>Search older threads</button></p>` : null}</section>`;
}

function Found({ one, q }) {
  const query = one.hit.number ? `?step=${one.hit.number}` : "?tab=task";
  return html`<li class="card"><h3><a data-row href="/threads/${one.thread}${query}">${one.title}</a></h3>
    <p class="faint"><${Status} is=${one.status} /> ${one.name} <code>${shortId(one.thread)}</code> ·${" "}
      <${When} at=${one.updated} /></p>
    <p class="hit">… ${highlight(one.hit.text, q)} …</p></li>`;
}

function highlight(text, q) {
  const words = q.split(/\s+/).filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const parts = text.split(new RegExp(`(${words.join("|")})`, "gi"));
  return parts.map((part, at) => (at % 2 ? html`<mark>${part}</mark>` : part));
}

function Knowledge({ q }) {
  const { data, error } = useGet("/knowledge", { q });
  if (data?.problem) return html`<p class="faint">${data.problem}</p>`;
  return html`<section class="grow"><h2>This repository</h2><${Problem} error=${error} />
    ${!data && !error ? html`<${Loading} />` : null}
    <ul class="cards">${(data?.answers || []).map((one) => html`<li class="card">
      <p><code>${one.path}:${one.start}</code> <span class="faint">${one.trail.join(" › ")}</span></p>
      <pre class="clip-lines" tabindex="0">${one.text}</pre></li>`)}</ul></section>`;
}
