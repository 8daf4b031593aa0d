// A patch, file by file, with line numbers. A person can comment on the lines.
import { html, useMemo, useState } from "./html.js";
import { plural } from "./format.js";
import { Loading, Problem } from "./controls.js";
import { useGet } from "./net.js";
import { addComment, comments, RemoveButton, removeComment } from "./comments.js";

const MOST_LINES = 1500; // how many lines of a file are drawn at once
const MOST_OPEN = 3000; // files are open at first up to this many lines in total

// Reads a file name as git writes it: a name with unusual characters is quoted like a string in C.
function unquote(name) {
  if (!name.startsWith('"')) return name.replace(/\t$/, "");
  const signs = { t: "\t", n: "\n", r: "\r" };
  return name.slice(1, -1).replace(/\\([0-7]{3}|.)/g, (_, code) => (
    code.length === 3 ? String.fromCharCode(parseInt(code, 8)) : signs[code] || code));
}

export function parsePatch(text) {
  const files = [];
  let file = null, hunk = null, old = 0, now = 0;
  for (const line of text.split("\n")) {
    if (line.startsWith("diff --git ")) {
      const name = / ("b\/.*"|b\/.*)$/.exec(line)?.[1] || "";
      file = { path: unquote(name).slice(2), notes: [], hunks: [], added: 0, removed: 0 };
      hunk = null;
      files.push(file);
    } else if (!file) continue;
    else if (!hunk && /^\+\+\+ "?b\//.test(line)) file.path = unquote(line.slice(4)).slice(2);
    else if (!hunk && (line.startsWith("--- ") || line.startsWith("+++ ") || line.startsWith("index "))) continue;
    else if (line.startsWith("@@")) {
      const found = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/.exec(line);
      old = Number(found?.[1] || 1);
      now = Number(found?.[2] || 1);
      hunk = { about: found?.[3] || "", lines: [] };
      file.hunks.push(hunk);
    } else if (!hunk) file.notes.push(line);
    else if (line.startsWith("+")) {
      hunk.lines.push({ sign: "+", now: now++, text: line.slice(1) });
      file.added += 1;
    } else if (line.startsWith("-")) {
      hunk.lines.push({ sign: "-", old: old++, text: line.slice(1) });
      file.removed += 1;
    } else if (line.startsWith(" ")) hunk.lines.push({ sign: " ", old: old++, now: now++, text: line.slice(1) });
    else if (line.startsWith("\\")) hunk.lines.push({ sign: "\\", text: line });
  }
  return files;
}

// `part` has a patch and the paths of `omitted` files. `source` is the path of the API for the patch of a single file.
export function Diff({ part, source, query, thread, canComment }) {
  const files = useMemo(() => parsePatch(part.diff || ""), [part.diff]);
  const omitted = part.omitted || [];
  if (!files.length && !omitted.length) return html`<p class="faint">No file differs.</p>`;
  let sum = 0;
  return html`<div class="diff">${files.map((file) => {
    sum += Math.min(sizeOf(file), MOST_LINES);
    return html`<${File} key=${file.path} file=${file} thread=${thread} canComment=${canComment}
      isOpen=${sum <= MOST_OPEN} />`;
  })}
    ${part.isCut ? html`<p class="faint">The patch is cut here: it is too large for a page.</p>` : null}
    ${omitted.map((path) => html`<${Omitted} key=${path} path=${path} source=${source} query=${query} thread=${thread}
      change=${(part.changes || []).find((one) => one.path === path)} canComment=${canComment} />`)}</div>`;
}

// A file whose patch is loaded when a person opens the file.
function Omitted({ path, source, query, change, ...rest }) {
  const [isOpen, setOpen] = useState(false);
  const { data, error } = useGet(isOpen ? source : null, { ...query, path });
  if (data?.parts.length) {
    return data.parts.map((part) => html`<${Diff} part=${part} source=${source} query=${query} ...${rest} />`);
  }
  return html`<details class="file" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><code>${path}</code> <span class="plus">+${change?.added ?? 0}</span>${" "}
      <span class="minus">−${change?.removed ?? 0}</span></summary>
    <${Problem} error=${error} />${isOpen && !error ? html`<${Loading} />` : null}</details>`;
}

const sizeOf = (file) => file.hunks.reduce((sum, hunk) => sum + hunk.lines.length, 0);

// Returns the hunks, cut after the first `most` lines of a file.
function firstLines(hunks, most) {
  let left = most;
  return hunks.map((hunk) => {
    const lines = hunk.lines.slice(0, Math.max(0, left));
    left -= lines.length;
    return { ...hunk, lines };
  }).filter((hunk) => hunk.lines.length);
}

function File({ file, thread, canComment, isOpen: isOpenFirst }) {
  const size = sizeOf(file);
  const [isOpen, setOpen] = useState(isOpenFirst);
  const [most, setMost] = useState(MOST_LINES);
  const notes = file.notes.filter((one) => one.trim()).map((one) => one.replace(/ file mode \d+$/, " file"));
  return html`<details class="file" open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><code>${file.path}</code> <span class="plus">+${file.added}</span>${" "}
      <span class="minus">−${file.removed}</span></summary>
    ${notes.map((one) => html`<p class="faint note">${one}</p>`)}
    ${isOpen && size ? html`<div class="code" tabindex="0" role="region" aria-label=${`Changes of ${file.path}`}><table>
      ${firstLines(file.hunks, most).map((hunk, at) => html`<tbody>
        ${at || hunk.about ? html`<tr class="hunk"><td colspan="4">${hunk.about.trim() || "…"}</td></tr>` : null}
        ${hunk.lines.map((line) => html`
          <${Line} key=${`${line.old} ${line.now} ${line.text}`} line=${line} path=${file.path} thread=${thread} canComment=${canComment} />`)}</tbody>`)}
    </table></div>` : null}
    ${isOpen && size > most ? html`<p class="note"><button onClick=${() => setMost(most + MOST_LINES)}>
      Show more (${plural(size - most, "line")} left)</button></p>` : null}
  </details>`;
}

const LINE_KINDS = { "+": "added", "-": "removed", " ": "same", "\\": "same" };

function Line({ line, path, thread, canComment }) {
  const [isOpen, setOpen] = useState(false);
  const number = line.now ?? line.old;
  const side = line.now == null ? "old" : "new";
  const isHere = (one) => one.path === path && one.line === number && one.side === side;
  const mine = (canComment ? comments(thread) : []).map((one, at) => ({ ...one, at })).filter(isHere);
  const keep = (text) => {
    addComment(thread, { path, line: number, side, quote: line.text.slice(0, 200), text });
    setOpen(false);
  };
  return html`<tr class=${LINE_KINDS[line.sign]}>
      <td class="no">${line.old ?? ""}</td><td class="no">${line.now ?? ""}</td>
      <td class="comment-on">${canComment && number ? html`<button class="plain" onClick=${() => setOpen(true)}
        aria-label=${`Comment on line ${number} of ${path}`}>+</button>` : null}</td>
      <td class="text"><span class="sign" aria-hidden="true">${line.sign}</span>${line.text}</td></tr>
    ${mine.map((one) => html`<tr class="comment"><td colspan="3"></td><td>${one.text}${" "}
      <${RemoveButton} remove=${() => removeComment(thread, one.at)} /></td></tr>`)}
    ${isOpen ? html`<tr class="comment"><td colspan="3"></td><td>
      <${CommentEditor} keep=${keep} close=${() => setOpen(false)} /></td></tr>` : null}`;
}

function CommentEditor({ keep, close }) {
  const [text, setText] = useState("");
  const focus = (box) => { if (box && !text) box.focus(); };
  const press = (event) => { if (event.key === "Escape") close(); };
  return html`<div data-submit><textarea rows="2" aria-label="Your comment" ref=${focus} value=${text}
      onInput=${(event) => setText(event.target.value)} onKeyDown=${press}></textarea>
    <p class="buttons"><button class="main" disabled=${!text.trim()} onClick=${() => keep(text.trim())}>
      Keep the comment</button> <button onClick=${close}>Cancel</button></p></div>`;
}
