// Steps over time: when each role waited, worked and failed. Long waits are shortened, so that work stays readable.
import { html } from "./html.js";
import { duration, plural, roleName } from "./format.js";

const LONGEST_GAP = 0.12; // the longest wait that is drawn, as a share of all working time

export function Waterfall({ steps, onChoose }) {
  const ordered = [...steps].reverse();
  if (!ordered.length) return null;
  const work = ordered.reduce((sum, step) => sum + Math.max(1, step.durationMs), 0);
  let end = 0, before = null;
  const rows = ordered.map((step) => {
    const began = step.timestamp - step.durationMs;
    const gap = before == null ? 0 : Math.max(0, began - before);
    const shown = Math.min(gap, work * LONGEST_GAP);
    before = step.timestamp;
    const at = end + shown;
    const length = Math.max(1, step.durationMs);
    end = at + length;
    const failed = (step.attempts || []).reduce((sum, one) => sum + one.durationMs, 0);
    return { step, at, length, gap, shown, failed: Math.min(length * 0.9, failed) };
  });
  return html`<ol class="waterfall" aria-label="Steps over time">${rows.map((row) => html`
    <${Row} key=${row.step.id} ...${row} end=${end} onChoose=${onChoose} />`)}</ol>`;
}

function Row({ step, at, length, gap, shown, failed, end, onChoose }) {
  const bar = (from, size) => ({ left: `${(100 * from) / end}%`, width: `${(100 * size) / end}%` });
  const isPerson = step.role.startsWith("$") || step.agent === "human";
  const about = [
    `${roleName(step.role)}: ${duration(step.durationMs)}`,
    gap > 1000 ? `after waiting ${duration(gap)}` : "",
    step.attempts?.length ? plural(step.attempts.length, "failed attempt") : "",
  ];
  return html`<li><button type="button" onClick=${() => onChoose(step)} title=${about.filter(Boolean).join(", ")}>
    <span class="lane-name">${step.number} ${roleName(step.role)}</span>
    <span class="lane">
      ${gap > 50 ? html`<i class="gap" style=${bar(at - shown, shown)}></i>` : null}
      ${failed ? html`<i class="lost-time" style=${bar(at, failed)}></i>` : null}
      <i class="bar ${isPerson ? "person" : ""}" style=${bar(at + failed, length - failed)}></i></span>
    <span class="lane-time">${duration(step.durationMs)}</span></button></li>`;
}
