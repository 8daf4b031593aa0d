// What threads have used, by day, workflow, role and agent. Steps without a reported cost are counted separately.
import { html, useEffect, useRef, useState } from "../parts/html.js";
import { get, useGet } from "../parts/net.js";
import { route, setQuery } from "../parts/route.js";
import { Empty, Loading, Problem, Status, Tabs } from "../parts/controls.js";
import { agentName, count, duration, money, plural, shortId } from "../parts/format.js";

const AXES = [["workflow", "Workflow"], ["role", "Role"], ["agent", "Agent"], ["day", "Day"]];
const work = (minutes) => duration(minutes * 60_000);

export default function Spend() {
  const { days = "30", by = "workflow" } = route.value.query;
  const { data, error } = useSpending(days);
  if (error) return html`<h1>Spend</h1><${Problem} error=${error} />`;
  if (!data) return html`<h1>Spend</h1><${Loading} />`;
  const choice = html`<select aria-label="How far back" value=${days}
    onChange=${(event) => setQuery({ days: event.target.value })}>
    ${["7", "30", "90", "365"].map((one) => html`<option value=${one}>${one} days</option>`)}</select>`;
  if (!data.rows.length) {
    return html`<h1>Spend</h1><p>${choice}</p><${Empty} title="Nothing was used in this period.">
      <p>The cost of your threads appears here once some have run.</p>
      <p><a class="button main" href="/start">Start a thread</a></p></${Empty}>`;
  }
  const left = data.left ? ` counting: ${plural(data.left, "thread")} left…` : "";
  return html`<h1>Spend</h1><p>${choice}<span class="faint" role="status">${left}</span></p>
    <${Totals} sum=${addUp(data.rows)} completed=${data.completed} />
    <${Chart} rows=${data.rows} days=${Number(days)} />
    <${Tabs} label="Group by" tabs=${AXES} chosen=${by} choose=${(name) => setQuery({ by: name })} />
    <${Groups} rows=${data.rows} by=${by} />
    <${NearLimits} />`;
}

// Repeats the request until all threads are counted.
function useSpending(days) {
  const [state, setState] = useState({ data: null, error: null });
  useEffect(() => {
    let isCurrent = true;
    const load = async () => {
      try {
        const data = await get("/spend", { days });
        if (!isCurrent) return;
        setState({ data, error: null });
        if (data.left) load();
      } catch (error) {
        if (isCurrent) setState((old) => ({ ...old, error }));
      }
    };
    load();
    return () => { isCurrent = false; };
  }, [days]);
  return state;
}

