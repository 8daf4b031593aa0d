// Calls of the JSON interface. An error is an object with `error`, `hint`, `code`, `status` and `problems`.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";

export const me = signal(null);
export const needsSignIn = signal(null); // "link" or "token"

export class Refused extends Error {
  constructor(status, body) {
    super(body.error || `the server answered ${status}`);
    Object.assign(this, { status, code: "failed", problems: [] }, body);
  }
}

const early = new Map();

// Fetch a path before the page that needs the reply is loaded. The first call for the path gets this reply.
export function fetchEarly(path) {
  const found = call(path);
  found.catch(() => {});
  early.set(path, found);
  first.push(found);
}

const first = [];

// The number of the oldest event that might be missing in the data that was loaded first.
export async function firstEvent() {
  const replies = await Promise.allSettled(first);
  const numbers = replies.map((one) => one.value?.lastEvent).filter((one) => one != null);
  return Math.min(me.value.lastEvent, ...numbers);
}

async function call(path, options) {
  const found = !options && early.get(path);
  if (found) {
    early.delete(path);
    return found;
  }
  let reply;
  try {
    reply = await fetch(`/api${path}`, { credentials: "same-origin", ...options });
  } catch {
    const hint = "This page keeps trying.";
    throw new Refused(0, { error: "the server cannot be reached", code: "offline", hint });
  }
  const body = await reply.json().catch(() => ({}));
  if (reply.status === 401) needsSignIn.value = body.signIn || "link";
  if (!reply.ok) throw new Refused(reply.status, body);
  return body;
}

export const get = (path, query) => call(path + toQuery(query));

export function post(path, body = {}, more = {}) {
  const headers = { "Content-Type": "application/json", "X-Rolecall": "1", ...more };
  const name = localStorage.getItem("person");
  if (name) headers["X-Rolecall-Person"] = encodeURIComponent(name);
  return call(path, { method: "POST", headers, body: JSON.stringify(body) });
}

const keys = new Map(); // the keys of unanswered requests, by path and body

// Send a request that creates something. If it is repeated after a lost reply, it has the same key and creates nothing.
export async function postOnce(path, body = {}) {
  const wanted = path + JSON.stringify(body);
  if (!keys.has(wanted)) keys.set(wanted, makeKey());
  const reply = await post(path, body, { "Idempotency-Key": keys.get(wanted) });
  keys.delete(wanted);
  return reply;
}

function makeKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function signIn(token) {
  const reply = await fetch("/signin", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token }),
  });
  if (!reply.ok) throw new Refused(reply.status, await reply.json().catch(() => ({})));
}

export function toQuery(query) {
  const kept = Object.entries(query || {}).filter(([, value]) => value !== "" && value != null && value !== false);
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
}

// Returns a function that each call uses to take a turn. A turn tells whether the reply of its call is in time: a reply
// is too late once the reply of a later call has been used.
export function makeTurns() {
  let sent = 0, used = 0;
  return () => {
    const mine = ++sent;
    return () => {
      used = Math.max(used, mine);
      return used === mine;
    };
  };
}

// The reply to a path as {data, error, reload, isLoading}. The path is requested again when it changes.
export function useGet(path, query) {
  const address = path && path + toQuery(query);
  const [state, setState] = useState({ data: null, error: null, isLoading: true, address: null });
  const [count, setCount] = useState(0);
  const [takeTurn] = useState(makeTurns);
  useEffect(() => {
    if (!address) return;
    const isInTime = takeTurn();
    const change = (next) => setState((old) => (old.address === address && isInTime() ? { ...old, ...next } : old));
    setState((old) => ({ ...old, data: old.address === address ? old.data : null, isLoading: true, address }));
    call(address).then(
      (data) => change({ data, error: null, isLoading: false }),
      (error) => change({ error, isLoading: false }),
    );
  }, [address, count]);
  return { ...state, reload: () => setCount((old) => old + 1) };
}
