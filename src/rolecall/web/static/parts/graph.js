// A graph of nodes ("places") and lines, laid out by dagre: a workflow with its live state, or tasks with dependencies.
import { html, useEffect, useState } from "./html.js";

let dagre = null;

function useLayout(places, lines, isDown) {
  const [found, setFound] = useState(null);
  const key = JSON.stringify([places, lines, isDown]);
  useEffect(() => {
    let isCurrent = true;
    (async () => {
      dagre ||= await import("../vendor/dagre.js");
      if (isCurrent) setFound(layOut(places, lines, isDown));
    })();
    return () => { isCurrent = false; };
  }, [key]);
  return found;
}

const HEIGHT = 40;
const SMALLEST = 0.7; // the scale to which a wide graph shrinks before it scrolls
const LOOP = 26; // the distance that a line from a place to itself extends from the place
const widthOf = (text) => Math.min(260, 7.2 * text.length);
const widthOfLabel = (text) => widthOf(text) * 0.86 + 8;
const isLoop = (line) => line.source === line.target;

function layOut(places, lines, isDown) {
  const graph = new dagre.Graph({ multigraph: true });
  const rankdir = isDown ? "TB" : "LR", ranksep = isDown ? 34 : 44;
  graph.setGraph({ rankdir, ranksep, nodesep: 28, edgesep: 16, marginx: 14, marginy: 14 });
  const loops = new Map(lines.filter(isLoop).map((line) => [line.source, line.label || ""]));
  for (const { id, text } of places) {
    const own = Math.max(64, widthOf(text) + 34);
    const room = { width: own, height: HEIGHT, own };
    // A line from a place to itself is drawn next to the place, in space reserved here.
    if (loops.has(id) && isDown) room.width += 2 * (LOOP + widthOf(loops.get(id)));
    if (loops.has(id) && !isDown) room.height += 2 * (LOOP + 16);
    graph.setNode(id, room);
  }
  for (const line of lines) {
    const { source, target, label } = line;
    if (isLoop(line) || !graph.hasNode(source) || !graph.hasNode(target)) continue;
    const room = { width: label ? widthOfLabel(label) : 0, height: label ? 18 : 0, labelpos: "c" };
    graph.setEdge(source, target, room, label || "-");
  }
  dagre.layout(graph);
  const { width, height } = graph.graph();
  const placeNode = (one) => ({ ...one, ...graph.node(one.id), width: graph.node(one.id).own, height: HEIGHT });
  const placeLine = (line) => (isLoop(line) ? bendBack(line, graph.node(line.source), isDown) : follow(line, graph));
  return {
    width: Math.ceil(width), height: Math.ceil(height),
    nodes: places.map(placeNode), edges: lines.map(placeLine).filter(Boolean),
  };
}

function follow(line, graph) {
  const found = graph.edge(line.source, line.target, line.label || "-");
  return found && { ...line, x: found.x, y: found.y, path: curve(found.points) };
}

function bendBack(line, { x, y, own }, isDown) {
  const reach = LOOP * 1.3;
  if (isDown) {
    const side = x + own / 2;
    const path = `M${side},${y - 10} C${side + reach},${y - 22} ${side + reach},${y + 22} ${side},${y + 10}`;
    return { ...line, path, x: side + LOOP + widthOf(line.label || "") / 2, y };
  }
  const foot = y + HEIGHT / 2;
  const path = `M${x + 14},${foot} C${x + 34},${foot + reach} ${x - 34},${foot + reach} ${x - 14},${foot}`;
  return { ...line, path, x, y: foot + LOOP + 6 };
}

function curve([first, ...rest]) {
  let path = `M${first.x},${first.y}`;
  for (let at = 0; at < rest.length - 1; at += 1) {
    const here = rest[at], next = rest[at + 1];
    path += ` Q${here.x},${here.y} ${(here.x + next.x) / 2},${(here.y + next.y) / 2}`;
  }
  const last = rest[rest.length - 1];
  return `${path} L${last.x},${last.y}`;
}

// `places`: {id, text, badge, class, title, isGroup}; `lines`: {source, target, label, class}.
export function Graph({ places, lines, label, onChoose, chosen }) {
  const isDown = matchMedia("(max-width: 720px)").matches;
  const bare = lines.map(({ source, target, label: text }) => ({ source, target, label: text }));
  const found = useLayout(places.map(({ id, text }) => ({ id, text })), bare, isDown);
  if (!found) return html`<div class="graph"></div>`;
  const { width, height } = found;
  const placeOf = Object.fromEntries(places.map((one) => [one.id, one]));
  const keyOf = (line) => `${line.source} ${line.target} ${line.label}`;
  const classOf = Object.fromEntries(lines.map((one) => [keyOf(one), one.class]));
  return html`<div class="graph" tabindex="0" role="region" aria-label=${label}>
    <svg role="group" aria-label=${label} viewBox=${`0 0 ${width} ${height}`} width=${width}
      style=${{ minWidth: `${SMALLEST * width}px` }}>
    <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9"
      markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0 L8,4 L0,8 z" /></marker></defs>
    ${found.edges.map((edge) => html`<g class="line ${classOf[keyOf(edge)] || ""}">
      <path d=${edge.path} marker-end="url(#tip)" />
      ${edge.label ? html`<rect x=${edge.x - widthOfLabel(edge.label) / 2} y=${edge.y - 6} height="14"
        width=${widthOfLabel(edge.label)} />
        <text x=${edge.x} y=${edge.y + 4} text-anchor="middle">${edge.label}</text>` : null}</g>`)}
    ${found.nodes.map((node) => html`<${Place} key=${node.id} node=${node} about=${placeOf[node.id] || node}
      onChoose=${onChoose} isChosen=${chosen === node.id} />`)}
  </svg></div>`;
}

function Place({ node, about, onChoose, isChosen }) {
  const isEnd = node.id.startsWith("$");
  const choose = onChoose && !isEnd ? () => onChoose(node.id) : null;
  const press = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose();
  };
  const button = { role: "button", tabindex: 0, onClick: choose, onKeyDown: press, "aria-pressed": isChosen };
  const { x, y, width, height } = node;
  const corner = `translate(${x - width / 2},${y - height / 2})`;
  const classes = ["place", about.class, isEnd && "end", isChosen && "chosen"].filter(Boolean).join(" ");
  return html`<g class=${classes} transform=${corner} ...${choose ? button : {}}>
    ${about.isGroup ? html`<rect x="5" y="-5" width=${width} height=${height} rx="8" />` : null}
    <rect width=${width} height=${height} rx=${isEnd ? 20 : 8} />
    <text x=${width / 2} y=${height / 2 + 5} text-anchor="middle">${about.text}</text>
    ${about.badge ? html`<g class="badge" transform=${`translate(${width - 4},0)`}>
      <circle r="11" /><text y="4" text-anchor="middle">${about.badge}</text></g>` : null}
    ${about.title ? html`<title>${about.title}</title>` : null}</g>`;
}
