// The page's only event stream. It is open while the page is visible, and reports when the connection is lost.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { get, needsSignIn } from "./net.js";

export const connection = signal("opening"); // opening, open, lost
export const problems = signal({}); // the reasons why threads could not be run, by the ids of the threads

const listeners = new Set();
let source = null;
let watched = ""; // the thread whose events are all sent
let last = null; // the number of the newest event known to the page, or null before the stream begins
let wasAway = false; // whether the page might have missed notices, which only open streams receive
let retry = 0;

// Begin the stream after the newest event that the loaded data includes. Later calls do nothing.
export function startStream(after) {
  if (last != null) return;
  last = after;
  openStream();
}

// Receive all events of a thread that follow the event `after`. With "", no thread is watched.
export function watchThread(thread, after = Infinity) {
  watched = thread;
  if (last == null) return; // the first stream is opened once everything is loaded
  last = Math.min(last, after);
  openStream();
}

function openStream() {
  closeStream();
  // A browser opens only six connections to a server for all its tabs, so a hidden tab uses none.
  wasAway ||= document.hidden;
  if (document.hidden || last == null) return;
  const query = new URLSearchParams({ after: last, ...(watched ? { thread: watched } : {}) });
  source = new EventSource(`/api/events?${query}`);
  source.onopen = () => {
    connection.value = "open";
    if (wasAway) publish({ kind: "back" });
    wasAway = false;
  };
  source.onerror = () => {
    connection.value = "lost";
    wasAway = true;
    if (source.readyState === EventSource.CLOSED) tryAgain();
  };
  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    if (message.lastEventId) last = Number(message.lastEventId);
    if (event.kind === "problem") problems.value = { ...problems.value, [event.thread]: event.text };
    publish(event);
    if (event.kind === "step_started") forgetProblem(event.thread);
  };
}

// A browser gives up after an error reply, which it gets while a server restarts behind a proxy, or if not signed in.
async function tryAgain() {
  await get("/me").catch(() => {}); // sets `needsSignIn` if the browser is not signed in
  if (!needsSignIn.value) retry = setTimeout(openStream, 2000);
}

function closeStream() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

document.addEventListener("visibilitychange", openStream); // a tab receives the events it missed when it is shown

function forgetProblem(thread) {
  if (!(thread in problems.value)) return;
  const { [thread]: _, ...rest } = problems.value;
  problems.value = rest;
}

function publish(event) {
  for (const listener of listeners) listener(event);
}

// Call `listener` with every event while the component is shown. After a `back` or `reset` event, load the data again.
export function useEvents(listener) {
  const newest = useRef(listener);
  newest.current = listener;
  useEffect(() => {
    const call = (event) => newest.current(event);
    listeners.add(call);
    return () => listeners.delete(call);
  }, []);
}

// Call `work` soon after the last of several calls, but at least every `most` milliseconds.
export function useDebounced(work, wait = 120, most = 1000) {
  const state = useRef({ timer: 0, since: 0 });
  const newest = useRef(work);
  newest.current = work;
  useEffect(() => () => clearTimeout(state.current.timer), []);
  return () => {
    const now = Date.now();
    state.current.since ||= now;
    clearTimeout(state.current.timer);
    const left = Math.max(0, Math.min(wait, state.current.since + most - now));
    state.current.timer = setTimeout(() => {
      state.current.since = 0;
      newest.current();
    }, left);
  };
}
