// Formats times, amounts and ids for people.
const MINUTE = 60_000, HOUR = 60 * MINUTE, DAY = 24 * HOUR;

export function ago(ms, now = Date.now()) {
  const passed = now - ms;
  if (passed < 45_000) return "just now";
  if (passed < HOUR) return `${Math.round(passed / MINUTE)} min ago`;
  if (passed < 36 * HOUR) return `${Math.round(passed / HOUR)} h ago`;
  if (passed < 14 * DAY) return `${Math.round(passed / DAY)} days ago`;
  return new Date(ms).toLocaleDateString(undefined, { year: "numeric", month: "short", day: "numeric" });
}

export const moment = (ms) => new Date(ms).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });

export function duration(ms) {
  if (ms == null) return "";
  if (ms < 950) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < MINUTE) return `${(ms / 1000).toFixed(ms < 9_950 ? 1 : 0)} s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)} min ${Math.round((ms % MINUTE) / 1000)} s`;
  if (ms < 2 * DAY) return `${Math.floor(ms / HOUR)} h ${Math.round((ms % HOUR) / MINUTE)} min`;
  return `${Math.round(ms / DAY)} days`;
}

export function count(number) {
  if (number == null) return "";
  if (number < 10_000) return number.toLocaleString("en-US");
  if (number < 999_500) return `${(number / 1000).toFixed(number < 99_950 ? 1 : 0)} k`;
  return `${(number / 1e6).toFixed(1)} M`;
}

export function money(dollars) {
  if (dollars == null) return "";
  if (dollars >= 0.1 || !dollars) return `$${dollars.toFixed(2)}`;
  return `$${dollars.toFixed(4).replace(/(\.\d\d\d*?)0+$/, "$1")}`;
}

export function plural(number, word, many = `${word}s`) {
  return `${number.toLocaleString("en-US")} ${number === 1 ? word : many}`;
}

// Whether a thread waits for the end of a limit of its agent's provider.
export const isLimited = (thread) => thread.status === "idle" && thread.until > Date.now();

export const statusOf = (thread) => (isLimited(thread) ? "waiting" : thread.status);

export const shortId = (id) => id.slice(-8);

export const tokensOf = (usage = {}) => (usage.input_tokens || 0) + (usage.output_tokens || 0);

// The name of an agent without the path of its script or program.
export function agentName(name = "") {
  const [kind, ...rest] = name.split(":");
  const tail = rest.join(":");
  return tail.includes("/") ? `${kind}:${tail.split("/").pop()}` : name;
}

const ROLE_NAMES = { $PERSON: "a person", $FORK: "fork", $START: "start", $END: "end", $FAIL: "failed" };

export const roleName = (name) => ROLE_NAMES[name] || name;

// Returns the label for a field of an output.
export const labelOf = (name) => name.replace(/^\$/, "").replaceAll("_", " ");

// Who answered a step, if recorded: {person, door, address}. An agent could write anything into an output, so only a
// person's step is trusted.
export const answeredBy = (step) => step.by || (step.role === "$PERSON" ? step.output?.by : null) || null;

// Returns the step that followed `head` in a list of steps, newest first.
export function stepAfter(steps, head) {
  const at = steps.findIndex((step) => step.id === head);
  return at > 0 ? steps[at - 1] : null;
}