function Totals({ sum, completed }) {
  const tiles = [
    ["Reported cost", money(sum.cost)],
    ["Without a cost", plural(sum.unpriced, "step")],
    ["Tokens", count(sum.tokens)],
    ["Steps", count(sum.steps)],
    ["Failed attempts", count(sum.attempts)],
    ["Work", work(sum.minutes)],
    ["Per completed thread", completed ? money(sum.cost / completed) : "–"],
  ];
  return html`<dl class="tiles">${tiles.map(([name, value]) => html`
    <div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Groups({ rows, by }) {
  const [, title] = AXES.find(([name]) => name === by) || AXES[0];
  return html`<div class="table-box" role="tabpanel" aria-label=${by}><table class="list">
    <thead><tr><th>${title}</th><th class="number">Reported cost</th><th class="number">Steps without a cost</th>
      <th class="number">Tokens</th><th class="number">Steps</th><th class="number">Failed</th>
      <th class="number">Work</th></tr></thead>
    <tbody>${groupBy(rows, by).map(([name, sum]) => html`<tr key=${name}>
      <td class="wide">${by === "agent" ? agentName(name) : name}</td>
      <td class="number">${costOf(sum)}</td>
      <td class="number" data-unit="steps without a cost">${sum.unpriced || ""}</td>
      <td class="number" data-unit="tokens">${count(sum.tokens)}</td>
      <td class="number" data-unit=${sum.steps === 1 ? "step" : "steps"}>${count(sum.steps)}</td>
      <td class="number" data-unit="failed">${sum.attempts || ""}</td>
      <td class="number">${work(sum.minutes)}</td></tr>`)}</tbody></table></div>`;
}

// Programs that use no tokens have no cost to report.
function costOf(sum) {
  if (!sum.cost && sum.unpriced) return "unknown";
  return sum.cost || sum.tokens ? money(sum.cost) : "–";
}

const AMOUNTS = { cost: money, minutes: work };

// Threads that are close to a limit.
function NearLimits() {
  const { data, error } = useGet("/limits");
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  if (!data.threads.length) return null;
  return html`<section class="card"><h2>Near a limit</h2>
    <p class="faint">Threads that have not ended and have used 80\u00a0% of a limit or
      more${data.more ? "; older ones were not looked at" : ""}.</p>
    <div class="table-box"><table class="list">
      <thead><tr><th>Thread</th><th>Status</th><th>Limit</th>
        <th class="number">Used</th><th class="number">Share</th></tr></thead>
      <tbody>${data.threads.slice(0, 20).map((one) => {
        const show = AMOUNTS[one.limit] || count;
        return html`<tr key=${one.thread + one.limit}>
          <td class="wide"><a data-row href="/threads/${one.thread}">${one.title || shortId(one.thread)}</a></td>
          <td><${Status} is=${one.status} /></td><td>${one.limit}</td>
          <td class="number">${show(one.used)} of ${show(one.most)}</td>
          <td class="number">${Math.floor((100 * one.used) / one.most)} %</td></tr>`;
      })}</tbody></table></div></section>`;
}

const KEYS = ["cost", "unpriced", "tokens", "steps", "attempts", "minutes"];

function addUp(rows) {
  const add = (sum, row) => Object.fromEntries(KEYS.map((key) => [key, (sum[key] || 0) + row[key]]));
  return rows.reduce(add, {});
}

function groupBy(rows, axis) {
  const found = new Map();
  for (const row of rows) found.set(row[axis], [...(found.get(row[axis]) || []), row]);
  const sums = [...found].map(([name, mine]) => [name, addUp(mine)]);
  if (axis === "day") return sums.sort(([one], [other]) => (one < other ? 1 : -1));
  return sums.sort(([, one], [, other]) => other.cost - one.cost || other.tokens - one.tokens);
}

let loading = null;

function loadChart() {
  const urlOf = (name) => new URL(`../vendor/${name}`, import.meta.url).href;
  loading ||= new Promise((resolve, reject) => {
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: urlOf("uplot.css") });
    const script = Object.assign(document.createElement("script"), { src: urlOf("uplot.js") });
    script.onload = () => (window.uPlot ? resolve(window.uPlot) : reject());
    script.onerror = reject;
    document.head.append(style, script);
  });
  return loading;
}

function Chart({ rows, days }) {
  const box = useRef(null);
  const [isMissing, setMissing] = useState(false);
  const hasCost = rows.some((row) => row.cost > 0);
  useEffect(() => {
    let chart = null, isCurrent = true;
    loadChart().then((uPlot) => {
      if (isCurrent && box.current) chart = draw(uPlot, box.current, rows, days, hasCost);
    }, () => setMissing(true));
    return () => {
      isCurrent = false;
      chart?.destroy();
    };
  }, [rows, days]);
  const about = hasCost ? "Reported cost by day" : "Tokens by day; no agent reported a cost";
  if (isMissing) return html`<p class="faint">The chart cannot be drawn. The table has the same numbers.</p>`;
  return html`<figure class="card chart"><figcaption>${about}</figcaption><div ref=${box}></div></figure>`;
}

function draw(uPlot, box, rows, days, hasCost) {
  const byDay = new Map(groupBy(rows, "day"));
  const today = Math.floor(Date.now() / 86_400_000 - new Date().getTimezoneOffset() / 1440);
  const times = Array.from({ length: days }, (_, at) => (today - days + 1 + at) * 86_400);
  const dayOf = (time) => new Date(time * 1000).toISOString().slice(0, 10);
  const values = times.map((time) => byDay.get(dayOf(time))?.[hasCost ? "cost" : "tokens"] || null);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--edge"), width: 1 }, ticks: { show: false } };
  const show = (_chart, ticks) => ticks.map((one) => (hasCost ? `$${one}` : count(one)));
  const bars = uPlot.paths.bars({ size: [0.7, 40] });
  return new uPlot({
    width: box.clientWidth, height: 180, cursor: { show: false }, legend: { show: false },
    tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
    scales: { x: { time: true }, y: { range: (_chart, _min, max) => [0, max * 1.1 || 1] } },
    axes: [axis, { ...axis, size: 64, values: show }],
    series: [{}, { fill: colour("--accent"), stroke: colour("--accent"), paths: bars, points: { show: false } }],
  }, [times, values], box);
}
